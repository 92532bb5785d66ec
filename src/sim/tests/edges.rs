//! Messages that meet another state than the one they left in: a window that began, numbers that were lowered, a key that
//! was cleared, tokens of somebody else.

use super::{modes::rule, *};
use crate::{algorithm::Algorithm, rule::Mode, sync::Order};

const TEN: Duration = Duration::from_secs(10);

impl World {
    /// How many of so many checks pass at this very moment: no message moves.
    fn passes_at_once(&mut self, node: usize, asked: u64) -> u64 {
        (0..asked).map(|_| u64::from(self.check_now(node, "k", 1))).sum()
    }

    fn change(&mut self, next: &Rule) {
        self.terms[0] = next.check("r").expect("a fair rule");
        for node in 0..self.nodes.len() {
            self.input(node, Input::Rules(vec![Some(self.terms[0])]));
        }
    }

    /// Asks for the key every ten milliseconds up to this second, so that tokens are lent ahead.
    fn ask_until(&mut self, second: f64) {
        while self.clock.now() < Micros((1_000e6 + second * 1e6) as u64) {
            self.check_by_mode(0, "k", 1);
            self.run(Micros::from_millis(10));
        }
    }
}

// case A-01: a report that left in one window and arrives in the next is booked in neither.
#[test]
fn a_report_that_meets_the_next_window_takes_nothing_from_it() {
    let mut world = World::new(1, &[rule(Algorithm::FixedWindow, 1_000, TEN)]);
    world.ask_until(9.92);
    world.half_trip = Micros::from_millis(100);
    let late = world.passes_at_once(0, 1_000);
    assert!(late > 0, "nothing was lent");
    world.tick(); // the report leaves
    world.half_trip = Micros(300);
    world.run(Micros::from_millis(500));
    let before = world.admitted();
    _ = world.passed(0, 1_100);
    assert_eq!(world.admitted() - before, 1_000, "a window of its own");
}

#[test]
fn a_refund_undoes_nothing_that_another_instance_took() {
    for algorithm in super::modes::LENDING {
        for mode in [Mode::Leased, Mode::Exact] {
            let mut world = World::new(2, &[rule(algorithm, 10, Duration::from_secs(10_000)).mode(mode)]);
            world.run(Micros::from_millis(10));
            assert_eq!((world.passed(0, 3), world.passed(1, 4)), (3, 4), "{algorithm:?} {mode:?}");
            world.refund(0, 50);
            world.run(Micros::from_secs(5)); // what is lent and idle goes back
            let more = world.passed(1, 12) + world.passed(0, 12);
            assert_eq!(more, 3 + 3, "{algorithm:?} {mode:?}: what was left, and what the one had taken");
        }
    }
}

// case A-23: what is left over is clipped to the new limit, here too.
#[test]
fn numbers_that_are_lowered_leave_no_more_in_hand_than_they_allow() {
    let (mut world, hold) = one_rich_node();
    assert!(hold > 10);
    world.change(&Rule::token_bucket(100, Duration::from_secs(1)).burst(10));
    let passed = world.passes_at_once(0, 1_000);
    assert!(passed <= 10, "{passed} of a burst of 10");
}

#[test]
fn windows_of_another_length_begin_with_empty_hands() {
    let mut world = World::new(1, &[rule(Algorithm::FixedWindow, 1_000, TEN)]);
    world.ask_until(5.0);
    assert!(world.nodes[0].engine.tally().hold > 5);
    world.change(&rule(Algorithm::FixedWindow, 1_000, 2 * TEN));
    assert_eq!(world.passes_at_once(0, 100), 0, "what was lent is of a window that is not there any more");
    assert!(world.passes(0, 1));
}

// An order is done while a question from before it is under way: its no is for nobody who asks after the order.
#[test]
fn an_answer_from_before_a_clear_refuses_nobody_after_it() {
    for algorithm in super::modes::LENDING {
        for mode in [Mode::Leased, Mode::Exact] {
            for waits in [false, true] {
                let what = format!("{algorithm:?} {mode:?} waits {waits}");
                let mut world = World::new(1, &[rule(algorithm, 10, Duration::from_secs(10_000)).mode(mode)]);
                world.run(Micros::from_millis(10));
                assert_eq!(world.passed(0, 12), 10, "{what}");
                world.run(Micros::from_millis(1_020)); // a no is remembered for a second
                world.check_by_mode(0, "k", 1);
                world.tick(); // the question leaves
                world.half_trip = Micros::from_millis(20);
                world.run(Micros(500)); // it is answered: no
                world.half_trip = Micros(300);
                assert_eq!(world.order(0, Order::Clear), Answer::Done, "{what}");
                if !waits {
                    world.run(Micros::from_millis(30)); // that answer has come
                }
                assert!(world.passes(0, 1), "{what}: cleared");
            }
        }
    }
}

// Who is told no is not asked about again with each check, but once in a second.
#[test]
fn a_no_is_believed_for_a_second_however_often_it_is_asked_for() {
    for algorithm in super::modes::LENDING {
        let mut world = World::new(1, &[rule(algorithm, 10, Duration::from_secs(10_000))]);
        world.run(Micros::from_millis(10));
        assert_eq!(world.passed(0, 12), 10, "{algorithm:?}");
        world.run(Micros::from_millis(100));
        let before = world.syncs();
        for _ in 0..1_900 {
            assert!(!world.check_now(0, "k", 1));
            world.run(Micros::from_millis(1));
        }
        let syncs = world.syncs() - before;
        assert!((1..=4).contains(&syncs), "{algorithm:?}: {syncs} questions in 1.9 s");
    }
}

