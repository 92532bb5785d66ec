//! Cases A: local tiers, leases and fallbacks over a store that fails. Through the public API, in token-bucket form.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
mod support;

use gates::{Seen, both, drive, gate, lazy, left, limited, limiter, slow, until, until_decided};
use std::{
    thread,
    time::{Duration, Instant},
};
use support::{Proxy, RedisServer, free_port};
use tollgate::{Clock, ErrorKind, Event, Link, Micros, Mode, Outage, Rate, Rule, Source, Store, Tollgate, sim::Judge};

const SECOND: Duration = Duration::from_secs(1);
const MODES: [Mode; 2] = [Mode::Leased, Mode::Exact];

fn outage_of(d: &tollgate::Decision) -> bool {
    d.source() == Source::Outage
}

// case A-02: the connection is cut after the question left and before its answer came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_in_the_middle_of_a_sync_neither_loses_nor_doubles_what_was_taken() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    for mode in MODES {
        let rule = slow(500_000).mode(mode).outage(Outage::Deny);
        let (gate, limiter) = limited(lazy(&proxy.url()), rule.clone()).await;
        let keys = [(format!("a {mode:?}"), 7), (format!("b {mode:?}"), 3)];
        let mut taken = [0; 2];
        let mut connections = 0;
        for _ in 0..10_000 {
            until("the link is up", || gate.snapshot().link == Link::Up).await;
            if gate.snapshot().in_doubt >= 8 {
                break;
            }
            // One cut at a time: the last one has been met when there is a new connection.
            if proxy.accepted() > connections {
                connections = proxy.accepted();
                proxy.cut_before_reply();
            }
            for ((key, cost), taken) in keys.iter().zip(&mut taken) {
                if limiter.check_n(key, *cost).await.is_allowed() {
                    *taken += cost;
                }
            }
        }
        let doubt = gate.snapshot().in_doubt;
        assert!(doubt >= 8, "{mode:?}: no cut was met");
        assert!(taken.iter().all(|t| *t > 0), "{mode:?}: {taken:?}");
        gate.shutdown().await.expect("a link that works again");
        // What lay in the credits of threads is not given back: 64 tokens of a hot key for each of the three that
        // may have asked.
        let kept = 3 * 64;
        for ((key, cost), taken) in keys.iter().zip(taken) {
            let left = left(lazy(&server.url()), rule.clone(), key).await;
            // What is in doubt may have been given to nobody; nothing else is missing, and nothing came back.
            let least = 500_000 - taken - doubt * cost - kept;
            assert!((least..=500_000 - taken + 1).contains(&left), "{mode:?} {key}: {left} left, {taken} taken");
        }
    }
}

// case A-03: each answer comes after the time-out. What was spent is told again and again, and counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_always_too_late_count_nothing_twice() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let rule = slow(100_000).outage(Outage::Deny);
    let (gate, limiter) = limited(lazy(&proxy.url()), rule.clone()).await;
    let mut taken = 0;
    // Nobody waits here, so that no request of its own is in any question: the lease alone is spent.
    until("a lease", || {
        taken += u64::from(limiter.check_now("k").is_allowed());
        gate.snapshot().held > 20
    })
    .await;
    proxy.delay_replies(Duration::from_millis(250));
    let before = gate.snapshot();
    until("some questions in doubt", || {
        taken += u64::from(limiter.check_now("k").is_allowed());
        gate.snapshot().in_doubt >= before.in_doubt + 2 || gate.snapshot().link == Link::Down
    })
    .await;
    proxy.delay_replies(Duration::ZERO);
    until("the link is back", || gate.snapshot().link == Link::Up).await;
    gate.shutdown().await.expect("a link that works again");
    let left = left(lazy(&server.url()), rule, "k").await;
    let kept = gate.snapshot().held;
    assert!((100_000 - taken - kept..=100_001 - taken).contains(&left), "{left} left, {taken} taken, {kept} kept");
}

