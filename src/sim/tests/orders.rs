//! Windows at their edges, reports of `Buffered`, refunds, blocks, and rules that change under way.

use super::{modes::rule, *};
use crate::{algorithm::Algorithm, rule::Mode, sync::Order};

impl World {
    fn key(text: &str) -> Key<'_> {
        Key::new(text.as_bytes(), LongKeys::Hash).expect("a short key")
    }

    /// One check, and what came of it within 50 ms.
    pub(super) fn passes(&mut self, node: usize, cost: u64) -> bool {
        let before = self.nodes[node].admitted;
        self.check_by_mode(node, "k", cost);
        for _ in 0..500 {
            if self.nodes[node].waiting.is_empty() {
                break;
            }
            self.tick();
        }
        self.nodes[node].admitted > before
    }

    pub(super) fn order(&mut self, node: usize, order: Order) -> Answer {
        let (ticket, waiter) = pair();
        let key = (Box::from(&b"k"[..]), false);
        let deadline = self.clock.now().plus(Micros::from_millis(50));
        self.input(node, Input::Order { rule: 0, key, order, deadline, waiter });
        self.run(Micros::from_millis(2));
        let mut ticket = pin!(ticket);
        match ticket.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("an order is answered within a round trip"),
        }
    }

    pub(super) fn refund(&mut self, node: usize, tokens: u64) {
        let cell = self.nodes[node].tier.find(0, &World::key("k")).expect("a known key");
        self.input(node, Input::Refund { cell, tokens, since: self.clock.now() });
    }

    fn until(&mut self, second: u64) {
        // The world's clock begins at a whole ten seconds.
        let at = Micros::from_secs(1_000 + second);
        self.run(at.minus(self.clock.now()));
    }

    pub(super) fn passed(&mut self, node: usize, asked: u64) -> u64 {
        (0..asked).map(|_| u64::from(self.passes(node, 1))).sum()
    }
}

fn ten_seconds(limit: u64) -> Rule {
    rule(Algorithm::FixedWindow, limit, Duration::from_secs(10))
}

// case A-01: hits of a window that ended while the store was away are in no later one.
#[test]
fn what_an_outage_let_through_in_an_old_window_is_not_booked_in_a_new_one() {
    for known in [true, false] {
        let mut world = World::new(1, &[ten_seconds(5).mode(Mode::Buffered).delta_max(5)]);
        if known {
            world.run(Micros::from_millis(10)); // a heartbeat tells what time it is there
        }
        world.store.set_reachable(false);
        world.until(1);
        for second in 1..6 {
            world.until(second);
            assert!(world.passes(0, 1), "known {known}: second {second}");
        }
        assert!(!world.passes(0, 1), "known {known}: no further ahead than that");
        world.until(12);
        world.store.set_reachable(true);
        world.run(Micros::from_millis(1_500));
        assert_eq!(world.passed(0, 6), 5, "known {known}: a window of its own");
        let expired = world.nodes[0].engine.tally().expired;
        assert_eq!(expired, 5, "known {known}");
    }
}

// An answer of a new window to a question that told nothing of the old one: the totals of the old are none of the new.
#[test]
fn what_was_booked_in_an_old_window_hides_nothing_of_a_new_one() {
    let mut world = World::new(1, &[ten_seconds(20).mode(Mode::Exact)]);
    let outage = |world: &mut World, tokens: u64| {
        let cell = world.nodes[0].tier.find(0, &World::key("k")).expect("a known key");
        cell.add_outage(tokens);
        world.nodes[0].tier.call(&cell);
        world.run(Micros::from_millis(50));
    };
    assert!(world.passes(0, 1));
    outage(&mut world, 8);
    assert_eq!(world.passed(0, 20), 11, "8 were booked");
    world.store.step_clock(10_000_000); // the instance cannot know
    assert!(world.passes(0, 1), "a new window");
    outage(&mut world, 5);
    assert_eq!(world.passed(0, 20), 14, "5 were booked");
    let cell = world.nodes[0].tier.find(0, &World::key("k")).expect("a known key");
    assert_eq!((cell.outage(), world.nodes[0].engine.tally().expired), (13, 0));
}

