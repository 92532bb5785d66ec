//! Rules that count on plain keys: one number, shared with code that uses INCR and EXPIRE, on real Redis and the embedded
//! store.
#![cfg(feature = "redis")]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
#[path = "support/mod.rs"]
mod support;

use gates::{Seen, both, lazy, limited, until, until_decided};
use std::{sync::Arc, time::Duration};
use support::RedisServer;
use tollgate::{
    Clock, Error, ErrorKind, Event, Limiter, MemoryStore, Mode, Outage, RedisStore, Rule, Source, Tollgate,
};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// So long that no test meets its edge.
const LONG: Duration = Duration::from_secs(200 * 86_400);
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const LAYOUTS: [&str; 3] = ["rate:{key}:{index}", "rate:{key}:{start}", "rate:{key}"];

fn rule(limit: u64, window: Duration, layout: &str) -> Rule {
    Rule::fixed_window(limit, window).mode(Mode::Exact).plain_key(layout).deadline(PATIENCE).outage(Outage::Deny)
}

/// How an older service calls the counter of this key.
fn counter(server: &RedisServer, layout: &str, window: Duration) -> String {
    let seconds: u64 = server.cli(&["TIME"]).lines().next().unwrap().parse().unwrap();
    let index = seconds / window.as_secs();
    let start = index * window.as_secs();
    layout.replace("{key}", "k").replace("{index}", &index.to_string()).replace("{start}", &start.to_string())
}

/// An embedded store and a gate on one clock that is moved by hand.
async fn by_hand(rule: Rule) -> (Clock, MemoryStore, Tollgate, Limiter) {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let gate = Tollgate::builder().clock(clock.clone()).store(store.clone()).rule("r", rule).build().await.unwrap();
    let limiter = gate.limiter("r").unwrap();
    (clock, store, gate, limiter)
}

