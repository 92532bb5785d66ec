//! Cases B and H, and bad keys: what stands in Redis, and what happens when Redis or the road to it fails.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
mod support;

use gates::{Seen, both, lazy, left, limited, limiter, slow, until, until_decided};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use support::{Proxy, RedisServer};
use tollgate::{
    ErrorKind, Event, KEY_BYTES_MAX, Limiter, Link, LongKeys, Lost, MemoryStore, Mode, Outage, RedisStore, Rule, Store,
    Tollgate,
};

const SECOND: Duration = Duration::from_secs(1);
const MODES: [Mode; 2] = [Mode::Leased, Mode::Exact];

/// The one bucket in this server, by its name in Redis.
fn bucket(server: &RedisServer) -> String {
    let names = server.cli(&["KEYS", "*:tb:*"]);
    assert_eq!(names.lines().count(), 1, "{names}");
    names
}

/// How many keys there are, and how many of them have no TTL or one above `horizon`.
fn ttls(server: &RedisServer, horizon: Duration) -> (u64, u64) {
    let script = "local all, bad = redis.call('KEYS', '*'), 0 \
                  for _, key in ipairs(all) do \
                      local ttl = redis.call('PTTL', key) \
                      if ttl <= 0 or ttl > tonumber(ARGV[1]) then bad = bad + 1 end \
                  end \
                  return #all .. ' ' .. bad";
    let told = server.cli(&["EVAL", script, "0", &horizon.as_millis().to_string()]);
    let (all, bad) = told.split_once(' ').expect("two numbers");
    (all.parse().unwrap(), bad.parse().unwrap())
}

/// Runs this command on its key, which was deleted before; at once, so that nobody comes in between.
fn put(server: &RedisServer, words: &[&str]) {
    let script = "redis.call('DEL', KEYS[1]) return redis.call(unpack(ARGV))";
    let mut all = vec!["EVAL", script, "1", words[1]];
    all.extend(words);
    server.cli(&all);
}

/// Memory of this process that is in use, in MiB.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4_096) >> 20
}

// cases B-01, B-03: a first event of any cost leaves a key with a TTL, and a key that lost its TTL gets one again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_has_a_ttl_from_its_first_event_on_and_nobody_is_locked_out() {
    let server = RedisServer::start();
    for mode in MODES {
        server.cli(&["FLUSHALL"]);
        let rule = Rule::token_bucket(10, SECOND).mode(mode).deadline(SECOND).lease_ttl(SECOND);
        let (gate, limiter) = limited(lazy(&server.url()), rule.clone()).await;
        assert!(limiter.check_n("k", 7).await.is_allowed());
        // Time to full, and the leases' end, its margin and a minute.
        let horizon = Duration::from_secs(63);
        let (keys, bad) = ttls(&server, horizon);
        assert!(keys >= 1 && bad == 0, "{mode:?}: {bad} of {keys}");
        let name = bucket(&server);
        for _ in 0..3 {
            assert_eq!(server.cli_number(&["PERSIST", &name]), 1);
            let _ = until_decided("asked again", &limiter, "k", |_| server.cli_number(&["PTTL", &name]) > 0).await;
            assert_eq!(ttls(&server, horizon).1, 0);
        }
        gate.shutdown().await.expect("a clean end");
        // A bucket that was left empty and without a TTL is full again when its time has come.
        let (gate, limiter) = limited(lazy(&server.url()), rule).await;
        while limiter.check("k").await.is_allowed() {}
        gate.shutdown().await.expect("a clean end");
        server.cli(&["PERSIST", &name]);
        let (_gate, limiter) = limited(lazy(&server.url()), Rule::token_bucket(10, SECOND).mode(mode)).await;
        let _ = until_decided("let in again", &limiter, "k", |d| d.is_allowed()).await;
        assert!(server.cli_number(&["PTTL", &name]) > 0, "repaired");
    }
}

