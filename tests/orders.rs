//! Every algorithm and mode through the public face: limits, blocks, clears, and reports that come afterwards.
#![allow(clippy::unwrap_used)]

use std::time::Duration;
use tollgate::{Clock, ErrorKind, Limiter, MemoryStore, Mode, Outage, Rule, Source, Tollgate};

const HOUR: Duration = Duration::from_secs(3_600);

/// Rules of 10 an hour, in each algorithm that can be lent.
fn rules() -> [(&'static str, Rule); 5] {
    [
        ("bucket", Rule::token_bucket(10, HOUR)),
        ("meter", Rule::leaky_bucket(10, HOUR)),
        ("fixed", Rule::fixed_window(10, HOUR)),
        ("log", Rule::sliding_log(10, HOUR)),
        ("counter", Rule::sliding_counter(10, HOUR)),
    ]
}

const MODES: [Mode; 4] = [Mode::Local, Mode::Leased, Mode::Exact, Mode::Buffered];

async fn limited(store: &MemoryStore, rule: Rule) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().store(store.clone()).rule("r", rule.deadline(Duration::from_secs(5)));
    let gate = gate.build().await.unwrap();
    let limiter = gate.limiter("r").unwrap();
    (gate, limiter)
}

async fn passed(limiter: &Limiter, asked: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..asked {
        passed += u64::from(limiter.check("k").await.is_allowed());
    }
    passed
}