async fn passed(limiter: &Limiter, asked: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..asked {
        passed += u64::from(limiter.check("k").await.is_allowed());
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_service_and_ours_count_on_one_number() {
    let server = RedisServer::start();
    for layout in LAYOUTS {
        let name = counter(&server, layout, LONG);
        let (_gate, limiter) = limited(lazy(&server.url()), rule(10, LONG, layout)).await;
        assert!(limiter.check_n("k", 3).await.is_allowed());
        assert_eq!(server.cli(&["GET", &name]), "3", "{layout}: as it reads ours");
        assert_eq!(server.cli(&["INCR", &name]), "4");
        server.cli(&["INCRBY", &name, "4"]);
        let seen = limiter.peek("k").await;
        assert_eq!((seen.remaining(), seen.limit()), (2, 10), "{layout}: as we read theirs");
        assert_eq!(passed(&limiter, 10).await, 2, "{layout}");
        // It counts what it refuses, too, and may count below nothing.
        server.cli(&["INCRBY", &name, "100"]);
        let no = limiter.check("k").await;
        assert!(!no.is_allowed() && no.remaining() == 0 && no.refused_by() == Some("r"), "{no:?}");
        server.cli(&["DECRBY", &name, "112"]);
        assert_eq!(limiter.peek("k").await.remaining(), 10, "{layout}: never above the limit");
        assert_eq!(server.cli(&["DEL", &name]), "1");
    }
    // Nothing else of these keys is in the store: no buckets, no prefix.
    assert_eq!(server.cli(&["KEYS", "*rate:*"]), "");
    assert_eq!(server.cli(&["KEYS", "*:fw:*"]), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn braces_of_the_layout_are_a_clusters_hash_tag() {
    let server = RedisServer::start();
    let (_gate, limiter) = limited(lazy(&server.url()), rule(10, LONG, "rate:{{{key}}}")).await;
    assert!(limiter.check("k").await.is_allowed());
    assert_eq!(server.cli(&["GET", "rate:{k}"]), "1");
}

// cases B-01, B-03, B-05: the time to live is set with the first count, whatever it is, again where it was lost, and never
// pushed back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_counter_has_a_time_to_live_from_its_first_hit_on_and_none_is_pushed_back() {
    let server = RedisServer::start();
    for layout in LAYOUTS {
        let name = counter(&server, layout, LONG);
        let (_gate, limiter) = limited(lazy(&server.url()), rule(10, LONG, layout)).await;
        assert!(limiter.check_n("k", 7).await.is_allowed());
        let ttl = server.cli_number(&["PTTL", &name]);
        assert!(ttl > 0 && ttl <= 17_280_000_000, "{layout}: {ttl}");
        server.cli(&["PEXPIRE", &name, "60000"]);
        assert!(limiter.check("k").await.is_allowed());
        assert!((1..=60_000).contains(&server.cli_number(&["PTTL", &name])), "{layout}");
        // The older service has lost its EXPIRE: nobody is locked out for ever.
        for value in ["3", "99"] {
            server.cli(&["SET", &name, value]);
            assert_eq!(limiter.check("k").await.is_allowed(), value == "3", "{layout}");
            assert!(server.cli_number(&["PTTL", &name]) > 0, "{layout}");
        }
        server.cli(&["DEL", &name]);
    }
    let (_gate, limiter) = limited(lazy(&server.url()), rule(3, SECOND / 4, "short:{key}")).await;
    server.cli(&["SET", "short:k", "99"]);
    let no = limiter.check("k").await;
    assert!(!no.is_allowed());
    tokio::time::sleep(no.retry_after().unwrap()).await;
    assert!(limiter.check("k").await.is_allowed(), "as told");
}

// case B-05: under steady traffic a window ends all the same.
#[tokio::test]
async fn a_window_that_began_with_its_first_hit_ends_under_steady_traffic() {
    let (clock, _store, _gate, limiter) = by_hand(rule(5, 10 * SECOND, "{key}")).await;
    for nth in 0..21 {
        assert!(limiter.check("k").await.is_allowed(), "hit {nth}");
        clock.advance(3 * SECOND);
    }
}

// cases C-23, C-32: who is refused is not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_hits_are_not_counted() {
    let server = RedisServer::start();
    for layout in LAYOUTS {
        for (name, store) in both(&server.url()) {
            let (_gate, limiter) = limited(store.clone(), rule(10, LONG, layout)).await;
            assert_eq!(passed(&limiter, 50).await, 10, "{name} {layout}");
            let (_gate, raised) = limited(store, rule(20, LONG, layout)).await;
            assert_eq!(passed(&raised, 50).await, 10, "{name} {layout}: a raised limit helps at once");
        }
        server.cli(&["FLUSHALL"]);
        let (clock, _store, _gate, limiter) = by_hand(rule(2, 4 * SECOND, layout)).await;
        let mut passed = Vec::new();
        for second in 0..12 {
            if limiter.check("k").await.is_allowed() {
                passed.push(second);
            }
            clock.advance(SECOND);
        }
        assert_eq!(passed, [0, 1, 4, 5, 8, 9], "{layout}");
    }
}

// case B-15
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_a_thousand_at_once_exactly_the_limit_passes() {
    let server = RedisServer::start();
    for layout in LAYOUTS {
        for (name, store) in both(&server.url()) {
            let (gate, limiter) = limited(store, rule(5, LONG, layout)).await;
            let asked: Vec<_> = (0..1_000)
                .map(|nth| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        if nth % 2 == 0 { limiter.check("k").await } else { limiter.key("k").check().await }
                    })
                })
                .collect();
            let mut passed = 0;
            for asked in asked {
                let said = asked.await.unwrap();
                assert_eq!((said.trouble(), said.source()), (None, Source::Authority), "{name} {layout}");
                passed += u32::from(said.is_allowed());
            }
            assert_eq!(passed, 5, "{name} {layout}");
            let snapshot = gate.snapshot();
            assert_eq!((snapshot.authority_allowed, snapshot.authority_denied), (5, 995), "{name} {layout}");
        }
        server.cli(&["FLUSHALL"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_holds_something_else_is_a_typed_trouble_and_others_pass() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let gate =
        Tollgate::builder().store(lazy(&server.url())).observer(seen.clone()).rule("r", rule(5, LONG, "rate:{key}"));
    let gate = gate.build().await.unwrap();
    let limiter = gate.limiter("r").unwrap();
    server.cli(&["RPUSH", "rate:k", "hello"]);
    server.cli(&["SET", "rate:digits", "007"]);
    // More often than a road may fail that is not down.
    for _ in 0..4 {
        assert_eq!(limiter.check("digits").await.trouble(), Some(ErrorKind::WrongType));
    }
    let no = limiter.check("k").await;
    assert!(!no.is_allowed() && no.trouble() == Some(ErrorKind::WrongType) && no.source() == Source::Outage, "{no:?}");
    assert_eq!(limiter.peek("k").await.trouble(), Some(ErrorKind::WrongType));
    assert!(limiter.check("other").await.is_allowed());
    assert_eq!(server.cli(&["LRANGE", "rate:k", "0", "-1"]), "hello");
    let told = seen.count(|event| matches!(event, Event::Bucket { kind: ErrorKind::WrongType, .. }));
    assert_eq!(told, 1, "and not with every check");
}

#[tokio::test]
async fn a_window_of_the_clock_ends_at_its_edge_and_twice_the_limit_may_pass_around_it() {
    for layout in &LAYOUTS[..2] {
        let (clock, store, _gate, limiter) = by_hand(rule(3, MINUTE, layout)).await;
        clock.advance(59 * SECOND);
        assert_eq!(passed(&limiter, 9).await, 3, "{layout}");
        let no = limiter.check("k").await;
        assert_eq!(no.retry_after(), Some(SECOND), "{layout}: the window's end");
        assert_eq!(no.reset_after(), SECOND, "{layout}");
        clock.advance(SECOND - Duration::from_micros(1));
        assert!(!limiter.check("k").await.is_allowed(), "{layout}");
        clock.advance(Duration::from_micros(1));
        let yes = limiter.check("k").await;
        assert_eq!((yes.remaining(), yes.reset_after()), (2, MINUTE), "{layout}");
        assert_eq!(passed(&limiter, 9).await, 2, "{layout}");
        assert_eq!(store.len(), 1, "{layout}: the old one is forgotten");
        assert_eq!(limiter.bound().over(2 * SECOND, 3), 6, "{layout}: as the bound says");
    }
}

// case B-12: what is told and what is so agree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_told_wait_is_when_the_key_is_free_again() {
    let server = RedisServer::start();
    for layout in ["a:{key}", "b:{key}:{index}"] {
        let (_gate, limiter) = limited(lazy(&server.url()), rule(2, Duration::from_millis(300), layout)).await;
        let mut rounds = 0;
        while rounds < 8 {
            let no = limiter.check("k").await;
            if no.is_allowed() {
                continue;
            }
            rounds += 1;
            let wait = no.retry_after().unwrap();
            assert!(wait <= Duration::from_millis(301), "{layout}: {wait:?}");
            tokio::time::sleep(wait).await;
            let yes = limiter.check("k").await;
            assert!(yes.is_allowed() && yes.remaining() == 1, "{layout}: told {wait:?}, then {yes:?}");
        }
    }
    let (clock, _store, _gate, limiter) = by_hand(rule(3, MINUTE, "{key}")).await;
    let mut passed = Vec::new();
    for nth in 0..14 {
        let said = limiter.check("k").await;
        if said.is_allowed() {
            passed.push(nth);
        } else {
            assert_eq!(said.retry_after(), Some((6 - nth % 6) * 10 * SECOND), "attempt {nth}");
        }
        clock.advance(10 * SECOND);
    }
    assert_eq!(passed, [0, 1, 2, 6, 7, 8, 12, 13], "60 s after the first, not after the last");
}

#[tokio::test]
async fn while_the_store_is_away_the_policy_answers_and_the_limit_holds_afterwards() {
    for (outage, passes) in [(Outage::Deny, false), (Outage::Allow, true), (Outage::Share, true)] {
        let store = MemoryStore::default();
        let gate =
            Tollgate::builder().store(store.clone()).instances(1).rule("r", rule(3, LONG, "{key}").outage(outage));
        let gate = gate.build().await.unwrap();
        let limiter = gate.limiter("r").unwrap();
        assert_eq!(passed(&limiter, 2).await, 2);
        store.set_reachable(false);
        for _ in 0..3 {
            let said = limiter.check("k").await;
            assert_eq!((said.is_allowed(), said.source()), (passes, Source::Outage), "{outage:?}");
            assert_eq!(said.trouble(), Some(ErrorKind::Unreachable), "{outage:?}");
        }
        assert_eq!(limiter.peek("k").await.trouble(), Some(ErrorKind::Unreachable));
        assert_eq!(limiter.clear("k").await.unwrap_err().kind(), ErrorKind::Unreachable);
        store.set_reachable(true);
        until("it answers again", || gate.snapshot().link == tollgate::Link::Up).await;
        assert_eq!(passed(&limiter, 9).await, 1, "{outage:?}");
        gate.shutdown().await.unwrap();
        assert_eq!(limiter.check("k").await.trouble(), Some(ErrorKind::ShutDown));
        assert_eq!(limiter.check_now("k").trouble(), Some(ErrorKind::ShutDown));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_a_frozen_server_return_in_time_and_what_it_counts_later_comes_back() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).response_timeout(PATIENCE).lazy().unwrap();
    let (_gate, limiter) = limited(store, rule(1_000, LONG, "{key}").deadline(SECOND / 10)).await;
    let _ = until_decided("the first answer", &limiter, "k", tollgate::Decision::is_allowed).await;
    server.freeze();
    let began = std::time::Instant::now();
    let asked: Vec<_> =
        (0..50).map(|_| limiter.clone()).map(|l| tokio::spawn(async move { l.check("k").await })).collect();
    for asked in asked {
        let no = asked.await.unwrap();
        assert!(!no.is_allowed() && no.trouble() == Some(ErrorKind::Deadline), "{no:?}");
    }
    assert!(began.elapsed() < 5 * SECOND);
    server.thaw();
    until("all came back", || server.cli(&["GET", "k"]) == "1").await;
    tokio::time::sleep(SECOND / 10).await;
    assert_eq!(server.cli(&["GET", "k"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_gives_back_what_was_taken_here_in_this_window_and_no_more() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        let (_gate, ours) = limited(store.clone(), rule(10, LONG, "{key}:{start}")).await;
        let (_other, theirs) = limited(store, rule(10, LONG, "{key}:{start}")).await;
        assert!(ours.check_n("k", 4).await.is_allowed() && theirs.check_n("k", 5).await.is_allowed());
        ours.refund("k", 3);
        ours.refund("k", u64::MAX);
        ours.refund("never", 5);
        theirs.refund("k", 0);
        for _ in 0..200 {
            if theirs.peek("k").await.remaining() == 5 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(theirs.peek("k").await.remaining(), 5, "{name}");
    }
    // What was taken in a window that is over gives nothing to the next one.
    for layout in LAYOUTS {
        let (clock, _store, _gate, limiter) = by_hand(rule(3, MINUTE, layout)).await;
        assert_eq!(passed(&limiter, 3).await, 3);
        clock.advance(MINUTE);
        assert_eq!(passed(&limiter, 1).await, 1);
        limiter.refund("k", 3);
        assert_eq!(passed(&limiter, 9).await, 3, "{layout}: one that was taken in this window");
    }
}

#[tokio::test]
async fn a_check_that_is_dropped_costs_nothing() {
    let (_clock, _store, _gate, limiter) = by_hand(rule(10, LONG, "{key}")).await;
    for _ in 0..10 {
        let mut check = Box::pin(limiter.check("k"));
        let waker = std::task::Waker::noop();
        let _ = check.as_mut().poll(&mut std::task::Context::from_waker(waker));
    }
    for _ in 0..200 {
        if limiter.peek("k").await.remaining() == 10 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", limiter.peek("k").await);
}

// case C-24: the plain one is asked last, and gives back what another has made useless.
#[tokio::test]
async fn several_limits_take_from_a_plain_counter_together_or_not_at_all() {
    let store = MemoryStore::default();
    let bucket = |burst, mode| Rule::token_bucket(1, LONG).burst(burst).mode(mode).deadline(PATIENCE);
    let gate = Tollgate::builder()
        .store(store)
        .rule("plain", rule(10, LONG, "{key}:{index}"))
        .rule("local", bucket(8, Mode::Local))
        .rule("exact", bucket(6, Mode::Exact))
        .rule("leased", bucket(4, Mode::Leased));
    let gate = gate.build().await.unwrap();
    let [plain, local, exact, leased] = ["plain", "local", "exact", "leased"].map(|name| gate.limiter(name).unwrap());
    let mut passed = 0;
    for _ in 0..12 {
        let limits = [(&plain, "k", 1), (&local, "k", 1), (&exact, "k", 1), (&leased, "k", 1)];
        passed += u64::from(gate.check_all(&limits).await.is_allowed());
    }
    assert_eq!(passed, 4);
    for _ in 0..200 {
        if plain.peek("k").await.remaining() == 6 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(plain.peek("k").await.remaining(), 6, "what the others refused is not counted");
    assert!(local.check_now_n("k", 4).is_allowed());
    // Two entries of one key are summed, and who cannot wait is told so.
    assert!(!gate.check_all(&[(&plain, "k", 3), (&plain, "k", 4)]).await.is_allowed());
    assert!(gate.check_all(&[(&plain, "k", 3), (&plain, "k", 3)]).await.is_allowed());
    assert!(!gate.check_all_now(&[(&plain, "fresh", 1)]).is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_counts_on_the_same_number() {
    let (_gate, limiter) = limited(MemoryStore::default(), rule(20, LONG, "{key}")).await;
    let handle = limiter.key("k");
    assert!(limiter.check("k").await.is_allowed() && handle.check_n(2).await.is_allowed());
    let (here, there) = (limiter.clone(), handle.clone());
    let blocking = move || here.check_blocking("k").is_allowed() && there.check_blocking_n(2).is_allowed();
    assert!(tokio::task::spawn_blocking(blocking).await.unwrap());
    assert!(limiter.acquire("k", 3, PATIENCE).await.is_ok() && handle.acquire(1, PATIENCE).await.is_ok());
    assert_eq!(limiter.peek("k").await.remaining(), 10);
    assert_eq!(handle.peek().await.remaining(), 10);
    let peeked = limiter.clone();
    assert_eq!(tokio::task::spawn_blocking(move || peeked.check_blocking_n("k", 0).remaining()).await.unwrap(), 10);
    // Never waits, so never asks: as for any `Exact` rule.
    let no = limiter.check_now("k");
    assert!(!no.is_allowed() && no.trouble().is_none() && no.retry_after().is_some(), "{no:?}");
    assert!(!handle.check_now().is_allowed());
    assert!(limiter.check_n("k", 21).await.is_never());
    assert_eq!(limiter.check(vec![b'x'; 1_025]).await.trouble(), Some(ErrorKind::BadKey));
    assert_eq!(limiter.peek("k").await.remaining(), 10);
}

#[tokio::test]
async fn who_waits_in_line_is_let_in_when_the_window_ends() {
    let (clock, _store, _gate, limiter) = by_hand(rule(1, 10 * SECOND, "{key}")).await;
    assert!(limiter.check("k").await.is_allowed());
    let waits = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("k", 1, MINUTE).await.map(|said| said.is_allowed()) }
    });
    until("it was let in", || {
        clock.advance(SECOND / 20);
        waits.is_finished()
    })
    .await;
    assert_eq!(waits.await.unwrap(), Ok(true));
}

#[tokio::test]
async fn a_reservation_is_settled_by_its_real_cost() {
    let (_gate, limiter) = limited(MemoryStore::default(), rule(100, LONG, "{key}:{index}")).await;
    let left = async |want: u64| {
        for _ in 0..200 {
            if limiter.peek("k").await.remaining() == want {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(limiter.peek("k").await.remaining(), want);
    };
    let settled = limiter.reserve("k", 50).await.unwrap().commit(20);
    assert_eq!((settled.returned, settled.charged), (30, 0));
    left(80).await;
    let settled = limiter.key("k").reserve(50).await.unwrap().commit(90);
    assert_eq!((settled.returned, settled.charged), (0, 40));
    left(0).await;
    let no = limiter.reserve("k", 1).await.unwrap_err();
    assert!(!no.is_allowed());
    limiter.clear("k").await.unwrap();
    drop(limiter.reserve("k", 50).await.unwrap());
    left(100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_can_be_cleared_and_not_blocked() {
    let server = RedisServer::start();
    for layout in LAYOUTS {
        for (name, store) in both(&server.url()) {
            let (_gate, limiter) = limited(store, rule(3, LONG, layout)).await;
            assert_eq!(passed(&limiter, 9).await, 3, "{name}");
            let error: Error = limiter.block("k", MINUTE).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().starts_with("rule \"r\": block: a plain key cannot be blocked"), "{error}");
            assert_eq!(limiter.unblock("k").await, Ok(()));
            limiter.clear("k").await.unwrap();
            limiter.clear("never").await.unwrap();
            limiter.refund("k", 3);
            assert_eq!(passed(&limiter, 9).await, 3, "{name} {layout}: what was cleared does not come back twice");
        }
    }
}

#[tokio::test]
async fn overrides_and_other_rules_of_one_layout_count_on_the_same_keys() {
    let store = MemoryStore::default();
    let listed = rule(3, LONG, "{key}").override_limit("vip", 5).deny("bad");
    let (gate, limiter) = limited(store.clone(), listed.clone()).await;
    let (_other, plain) = limited(store, rule(3, LONG, "{key}")).await;
    let mut passed = 0;
    for _ in 0..9 {
        passed += u64::from(limiter.check("vip").await.is_allowed());
    }
    assert_eq!(passed, 5);
    assert!(!plain.check("vip").await.is_allowed());
    assert!(limiter.check("bad").await.is_never());
    // The limit is raised while running, and what was counted stays.
    gate.replace_rules(tollgate::Rules::new().rule("r", listed.override_limit("v?p", 9).shadow(false))).unwrap();
    assert!(!limiter.check("vip").await.is_allowed());
}

#[tokio::test]
async fn a_wrong_layout_is_an_error_of_the_build() {
    let wrong = [
        rule(3, MINUTE, "{index}"),
        rule(3, MINUTE, "{key}{"),
        rule(3, Duration::from_millis(1_500), "{key}:{start}"),
        rule(3, MINUTE, "{key}").mode(Mode::Leased),
        Rule::token_bucket(3, MINUTE).mode(Mode::Exact).plain_key("{key}"),
    ];
    for rule in wrong {
        let error = Tollgate::builder().rule("login", rule).build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with("rule \"login\": plain_key: "), "{error}");
    }
}

// Two instances, in small windows that begin with their first hit: none holds more than the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_window_of_a_real_server_holds_more_than_its_limit() {
    let server = RedisServer::start();
    let window = Duration::from_millis(200);
    for layout in ["a:{key}", "b:{key}:{index}"] {
        let began = std::time::Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let (gate, limiter) = limited(lazy(&server.url()), rule(7, window, layout)).await;
            let gate = Arc::new(gate);
            for _ in 0..2 {
                let (gate, limiter) = (gate.clone(), limiter.clone());
                tasks.push(tokio::spawn(async move {
                    let (mut passed, _gate) = (0_u64, gate);
                    while began.elapsed() < 2 * SECOND {
                        passed += u64::from(limiter.check("k").await.is_allowed());
                    }
                    passed
                }));
            }
        }
        let mut passed = 0;
        for task in tasks {
            passed += task.await.unwrap();
        }
        let most = 7 * (began.elapsed().as_millis() as u64 / 200 + 2);
        assert!(passed <= most && passed >= 7 * 8, "{layout}: {passed} of at most {most}");
    }
}