// case B-01's foreign key, "a key of our name holds something else": an error of that bucket alone, and nothing of
// it is touched. An empty string, or a hash without a header, is as good as nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_our_name_that_holds_something_else_is_one_buckets_error() {
    let server = RedisServer::start();
    let seen = Seen::default();
    for mode in MODES {
        server.cli(&["FLUSHALL"]);
        let rule = slow(100).lost(Lost::Full).mode(mode).outage(Outage::Deny);
        let (gate, limiter) = limited(lazy(&server.url()), rule.clone()).await;
        assert!(limiter.check("bad").await.is_allowed());
        let name = bucket(&server);
        gate.shutdown().await.expect("a clean end");
        let building = Tollgate::builder().store(lazy(&server.url())).rule("r", rule).observer(seen.clone());
        let gate = building.build().await.unwrap();
        let limiter = gates::limiter(&gate);
        let foreign: [&[&str]; 6] = [
            &["SET", &name, "99"],
            &["RPUSH", &name, "a", "b"],
            &["ZADD", &name, "1", "a"],
            &["HSET", &name, "h", "no header of ours"],
            &["HSET", &name, "h", "\x01"],
            &["SADD", &name, "a"],
        ];
        for (round, words) in foreign.iter().enumerate() {
            server.cli(&["DEL", &name]);
            let _ = until_decided("no trouble", &limiter, "bad", |d| d.trouble().is_none()).await;
            put(&server, words);
            let dump = server.cli(&["DUMP", &name]);
            let decision = until_decided("its trouble", &limiter, "bad", |d| d.trouble().is_some()).await;
            assert_eq!(decision.trouble(), Some(ErrorKind::WrongType), "{words:?}: {decision:?}");
            assert!(!decision.is_allowed() && decision.retry_after().is_none(), "{decision:?}");
            let now = limiter.check_now("bad");
            assert_eq!((now.is_allowed(), now.trouble()), (false, Some(ErrorKind::WrongType)), "{now:?}");
            assert_eq!(limiter.peek("bad").await.trouble(), Some(ErrorKind::WrongType));
            for other in 0..20 {
                let decision = limiter.check(format!("good {round} {other}")).await;
                assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
            }
            assert_eq!(gate.snapshot().link, Link::Up);
            assert_eq!(server.cli(&["DUMP", &name]), dump, "{words:?}: untouched");
        }
        let told = seen.count(|e| matches!(e, Event::Bucket { rule, kind: ErrorKind::WrongType, .. } if rule == "r"));
        assert!(told >= foreign.len(), "{told}");
        assert!(gate.snapshot().bucket_errors >= foreign.len() as u64);
        // case C-15: empty is fresh.
        for words in [["SET", name.as_str(), ""].as_slice(), &["HSET", &name, "h", ""]] {
            put(&server, words);
            // Tokens in hand may be spent first.
            let ours = || server.cli(&["TYPE", &name]) == "hash" && server.cli_number(&["PTTL", &name]) > 0;
            let _ = until_decided("fresh", &limiter, "bad", |d| d.trouble().is_none() && ours()).await;
        }
    }
}

// case B-07: ten thousand users who came once are gone in a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_keys_of_one_hit_each_all_expire() {
    let server = RedisServer::start();
    let rule = Rule::token_bucket(10, Duration::from_secs(10)).deadline(Duration::from_secs(10));
    let (gate, limiter) = limited(lazy(&server.url()), rule).await;
    let calls: Vec<_> = (0..10_000)
        .map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(format!("user {n}")).await })
        })
        .collect();
    for call in calls {
        let decision = call.await.unwrap();
        assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
    }
    // 2 W and what late messages of a lease may need.
    let (keys, bad) = ttls(&server, Duration::from_secs(20 + 61));
    assert_eq!((keys, bad), (10_001, 0), "and the members");
    gate.shutdown().await.expect("a clean end");
    assert_eq!(ttls(&server, Duration::from_secs(20 + 61)).1, 0);
}

