//! Named cases as tables of times, costs and answers: a gate on a clock that stands still between two rows, or a real
//! server.
#![allow(dead_code, unreachable_pub, missing_debug_implementations)]

use crate::{gates::lazy, support::RedisServer};
use std::{
    pin::pin,
    time::{Duration, Instant},
};
use tollgate::{Clock, Decision, Limiter, MemoryStore, Mode, Rule, Tollgate};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than anything here takes, on a machine that does other things too.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Real time for a millisecond of the clock's, where a check waits for its turn.
const TICK: Duration = Duration::from_millis(100);
/// Time that passes after each refusal: more than the least between two questions about a bucket.
pub const CADENCE_MS: u64 = 11;
/// What a wait may be longer than the arithmetic says: instances do not ask in step.
const SPREAD: Duration = Duration::from_millis(12);

pub const MODES: [Mode; 3] = [Mode::Local, Mode::Leased, Mode::Exact];
pub const ASKING: [Mode; 2] = [Mode::Leased, Mode::Exact];

/// What a check must be answered.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    Yes,
    /// Yes, with so many left. A lease tells what was left at its last question: exact while time stands still.
    Left(u64),
    No,
    /// No, for so many milliseconds.
    Wait(u64),
    /// No, whatever the wait.
    Never,
}
pub use Want::{Left, Never, No, Wait, Yes};

/// At so many milliseconds, this cost is answered so. A row that comes while the clock is past its time
/// is asked at once.
pub type Row = (u64, u64, Want);

/// A gate on a clock of its own, with one rule.
pub struct World {
    pub gate: Tollgate,
    pub limiter: Limiter,
    pub store: MemoryStore,
    pub clock: Clock,
    pub at_ms: u64,
}

impl World {
    pub async fn new(rule: Rule) -> World {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        let gate = gate(&clock, &store, rule).await;
        let limiter = gate.limiter("r").expect("the rule");
        World { gate, limiter, store, clock, at_ms: 0 }
    }

    pub fn go_to(&mut self, at_ms: u64) {
        let span = at_ms.saturating_sub(self.at_ms);
        self.clock.advance(Duration::from_millis(span));
        self.at_ms += span;
    }

    /// Asks. A question may have to wait for its turn, which comes when the clock goes on: by a millisecond
    /// now and then.
    pub async fn check(&mut self, cost: u64) -> Decision {
        let (limiter, start) = (self.limiter.clone(), Instant::now());
        let mut asked = pin!(limiter.check_n("k", cost));
        let decision = loop {
            if let Ok(decision) = tokio::time::timeout(TICK, asked.as_mut()).await {
                break decision;
            }
            assert!(start.elapsed() < PATIENCE, "no answer");
            self.go_to(self.at_ms + 1);
        };
        if !decision.is_allowed() {
            self.go_to(self.at_ms + CADENCE_MS);
        }
        decision
    }

    /// How many of these pass, one after the other, until one does not.
    pub async fn passes(&mut self, most: u64) -> u64 {
        let mut passed = 0;
        while passed < most && self.check(1).await.is_allowed() {
            passed += 1;
        }
        passed
    }

    pub async fn left(&self) -> u64 {
        let seen = tokio::time::timeout(PATIENCE, self.limiter.peek("k")).await.expect("an answer");
        assert_eq!(seen.trouble(), None);
        if seen.is_allowed() { seen.remaining() } else { 0 }
    }
}

pub async fn gate(clock: &Clock, store: &MemoryStore, rule: Rule) -> Tollgate {
    // As many questions, and as close together, as one may ask for: time stands still.
    let builder = Tollgate::builder().clock(clock.clone()).store(store.clone()).syncs_per_second_max(1_000_000);
    builder.rule("r", rule.cadence(Duration::from_millis(1))).build().await.expect("fair settings")
}

pub async fn answer(limiter: &Limiter, cost: u64) -> Decision {
    tokio::time::timeout(PATIENCE, limiter.check_n("k", cost)).await.expect("an answer")
}

pub fn judge(decision: Decision, want: Want, of: &str) {
    let wait = decision.retry_after();
    assert_eq!(decision.trouble(), None, "{of}");
    match want {
        Yes => assert!(decision.is_allowed(), "{of}: {decision:?}"),
        Left(left) => {
            assert!(decision.is_allowed(), "{of}: {decision:?}");
            assert_eq!(decision.remaining(), left, "{of}");
        }
        No => {
            assert!(!decision.is_allowed() && !decision.is_never() && wait > Some(Duration::ZERO), "{of}: {decision:?}")
        }
        Wait(ms) => {
            let (told, least) = (wait.expect("a wait"), Duration::from_millis(ms));
            assert!(!decision.is_allowed(), "{of}: {decision:?}");
            assert!(told + SPREAD >= least && told <= least + SPREAD, "{of}: {told:?}, not {least:?}");
        }
        Never => assert!(decision.is_never() && !decision.is_allowed() && wait.is_none(), "{of}: {decision:?}"),
    }
}

/// Runs the table in each of these modes, on a manual clock.
pub async fn run(case: &str, modes: &[Mode], rule: Rule, rows: &[Row]) {
    for mode in modes {
        let mut world = World::new(rule.clone().mode(*mode)).await;
        for (n, (at_ms, cost, want)) in rows.iter().enumerate() {
            world.go_to(*at_ms);
            let of = format!("{case}, {mode:?}, row {n}: {cost} at {at_ms} ms");
            judge(world.check(*cost).await, *want, &of);
        }
    }
}

/// Runs the table against a server, where time does not stand still: for rules that hardly refill. All rows
/// at once.
pub async fn run_on(server: &RedisServer, case: &str, rule: Rule, rows: &[Row]) {
    for mode in ASKING {
        let rule = rule.clone().mode(mode).deadline(PATIENCE);
        let builder = Tollgate::builder().store(lazy(&server.url())).key_prefix(format!("{case}.{mode:?}"));
        let gate = builder.rule("r", rule).build().await.expect("fair settings");
        let limiter = gate.limiter("r").expect("the rule");
        for (n, (_, cost, want)) in rows.iter().enumerate() {
            let of = format!("{case} on a server, {mode:?}, row {n}: {cost}");
            judge(answer(&limiter, *cost).await, *want, &of);
        }
        gate.shutdown().await.expect("all given back");
    }
}
