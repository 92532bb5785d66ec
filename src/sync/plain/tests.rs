//! An engine by hand: what it asks of plain counters, and what it does with each answer.

use super::*;
use crate::{
    clock::Clock,
    key::KeySpace,
    lease::InstanceId,
    local::{Bell, Tier},
    observe::{Event, Link},
    rule::{Mode, Rule},
    store::Beat,
    sync::{
        message::Input,
        turn::Settings,
        waiter::{Ticket, pair},
    },
};
use std::time::Duration;

/// What the authority's clock is ahead of ours.
const AHEAD: Micros = Micros::from_secs(1_700_000_000);
const WAIT: Micros = Micros::from_millis(50);

struct Silent;
impl Bell for Silent {
    fn ring(&self) {}
}

struct Bench {
    engine: Engine,
    clock: Clock,
    effects: Vec<Effect>,
}

impl Bench {
    fn new() -> Bench {
        let clock = Clock::manual();
        let settings = Settings {
            instance: InstanceId(7),
            keys: KeySpace::default(),
            rules: Vec::new(),
            instances: None,
            syncs_per_second_max: 100,
            response_timeout: Micros::from_millis(200),
        };
        let tier = Tier::new(clock.clone(), 100, Arc::new(Silent));
        let engine = Engine::new(settings, tier, clock.now());
        Bench { engine, clock, effects: Vec::new() }
    }

    fn turn(&mut self, input: Input) {
        let now = self.clock.now();
        self.engine.turn(input, now, &mut self.effects);
        self.engine.flush(now, &mut self.effects);
    }

    fn pass(&mut self, span: Micros) {
        self.clock.advance(span);
        self.engine.flush(self.clock.now(), &mut self.effects);
    }

    fn hit(&mut self, layout: &str, cost: i64) -> Ticket {
        let (ticket, waiter) = pair();
        let deadline = self.clock.now().plus(WAIT);
        self.turn(Input::Hit { ask: ask(layout, cost), deadline, waiter: Some(waiter) });
        ticket
    }

    /// What is to be counted.
    fn sent(&mut self) -> Vec<(u64, String, Hit)> {
        let sent = std::mem::take(&mut self.effects).into_iter().filter_map(|effect| match effect {
            Effect::Count { id, name, hit } => Some((id, String::from_utf8_lossy(&name).into_owned(), hit)),
            _ => None,
        });
        sent.collect()
    }

    fn answer(&mut self, id: u64, answer: Counted) {
        self.turn(Input::Counted { id, result: Ok(answer) });
    }

    /// Has the authority tell its time.
    fn learn(&mut self) {
        let ticket = self.hit("{key}:{index}", 1);
        for (id, ..) in self.sent() {
            self.answer(id, Counted::OtherWindow { now: self.there() });
        }
        for (id, ..) in self.sent() {
            let full = Counted::Refused { count: 10, ends_in: Micros::from_secs(5), now: self.there() };
            self.answer(id, full);
        }
        drop(ticket);
    }

    fn there(&self) -> Micros {
        self.clock.now().plus(AHEAD)
    }

    fn taken(&self, count: i64) -> Counted {
        Counted::Taken { count, ends_in: Micros::from_secs(5), now: self.there() }
    }

    fn told(&self, ticket: Ticket) -> Answer {
        ticket.wait(&self.clock, self.clock.now())
    }
}

fn ask(layout: &str, cost: i64) -> Arc<Ask> {
    let rule = Rule::fixed_window(10, Duration::from_secs(60)).mode(Mode::Exact).plain_key(layout);
    let terms = rule.check("r").expect("a fair rule");
    let frame = Frame::new(terms.numbers.window, terms.numbers.offset);
    let template = terms.plain.expect("a layout");
    Arc::new(Ask { rule: "r", template, frame, limit: 10, key: (*b"k").into(), cost, at: Micros::ZERO })
}

const YES: Answer = Answer::Counted { taken: true, count: 1, ends_in: Micros::from_secs(5) };

#[test]
fn the_first_hit_guesses_its_window_and_the_authority_tells_the_time() {
    let mut bench = Bench::new();
    let ticket = bench.hit("{key}:{start}", 1);
    let (id, name, hit) = bench.sent().remove(0);
    assert_ne!(hit.start, Micros::ZERO, "that would be a window of its own");
    let there = bench.there();
    bench.answer(id, Counted::OtherWindow { now: there });
    let (id, second, hit) = bench.sent().remove(0);
    assert_ne!(name, second);
    assert_eq!(hit.start, hit.frame.start(there));
    assert_eq!(second, format!("k:{}", hit.start.0 / 1_000_000));
    bench.answer(id, bench.taken(1));
    assert_eq!(bench.told(ticket), YES);
    // From now on the time is known.
    let _ticket = bench.hit("{key}:{start}", 1);
    assert_eq!(bench.sent().remove(0).1, second);
}