// case A-10: two instances at 160 % of the limit admit no more than one bucket would, and little less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_above_the_limit_admit_what_one_bucket_would() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        let rule = Rule::token_bucket(500, SECOND).deadline(SECOND);
        let (one, a) = limited(store.clone(), rule.clone()).await;
        let (two, b) = limited(store, rule).await;
        let end = Micros(Clock::system().now().0 + 2_500_000);
        let (x, y) = tokio::join!(tokio::spawn(drive(a, "k", 400, end)), tokio::spawn(drive(b, "k", 400, end)),);
        let ((mut trace, mut asked), (more, also)) = (x.unwrap(), y.unwrap());
        trace.extend(more);
        asked.extend(also);
        asked.sort();
        let judge = Judge::new(Rate::new(500, SECOND).unwrap(), 500);
        let verdict = judge.violations(&trace);
        assert!(verdict.holds(), "{name}: {verdict}");
        let attempts: Vec<_> = asked.into_iter().map(|at| (at, 1)).collect();
        let central = judge.reference(&attempts);
        assert!(verdict.admitted * 10 >= central * 9, "{name}: {verdict}, one bucket admits {central}");
        for gate in [one, two] {
            gate.shutdown().await.expect("a clean end");
        }
    }
}

// case A-15: the last token is as good as the others, whoever decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_limit_passes_in_every_mode_by_every_call_on_both_stores() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
            let (gate, limiter) = limited(store.clone(), slow(10).mode(mode)).await;
            for (way, cost) in [("check", 1), ("blocking", 1), ("now", 1), ("handle", 1), ("check", 5), ("now", 2)] {
                let key = format!("{name} {mode:?} {way} {cost}");
                let handle = limiter.key(&key);
                let mut taken = 0;
                let mut last = None;
                for _ in 0..400 {
                    let decision = match way {
                        "check" => limiter.check_n(&key, cost).await,
                        "handle" => handle.check().await,
                        "blocking" => tokio::task::block_in_place(|| limiter.check_blocking(&key)),
                        // Never waits, so it is asked again; in `Exact` it never has a token here.
                        _ if mode == Mode::Exact => break,
                        _ => limiter.check_now_n(&key, cost),
                    };
                    assert_eq!(decision.trouble(), None, "{key}: {decision:?}");
                    if decision.is_allowed() {
                        taken += cost;
                        last = Some(decision.remaining());
                    } else if taken == 10 {
                        break;
                    } else {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
                if way == "now" && mode == Mode::Exact {
                    continue;
                }
                assert_eq!((taken, last), (10, Some(0)), "{key}");
                let more = limiter.check(&key).await;
                assert!(!more.is_allowed() && more.retry_after().is_some(), "{key}: {more:?}");
            }
            gate.shutdown().await.expect("a clean end");
        }
    }
}

// case A-17: tokens that were lent are worthless after the lease's end, wherever they lie.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_ended_while_cut_off_are_never_spent() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(2);
    let rule = slow(500).lease_ttl(ttl).outage(Outage::Deny);
    let mut nodes = Vec::new();
    let mut taken = 0;
    for _ in 0..5 {
        let (proxy, clock) = (Proxy::to(server.port()), Clock::manual());
        let building = Tollgate::builder().store(lazy(&proxy.url())).rule("r", rule.clone()).clock(clock.clone());
        let gate = building.build().await.unwrap();
        let limiter = limiter(&gate);
        nodes.push((proxy, clock, gate, limiter));
    }
    for (_, clock, gate, limiter) in &nodes {
        until("a lease", || {
            clock.advance(Duration::from_millis(5));
            taken += u64::from(limiter.check_now("k").is_allowed());
            gate.snapshot().held > 2
        })
        .await;
    }
    for (proxy, ..) in &nodes {
        proxy.freeze();
    }
    let held: u64 = nodes.iter().map(|(_, _, gate, _)| gate.snapshot().held).sum();
    assert!(held > 0, "something is lent");
    for (_, clock, _, limiter) in &nodes {
        clock.advance(ttl);
        for _ in 0..100 {
            assert!(!limiter.check_now("k").is_allowed(), "a lease that is over");
        }
    }
    // Nobody gets what they had: it counts as spent, so 500 in all is never exceeded.
    let (fresh, limiter) = limited(lazy(&server.url()), rule.lease_ttl(Duration::from_millis(200))).await;
    let start = Instant::now();
    while start.elapsed() < ttl + Duration::from_millis(500) {
        taken += u64::from(limiter.check("k").await.is_allowed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // What they held is lost, and as much again at most by an answer that was on its way when the link froze.
    assert!((499 - 2 * held..=501).contains(&taken), "{taken}, and {held} were held");
    fresh.shutdown().await.expect("a clean end");
}

// case A-19: a limit of one is one for all, and the other node learns of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_token_for_two_instances_is_given_once() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        for mode in MODES {
            let rule = Rule::token_bucket(1, Duration::from_secs(30)).mode(mode).deadline(SECOND);
            let (_one, a) = limited(store.clone(), rule.clone()).await;
            let (_two, b) = limited(store.clone(), rule).await;
            let key = format!("k {mode:?}");
            let mut passed = 0;
            for call in 0..30 {
                let decision = if call % 2 == 0 { a.check(&key).await } else { b.check(&key).await };
                assert_eq!(decision.trouble(), None, "{name} {mode:?}: {decision:?}");
                passed += u32::from(decision.is_allowed());
                if !decision.is_allowed() {
                    let wait = decision.retry_after().expect("it is known");
                    assert!((Duration::from_secs(20)..Duration::from_secs(31)).contains(&wait), "{wait:?}");
                }
            }
            assert_eq!(passed, 1, "{name} {mode:?}");
        }
    }
}