#[tokio::test]
async fn ten_an_hour_are_ten_in_every_algorithm_and_mode() {
    for (name, rule) in rules() {
        for mode in MODES {
            let (gate, limiter) = limited(&MemoryStore::default(), rule.clone().mode(mode)).await;
            let got = passed(&limiter, 30).await;
            // Buffered: one ahead of what the store has booked, at most.
            let most = if mode == Mode::Buffered { 11 } else { 10 };
            assert!((10..=most).contains(&got), "{name} {mode:?}: {got}");
            assert!(limiter.check_n("k", 11).await.is_never(), "{name} {mode:?}");
            gate.shutdown().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_blocked_key_is_refused_until_the_block_is_lifted_and_others_pass() {
    for (name, rule) in rules() {
        for mode in MODES {
            let (_gate, limiter) = limited(&MemoryStore::default(), rule.clone().mode(mode)).await;
            for seen in [false, true] {
                let what = format!("{name} {mode:?} seen {seen}");
                limiter.block("k", Duration::from_secs(600)).await.unwrap();
                let no = limiter.check("k").await;
                assert!(!no.is_allowed() && !no.is_never(), "{what}: {no:?}");
                assert_eq!((no.refused_by(), no.remaining()), (Some("r"), 0), "{what}");
                let wait = no.retry_after().unwrap();
                assert!(wait > Duration::from_secs(500) && wait < Duration::from_secs(601), "{what}: {wait:?}");
                assert!(!limiter.check_now("k").is_allowed(), "{what}");
                assert!(limiter.check("other").await.is_allowed(), "{what}");
                limiter.unblock("k").await.unwrap();
                assert!(limiter.check("k").await.is_allowed(), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_cleared_key_begins_anew() {
    for (name, rule) in rules() {
        for mode in MODES {
            let (_gate, limiter) = limited(&MemoryStore::default(), rule.clone().mode(mode)).await;
            assert!(passed(&limiter, 30).await >= 10, "{name} {mode:?}");
            limiter.clear("k").await.unwrap();
            let got = passed(&limiter, 30).await;
            assert!((9..=12).contains(&got), "{name} {mode:?}: {got}");
            limiter.block("k", HOUR).await.unwrap();
            limiter.clear("k").await.unwrap();
            assert!(limiter.check("k").await.is_allowed(), "{name} {mode:?}: the block is lifted, too");
        }
    }
}

#[tokio::test]
async fn an_order_that_cannot_be_given_says_why() {
    let store = MemoryStore::default();
    let rule = Rule::token_bucket(10, HOUR).outage(Outage::Deny);
    let (gate, limiter) = limited(&store, rule).await;
    let span = limiter.block("k", Duration::ZERO).await.unwrap_err();
    assert_eq!(span.kind(), ErrorKind::Config);
    assert!(span.to_string().starts_with("rule \"r\": block: "), "{span}");
    assert_eq!(limiter.block("k", Duration::MAX).await.unwrap_err().kind(), ErrorKind::Config);
    store.set_reachable(false);
    let clear = limiter.clear("k").await.unwrap_err();
    assert_eq!(clear.kind(), ErrorKind::Unreachable);
    assert_eq!(clear.to_string(), "rule \"r\": clear: the store did not take it: Unreachable");
    store.set_reachable(true);
    gate.shutdown().await.unwrap_or_default();
    assert_eq!(limiter.clear("k").await.unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test]
async fn a_key_for_which_nothing_is_counted_has_no_orders() {
    let (_gate, limiter) =
        limited(&MemoryStore::default(), Rule::token_bucket(10, HOUR).allow("free").deny("bad")).await;
    for key in ["free", "bad"] {
        let error = limiter.block(key, HOUR).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with("rule \"r\": block: nothing is counted for this key"), "{error}");
        assert_eq!(limiter.unblock(key).await.unwrap_err().kind(), ErrorKind::Config);
    }
}

// The store is away from the very start: a `Buffered` key goes on until its allowance is used.
#[tokio::test]
async fn a_buffered_key_never_waits_while_its_allowance_lasts() {
    for (name, rule) in rules() {
        let store = MemoryStore::default();
        store.set_reachable(false);
        let (gate, limiter) = limited(&store, rule.mode(Mode::Buffered).delta_max(4).outage(Outage::Deny)).await;
        for _ in 0..2 {
            let yes = limiter.check_now("k");
            assert!(yes.is_allowed() && yes.source() == Source::Lease, "{name}: {yes:?}");
        }
        let handle = limiter.key("k");
        assert!(handle.check_now().is_allowed() && limiter.check_blocking("k").is_allowed(), "{name}");
        // All four are used, whoever has taken them.
        for _ in 0..20 {
            assert!(!limiter.check_now("k").is_allowed(), "{name}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(gate.snapshot().lease_allowed + gate.snapshot().cold_allowed, 4, "{name}");
    }
}

#[tokio::test]
async fn a_queue_says_how_long_to_wait() {
    for mode in [Mode::Local, Mode::Exact] {
        let (_gate, limiter) = limited(&MemoryStore::default(), Rule::leaky_queue(10, HOUR).burst(3).mode(mode)).await;
        let mut delays = Vec::new();
        for _ in 0..4 {
            let yes = limiter.check("k").await;
            assert!(yes.is_allowed(), "{mode:?}: {yes:?}");
            delays.push(yes.delay().as_secs());
        }
        assert_eq!(delays[0], 0, "{mode:?}");
        for (nth, delay) in (0_u64..).zip(&delays) {
            assert!(delay.abs_diff(360 * nth) <= 1, "{mode:?}: {delays:?}");
        }
        assert!(!limiter.check("k").await.is_allowed(), "{mode:?}: three may wait");
        assert!(limiter.check_n("all", 4).await.is_allowed(), "{mode:?}: one leaves at once and three wait");
        assert!(limiter.check_n("all", 5).await.is_never(), "{mode:?}");
    }
}

// case C-08: what remains grows with time. case C-10: the wait is that of one token.
#[test]
fn a_local_window_tells_what_is_left_now_and_how_long_to_wait() {
    let clock = Clock::manual();
    let gate = Tollgate::builder()
        .clock(clock.clone())
        .rule("log", Rule::sliding_log(5, Duration::from_secs(1)).mode(Mode::Local))
        .rule("fixed", Rule::fixed_window(5, Duration::from_secs(1)).mode(Mode::Local))
        .build_local()
        .unwrap();
    for name in ["log", "fixed"] {
        let limiter = gate.limiter(name).unwrap();
        clock.advance(Duration::from_millis(400));
        for _ in 0..5 {
            assert!(limiter.check_now("k").is_allowed());
        }
        let no = limiter.check_now("k");
        assert_eq!(no.remaining(), 0);
        let wait = no.retry_after().unwrap();
        assert!(wait <= Duration::from_millis(1_001), "{name}: {wait:?}");
        clock.advance(wait);
        assert!(limiter.check_now("k").is_allowed(), "{name}: as told");
        assert_eq!(limiter.check_now_n("k", 0).remaining(), 4, "{name}");
        clock.advance(Duration::from_millis(1_600));
    }
}