// cases A-09, A-11, A-12: reports add up, whoever reports when; none is told twice, none overwrites another.
#[test]
fn what_two_instances_report_adds_up() {
    let mut world = World::new(
        2,
        &[rule(Algorithm::FixedWindow, 100, Duration::from_secs(100)).mode(Mode::Buffered).delta_max(30)],
    );
    world.run(Micros::from_millis(10));
    world.store.set_reachable(false);
    for node in [0, 1] {
        for _ in 0..10 + 5 * node {
            assert!(world.passes(node, 1));
        }
    }
    world.run(Micros::from_secs(2));
    world.store.set_reachable(true);
    // Both recover together, and go on.
    for _ in 0..10 {
        world.run(Micros::from_millis(20));
        assert!(world.passes(0, 1) && world.passes(1, 1));
    }
    world.run(Micros::from_secs(5));
    let left = world.passed(0, 100);
    assert_eq!(world.admitted(), 100, "25 away, 20 since, and {left} more: nothing counted twice or lost");
}

// case A-09: a report and what it is answered are one: nothing pending is taken off again.
#[test]
fn five_in_a_minute_are_five_whatever_is_reported_between() {
    let mut world = World::new(1, &[rule(Algorithm::FixedWindow, 5, Duration::from_secs(50)).mode(Mode::Buffered)]);
    assert_eq!(world.passed(0, 3), 3);
    world.run(Micros::from_millis(1_500));
    assert_eq!([world.passes(0, 1), world.passes(0, 1), world.passes(0, 1)], [true, true, false]);
}

#[test]
fn a_key_that_was_never_asked_for_has_its_allowance_at_once() {
    for algorithm in super::modes::LENDING {
        let mut world =
            World::new(1, &[rule(algorithm, 100, Duration::from_secs(10)).mode(Mode::Buffered).delta_max(4)]);
        world.store.set_reachable(false);
        for _ in 0..4 {
            world.check_by_mode(0, "k", 1); // no time passes
        }
        assert_eq!(world.admitted(), 4, "{algorithm:?}");
        world.run(Micros::from_secs(1));
        assert!(!world.passes(0, 1), "{algorithm:?}: and no more, however long the store is away");
    }
}

// A key that is asked in bursts, with pauses in which its bucket could go, gets no allowance with each of them.
#[test]
fn an_allowance_is_not_had_anew_by_staying_away_for_a_while() {
    let slow = Rule::token_bucket(1, Duration::from_secs(3_600)).burst(10).mode(Mode::Buffered).delta_max(5);
    let mut world = World::new(1, &[slow]);
    for _ in 0..8 {
        _ = world.passed(0, 20);
        world.run(Micros::from_secs(20));
    }
    assert!(world.admitted() <= 15, "{}", world.admitted());
}

#[test]
fn a_dropped_check_costs_nothing_after_the_next_sync() {
    for mode in [Mode::Leased, Mode::Exact, Mode::Buffered] {
        for algorithm in super::modes::LENDING {
            let rule = rule(algorithm, 100, Duration::from_secs(100)).mode(mode);
            let rule = if mode == Mode::Buffered { rule.delta_max(1) } else { rule };
            let mut world = World::new(1, &[rule]);
            assert!(world.passes(0, 1));
            let cell = world.nodes[0].tier.find(0, &World::key("k")).expect("a known key");
            for _ in 0..if mode == Mode::Exact { 3 } else { 1 } {
                let (ticket, waiter) = pair();
                let deadline = world.clock.now().plus(Micros::from_millis(50));
                world.input(0, Input::Ask { cell: cell.clone(), cost: 20, deadline, waiter });
                let mut effects = Vec::new();
                let now = world.clock.now();
                world.nodes[0].engine.flush(now, &mut effects); // the question has left
                world.carry(0, effects);
                drop(ticket);
                world.run(Micros::from_millis(100));
            }
            world.run(Micros::from_secs(4));
            let passed = world.passed(0, 120);
            assert!(passed >= 98, "{algorithm:?} {mode:?}: only {passed}");
            assert!(passed <= 100 + u64::from(mode == Mode::Buffered), "{algorithm:?} {mode:?}: {passed}");
        }
    }
}