// case A-22: eight workers, and no Redis from the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_never_reached_the_store_share_the_limit_they_were_told_of() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let ten = Rule::token_bucket(10, SECOND);
    for (policy, told) in
        [(Outage::Share, Some(8)), (Outage::Share, None), (Outage::Deny, Some(8)), (Outage::Allow, Some(8))]
    {
        let start = Instant::now();
        let (mut passed, mut refused) = (0, 0);
        for _ in 0..8 {
            let mut building = Tollgate::builder().store(lazy(&url)).rule("r", ten.clone().outage(policy));
            if let Some(instances) = told {
                building = building.instances(instances);
            }
            let gate = building.build().await.expect("a store that is away is no error");
            let limiter = limiter(&gate);
            for _ in 0..20 {
                let decision = limiter.check("k").await;
                assert!(outage_of(&decision), "{decision:?}");
                let trouble = decision.trouble().expect("something was wrong");
                assert!(matches!(trouble, ErrorKind::Unreachable | ErrorKind::Deadline), "{trouble:?}");
                if decision.is_allowed() { passed += 1 } else { refused += 1 }
            }
            let snapshot = gate.snapshot();
            assert_eq!(snapshot.outage_allowed + snapshot.outage_denied, 20, "{snapshot:?}");
        }
        let limit = 10 + 10 * start.elapsed().as_millis() as u64 / 1_000 + 1;
        match (policy, told) {
            (Outage::Share, Some(_)) => assert!((8..=limit).contains(&passed), "{passed} of {limit}"),
            (Outage::Allow, _) => assert_eq!((passed, refused), (160, 0)),
            _ => assert_eq!((passed, refused), (0, 160), "{policy:?} {told:?}"),
        }
    }
}

// case A-22, afterwards: what was let through is told once the store is there, down to an empty bucket at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_outage_let_through_is_charged_when_it_is_over() {
    let mut server = RedisServer::start();
    let url = server.url();
    for mode in MODES {
        server.kill();
        let rule = slow(1_000).mode(mode).outage(Outage::Allow);
        let (gate, limiter) = limited(lazy(&url), rule.clone()).await;
        for _ in 0..300 {
            assert!(limiter.check("some").await.is_allowed());
        }
        for _ in 0..3 {
            let decision = limiter.check_n("all", 900).await;
            assert!(decision.is_allowed() && outage_of(&decision), "{decision:?}");
        }
        server.restart();
        until("the link is back", || gate.snapshot().link == Link::Up).await;
        assert_eq!(gate.snapshot().outage_allowed, 303);
        gate.shutdown().await.expect("all is told");
        for (key, rest) in [("some", 700), ("all", 0)] {
            assert_eq!(left(lazy(&url), rule.clone(), key).await, rest, "{mode:?} {key}");
        }
    }
}