#[test]
fn a_hit_that_never_meets_its_window_gives_up() {
    let mut bench = Bench::new();
    let ticket = bench.hit("{key}:{index}", 1);
    for _ in 0..GUESSES_MAX {
        let (id, ..) = bench.sent().remove(0);
        bench.answer(id, Counted::OtherWindow { now: bench.there() });
    }
    assert_eq!(bench.told(ticket), Answer::Late);
    assert!(bench.sent().is_empty() && bench.engine.plain.is_idle());
    // Nor does one go on for which nobody waits any longer.
    let late = bench.hit("{key}:{index}", 1);
    let (id, ..) = bench.sent().remove(0);
    bench.pass(WAIT);
    bench.answer(id, Counted::OtherWindow { now: bench.there() });
    assert!(bench.sent().is_empty() && bench.engine.plain.is_idle());
    assert_eq!(bench.told(late), Answer::Late);
}

#[test]
fn what_was_counted_for_nobody_goes_back_to_its_own_window() {
    for layout in ["{key}:{index}", "{key}"] {
        let mut bench = Bench::new();
        let (late, left) = (bench.hit(layout, 3), bench.hit(layout, 2));
        drop(left);
        let sent = bench.sent();
        assert_eq!(sent.len(), 2);
        bench.pass(WAIT);
        assert_eq!(bench.told(late), Answer::Late);
        for ((id, name, hit), back) in sent.into_iter().zip([-3, -2]) {
            bench.answer(id, bench.taken(5));
            let (_, to, given) = bench.sent().remove(0);
            assert_eq!((to, given.cost, given.start), (name, back, hit.start), "{layout}");
        }
    }
}

#[test]
fn no_more_goes_back_than_was_taken_here_and_none_after_its_window() {
    for layout in ["{key}:{index}", "{key}"] {
        let mut bench = Bench::new();
        bench.learn();
        bench.turn(Input::GiveBack { ask: ask(layout, 5), until: Micros::MAX });
        assert!(bench.sent().is_empty(), "{layout}: nothing was taken");
        let ticket = bench.hit(layout, 3);
        let (id, ..) = bench.sent().remove(0);
        bench.answer(id, bench.taken(9));
        drop(ticket);
        for back in [-3, 0] {
            bench.turn(Input::GiveBack { ask: ask(layout, 500), until: Micros::MAX });
            let sent = bench.sent();
            assert_eq!(sent.first().map_or(0, |(.., hit)| hit.cost), back, "{layout}");
            sent.into_iter().for_each(|(id, ..)| bench.answer(id, bench.taken(6)));
        }
        let _ticket = bench.hit(layout, 3);
        let (id, ..) = bench.sent().remove(0);
        bench.answer(id, bench.taken(9));
        // The authority says that 5 s are left: with no time in the name, some of that is too near the end.
        bench.pass(Micros::from_millis(if layout == "{key}" { 4_850 } else { 5_000 }));
        bench.sent();
        bench.turn(Input::GiveBack { ask: ask(layout, 3), until: Micros::MAX });
        assert!(bench.sent().is_empty(), "{layout}: the window is over");
    }
}

#[test]
fn what_was_taken_is_remembered_of_so_many_counters_and_forgotten_with_their_windows() {
    let mut taken = Taken::default();
    let names: Vec<_> = (0..=TAKEN_MAX as u8).map(|k| BucketName::from_bytes([k])).collect();
    let note = |taken: &mut Taken, at: u64| {
        for name in &names {
            taken.note(name, 1, Micros(1), Micros(at + 10), Micros(at));
        }
    };
    note(&mut taken, 100);
    assert_eq!(taken.sums.len(), TAKEN_MAX);
    assert_eq!(taken.take(&names[TAKEN_MAX], 1, Micros(100)), None, "no place");
    assert_eq!(taken.take(&names[0], 9, Micros(109)), Some((1, Micros(1), Micros(110))));
    assert_eq!(taken.take(&names[1], 9, Micros(110)), None, "its window is over");
    note(&mut taken, 110);
    assert_eq!((taken.sums.len(), taken.ends.len()), (TAKEN_MAX, TAKEN_MAX));
    taken.forget(&names[2]);
    assert_eq!(taken.take(&names[2], 1, Micros(111)), None);
}

