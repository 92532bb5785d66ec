//! What the tests of gates share: an observer that remembers, rules that hardly refill, waiting for a condition.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tollgate::{
    Clock, Decision, Event, Limiter, Link, MemoryStore, Micros, Observer, RedisStore, Rule, Store, Tollgate,
    sim::Admission,
};

/// Remembers every event. Clones remember together.
#[derive(Clone, Default)]
pub struct Seen(Arc<Mutex<Vec<Event>>>);

impl Observer for Seen {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event.clone());
    }
}

impl Seen {
    pub fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many of its events are like this.
    pub fn count(&self, like: impl Fn(&Event) -> bool) -> usize {
        self.all().iter().filter(|e| like(e)).count()
    }

    /// How often the link became this.
    pub fn links(&self, state: Link) -> usize {
        self.count(|e| matches!(e, Event::Link { now, .. } if *now == state))
    }
}

/// A bucket of `burst` that gets one token an hour: what is missing was taken. A check may wait for 5 s.
pub fn slow(burst: u64) -> Rule {
    Rule::token_bucket(1, Duration::from_secs(3_600)).burst(burst).deadline(Duration::from_secs(5))
}

/// The store at this URL, reached for by the first question.
pub fn lazy(url: &str) -> RedisStore {
    RedisStore::lazy(url).expect("a fair URL")
}

/// An embedded store and this Redis.
pub fn both(url: &str) -> [(&'static str, Store); 2] {
    [("memory", MemoryStore::default().into()), ("redis", lazy(url).into())]
}

/// A gate with one rule, called "r".
pub async fn gate(store: impl Into<Store>, rule: Rule) -> Tollgate {
    Tollgate::builder().store(store).rule("r", rule).build().await.expect("fair settings")
}

/// Its limiter.
pub fn limiter(gate: &Tollgate) -> Limiter {
    gate.limiter("r").expect("its rule")
}

/// A gate with one rule, and its limiter.
pub async fn limited(store: impl Into<Store>, rule: Rule) -> (Tollgate, Limiter) {
    let gate = gate(store, rule).await;
    let limiter = limiter(&gate);
    (gate, limiter)
}

/// Tokens of this key that nobody has, asked by a gate of its own, so that no hold is counted in.
pub async fn left(store: impl Into<Store>, rule: Rule, key: impl AsRef<[u8]>) -> u64 {
    let (gate, limiter) = limited(store, rule).await;
    let seen = limiter.peek(key).await;
    assert_eq!(seen.trouble(), None, "{seen:?}");
    gate.shutdown().await.expect("nothing to give back");
    seen.remaining()
}

/// Waits until this is so, for 20 s at most.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 20 s: {what}");
}

/// Asks again and again until the decision is like this, for 20 s at most.
pub async fn until_decided(what: &str, limiter: &Limiter, key: &str, like: impl Fn(&Decision) -> bool) -> Decision {
    let mut last = None;
    for _ in 0..4_000 {
        let decision = limiter.check(key).await;
        if like(&decision) {
            return decision;
        }
        last = Some(decision);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 20 s: {what}; the last was {last:?}");
}

/// Asks for one token `per_second` times a second, in small bunches, until `end`. Tells what was
/// admitted, and when each was asked.
pub async fn drive(limiter: Limiter, key: &'static str, per_second: u64, end: Micros) -> (Vec<Admission>, Vec<Micros>) {
    let clock = Clock::system();
    let start = clock.now();
    let (mut admitted, mut asked) = (Vec::new(), Vec::new());
    loop {
        let now = clock.now();
        let due = (now.0 - start.0) * per_second / 1_000_000;
        while (asked.len() as u64) < due {
            let before = clock.now();
            let decision = limiter.check(key).await;
            asked.push(before);
            if decision.is_allowed() {
                let after = Micros(clock.now().0 + 1);
                admitted.push(Admission { before, after, cost: 1 });
            }
        }
        if now >= end {
            return (admitted, asked);
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
}