// case A-24: ten instances whose store dies admit together about what the limit is, not ten times as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_without_their_store_share_one_limit() {
    let mut server = RedisServer::start();
    let rule = Rule::token_bucket(100, SECOND).deadline(Duration::from_secs(2));
    let mut gates = Vec::new();
    for _ in 0..10 {
        gates.push(gate(lazy(&server.url()), rule.clone()).await);
    }
    until("all know each other", || gates.iter().all(|g| g.snapshot().members == Some(10))).await;
    server.kill();
    until("all know that it is gone", || gates.iter().all(|g| g.snapshot().link == Link::Down)).await;
    let (start, mut passed) = (Instant::now(), 0);
    while start.elapsed() < SECOND {
        for gate in &gates {
            for _ in 0..20 {
                let decision = limiter(gate).check_now("k");
                assert_eq!(decision.trouble(), Some(ErrorKind::Unreachable));
                passed += u64::from(decision.is_allowed());
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    let limit = 100 + (100 * start.elapsed().as_millis() / 1_000) as u64;
    assert!((limit * 8 / 10..=limit + 1).contains(&passed), "{passed} of {limit}");
}

// case A-25, and A-04's "seen once, resolved once": after an outage all is as before, by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_the_shared_state_is_used_again_by_itself() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let seen = Seen::default();
    let rule = slow(1_000).mode(Mode::Exact).outage(Outage::Deny);
    let building = Tollgate::builder().store(lazy(&proxy.url())).rule("r", rule.clone()).observer(seen.clone());
    let gate = building.build().await.unwrap();
    let limiter = limiter(&gate);
    assert!(limiter.check("k").await.is_allowed());
    for round in 1..=2 {
        proxy.refuse();
        let _ = until_decided("refused for the outage", &limiter, "k", |d| d.trouble() == Some(ErrorKind::Unreachable))
            .await;
        until("it counts as down", || seen.links(Link::Down) == round).await;
        // Long enough for the pauses to have grown to the longest.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert!(!limiter.check("k").await.is_allowed());
        proxy.resume();
        until("it is back", || gate.snapshot().link == Link::Up).await;
        let decision = limiter.check("k").await;
        assert!(decision.is_allowed() && decision.source() == Source::Authority, "{decision:?}");
        assert_eq!(decision.remaining(), 1_000 - 1 - round as u64, "the very same bucket");
    }
    assert_eq!((seen.links(Link::Down), seen.links(Link::Up)), (2, 2), "{:?}", seen.all());
}

// case A-26: a store that is there and refuses is not a store that is gone: another policy, another count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_store_has_its_own_outcome_policy_and_count() {
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "busy-reply-threshold", "20"]);
    for mode in MODES {
        for want in [ErrorKind::OutOfMemory, ErrorKind::ReadOnly, ErrorKind::Overloaded] {
            // The policy of the other kind would let all through.
            let rule = slow(1_000).mode(mode).outage(Outage::Allow).overload(Outage::Deny);
            let (gate, limiter) = limited(lazy(&server.url()), rule).await;
            // Tokens that were lent before would be spent first; a key of the trouble's own has none.
            assert!(limiter.check(format!("before {mode:?} {want:?}")).await.is_allowed());
            let key = format!("{mode:?} {want:?}");
            let mut busy = None;
            match want {
                ErrorKind::OutOfMemory => _ = server.cli(&["CONFIG", "SET", "maxmemory", "1"]),
                ErrorKind::ReadOnly => _ = server.cli(&["REPLICAOF", "127.0.0.1", "1"]),
                _ => {
                    let port = server.port().to_string();
                    busy = Some(thread::spawn(move || {
                        let mut command = std::process::Command::new("redis-cli");
                        command.args(["-p", &port, "EVAL", "while true do end", "0"]);
                        command.output().expect("redis-cli")
                    }));
                }
            }
            // Until a busy server says so it is merely silent.
            let decision = until_decided("refused", &limiter, &key, |d| d.trouble() == Some(want)).await;
            assert!(!decision.is_allowed() && outage_of(&decision), "{decision:?}");
            assert_eq!(decision.retry_after(), None, "nobody knows");
            assert!(gate.snapshot().overload > 0);
            match want {
                ErrorKind::OutOfMemory => _ = server.cli(&["CONFIG", "SET", "maxmemory", "0"]),
                ErrorKind::ReadOnly => _ = server.cli(&["REPLICAOF", "NO", "ONE"]),
                _ => {
                    let killed = server.cli(&["SCRIPT", "KILL"]);
                    assert_eq!(killed, "OK");
                    _ = busy.take().map(thread::JoinHandle::join);
                }
            }
            let _ = until_decided("served again", &limiter, &key, |d| d.is_allowed() && d.trouble().is_none()).await;
        }
    }
}