#[test]
fn hits_count_against_the_allowance_and_the_window_and_leave_at_their_time() {
    let mut bench = Bench::new(); // 10 at once, 100 a second
    let tickets: Vec<_> = (0..12).map(|_| bench.hit("{key}", 1)).collect();
    assert_eq!(bench.sent().len(), 10);
    assert_eq!(bench.engine.tally().syncs, 10);
    assert!(bench.engine.wake_at() <= bench.clock.now().plus(Micros::from_millis(1)));
    bench.pass(Micros::from_millis(20));
    assert_eq!(bench.sent().len(), 2);
    // The last one waits for the allowance until nobody waits for it.
    let last = bench.hit("{key}", 1);
    assert!(bench.sent().is_empty());
    bench.clock.advance(WAIT);
    bench.engine.flush(bench.clock.now(), &mut bench.effects);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.told(last), Answer::Late);
    drop(tickets);
}

#[test]
fn a_heartbeat_whose_key_holds_something_else_takes_no_road_down_and_is_told_once() {
    let mut bench = Bench::new();
    let (mut beats, mut told) = (0, 0);
    for _ in 0..50 {
        bench.pass(Micros::from_millis(200));
        for effect in std::mem::take(&mut bench.effects) {
            match effect {
                Effect::Beat { .. } => {
                    beats += 1;
                    bench.turn(Input::Beaten(Err(Error::new(ErrorKind::WrongType, "a list"))));
                }
                Effect::Report(Event::Warning { .. }) => told += 1,
                _ => {}
            }
        }
        assert_eq!(bench.engine.link(), Link::Up);
    }
    assert!(beats > 5 && told == 1, "{beats} {told}");
    let beat = Beat { members: 3, now: bench.there() };
    bench.pass(Micros::from_secs(2));
    bench.turn(Input::Beaten(Ok(beat)));
    assert_eq!(bench.engine.members(), Some(3));
}

#[test]
fn a_road_that_fails_is_down_for_hits_too_and_its_lost_answers_are_in_doubt() {
    let mut bench = Bench::new();
    for nth in 1..=3_u64 {
        let ticket = bench.hit("{key}", 1);
        let (id, ..) = bench.sent().remove(0);
        bench.clock.advance(Micros(10));
        bench.turn(Input::Counted { id, result: Err(Error::new(ErrorKind::Unanswered, "lost")) });
        assert_eq!(bench.told(ticket), Answer::Failed(ErrorKind::Unanswered));
        assert_eq!(bench.engine.tally().in_doubt, nth);
    }
    assert!(bench.engine.road.is_down());
    let refused = bench.hit("{key}", 1);
    assert_eq!(bench.told(refused), Answer::Failed(ErrorKind::Unanswered));
    assert!(bench.sent().is_empty());
}

#[test]
fn what_is_wrong_with_one_key_is_no_trouble_of_the_road_and_is_told_now_and_then() {
    let mut bench = Bench::new();
    for _ in 0..5 {
        let ticket = bench.hit("{key}", 1);
        let (id, ..) = bench.sent().remove(0);
        bench.turn(Input::Counted { id, result: Err(Error::new(ErrorKind::WrongType, "text")) });
        assert_eq!(bench.told(ticket), Answer::Failed(ErrorKind::WrongType));
    }
    assert!(!bench.engine.road.is_down());
    assert_eq!(bench.engine.tally().bucket_errors, 5);
}

#[test]
fn who_waits_when_the_engine_closes_is_told_and_what_was_counted_for_them_goes_back() {
    let mut bench = Bench::new();
    let ticket = bench.hit("{key}", 2);
    let (id, ..) = bench.sent().remove(0);
    let deadline = bench.clock.now().plus(Micros::from_secs(1));
    bench.turn(Input::Close(deadline));
    assert_eq!(bench.told(ticket), Answer::Failed(ErrorKind::ShutDown));
    let after = bench.hit("{key}", 2);
    assert_eq!(bench.told(after), Answer::Failed(ErrorKind::ShutDown));
    bench.answer(id, bench.taken(2));
    let (id, _, hit) = bench.sent().remove(0);
    assert_eq!(hit.cost, -2);
    bench.turn(Input::Counted { id, result: Ok(bench.taken(0)) });
    assert!(bench.effects.iter().any(|effect| matches!(effect, Effect::Done { clean: true })));
}
