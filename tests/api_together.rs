//! `check_all`: several limits in one decision, all or nothing.
#![cfg(feature = "redis")]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
#[path = "support/mod.rs"]
mod support;

use gates::{both, until};
use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use support::RedisServer;
use tollgate::{Clock, ErrorKind, Limiter, MemoryStore, Mode, Outage, Rule, Store, Tollgate};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Hardly refills: what is missing was taken.
fn slow(burst: u64, mode: Mode) -> Rule {
    Rule::token_bucket(1, HOUR).burst(burst).mode(mode).deadline(PATIENCE).outage(Outage::Deny)
}

async fn gate(store: impl Into<Store>, rules: &[(&str, Rule)]) -> Tollgate {
    let builder = Tollgate::builder().store(store);
    rules.iter().fold(builder, |b, (name, rule)| b.rule(*name, rule.clone())).build().await.unwrap()
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

// case C-24: no limit is charged for what another refuses.
#[tokio::test]
async fn what_one_limit_refuses_is_charged_to_none_in_any_mix_of_modes_on_both_stores() {
    let server = RedisServer::start();
    let modes = [Mode::Local, Mode::Leased, Mode::Exact];
    for (org_mode, member_mode) in modes.into_iter().flat_map(|a| modes.map(|b| (a, b))) {
        for (name, store) in both(&server.url()) {
            let rules = [("org", slow(10, org_mode)), ("member", slow(5, member_mode))];
            let gate = gate(store, &rules).await;
            let (org, member) = (gate.limiter("org").unwrap(), gate.limiter("member").unwrap());
            let org_key = format!("{org_mode:?} {member_mode:?}");
            let mut passed = [0; 2];
            for (who, asks) in [(0, 8), (1, 5)] {
                let member_key = format!("{org_key} {who}");
                for _ in 0..asks {
                    let decision = gate.check_all(&[(&org, &org_key, 1), (&member, &member_key, 1)]).await;
                    if decision.is_allowed() {
                        passed[who] += 1;
                    } else {
                        assert_eq!(decision.refused_by(), Some("member"), "{name} {org_key}");
                        // What went back through the engine is there after the next sync.
                        left(&org, &org_key, 5).await;
                    }
                }
            }
            assert_eq!(passed, [5, 5], "{name} {org_key}");
            left(&org, &org_key, 0).await;
            let decision = gate.check_all(&[(&org, org_key.as_str(), 1), (&member, "another", 1)]).await;
            assert_eq!(decision.refused_by(), Some("org"), "{name} {org_key}");
            left(&member, "another", 5).await;
        }
    }
}

// case C-24, second half: two entries of one key of one rule are one, with the sum of their costs.
#[tokio::test]
async fn two_entries_of_one_key_are_summed_before_they_are_checked() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let gate = gate(MemoryStore::default(), &[("r", slow(10, mode))]).await;
        let r = gate.limiter("r").unwrap();
        let decision = gate.check_all(&[(&r, "a", 6), (&r.clone(), "a", 6)]).await;
        assert!(decision.is_never(), "{mode:?}: twelve never fit: {decision:?}");
        assert!(gate.check_all(&[(&r, "a", 3), (&r, "a", 3), (&r, "b", 10)]).await.is_allowed());
        left(&r, "a", 4).await;
        assert!(!gate.check_all(&[(&r, "a", 3), (&r, "a", 2)]).await.is_allowed());
        left(&r, "a", 4).await;
        left(&r, "b", 0).await;
    }
}

// case C-25: the same key in two rules shares nothing.
#[tokio::test]
async fn the_same_key_under_two_rules_has_two_states() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let rules = [
            ("minute", Rule::token_bucket(3, MINUTE).mode(mode).deadline(PATIENCE)),
            ("day", Rule::token_bucket(30, 1_440 * MINUTE).mode(mode).deadline(PATIENCE)),
        ];
        let gate = gate(MemoryStore::default(), &rules).await;
        let (minute, day) = (gate.limiter("minute").unwrap(), gate.limiter("day").unwrap());
        for _ in 0..3 {
            assert!(gate.check_all(&[(&minute, "k", 1), (&day, "k", 1)]).await.is_allowed());
        }
        let fourth = gate.check_all(&[(&minute, "k", 1), (&day, "k", 1)]).await;
        assert_eq!(fourth.refused_by(), Some("minute"));
        left(&day, "k", 27).await;
    }
}