// case B-16: a server without memory refuses with its own kind, its policy decides, and nothing is half written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_a_check_is_refused_by_policy_and_counted_right_afterwards() {
    let server = RedisServer::start();
    for mode in MODES {
        for (policy, let_in) in [(Outage::Deny, false), (Outage::Allow, true)] {
            server.cli(&["FLUSHALL"]);
            let rule = slow(100).mode(mode).overload(policy).outage(Outage::Deny);
            let (gate, limiter) = limited(lazy(&server.url()), rule.clone()).await;
            assert!(limiter.peek("new").await.is_allowed(), "a link");
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            let decision = until_decided("its trouble", &limiter, "new", |d| d.trouble().is_some()).await;
            assert_eq!(decision.trouble(), Some(ErrorKind::OutOfMemory), "{decision:?}");
            assert_eq!(decision.is_allowed(), let_in, "{decision:?}");
            assert_eq!(server.cli(&["KEYS", "*:tb:*"]), "", "nothing half written");
            let let_through = gate.snapshot().outage_allowed;
            assert_eq!(let_through, u64::from(let_in));
            server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            let _ = until_decided("served", &limiter, "new", |d| d.trouble().is_none()).await;
            let through = gate.snapshot().outage_allowed;
            gate.shutdown().await.expect("a clean end");
            let left = left(lazy(&server.url()), rule, "new").await;
            assert_eq!(left, 100 - through - 1, "{mode:?} {policy:?}: what was let through is charged");
        }
    }
}

// case H-01: killed under fast polling: each call returns in time, nothing panics, and it comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_across_a_kill_all_return_in_time_and_are_served_again() {
    let mut server = RedisServer::start();
    let seen = Seen::default();
    let deadline = Duration::from_millis(100);
    let rule = slow(1_000_000 / 2).mode(Mode::Exact).outage(Outage::Deny).deadline(deadline);
    let building = Tollgate::builder().store(lazy(&server.url())).rule("r", rule.lost(Lost::Full));
    let gate = building.observer(seen.clone()).build().await.unwrap();
    let limiter = limiter(&gate);
    let over = Arc::new(AtomicBool::new(false));
    let pollers: Vec<_> = (0..4)
        .map(|_| {
            let (limiter, over) = (limiter.clone(), over.clone());
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                while !over.load(Relaxed) {
                    let start = Instant::now();
                    let decision = limiter.check("k").await;
                    longest = longest.max(start.elapsed());
                    let kinds =
                        [None, Some(ErrorKind::Unreachable), Some(ErrorKind::Unanswered), Some(ErrorKind::Deadline)];
                    assert!(kinds.contains(&decision.trouble()), "{decision:?}");
                    assert_eq!(decision.is_allowed(), decision.trouble().is_none(), "{decision:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                longest
            })
        })
        .collect();
    for _ in 0..3 {
        let _ = until_decided("served", &limiter, "k", |d| d.is_allowed()).await;
        server.kill();
        until("it counts as down", || gate.snapshot().link == Link::Down).await;
        server.restart();
    }
    let _ = until_decided("served", &limiter, "k", |d| d.is_allowed()).await;
    over.store(true, Relaxed);
    for poller in pollers {
        let longest = poller.await.expect("no panic");
        assert!(longest < deadline + SECOND * 5, "{longest:?}");
    }
    assert_eq!(seen.count(|e| matches!(e, Event::EnginePanic { .. })), 0);
}

// case H-01: a wrong password is told at once and seldom tried again, and no text has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_its_own_trouble_and_is_never_shown() {
    let server = RedisServer::with_password("correct horse");
    let proxy = Proxy::to(server.port());
    let url = format!("redis://:hunter2@127.0.0.1:{}", proxy.port());
    let start = Instant::now();
    let error = RedisStore::connect(&url).await.expect_err("a wrong password");
    assert!(start.elapsed() < 4 * SECOND);
    assert_eq!(error.kind(), ErrorKind::Auth);
    let mut texts = format!("{error} {error:?} {:?}", RedisStore::builder(&url));

    let seen = Seen::default();
    let store = lazy(&url);
    let rule = slow(10).outage(Outage::Deny);
    let building = Tollgate::builder().store(store.clone()).rule("r", rule).observer(seen.clone());
    texts += &format!("{store:?} {building:?}");
    let gate = building.build().await.unwrap();
    let limiter = limiter(&gate);
    let decision = limiter.check("k").await;
    assert_eq!((decision.is_allowed(), decision.trouble()), (false, Some(ErrorKind::Auth)), "{decision:?}");
    until("it counts as down", || gate.snapshot().link == Link::Down).await;
    let before = (proxy.accepted(), Instant::now());
    while before.1.elapsed() < SECOND {
        assert_eq!(limiter.check("k").await.trouble(), Some(ErrorKind::Auth));
        assert_eq!(limiter.check_now("k").trouble(), Some(ErrorKind::Auth));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let tries = proxy.accepted() - before.0;
    assert!(tries <= 10, "{tries} tries in a second");
    texts += &format!("{gate:?} {limiter:?} {:?} {:?} {decision:?}", gate.snapshot(), seen.all());
    assert!(!texts.contains("hunter2") && !texts.contains("correct"), "{texts}");
    assert!(seen.count(|e| matches!(e, Event::Link { now: Link::Down, cause: Some(ErrorKind::Auth) })) == 1);
    // Once it is let in, it works.
    server.cli(&["CONFIG", "SET", "requirepass", "hunter2"]);
    until("it is let in", || gate.snapshot().link == Link::Up).await;
    assert!(limiter.check("k").await.is_allowed());
}