// case A-27: who is told no by the limit is not let in by the fallback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_says_no_never_asks_the_fallback() {
    let mut server = RedisServer::start();
    for mode in MODES {
        let rule = slow(4).mode(mode).outage(Outage::Share);
        let building = Tollgate::builder().store(lazy(&server.url())).rule("r", rule).instances(1);
        let gate = building.build().await.unwrap();
        let limiter = limiter(&gate);
        let key = format!("{mode:?}");
        let mut passed = 0;
        for _ in 0..50 {
            passed += u32::from(limiter.check(&key).await.is_allowed());
            assert!(!limiter.check_n(&key, 5).await.is_allowed(), "above the burst");
        }
        assert_eq!(passed, 4, "{mode:?}");
        let snapshot = gate.snapshot();
        let fallback = (snapshot.outage_allowed, snapshot.outage_denied, snapshot.local_allowed, snapshot.local_denied);
        assert_eq!(fallback, (0, 0, 0, 0), "{mode:?}: untouched");
        server.kill();
        until("it counts as down", || gate.snapshot().link == Link::Down).await;
        // Longer than a no is believed while it can be asked about again.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let share = async |key: &str| {
            let mut more = 0;
            for _ in 0..50 {
                more += u32::from(limiter.check(key).await.is_allowed());
                more += u32::from(limiter.check_now(key).is_allowed());
            }
            more
        };
        assert_eq!(share("another").await, 4, "{mode:?}: the share, once");
        // The limit said no for an hour; `Exact`, which asks each time, remembers nothing.
        let more = if mode == Mode::Leased { 0 } else { 4 };
        assert_eq!(share(&key).await, more, "{mode:?}");
        let never = limiter.check_n(&key, 5).await;
        assert!(never.is_never() && never.trouble().is_none(), "{never:?}");
        server.restart();
    }
}

// case A-28: what is given back comes back once, and a bucket is never above its burst.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_and_the_end_of_a_lease_give_back_once() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        for mode in MODES {
            let rule = slow(10).mode(mode).lease_ttl(Duration::from_millis(300));
            let (gate, limiter) = limited(store.clone(), rule.clone()).await;
            let key = format!("{mode:?}");
            assert!(limiter.check_n(&key, 5).await.is_allowed());
            limiter.refund(&key, 5);
            // More than was ever taken, and again: ignored.
            limiter.refund(&key, 50);
            limiter.refund("never seen", 50);
            let mut seen = 0;
            for _ in 0..1_000 {
                seen = limiter.peek(&key).await.remaining();
                assert!(seen <= 10, "{name} {mode:?}: {seen}");
                if seen == 10 {
                    break;
                }
            }
            assert_eq!(seen, 10, "{name} {mode:?}");
            // Past the end of every lease and its margin.
            tokio::time::sleep(Duration::from_millis(700)).await;
            let mut passed = 0;
            for _ in 0..30 {
                passed += u32::from(limiter.check(&key).await.is_allowed());
            }
            assert_eq!(passed, 10, "{name} {mode:?}");
            gate.shutdown().await.expect("a clean end");
        }
    }
}