// case A-15: the last unit passes, whichever way it is asked for.
#[tokio::test]
async fn the_last_token_passes_also_together() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let gate = gate(MemoryStore::default(), &[("r", slow(10, mode))]).await;
        let r = gate.limiter("r").unwrap();
        assert!(r.check_n("k", 9).await.is_allowed());
        let last = gate.check_all(&[(&r, "k", 1)]).await;
        assert!(last.is_allowed() && last.remaining() == 0, "{mode:?}: {last:?}");
        assert!(!gate.check_all(&[(&r, "k", 1)]).await.is_allowed());
    }
}

#[tokio::test]
async fn odd_questions_have_defined_answers() {
    let gate = gate(MemoryStore::default(), &[("a", slow(10, Mode::Leased)), ("b", slow(3, Mode::Local))]).await;
    let (a, b) = (gate.limiter("a").unwrap(), gate.limiter("b").unwrap());
    let none: [(&Limiter, &str, u64); 0] = [];
    assert!(gate.check_all(&none).await.is_allowed() && gate.check_all_now(&none).is_allowed());

    let many: Vec<_> = (0..65).map(|i| (&a, format!("k{i}"), 1)).collect();
    let decision = gate.check_all(&many).await;
    assert!(decision.is_never() && decision.trouble() == Some(ErrorKind::Config) && decision.refused_by().is_none());
    assert!(gate.check_all(&many[..64]).await.is_allowed());

    assert!(gate.check_all(&[(&a, "zero", 0), (&b, "zero", 0)]).await.is_allowed());
    left(&a, "zero", 10).await;
    assert!(gate.check_all(&[(&a, "k", 11), (&b, "k", 1)]).await.is_never());
    assert!(gate.check_all(&[(&a, "k", u64::MAX), (&a, "k", u64::MAX)]).await.is_never());
    left(&b, "k", 3).await;

    // The one nearest to being exhausted is shown.
    let shown = gate.check_all(&[(&a, "x", 1), (&b, "x", 1)]).await;
    assert_eq!((shown.limit(), shown.remaining()), (3, 2));
    let shown = gate.check_all(&[(&b, "y", 1), (&a, "y", 8)]).await;
    assert_eq!((shown.limit(), shown.remaining()), (10, 2));
}

#[test]
fn local_limits_are_left_exactly_as_they_were_and_need_no_runtime() {
    let clock = Clock::manual();
    let gate = Tollgate::builder()
        .clock(clock.clone())
        .rule("a", Rule::token_bucket(10, SECOND).mode(Mode::Local))
        .rule("b", Rule::token_bucket(1, SECOND).mode(Mode::Local))
        .build_local()
        .unwrap();
    let (a, b) = (gate.limiter("a").unwrap(), gate.limiter("b").unwrap());
    assert!(gate.check_all_now(&[(&a, "k", 1), (&b, "k", 1)]).is_allowed());
    for _ in 0..100 {
        let no = gate.check_all_now(&[(&a, "k", 1), (&b, "k", 1)]);
        assert_eq!((no.refused_by(), no.retry_after()), (Some("b"), Some(SECOND)));
    }
    assert_eq!(a.check_now_n("k", 0).remaining(), 9);
    let s = gate.snapshot();
    assert_eq!((s.local_allowed, s.local_denied), (2, 100), "what was put back was no check");
    clock.advance(SECOND);
    assert!(gate.check_all_now(&[(&a, "k", 10), (&b, "k", 1)]).is_allowed());
}