// case H-02: an idle connection that was closed costs the next check nothing, and it is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_after_an_idle_cut_is_answered_and_counted_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let rule = slow(1_000).mode(Mode::Exact).outage(Outage::Deny);
    let (gate, limiter) = limited(lazy(&proxy.url()), rule.clone()).await;
    let mut passed = 0;
    for _ in 0..20 {
        let decision = limiter.check("k").await;
        passed += u64::from(decision.is_allowed());
        // A heartbeat may have been under way in the cut; then it says what happened, and the next one works.
        assert!(decision.is_allowed() || decision.trouble().is_some(), "{decision:?}");
        proxy.cut();
    }
    assert!(passed >= 18, "{passed}");
    let doubt = gate.snapshot().in_doubt;
    let left = left(lazy(&server.url()), rule, "k").await;
    assert!((1_000 - passed - doubt..=1_000 - passed).contains(&left), "{left} left, {passed} passed");
}

// case H-06: ten thousand checks at once of a frozen server: each returns by its deadline, memory is bounded, and what
// nobody waits for any more takes nothing when the server wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_checks_of_a_frozen_server_return_in_time_and_take_nothing_later() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(100);
    for mode in MODES {
        let rule = slow(100_000).mode(mode).outage(Outage::Deny).deadline(deadline);
        let (gate, limiter) = limited(lazy(&server.url()), rule.clone()).await;
        let _ = until_decided("a link", &limiter, &format!("warm {mode:?}"), |d| d.is_allowed()).await;
        server.freeze();
        let (mut memory, mut longest) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let calls: Vec<_> = (0..10_000)
                .map(|n| {
                    let limiter = limiter.clone();
                    // Half of them for one key, half for a key each.
                    let key = if n % 2 == 0 { format!("one {mode:?}") } else { format!("each {mode:?} {n}") };
                    tokio::spawn(async move {
                        let start = Instant::now();
                        let decision = limiter.check(&key).await;
                        (decision, start.elapsed())
                    })
                })
                .collect();
            let mut took = Vec::new();
            for call in calls {
                let (decision, time) = call.await.expect("no panic");
                assert!(!decision.is_allowed() && decision.trouble().is_some(), "{decision:?}");
                took.push(time);
            }
            took.sort();
            longest.push(took[9_999]);
            memory.push(resident());
        }
        // The machine may be busy with something else in one round, hardly in all.
        assert!(longest.iter().all(|took| *took < deadline + SECOND * 10), "{longest:?}");
        assert!(longest.iter().any(|took| *took < deadline + SECOND), "{longest:?}");
        assert!(memory[3] < memory[0] + 40, "{memory:?} MiB");
        let started = gate.snapshot();
        assert!(started.syncs < 60_000, "{started:?}");
        server.thaw();
        until("it is back", || gate.snapshot().link == Link::Up).await;
        let _ = until_decided("served", &limiter, &format!("after {mode:?}"), |d| d.is_allowed()).await;
        gate.shutdown().await.expect("a clean end");
        for key in [format!("one {mode:?}"), format!("each {mode:?} 7")] {
            assert_eq!(left(lazy(&server.url()), rule.clone(), &key).await, 100_000, "{key}");
        }
    }
}

