//! Reservations: an estimate is spent at once, and settled by the real cost.
#![cfg(feature = "redis")]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
#[path = "support/mod.rs"]
mod support;

use gates::{both, limited, slow};
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use support::RedisServer;
use tollgate::{Abandoned, Clock, ErrorKind, Limiter, MemoryStore, Mode, Outage, Reservation, Rule, Settled, Tollgate};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const MODES: [Mode; 3] = [Mode::Local, Mode::Leased, Mode::Exact];

fn returned(tokens: u64) -> Settled {
    Settled { returned: tokens, ..Settled::default() }
}

fn charged(tokens: u64) -> Settled {
    Settled { charged: tokens, ..Settled::default() }
}

async fn reserve(limiter: &Limiter, key: &str, estimate: u64) -> Reservation {
    limiter.reserve(key, estimate).await.unwrap_or_else(|d| panic!("{estimate}: {d:?}"))
}

/// Where the rest may be lent to another instance for a while.
async fn sooner_or_later(limiter: &Limiter, key: &str, estimate: u64) -> Reservation {
    for _ in 0..2_000 {
        if let Ok(reservation) = limiter.reserve(key, estimate).await {
            return reservation;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{estimate} never came: {:?}", limiter.peek(key).await);
}

/// What can still be had, once nothing is under way any more.
async fn left(limiter: &Limiter, key: &str, want: u64) {
    for _ in 0..2_000 {
        if limiter.peek(key).await.remaining() == want {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{}: {:?} and not {want}", limiter.name(), limiter.peek(key).await);
}

#[tokio::test]
async fn the_rest_of_an_estimate_comes_back_and_what_is_missing_is_charged() {
    for mode in MODES {
        let (gate, limiter) = limited(MemoryStore::default(), slow(1_000).mode(mode)).await;
        let first = reserve(&limiter, "k", 500).await;
        assert_eq!((first.estimate(), first.is_open(), first.decision().is_allowed()), (500, true, true));
        let second = reserve(&limiter, "k", 400).await;
        let denied = limiter.reserve("k", 200).await.unwrap_err();
        assert!(!denied.is_allowed() && denied.refused_by() == Some("r"), "{mode:?}: {denied:?}");
        assert_eq!(gate.snapshot().reservations, 2);
        assert_eq!(first.commit(320), returned(180), "{mode:?}");
        left(&limiter, "k", 280).await;
        assert_eq!(second.commit(600), charged(200), "{mode:?}");
        left(&limiter, "k", 80).await;
        assert_eq!(reserve(&limiter, "k", 80).await.commit(80), Settled::default());
        let s = gate.snapshot();
        assert_eq!((s.reservations, s.abandoned, s.uncharged), (0, 0, 0), "{mode:?}");
    }
}

#[tokio::test]
async fn a_debt_is_paid_before_anybody_is_let_in_again() {
    for mode in [Mode::Leased, Mode::Exact] {
        let rule = Rule::token_bucket(100, SECOND).mode(mode).deadline(5 * SECOND);
        let clock = Clock::system();
        let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
        let start = clock.now();
        // 50 more than there are, at 100 a second: half a second of debt.
        assert_eq!(reserve(&limiter, "k", 100).await.commit(150), charged(50));
        assert!(limiter.acquire("k", 1, 20 * SECOND).await.unwrap().is_allowed());
        let waited: Duration = clock.now().minus(start).into();
        assert!(waited >= Duration::from_millis(500), "{mode:?}: {waited:?}");
    }
}

#[tokio::test]
async fn a_commit_far_above_the_estimate_is_charged_one_burst_at_most_and_says_so() {
    for mode in MODES {
        let (gate, limiter) = limited(MemoryStore::default(), slow(100).mode(mode)).await;
        let settled = reserve(&limiter, "k", 60).await.commit(1_000);
        assert_eq!((settled.returned, settled.charged + settled.uncharged), (0, 940), "{mode:?}");
        assert!(settled.charged <= 100 && settled.charged >= 40, "{mode:?}: {settled:?}");
        let settled = reserve(&limiter, "another", 1).await.commit(u64::MAX);
        assert_eq!(settled.charged + settled.uncharged, u64::MAX - 1, "{mode:?}");
        assert!(gate.snapshot().uncharged >= u64::MAX / 2);
    }
}

#[tokio::test]
async fn an_estimate_of_nothing_is_charged_afterwards() {
    for mode in MODES {
        let (_gate, limiter) = limited(MemoryStore::default(), slow(100).mode(mode)).await;
        assert_eq!(reserve(&limiter, "k", 0).await.commit(0), Settled::default());
        assert_eq!(reserve(&limiter, "k", 0).await.commit(30), charged(30), "{mode:?}");
        left(&limiter, "k", 70).await;
        assert!(limiter.reserve("k", 101).await.unwrap_err().is_never());
    }
}

// case A-28: what was given back is not given back again when its time is over.
#[tokio::test]
async fn nothing_comes_back_twice() {
    for (mode, abandoned) in MODES.into_iter().flat_map(|m| [(m, Abandoned::Release), (m, Abandoned::Spend)]) {
        let rule = slow(10).mode(mode).reservation_ttl(Duration::from_millis(40)).abandoned(abandoned);
        let (gate, limiter) = limited(MemoryStore::default(), rule).await;
        let committed = reserve(&limiter, "k", 5).await;
        assert_eq!(committed.commit(0), returned(5));
        left(&limiter, "k", 10).await;
        let late = reserve(&limiter, "k", 5).await;
        while late.is_open() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (back, settled) = match abandoned {
            Abandoned::Release => (10, charged(3)),
            _ => (5, Settled::default()),
        };
        left(&limiter, "k", back).await;
        assert_eq!(gate.snapshot().abandoned, 1);
        // Too late: what was released is charged anew, what was spent stays so.
        assert_eq!(late.commit(3), settled, "{mode:?} {abandoned:?}");
        left(&limiter, "k", if abandoned == Abandoned::Release { 7 } else { 5 }).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
        left(&limiter, "k", if abandoned == Abandoned::Release { 7 } else { 5 }).await;
        assert_eq!((gate.snapshot().abandoned, gate.snapshot().reservations), (1, 0));
    }
}

#[tokio::test]
async fn a_reservation_that_is_dropped_does_what_its_rule_says() {
    for (mode, abandoned) in MODES.into_iter().flat_map(|m| [(m, Abandoned::Release), (m, Abandoned::Spend)]) {
        let (gate, limiter) = limited(MemoryStore::default(), slow(10).mode(mode).abandoned(abandoned)).await;
        drop(reserve(&limiter, "k", 4).await);
        left(&limiter, "k", if abandoned == Abandoned::Release { 10 } else { 6 }).await;
        assert_eq!((gate.snapshot().abandoned, gate.snapshot().reservations), (1, 0));
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn one_that_is_leaked_ends_with_its_time() {
    let clock = Clock::manual();
    let rule = Rule::token_bucket(1, 60 * MINUTE).burst(10).mode(Mode::Local);
    let gate = Tollgate::builder().clock(clock.clone()).rule("r", rule).build_local().unwrap();
    let limiter = gate.limiter("r").unwrap();
    std::mem::forget(now(limiter.reserve("k", 6)));
    let handled = now(limiter.key("k").reserve(2)).unwrap();
    clock.advance(59 * SECOND);
    assert_eq!(limiter.check_now_n("k", 0).remaining(), 2);
    assert_eq!(handled.commit(1), returned(1));
    clock.advance(SECOND);
    assert_eq!(limiter.check_now_n("k", 0).remaining(), 9);
    clock.advance(MINUTE);
    assert_eq!((gate.snapshot().abandoned, gate.snapshot().reservations), (1, 0));
}

#[test]
fn a_local_reservation_is_settled_at_once_and_its_debt_is_paid_by_time() {
    let clock = Clock::manual();
    let rule = Rule::token_bucket(10, SECOND).mode(Mode::Local);
    let gate = Tollgate::builder().clock(clock.clone()).rule("r", rule).build_local().unwrap();
    let limiter = gate.limiter("r").unwrap();
    assert_eq!(now(limiter.reserve("k", 10)).unwrap().commit(4), returned(6));
    assert_eq!(limiter.check_now_n("k", 0).remaining(), 6);
    assert_eq!(now(limiter.reserve("k", 6)).unwrap().commit(11), charged(5));
    assert_eq!(limiter.check_now("k").retry_after(), Some(Duration::from_millis(600)));
    clock.advance(Duration::from_millis(600));
    assert!(limiter.check_now("k").is_allowed() && !limiter.check_now("k").is_allowed());
    limiter.refund("k", 1);
    assert!(limiter.check_now("k").is_allowed());
}

#[tokio::test]
async fn the_sum_is_right_across_instances_on_both_stores() {
    let server = RedisServer::start();
    for mode in [Mode::Leased, Mode::Exact, Mode::Buffered] {
        for (name, store) in both(&server.url()) {
            // Leases that end soon, so that what lies at the other instance is soon seen as free.
            let rule = slow(1_000).mode(mode).lease_ttl(Duration::from_millis(400));
            let (one, a) = limited(store.clone(), rule.clone()).await;
            let (two, b) = limited(store, rule).await;
            let key = format!("{mode:?}");
            let mut real = 0;
            for round in 0..4 {
                let (x, y) = (sooner_or_later(&a, &key, 50).await, sooner_or_later(&b, &key, 40).await);
                assert_eq!(x.commit(20 + round).returned, 30 - round);
                assert_eq!(y.commit(45).charged, 5);
                real += 20 + round + 45;
                left(&a, &key, 1_000 - real).await;
                left(&b, &key, 1_000 - real).await;
            }
            one.shutdown().await.unwrap();
            left(&b, &key, 1_000 - real).await;
            two.shutdown().await.unwrap();
            assert!(name == "memory" || name == "redis");
        }
    }
}

/// Its key is not asked for meanwhile: the instance must not forget what it may have to give back.
#[tokio::test]
async fn a_reservation_of_a_key_that_went_quiet_is_settled_all_the_same() {
    for mode in [Mode::Leased, Mode::Exact] {
        let rule = slow(100).mode(mode).lease_ttl(Duration::from_millis(100)).horizon(Duration::from_millis(50));
        let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
        let reservation = reserve(&limiter, "k", 60).await;
        tokio::time::sleep(Duration::from_millis(600)).await; // several leases' lives
        assert_eq!(reservation.commit(10), returned(50));
        left(&limiter, "k", 90).await;
    }
}

#[tokio::test]
async fn what_an_outage_let_in_is_neither_returned_nor_lost() {
    let port = support::free_port();
    let rule = slow(100).mode(Mode::Exact).outage(Outage::Allow).deadline(Duration::from_millis(50));
    let (_gate, limiter) = limited(gates::lazy(&format!("redis://127.0.0.1:{port}")), rule).await;
    let reservation = reserve(&limiter, "k", 60).await;
    assert!(reservation.decision().trouble().is_some());
    assert_eq!(reservation.commit(10), Settled::default());
    assert_eq!(reserve(&limiter, "k", 60).await.commit(80), charged(20));
    let rule = slow(100).mode(Mode::Exact).outage(Outage::Deny).deadline(Duration::from_millis(50));
    let (_gate, limiter) = limited(gates::lazy(&format!("redis://127.0.0.1:{port}")), rule).await;
    let denied = limiter.reserve("k", 60).await.unwrap_err();
    assert!(!matches!(denied.trouble(), None | Some(ErrorKind::Config)));
}

#[tokio::test]
async fn a_commit_after_the_gate_is_shut_down_harms_nobody() {
    let (gate, limiter) = limited(MemoryStore::default(), slow(100)).await;
    let reservation = reserve(&limiter, "k", 60).await;
    gate.shutdown().await.unwrap();
    let _ = reservation.commit(10);
    assert_eq!(limiter.reserve("k", 60).await.unwrap_err().trouble(), Some(ErrorKind::ShutDown));
}

#[tokio::test]
async fn what_a_window_gets_back_must_still_be_in_it() {
    for rule in
        [Rule::fixed_window(100, 60 * MINUTE), Rule::sliding_log(100, MINUTE), Rule::leaky_bucket(100, 60 * MINUTE)]
    {
        for mode in [Mode::Leased, Mode::Exact] {
            let (_gate, limiter) = limited(MemoryStore::default(), rule.clone().mode(mode).deadline(5 * SECOND)).await;
            assert_eq!(reserve(&limiter, "k", 60).await.commit(20), returned(40));
            left(&limiter, "k", 80).await;
            assert_eq!(reserve(&limiter, "k", 50).await.commit(70), charged(20));
            left(&limiter, "k", 10).await;
        }
    }
}

#[tokio::test]
async fn a_turn_in_a_queue_does_not_come_back_and_is_not_said_to() {
    for mode in [Mode::Local, Mode::Exact] {
        let rule = Rule::leaky_queue(1, MINUTE).burst(100).mode(mode).deadline(5 * SECOND);
        let rule = rule.reservation_ttl(Duration::from_millis(20));
        let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
        let behind = async |turns: u32| {
            let delay = limiter.check("k").await.delay();
            assert!(
                delay <= turns * MINUTE && delay > turns * MINUTE - 10 * SECOND,
                "{mode:?}: {delay:?}, not {turns}"
            );
        };
        assert_eq!(reserve(&limiter, "k", 10).await.commit(2), returned(0), "{mode:?}");
        behind(10).await;
        assert_eq!(reserve(&limiter, "k", 1).await.commit(3), charged(2), "{mode:?}");
        let late = reserve(&limiter, "k", 5).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!late.is_open());
        assert_eq!(late.commit(4), returned(0), "{mode:?}: nothing came back, so nothing is charged anew");
        behind(19).await;
    }
}

#[tokio::test]
async fn where_no_limit_is_kept_nothing_is_settled() {
    let rules = [("free", Rule::unlimited()), ("shadow", slow(1).shadow(true)), ("closed", Rule::deny_all())];
    let builder = rules.into_iter().fold(Tollgate::builder(), |b, (name, rule)| b.rule(name, rule));
    let gate = builder.build().await.unwrap();
    let limiter = |name| gate.limiter(name).unwrap();
    assert_eq!(reserve(&limiter("free"), "k", 5).await.commit(500), Settled::default());
    assert_eq!(reserve(&limiter("shadow"), "k", 5).await.commit(500), Settled::default());
    assert!(limiter("closed").reserve("k", 1).await.unwrap_err().is_never());
    assert_eq!(gate.snapshot().uncharged, 0);
}