// What a thread has taken ahead of a hot key is no way around a block.
#[test]
fn a_block_holds_for_a_hot_key_at_once() {
    for algorithm in super::modes::LENDING {
        for mode in [Mode::Leased, Mode::Buffered] {
            let limit = rule(algorithm, 1_000_000, Duration::from_secs(100)).mode(mode);
            let mut world = World::new(1, &[limit]);
            for _ in 0..10_000 {
                world.check_by_mode(0, "k", 1);
                world.tick();
            }
            assert!(world.passes_at_once(0, 10) > 0, "{algorithm:?} {mode:?}");
            assert_eq!(world.order(0, Order::Block(Micros::from_secs(30))), Answer::Done);
            assert_eq!(world.passes_at_once(0, 1_000), 0, "{algorithm:?} {mode:?}");
        }
    }
}

// The tokens of a fixed window are spent up to its end and not after it, though no engine looks.
#[test]
fn the_tokens_of_a_window_are_worth_nothing_after_it() {
    let mut world = World::new(1, &[rule(Algorithm::FixedWindow, 1_000, TEN)]);
    world.ask_until(9.9);
    let end = Micros::from_secs(1_010);
    world.clock.advance(end.minus(world.clock.now()).minus(Micros::from_millis(5)));
    assert_eq!(world.passes_at_once(0, 1), 1, "not over yet");
    world.clock.advance(Micros::from_millis(5));
    assert_eq!(world.passes_at_once(0, 100), 0, "over");
}

// case A-28: a refund that was booked and whose answer got lost does not come back again with the next lease.
#[test]
fn a_refund_whose_answer_is_lost_comes_back_once() {
    for algorithm in super::modes::LENDING {
        for mode in [Mode::Leased, Mode::Exact] {
            let rule = rule(algorithm, 20, Duration::from_secs(10_000)).mode(mode);
            let mut world = World::new(2, &[rule.lease_ttl(Duration::from_secs(2))]);
            world.run(Micros::from_millis(10));
            assert_eq!(world.passed(0, 5), 5, "{algorithm:?} {mode:?}");
            world.run(Micros::from_millis(20));
            assert_eq!(world.passed(1, 30), 15, "{algorithm:?} {mode:?}");
            world.run(Micros::from_millis(20));
            world.refund(0, 5);
            while world.letters.values().all(|letter| !matches!(letter, Letter::Request { .. })) {
                world.tick();
            }
            world.faults = Some((100, 0)); // the question is on its way; its answer, and all that comes after it, is lost
            world.run(Micros::from_secs(4));
            world.faults = None;
            world.run(Micros::from_secs(1));
            assert_eq!(world.passed(0, 30) + world.passed(1, 30), 5, "{algorithm:?} {mode:?}");
        }
    }
}

// An answer of the old window that comes in the new one ends nothing: what was spent there is still to be told.
#[test]
fn an_answer_that_comes_after_the_edge_makes_nobody_forget_what_was_spent_since() {
    let mut world = World::new(2, &[rule(Algorithm::FixedWindow, 30, TEN).mode(Mode::Buffered).delta_max(9)]);
    world.ask_until(9.99);
    world.refund(0, 1); // something to tell
    while world.letters.values().all(|letter| !matches!(letter, Letter::Request { .. })) {
        world.tick();
    }
    world.half_trip = Micros::from_millis(60);
    world.run(Micros::from_millis(40)); // the window ends; the answer is on its way
    world.half_trip = Micros(300);
    let before = world.admitted();
    assert_eq!(world.passes_at_once(0, 30), 9);
    assert!(world.passed(1, 60) >= 30);
    world.run(Micros::from_millis(100));
    _ = world.passes_at_once(0, 30);
    let passed = world.admitted() - before;
    assert!(passed <= 30 + 2 * 9, "{passed} in a window of 30, two of which may be 9 ahead");
    assert_eq!(world.nodes[0].engine.tally().expired, 0);
}

// A clock that was set forward ends a window sooner: from the next answer on that is known.
#[test]
fn a_window_that_ends_sooner_than_was_told_ends_here_with_the_next_answer() {
    for mode in [Mode::Leased, Mode::Buffered] {
        let mut world = World::new(1, &[rule(Algorithm::FixedWindow, 1_000, TEN).mode(mode)]);
        world.ask_until(4.0);
        world.store.step_clock(5_000_000);
        world.ask_until(4.9);
        world.run(Micros::from_millis(200)); // the window is over, by the clock that was set
        let before = world.admitted();
        _ = world.passes_at_once(0, 1_000);
        world.run(Micros::from_millis(500));
        _ = world.passed(0, 1_100);
        let most = if mode == Mode::Leased { 1_000 } else { 1_000 + world.terms[0].ahead(1) };
        let passed = world.admitted() - before;
        assert!(passed <= most, "{mode:?}: {passed} in a window of 1,000");
    }
}