// case H-07: checks that are dropped at any point leave no reply to anybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_checks_never_mix_up_the_answers_of_others() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let rule = slow(1_000).mode(Mode::Exact).outage(Outage::Deny);
    let (_gate, limiter) = limited(lazy(&proxy.url()), rule).await;
    for n in 1..=20 {
        assert!(limiter.check_n(format!("known {n}"), n).await.is_allowed());
    }
    proxy.delay_replies(Duration::from_millis(1));
    let (mut dice, mut calls, mut dropped) = (11_u64, 0, 0);
    // How many are dropped is a matter of how busy the machine is.
    while calls < 1_000 || dropped < 100 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let patience = Duration::from_micros((dice >> 33) % 4_000);
        let n = 1 + calls % 20;
        let doomed = tokio::time::timeout(patience, limiter.check_n(format!("doomed {}", calls % 50), 1 + calls % 3));
        let (end, known) = tokio::join!(doomed, limiter.peek(format!("known {n}")));
        dropped += u32::from(end.is_err());
        assert_eq!((known.trouble(), known.remaining()), (None, 1_000 - n), "{known:?}");
        calls += 1;
        assert!(calls < 100_000, "{dropped} dropped");
    }
    assert_eq!(proxy.accepted(), 1, "one connection all along");
}

// case H-10: of three keys in one message one holds a wrong type; the others are granted, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_key_of_a_message_leaves_the_others_their_tokens() {
    let server = RedisServer::start();
    let rule = slow(100).mode(Mode::Exact).outage(Outage::Deny);
    let build = || Tollgate::builder().store(lazy(&server.url())).tags(1).rule("r", rule.clone()).build();
    let first = build().await.unwrap();
    assert!(limiter(&first).check("k2").await.is_allowed());
    let name = bucket(&server);
    first.shutdown().await.expect("a clean end");
    server.cli(&["DEL", &name]);
    server.cli(&["LPUSH", &name, "not ours"]);

    let gate = build().await.unwrap();
    let limiter = limiter(&gate);
    for round in 1..=10 {
        let (a, b, c) = tokio::join!(limiter.check("k1"), limiter.check("k2"), limiter.check("k3"));
        assert!(a.is_allowed() && c.is_allowed(), "{a:?} {c:?}");
        assert_eq!((b.is_allowed(), b.trouble()), (false, Some(ErrorKind::WrongType)));
        for key in ["k1", "k3"] {
            assert_eq!(limiter.peek(key).await.remaining(), 100 - round, "{key}");
        }
    }
}

// cases H-11, H-12: a server that forgets its scripts again and again, under load: each check counts exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_meet_forgotten_scripts_count_once_each() {
    let server = RedisServer::start();
    for mode in MODES {
        let rule = slow(100_000).mode(mode).outage(Outage::Deny);
        let (gate, limiter) = limited(lazy(&server.url()), rule.clone()).await;
        let key = |n| format!("{mode:?} {n}");
        let mut passed = [0; 50];
        for _ in 0..20 {
            server.cli(&["SCRIPT", "FLUSH"]);
            let calls: Vec<_> = (0..50)
                .map(|n| {
                    let (limiter, key) = (limiter.clone(), key(n));
                    tokio::spawn(async move { limiter.check_n(key, 3).await })
                })
                .collect();
            for (call, passed) in calls.into_iter().zip(&mut passed) {
                let decision = call.await.unwrap();
                assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
                *passed += 3;
            }
        }
        gate.shutdown().await.expect("a clean end");
        let (other, limiter) = limited(lazy(&server.url()), rule).await;
        for (n, passed) in passed.into_iter().enumerate() {
            assert_eq!(limiter.peek(key(n)).await.remaining(), 100_000 - passed, "{mode:?} {n}");
        }
        other.shutdown().await.expect("a clean end");
    }
}

// case H-13: after a restart the next check is answered; the server knows neither the script nor the bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_check_after_a_restart_is_answered() {
    let mut server = RedisServer::start();
    for mode in MODES {
        let rule = slow(100).mode(mode).lost(Lost::Full).outage(Outage::Deny);
        let (_gate, limiter) = limited(lazy(&server.url()), rule).await;
        assert!(limiter.check("old").await.is_allowed());
        server.restart();
        let decision = limiter.check("new").await;
        assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
        let decision = limiter.check("old").await;
        assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
    }
}