// case A-14: a refund elsewhere ends a remembered denial within a second.
#[test]
fn a_refund_at_one_instance_is_seen_by_the_other_within_a_second() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        for mode in [Mode::Leased, Mode::Exact] {
            let mut world = World::new(2, &[rule(algorithm, 10, Duration::from_secs(1_000)).mode(mode)]);
            world.run(Micros::from_millis(10));
            assert_eq!(world.passed(0, 12), 10, "{algorithm:?} {mode:?}");
            assert!(!world.passes(1, 1));
            world.refund(0, 5);
            world.run(Micros::from_millis(1_020));
            // Some of it may be lent to the one that gave it back.
            let there = world.passed(1, 7);
            assert!(there > 0, "{algorithm:?} {mode:?}");
            assert_eq!(there + world.passed(0, 7), 5, "{algorithm:?} {mode:?}");
            world.refund(0, 50);
            world.run(Micros::from_millis(1_020));
            let all = world.passed(1, 12) + world.passed(0, 12);
            assert!(all <= 10, "{algorithm:?} {mode:?}: {all}: no more than was taken");
        }
    }
}

#[test]
fn a_refund_of_an_old_window_fills_no_new_one() {
    let mut world = World::new(1, &[ten_seconds(10)]);
    world.run(Micros::from_millis(10));
    world.until(8);
    assert_eq!(world.passed(0, 12), 10);
    world.until(11);
    assert_eq!(world.passed(0, 4), 4);
    world.refund(0, 10);
    world.run(Micros::from_millis(100));
    assert_eq!(world.passed(0, 20), 6 + 4);
}

#[test]
fn a_block_holds_here_at_once_and_elsewhere_within_a_second() {
    for mode in [Mode::Leased, Mode::Exact, Mode::Buffered] {
        for algorithm in super::modes::LENDING {
            let mut world = World::new(2, &[rule(algorithm, 1_000, Duration::from_secs(100)).mode(mode)]);
            world.run(Micros::from_millis(10));
            for _ in 0..50 {
                assert!(world.passes(0, 1) && world.passes(1, 1), "{algorithm:?} {mode:?}");
                world.run(Micros::from_millis(10));
            }
            let what = format!("{algorithm:?} {mode:?}");
            assert_eq!(world.order(0, Order::Block(Micros::from_secs(30))), Answer::Done, "{what}");
            assert_eq!(world.passed(0, 5), 0, "{what}: here");
            for _ in 0..100 {
                _ = world.passes(1, 1);
                world.run(Micros::from_millis(10));
            }
            assert_eq!(world.passed(1, 5), 0, "{what}: there");
            assert_eq!(world.order(0, Order::Block(Micros::ZERO)), Answer::Done);
            assert!(world.passes(0, 1), "{what}: lifted here");
            world.run(Micros::from_millis(1_020));
            assert!(world.passes(1, 1), "{what}: lifted there");
        }
    }
}

#[test]
fn a_block_ends_by_itself() {
    for mode in [Mode::Leased, Mode::Exact, Mode::Buffered] {
        let mut world = World::new(1, &[ten_seconds(1_000).mode(mode)]);
        assert_eq!(world.order(0, Order::Block(Micros::from_secs(3))), Answer::Done);
        assert!(!world.passes(0, 1), "{mode:?}");
        world.run(Micros::from_millis(3_020));
        assert!(world.passes(0, 1), "{mode:?}");
    }
}

#[test]
fn a_clear_gives_everything_back_but_what_is_lent() {
    for algorithm in super::modes::LENDING {
        let mut world = World::new(2, &[rule(algorithm, 10, Duration::from_secs(1_000))]);
        world.run(Micros::from_millis(10));
        assert_eq!(world.passed(0, 12), 10, "{algorithm:?}");
        assert!(!world.passes(1, 1));
        assert_eq!(world.order(0, Order::Clear), Answer::Done);
        assert!(world.passes(0, 1), "{algorithm:?}");
        world.run(Micros::from_millis(1_020));
        let there = world.passed(1, 12);
        assert!(there > 0, "{algorithm:?}");
        assert_eq!(there + world.passed(0, 12), 9, "{algorithm:?}");
    }
}