#[tokio::test]
async fn who_cannot_wait_gets_what_is_here() {
    let rules = [
        ("a", Rule::token_bucket(100_000, SECOND).deadline(PATIENCE)),
        ("b", slow(5, Mode::Local)),
        ("exact", slow(5, Mode::Exact)),
    ];
    let gate = gate(MemoryStore::default(), &rules).await;
    let [a, b, exact] = ["a", "b", "exact"].map(|name| gate.limiter(name).unwrap());
    let cold = gate.check_all_now(&[(&b, "k", 1), (&a, "k", 1)]);
    assert_eq!((cold.is_allowed(), cold.refused_by()), (false, Some("a")));
    assert_eq!(b.check_now_n("k", 0).remaining(), 5);
    // It was asked for meanwhile.
    until("the key is warm", || gate.check_all_now(&[(&a, "k", 1), (&b, "k", 1)]).is_allowed()).await;
    assert_eq!(b.check_now_n("k", 0).remaining(), 4);
    assert_eq!(gate.check_all_now(&[(&b, "k", 1), (&exact, "k", 1)]).refused_by(), Some("exact"));
    assert_eq!(b.check_now_n("k", 0).remaining(), 4);
}

#[tokio::test]
async fn a_call_that_is_dropped_at_any_time_takes_nothing() {
    let gate = gate(MemoryStore::default(), &[("a", slow(50, Mode::Leased)), ("b", slow(50, Mode::Local))]).await;
    let (a, b) = (gate.limiter("a").unwrap(), gate.limiter("b").unwrap());
    for _ in 0..100 {
        // Polled once: "b" is taken, "a" is cold and asked for.
        let limits = [(&b, "k", 5), (&a, "k", 5)];
        let polled = pin!(gate.check_all(&limits)).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending | Poll::Ready(_)));
        if polled.is_ready() {
            break;
        }
        assert_eq!(b.check_now_n("k", 0).remaining(), 50, "put back at once");
    }
}

