//! Panics inside a turn, planted by name: each costs one bucket, whoever waits is answered, and the
//! others of the same batch, round or flush never notice.

use super::{
    super::{
        message::{Effect, Input},
        turn::{Engine, Settings},
        waiter::{Answer, Ticket, pair},
    },
    Driver,
};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::{Key, KeySpace, LongKeys},
    lease::InstanceId,
    local::{Bell, Tier},
    observe::{Event, Observer},
    rule::Rule,
    store::{MemoryStore, Store},
    time::Micros,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const PLACES: [&str; 3] = ["visit", "compose", "reply"];
const GONE: Answer = Answer::Failed(ErrorKind::Protocol);

fn settings() -> Settings {
    let rule = Rule::token_bucket(1, Duration::from_secs(3_600)).burst(100).deadline(Duration::from_secs(20));
    Settings {
        instance: InstanceId(7),
        keys: KeySpace::new("t", 1).expect("a fair space"),
        rules: vec![rule.check("r").expect("a fair rule")],
        instances: None,
        syncs_per_second_max: 20_000,
        response_timeout: Micros::from_millis(200),
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key::new(bytes, LongKeys::Hash).expect("hashed at worst")
}

struct Silent;
impl Bell for Silent {
    fn ring(&self) {}
}

/// An engine without a thread: its inputs and effects are carried by hand, its panics caught as the
/// driver does.
struct Bench {
    engine: Engine,
    tier: Arc<Tier>,
    clock: Clock,
    effects: Vec<Effect>,
    panics: u32,
}

impl Bench {
    fn new() -> Bench {
        let clock = Clock::manual();
        let tier = Tier::new(clock.clone(), 1_000, Arc::new(Silent));
        let engine = Engine::new(settings(), tier.clone(), clock.now());
        Bench { engine, tier, clock, effects: Vec::new(), panics: 0 }
    }

    fn guarded(&mut self, step: impl FnOnce(&mut Engine, &mut Vec<Effect>)) {
        let (engine, effects) = (&mut self.engine, &mut self.effects);
        if catch_unwind(AssertUnwindSafe(|| step(engine, effects))).is_err() {
            self.engine.bury();
            self.panics += 1;
        }
    }

    fn turn(&mut self, input: Input) {
        let now = self.clock.now();
        self.guarded(|engine, effects| engine.turn(input, now, effects));
    }

    fn flush(&mut self) {
        let now = self.clock.now();
        self.guarded(|engine, effects| engine.flush(now, effects));
    }

    fn ask(&mut self, bytes: &[u8]) -> Ticket {
        let cell = self.tier.cell(0, &key(bytes)).expect("room");
        let (ticket, waiter) = pair();
        let deadline = self.clock.now().plus(Micros::from_secs(20));
        self.turn(Input::Ask { cell, cost: 1, deadline, waiter });
        ticket
    }

    /// Flushes and carries everything, until nothing is under way.
    async fn settle(&mut self, store: &Store, fail: bool) {
        let road = store.open();
        for _ in 0..20 {
            self.clock.advance(Micros::from_millis(5));
            self.flush();
            for effect in std::mem::take(&mut self.effects) {
                if let Effect::Send { id, batch } = effect {
                    let failed = Err(Error::new(ErrorKind::Unanswered, "lost"));
                    let result = if fail { failed } else { road.sync(&batch).await };
                    self.turn(Input::Answered { id, result });
                }
            }
        }
    }

    fn told(&self, ticket: Ticket) -> Answer {
        ticket.wait(&self.clock, self.clock.now())
    }
}

fn is_yes(answer: Answer) -> bool {
    matches!(answer, Answer::Given { .. })
}

#[tokio::test]
async fn a_panic_over_one_bucket_leaves_the_others_of_its_batch_alone() {
    for place in PLACES {
        let (mut bench, store) = (Bench::new(), Store::from(MemoryStore::default()));
        for round in 0..3 {
            let bad = format!("panic in {place}");
            let keys = [&b"a"[..], bad.as_bytes(), b"b", b"c", b"d", b"e"];
            let tickets = keys.map(|key| bench.ask(key));
            bench.settle(&store, false).await;
            for (key, ticket) in keys.into_iter().zip(tickets) {
                let answer = bench.told(ticket);
                let fits = if key == bad.as_bytes() { answer == GONE } else { is_yes(answer) };
                assert!(fits, "{place}, round {round}, {}: {answer:?}", String::from_utf8_lossy(key));
            }
        }
        assert!(bench.panics >= 3, "{place}: {}", bench.panics);
        // What was not hit was asked once each: nothing was lost, nothing twice.
        let (ticket, waiter) = pair();
        let deadline = bench.clock.now().plus(Micros::from_secs(1));
        bench.turn(Input::Peek { rule: 0, key: (b"e"[..].into(), false), cost: 1, deadline, waiter });
        bench.settle(&store, false).await;
        let held = bench.tier.find(0, &key(b"e")).map_or(0, |cell| cell.look().hold);
        match bench.told(ticket) {
            Answer::Seen { free, .. } => assert_eq!(free + held, 97, "{place}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_panic_while_the_link_turns_leaves_nobody_waiting() {
    let (mut bench, store) = (Bench::new(), Store::from(MemoryStore::default()));
    // In the queue of the bucket that panics, and before and behind it.
    let keys = [&b"a"[..], b"panic in reply", b"b", b"c"];
    let tickets = keys.map(|key| bench.ask(key));
    bench.settle(&store, true).await;
    assert!(bench.engine.link() == crate::observe::Link::Down);
    for ticket in tickets {
        assert!(matches!(bench.told(ticket), Answer::Failed(_)));
    }
    let probe = store.open().beat(&bench.engine.members_key().1, InstanceId(7), false).await;
    bench.clock.advance(Micros::from_secs(2));
    bench.flush();
    bench.turn(Input::Beaten(probe));
    let tickets = keys.map(|key| bench.ask(key));
    bench.settle(&store, false).await;
    let answers = tickets.map(|ticket| bench.told(ticket));
    assert_eq!(answers.map(is_yes), [true, false, true, true], "{answers:?}");
}

#[tokio::test]
async fn an_engine_that_panics_still_closes() {
    for place in PLACES {
        let (mut bench, store) = (Bench::new(), Store::from(MemoryStore::default()));
        let tickets = [&b"a"[..], format!("panic in {place}").as_bytes(), b"b"].map(|key| bench.ask(key));
        let deadline = bench.clock.now().plus(Micros::from_secs(1));
        bench.turn(Input::Close(deadline));
        let mut done = false;
        for _ in 0..100 {
            bench.clock.advance(Micros::from_millis(20));
            bench.flush();
            for effect in std::mem::take(&mut bench.effects) {
                match effect {
                    Effect::Send { id, batch } => {
                        let result = store.open().sync(&batch).await;
                        bench.turn(Input::Answered { id, result });
                    }
                    Effect::Done { .. } => done = true,
                    _ => {}
                }
            }
            if done {
                break;
            }
        }
        assert!(done, "{place}");
        for ticket in tickets {
            assert!(matches!(bench.told(ticket), Answer::Failed(_)), "{place}");
        }
    }
}

#[test]
fn the_driver_reports_a_panic_and_goes_on() {
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<u32>>);
    impl Observer for Seen {
        fn event(&self, event: &Event) {
            if let Event::EnginePanic { message } = event {
                assert!(message.contains("planted in"), "{message}");
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }
        }
    }
    let (seen, clock) = (Seen::default(), Clock::system());
    let store = MemoryStore::default().into();
    let driver = Driver::start(settings(), store, clock.clone(), 1_000, Arc::new(seen.clone())).expect("a thread");
    for round in 1..=3 {
        for place in PLACES {
            let deadline = clock.now().plus(Micros::from_secs(20));
            let ask = |bytes: &[u8]| driver.ask(&driver.tier().cell(0, &key(bytes)).expect("room"), 1, deadline);
            let (bad, good) = (ask(format!("panic in {place}").as_bytes()), ask(b"good"));
            assert_eq!(bad.wait(&clock, deadline), GONE, "{place}");
            assert!(is_yes(good.wait(&clock, deadline)), "{place}");
        }
        assert!(*seen.0.lock().expect("no panic") >= round * 3);
    }
}