// cases A-23, C-23: a raised limit helps at once, a lowered one clips what is left, and refused hits were never counted.
#[test]
fn a_limit_that_changes_counts_from_the_next_turn_on() {
    for algorithm in super::modes::LENDING {
        for mode in [Mode::Leased, Mode::Exact] {
            let terms = |limit| rule(algorithm, limit, Duration::from_secs(1_000)).mode(mode).check("r").ok();
            let mut world = World::new(1, &[rule(algorithm, 10, Duration::from_secs(1_000)).mode(mode)]);
            world.run(Micros::from_millis(10));
            assert_eq!(world.passed(0, 50), 10, "{algorithm:?} {mode:?}");
            world.input(0, Input::Rules(vec![terms(20)]));
            world.terms[0] = terms(20).expect("fair");
            world.run(Micros::from_millis(50));
            let more = world.passed(0, 50);
            // A bucket's tokens do not come at once: only its size has changed.
            let want = if algorithm.is_window() { 10 } else { 0 };
            assert_eq!(more, want, "{algorithm:?} {mode:?}");
            world.input(0, Input::Rules(vec![None]));
            let before = world.nodes[0].failed;
            world.check_by_mode(0, "k", 1);
            world.run(Micros::from_millis(20));
            assert_eq!(world.nodes[0].failed, before + 1, "{algorithm:?} {mode:?}: removed");
        }
    }
}

#[test]
fn a_removed_rule_gives_back_what_it_holds() {
    let (mut world, hold) = one_rich_node();
    world.input(0, Input::Rules(vec![None]));
    world.run(Micros::from_millis(20));
    assert_eq!(world.nodes[0].engine.tally().hold, 0);
    let got = all_for_the_other(&mut world);
    assert!(got >= 970, "{got} after {hold} came back");
    assert_eq!(world.violations(), 0);
}

// Requests of one sync leave a queue one after the other.
#[test]
fn requests_of_one_sync_leave_a_queue_one_interval_apart() {
    let mut world = World::new(1, &[Rule::leaky_queue(100, Duration::from_secs(1)).burst(5)]);
    world.run(Micros::from_millis(10));
    let cell = world.nodes[0].tier.cell(0, &World::key("k")).expect("room");
    let mut tickets = Vec::new();
    for _ in 0..8 {
        let (ticket, waiter) = pair();
        let deadline = world.clock.now().plus(Micros::from_millis(50));
        world.input(0, Input::Ask { cell: cell.clone(), cost: 1, deadline, waiter });
        tickets.push(ticket);
    }
    world.run(Micros::from_millis(5));
    let mut context = Context::from_waker(Waker::noop());
    let mut delays = Vec::new();
    for mut ticket in tickets {
        if let Poll::Ready(Answer::Given { delay, .. }) = pin!(&mut ticket).poll(&mut context) {
            delays.push(delay);
        }
    }
    // The first went alone, the others with the question after it.
    assert_eq!(delays.len(), 6, "one at once and five that wait: {delays:?}");
    assert_eq!(delays[0], Micros::ZERO);
    assert!(delays[2..].windows(2).all(|two| two[1].minus(two[0]) == Micros(10_000)), "{delays:?}");
}

// An answer that is too late to be used leaves what was spent owed, and gives no second allowance.
#[test]
fn an_answer_after_the_lease_s_life_makes_no_debt_undone() {
    let slow = Rule::token_bucket(1, Duration::from_secs(3_600)).burst(10).mode(Mode::Buffered).delta_max(5);
    let mut world = World::new(1, &[slow.lease_ttl(Duration::from_millis(500))]);
    world.half_trip = Micros::from_millis(400);
    assert_eq!(world.passed(0, 5), 5);
    world.run(Micros::from_secs(3));
    world.half_trip = Micros(300);
    for _ in 0..20 {
        _ = world.passed(0, 20);
        world.run(Micros::from_millis(500));
    }
    assert!((10..=15).contains(&world.admitted()), "{}", world.admitted());
}

// case A-27: the last tokens were taken and nobody was told no yet, when the link goes down: still not for the fallback.
#[test]
fn what_is_used_up_stays_so_when_the_link_goes_down_before_anybody_was_refused() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter]
    {
        for mode in [Mode::Leased, Mode::Buffered] {
            let mut world = World::new(1, &[rule(algorithm, 4, Duration::from_secs(3_600)).mode(mode)]);
            world.run(Micros::from_millis(5));
            assert_eq!(world.passed(0, 4), 4, "{algorithm:?} {mode:?}");
            world.run(Micros::from_millis(20)); // what was spent is told
            world.store.set_reachable(false);
            world.run(Micros::from_secs(5)); // three heartbeats
            assert_eq!(world.nodes[0].engine.link(), crate::observe::Link::Down);
            for _ in 0..50 {
                let said = world.nodes[0].tier.check(0, &World::key("k"), 1);
                assert!(matches!(said, Local::Denied { .. }), "{algorithm:?} {mode:?}: {said:?}");
            }
        }
    }
}
