//! Named cases of memory in the process, through the public face.
#![allow(clippy::unwrap_used)]

use std::{
    thread,
    time::{Duration, Instant},
};
use tollgate::{Clock, MemoryStore, Mode, Rule, Tollgate};

const DAY: Duration = Duration::from_secs(86_400);
const KEYS_MAX: usize = 50_000;

/// A gate on a clock that stands still, with one rule.
async fn world(rule: Rule) -> (Tollgate, MemoryStore, Clock) {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Tollgate::builder().clock(clock.clone()).store(store.clone()).keys_max(KEYS_MAX);
    (builder.rule("r", rule).build().await.unwrap(), store, clock)
}

/// Moves the clock on, and lets the engine run, until this is so.
fn wait_for(clock: &Clock, what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        clock.advance(Duration::from_millis(100));
        thread::sleep(Duration::from_millis(1));
    }
}

// case I-06: a flood of keys that are each seen once leaves no more than the cap; they go by themselves, and
// leave alone what is in use or used up.
#[tokio::test]
async fn a_million_keys_of_one_hit_each_are_bounded_and_go_by_themselves() {
    const FLOOD: u64 = 1_000_000;
    let (gate, store, clock) = world(Rule::token_bucket(10, DAY)).await;
    let limiter = gate.limiter("r").unwrap();
    // Used up before the flood, and in use all along.
    for _ in 0..10 {
        assert!(limiter.check("exhausted").await.is_allowed());
    }
    assert!(!limiter.check("exhausted").await.is_allowed());
    let busy = limiter.key("busy");
    assert!(busy.check().await.is_allowed());

    for n in 0..FLOOD {
        let _ = limiter.check_now(format!("once {n}"));
    }
    let seen = gate.snapshot();
    assert!(seen.keys <= KEYS_MAX as u64, "{seen:?}");
    assert_eq!(seen.saturated, FLOOD - (KEYS_MAX as u64 - 2), "{seen:?}");
    assert!(!limiter.check_now("exhausted").is_allowed(), "not thrown out for others' sake");
    assert_eq!(gate.snapshot().saturated, seen.saturated, "it has its place still");

    wait_for(&clock, "idle keys go", || gate.snapshot().keys <= 1);
    assert!(store.len() <= KEYS_MAX, "{}", store.len());
    assert_eq!(gate.snapshot().held, 0, "what was lent to them is given back");
    // There is room again; who had used up the limit has used it up still.
    assert!(limiter.check("new").await.is_allowed());
    assert!(!limiter.check("exhausted").await.is_allowed());
    assert!(busy.check().await.is_allowed());
}

// case I-06: the same where nobody but this process is asked. A new key sweeps when it is time to.
#[tokio::test]
async fn keys_of_local_rules_are_bounded_and_make_room_when_they_are_full_again() {
    const FLOOD: u64 = 300_000;
    let (gate, _, clock) = world(Rule::token_bucket(10, DAY).mode(Mode::Local)).await;
    let limiter = gate.limiter("r").unwrap();
    for _ in 0..10 {
        assert!(limiter.check_now("exhausted").is_allowed());
    }
    for n in 0..FLOOD {
        let _ = limiter.check_now(format!("once {n}"));
    }
    let seen = gate.snapshot();
    assert_eq!((seen.keys, seen.saturated), (KEYS_MAX as u64, FLOOD - (KEYS_MAX as u64 - 1)));
    assert!(!limiter.check_now("exhausted").is_allowed());
    // A tenth of a day brings the one token that each of them lacks.
    clock.advance(DAY / 10 + Duration::from_secs(2));
    assert!(limiter.check_now("new").is_allowed());
    assert!(gate.snapshot().keys <= 3, "{:?}", gate.snapshot());
    assert!(limiter.check_now("exhausted").is_allowed(), "its one token of the tenth of a day");
    assert!(!limiter.check_now("exhausted").is_allowed(), "and no more");
}