/// Threads that ask for both limits at once, while others take from one of them: neither is ever charged for what
/// the other refused, and no token is lost or made.
#[test]
fn all_or_nothing_holds_among_many_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for modes in [[Mode::Leased, Mode::Local], [Mode::Leased, Mode::Leased], [Mode::Local, Mode::Local]] {
        let rules = [("wide", slow(20_000, modes[0])), ("narrow", slow(3_000, modes[1]))];
        let gate = runtime.block_on(gate(MemoryStore::default(), &rules));
        let (wide, narrow) = (gate.limiter("wide").unwrap(), gate.limiter("narrow").unwrap());
        let [together, alone] = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let (gate, wide, narrow) = (gate.clone(), wide.clone(), narrow.clone());
                let (together, alone) = (together.clone(), alone.clone());
                let handle = runtime.handle().clone();
                thread::spawn(move || {
                    for _ in 0..2_500 {
                        if i == 0 {
                            alone.fetch_add(u64::from(wide.check_blocking("k").is_allowed()), Relaxed);
                            continue;
                        }
                        let limits = [(&wide, "k", 1), (&narrow, "k", 1)];
                        let passed = handle.block_on(gate.check_all(&limits)).is_allowed();
                        together.fetch_add(u64::from(passed), Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let (together, alone) = (together.load(Relaxed), alone.load(Relaxed));
        assert!(together <= 3_000, "{modes:?}: {together}");
        assert_eq!(alone, 2_500, "{modes:?}: the wide one has enough for all");
        runtime.block_on(async {
            left(&wide, "k", 20_000 - together - alone).await;
            left(&narrow, "k", 3_000 - together).await;
        });
        // Nobody is kept out for ever by those who put back.
        let mut rest = 0;
        runtime.block_on(async {
            while gate.check_all(&[(&wide, "k", 1), (&narrow, "k", 1)]).await.is_allowed() {
                rest += 1;
            }
        });
        assert!(together + rest >= 2_900 && together + rest <= 3_000, "{modes:?}: {together} and {rest}");
    }
}

#[tokio::test]
async fn lists_constants_and_shadow_mode_have_their_say_together_too() {
    let rules = [
        ("listed", slow(2, Mode::Local).allow("vip").deny("bot").override_limit("big", 5)),
        ("shadow", slow(1, Mode::Exact).shadow(true)),
        ("free", Rule::unlimited()),
        ("closed", Rule::deny_all()),
        ("other", slow(100, Mode::Leased)),
    ];
    let gate = gate(MemoryStore::default(), &rules).await;
    let [listed, shadow, free, closed, other] =
        ["listed", "shadow", "free", "closed", "other"].map(|name| gate.limiter(name).unwrap());
    for _ in 0..4 {
        assert!(gate.check_all(&[(&listed, "vip", 1), (&other, "k", 1), (&free, "k", 9)]).await.is_allowed());
    }
    let bot = gate.check_all(&[(&other, "k", 1), (&listed, "bot", 1)]).await;
    assert_eq!((bot.is_never(), bot.refused_by()), (true, Some("listed")));
    assert_eq!(gate.check_all(&[(&other, "k", 1), (&closed, "k", 1)]).await.refused_by(), Some("closed"));
    left(&other, "k", 96).await;
    assert!(gate.check_all(&[(&listed, "big", 3), (&listed, "big", 2)]).await.is_allowed());
    // Its second token would be refused; it lets pass, and takes nothing.
    for _ in 0..3 {
        assert!(gate.check_all(&[(&shadow, "k", 1), (&other, "k", 1)]).await.is_allowed());
    }
    assert_eq!(gate.snapshot().shadow_denied, 2);
    left(&other, "k", 93).await;
}

#[tokio::test]
async fn buffered_and_window_rules_are_charged_only_for_what_passes() {
    let rules = [
        ("buffered", slow(100, Mode::Buffered).delta_max(10)),
        ("fixed", Rule::fixed_window(100, HOUR).deadline(PATIENCE)),
        ("log", Rule::sliding_log(100, HOUR).mode(Mode::Exact).deadline(PATIENCE)),
        ("narrow", slow(5, Mode::Local)),
    ];
    let gate = gate(MemoryStore::default(), &rules).await;
    let [buffered, fixed, log, narrow] = ["buffered", "fixed", "log", "narrow"].map(|name| gate.limiter(name).unwrap());
    let mut passed = 0;
    for _ in 0..20 {
        let all = [(&buffered, "k", 1), (&fixed, "k", 1), (&log, "k", 1), (&narrow, "k", 1)];
        passed += u64::from(gate.check_all(&all).await.is_allowed());
    }
    assert_eq!(passed, 5);
    for wide in [&buffered, &fixed, &log] {
        left(wide, "k", 95).await;
    }
    // Refused by one that had to be asked: the rest, asked at the same moment, comes back.
    let no = gate.check_all(&[(&buffered, "k", 1), (&fixed, "k", 1), (&log, "k", 96)]).await;
    assert_eq!(no.refused_by(), Some("log"));
    for wide in [&buffered, &fixed, &log] {
        left(wide, "k", 95).await;
    }
}

/// An outage let one of two through, and refused the other: nothing was taken that could go back.
#[tokio::test]
async fn what_an_outage_let_through_for_one_stays_booked_when_another_refuses() {
    let store = MemoryStore::default();
    let rules = [("open", slow(100, Mode::Exact).outage(Outage::Allow)), ("closed", slow(100, Mode::Exact))];
    let gate = gate(store.clone(), &rules).await;
    let [limiter, closed] = ["open", "closed"].map(|name| gate.limiter(name).unwrap());
    assert!(limiter.check_n("k", 20).await.is_allowed());
    store.set_reachable(false);
    let no = gate.check_all(&[(&limiter, "k", 7), (&closed, "k", 7)]).await;
    assert_eq!((no.is_allowed(), no.refused_by()), (false, Some("closed")), "{no:?}");
    store.set_reachable(true);
    until("the link is up", || gate.snapshot().link == tollgate::Link::Up).await;
    left(&limiter, "k", 100 - 20 - 7).await;
    left(&closed, "k", 100).await;
}