// case A-31: a store that failed is its own answer, in time, and no wait is made up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_store_is_said_to_have_failed_within_the_deadline() {
    let server = RedisServer::start();
    server.freeze();
    let gone = format!("redis://127.0.0.1:{}", free_port());
    for (url, kinds) in [
        (gone, [ErrorKind::Unreachable, ErrorKind::Deadline, ErrorKind::Unreachable]),
        (server.url(), [ErrorKind::Unreachable, ErrorKind::Deadline, ErrorKind::Unanswered]),
    ] {
        for mode in MODES {
            for policy in [Outage::Deny, Outage::Allow, Outage::Share] {
                let deadline = Duration::from_millis(60);
                let rule = slow(5).mode(mode).outage(policy).deadline(deadline);
                let (gate, limiter) = limited(lazy(&url), rule).await;
                for round in 0..6 {
                    let start = Instant::now();
                    let decision = match round % 3 {
                        0 => limiter.check("k").await,
                        1 => tokio::task::block_in_place(|| limiter.check_blocking("k")),
                        _ => limiter.peek("k").await,
                    };
                    let took = start.elapsed();
                    assert!(took < deadline + SECOND * 5, "{took:?}");
                    let kind = decision.trouble().expect("something was wrong");
                    assert!(kinds.contains(&kind), "{kind:?}");
                    assert_eq!(decision.is_allowed(), policy == Outage::Allow && round % 3 != 2, "{decision:?}");
                    assert_eq!((decision.retry_after(), decision.retry_after_secs()), (None, None), "{decision:?}");
                    assert!(!decision.is_never());
                }
                let snapshot = gate.snapshot();
                assert_eq!(snapshot.outage_allowed + snapshot.outage_denied, 4, "looks are no admissions");
            }
        }
    }
    server.thaw();
}

// Two gates of one process, and a third that joins later: one limit, and a fair part of it for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gates_of_one_process_share_a_limit_with_one_that_joins_later() {
    let server = RedisServer::start();
    let rule = Rule::token_bucket(1_000, SECOND).burst(200).deadline(SECOND);
    let clock = Clock::system();
    let store: Store = lazy(&server.url()).into();
    let (one, a) = limited(store.clone(), rule.clone()).await;
    let (two, b) = limited(store.clone(), rule.clone()).await;
    let end = Micros(clock.now().0 + 3_000_000);
    let first = tokio::spawn(drive(a, "k", 700, end));
    let second = tokio::spawn(drive(b, "k", 700, end));
    tokio::time::sleep(SECOND).await;
    let (three, c) = limited(store, rule).await;
    let third = tokio::spawn(drive(c, "k", 700, end));
    let late = Micros(end.0 - 1_000_000);
    let parts = [first.await.unwrap().0, second.await.unwrap().0, third.await.unwrap().0];
    let verdict = Judge::new(Rate::new(1_000, SECOND).unwrap(), 200).violations(&parts.concat());
    assert!(verdict.holds(), "{verdict}");
    let lately = parts.each_ref().map(|part| part.iter().filter(|a| a.before >= late).count());
    let all: usize = lately.iter().sum();
    assert!(all >= 850, "{lately:?}");
    assert!(lately.iter().all(|part| part * 6 >= all), "a fair part each: {lately:?}");
    until("three members", || [&one, &two, &three].iter().all(|g| g.snapshot().members == Some(3))).await;
}

// A panic of somebody else's code, in each event there is, does not stop the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_that_panics_stops_nothing() {
    struct Bad;
    impl tollgate::Observer for Bad {
        fn event(&self, _: &Event) {
            // Quietly: the default hook would print each of them.
            std::panic::resume_unwind(Box::new("an observer's panic"));
        }
    }
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let rule = slow(100).mode(Mode::Exact).outage(Outage::Deny);
    let building = Tollgate::builder().store(lazy(&proxy.url())).rule("r", rule).observer(Bad);
    let gate = building.build().await.unwrap();
    let limiter = limiter(&gate);
    for round in 0..2 {
        assert!(limiter.check("k").await.is_allowed(), "round {round}");
        proxy.refuse();
        until("it counts as down", || gate.snapshot().link == Link::Down).await;
        proxy.resume();
        until("it is back", || gate.snapshot().link == Link::Up).await;
    }
    assert!(limiter.check("k").await.is_allowed(), "it knows the bucket");
    server.cli(&["FLUSHALL"]);
    let decision = limiter.check("k").await;
    assert!(!decision.is_allowed() && decision.trouble().is_none(), "its memory was lost: {decision:?}");
    until("it is counted", || gate.snapshot().states_lost == 1).await;
    gate.shutdown().await.expect("a clean end");
}