/// A store of either kind that can be wiped.
enum Wiped<'a> {
    Memory(MemoryStore),
    Redis(&'a RedisServer),
}

impl Wiped<'_> {
    fn store(&self) -> Store {
        match self {
            Wiped::Memory(store) => store.clone().into(),
            Wiped::Redis(server) => lazy(&server.url()).into(),
        }
    }

    fn wipe(&self) {
        match self {
            Wiped::Memory(store) => store.wipe(),
            Wiped::Redis(server) => _ = server.cli(&["FLUSHALL"]),
        }
    }
}

// The store loses its memory while two instances hold leases: the rule's policy, once for both, told and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_store_gets_the_rules_policy_once_and_says_so() {
    let server = RedisServer::start();
    for wiped in [Wiped::Memory(MemoryStore::default()), Wiped::Redis(&server)] {
        for mode in MODES {
            for policy in [Lost::Empty, Lost::Full] {
                let rule = slow(100).mode(mode).lost(policy);
                let seen = Seen::default();
                let mut gates = Vec::new();
                for _ in 0..2 {
                    let building = Tollgate::builder().store(wiped.store()).rule("r", rule.clone());
                    gates.push(building.observer(seen.clone()).build().await.unwrap());
                }
                let limiters: Vec<Limiter> = gates.iter().map(limiter).collect();
                let key = format!("{mode:?} {policy:?}");
                for limiter in &limiters {
                    for _ in 0..10 {
                        assert!(limiter.check(&key).await.is_allowed());
                    }
                }
                // What they hold once they are at rest.
                let (mut held, mut rest) = (u64::MAX, Instant::now());
                while rest.elapsed() < Duration::from_millis(100) {
                    let now = gates.iter().map(|gate| gate.snapshot().held).sum();
                    if now != held {
                        (held, rest) = (now, Instant::now());
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                wiped.wipe();
                let (mut more, start) = (0, Instant::now());
                let all = if policy == Lost::Full { 100 } else { 0 };
                while start.elapsed() < Duration::from_millis(300) || (more < all && start.elapsed() < SECOND * 10) {
                    for limiter in &limiters {
                        more += u64::from(limiter.check(&key).await.is_allowed());
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                match policy {
                    Lost::Full => assert!((100..=100 + held).contains(&more), "{key}: {more}, {held} were held"),
                    _ => assert!(more <= held, "{key}: {more} of {held} that were held"),
                }
                let told = seen.count(|e| matches!(e, Event::StateLost { rule } if rule == "r"));
                until("it is counted", || gates.iter().map(|g| g.snapshot().states_lost).sum::<u64>() == 1).await;
                assert_eq!(told, 1, "{key}");
            }
        }
    }
}

// A gate that cannot give its leases back says so, and does not wait for a store that is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_without_the_store_is_quick_and_not_clean() {
    let mut server = RedisServer::start();
    let (gate, limiter) = limited(lazy(&server.url()), slow(1_000).outage(Outage::Allow)).await;
    until("a lease", || {
        let _ = limiter.check_now("k");
        gate.snapshot().held > 0
    })
    .await;
    server.kill();
    until("it counts as down", || gate.snapshot().link == Link::Down).await;
    let start = Instant::now();
    assert_eq!(gate.shutdown().await.map_err(|e| e.kind()), Err(ErrorKind::Deadline));
    assert!(start.elapsed() < Duration::from_secs(3));
    // A gate that was shut down lets nobody in, though the store is away and the policy is `Allow`.
    for decision in [limiter.check("k").await, limiter.check_now("k"), limiter.peek("k").await] {
        assert_eq!((decision.is_allowed(), decision.trouble()), (false, Some(ErrorKind::ShutDown)), "{decision:?}");
    }
}

// Bad input: any bytes are a key, on both stores and in every mode, and no two share a bucket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_any_bytes_work_and_never_collide() {
    let server = RedisServer::start();
    let long = |last: u8, bytes: usize| {
        let mut key = vec![b'x'; bytes];
        key[bytes - 1] = last;
        key
    };
    // What the long keys below are hashed to: raw, in hex, and as part of a name.
    let mut keys: Vec<Vec<u8>> = [
        "", " ", "\n", "\r\n", "\0", "{", "}", "{}", "}{", "{a}", "{b}", "{a}b", "a", "a:", ":a", "a:b", "a b", "a\nb",
        "r:a", "h:a", "1:r:r:a", "1:r:h:a", "tollgate", "*", "?", "%s", "\"a\"", "a\u{301}", "\u{e1}", "-1", "0",
        "nil",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    keys.extend([vec![0xff], vec![0xff, 0xfe], vec![0; 2], vec![0; 3], (0..=255).collect()]);
    for bytes in [KEY_BYTES_MAX - 1, KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 5_000, 1 << 20] {
        keys.extend([long(b'x', bytes), long(b'y', bytes)]);
    }
    let names = ["a", "a:b", "1:a", "{x}", "r", "rule with spaces"];
    for (name, store) in both(&server.url()) {
        for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
            let mut building = Tollgate::builder().store(store.clone()).key_prefix(format!("bad:{mode:?}"));
            for name in names {
                building = building.rule(name, slow(1).mode(mode).outage(Outage::Deny));
            }
            let gate = building.build().await.unwrap();
            let limiters = names.map(|rule| gate.limiter(rule).unwrap());
            for expected in [true, false] {
                for limiter in &limiters {
                    for key in &keys {
                        let decision = limiter.check(key).await;
                        let start = String::from_utf8_lossy(&key[..key.len().min(20)]);
                        assert_eq!(decision.is_allowed(), expected, "{name} {mode:?} {start:?}: {decision:?}");
                        assert_eq!(decision.trouble(), None, "{name} {mode:?} {start:?}");
                    }
                }
            }
            if name == "redis" && mode != Mode::Local {
                // Not by KEYS: its output has a line for each newline.
                let all = format!("return #redis.call('KEYS', 'bad:{mode:?}:*:tb:*')");
                let buckets = server.cli_number(&["EVAL", &all, "0"]);
                assert_eq!(buckets, (keys.len() * names.len()) as i64);
                // All are in the slot of one of our tags, whatever braces a key has.
                let stray = format!(
                    "local n = 0 for _, k in ipairs(redis.call('KEYS', 'bad:{mode:?}:*')) do if not \
                    string.find(k, '^bad:{mode:?}:{{16%.%d+}}:') then n = n + 1 end end return n"
                );
                assert_eq!(server.cli_number(&["EVAL", &stray, "0"]), 0);
            }
            gate.shutdown().await.expect("a clean end");
        }
    }
}

// Bad input: a long key is refused where the gate says so, as a bad key and not as a limit or a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_keys_are_refused_where_the_gate_says_so() {
    let server = RedisServer::start();
    for (name, store) in both(&server.url()) {
        for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
            let rule = slow(10).mode(mode).outage(Outage::Allow);
            let building = Tollgate::builder().store(store.clone()).rule("r", rule).long_keys(LongKeys::Refuse);
            let gate = building.build().await.unwrap();
            let limiter = limiter(&gate);
            let long = vec![b'x'; KEY_BYTES_MAX + 1];
            let handle = limiter.key(&long);
            let decisions = [
                limiter.check(&long).await,
                limiter.check_now(&long),
                tokio::task::block_in_place(|| limiter.check_blocking(&long)),
                limiter.peek(&long).await,
                handle.check().await,
                handle.check_now(),
            ];
            limiter.refund(&long, 5);
            for decision in decisions {
                assert!(!decision.is_allowed() && decision.retry_after().is_none(), "{name} {mode:?} {decision:?}");
                assert_eq!(decision.trouble(), Some(ErrorKind::BadKey), "{name} {mode:?}");
            }
            assert_eq!(gate.snapshot().bad_keys, 6, "{name} {mode:?}");
            assert!(limiter.check(&long[1..]).await.is_allowed(), "{name} {mode:?}: at the limit");
            gate.shutdown().await.expect("a clean end");
        }
    }
}
