//! The public face, as code that embeds the crate sees it: on the embedded store. Clocks are real where an engine
//! has to get on by itself; then rules hardly refill, so that time decides nothing.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};
use tollgate::{
    Builder, Clock, Cold, Decision, ErrorKind, Event, KEY_BYTES_MAX, Limiter, LongKeys, MemoryStore, Mode, Observer,
    Outage, Rule, Saturated, Scope, Snapshot, Source, Tollgate,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than anything here takes, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(20);

/// `burst` tokens of which one comes back in an hour: what is admitted shortly is the burst. A check may
/// wait long, so that a busy machine does not turn an answer into a late one.
fn slow(burst: u64) -> Rule {
    Rule::token_bucket(1, HOUR).burst(burst).deadline(PATIENCE)
}

/// A gate with one rule, "r", and its limiter.
async fn gate(rule: Rule) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().rule("r", rule).build().await.expect("fair settings");
    let limiter = gate.limiter("r").expect("its rule");
    (gate, limiter)
}

fn builder(clock: &Clock, store: &MemoryStore, rule: Rule) -> Builder {
    Tollgate::builder().clock(clock.clone()).store(store.clone()).rule("r", rule)
}

/// Waits in real time for what the engine brings about in the background.
async fn eventually(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is().await {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Checks until there is a no; how many passed.
async fn drain(limiter: &Limiter, key: &str) -> u64 {
    let mut passed = 0;
    while limiter.check(key).await.is_allowed() {
        passed += 1;
        assert!(passed < 1_000_000, "it never ends");
    }
    passed
}

/// One poll: what is ready at once.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// All checks that a snapshot knows of.
fn checks(s: &Snapshot) -> u64 {
    let allowed = s.local_allowed + s.lease_allowed + s.authority_allowed + s.cold_allowed + s.outage_allowed;
    let denied = s.local_denied + s.lease_denied + s.authority_denied + s.cold_denied + s.outage_denied;
    allowed + denied + s.never + s.bad_keys + s.saturated
}

// ---- building

#[tokio::test]
async fn whatever_is_out_of_range_is_an_error_that_names_it() {
    let fair = || Rule::token_bucket(10, SECOND);
    let with = |rule| Tollgate::builder().rule("login", rule);
    let table: Vec<(Builder, &[&str])> = vec![
        (with(Rule::token_bucket(0, SECOND)), &["\"login\"", "rate"]),
        (with(Rule::token_bucket(10, Duration::ZERO)), &["\"login\"", "rate"]),
        (with(fair().burst(0)), &["\"login\"", "burst"]),
        (with(fair().burst(u64::MAX)), &["\"login\"", "burst"]),
        (with(fair().cold(Cold::Credit(11))), &["\"login\"", "cold"]),
        (with(fair().deadline(Duration::ZERO)), &["\"login\"", "deadline"]),
        (with(fair().lease_ttl(Duration::MAX)), &["\"login\"", "lease_ttl"]),
        (with(fair()).rule("", fair()), &["name"]),
        (with(fair()).rule("login", fair()), &["\"login\"", "two rules"]),
        (with(fair()).keys_max(0), &["keys_max"]),
        (with(fair()).instances(0), &["instances"]),
        (with(fair()).syncs_per_second_max(9), &["syncs_per_second_max"]),
        (with(fair()).shutdown_timeout(Duration::from_secs(61)), &["shutdown_timeout"]),
        (with(fair()).key_prefix("a b"), &["prefix"]),
        (with(fair()).tags(0), &["tags"]),
    ];
    for (builder, words) in table {
        let error = builder.build().await.expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{words:?}: {error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn an_unknown_rule_is_an_error_that_lists_those_there_are() {
    let rule = || Rule::token_bucket(10, SECOND);
    let gate = Tollgate::builder().rule("api", rule()).rule("login", rule()).build().await.expect("fair rules");
    let error = gate.limiter("apj").expect_err("no such rule");
    assert_eq!(error.kind(), ErrorKind::UnknownRule);
    for word in ["\"apj\"", "api", "login"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(gate.limiter("login").map(|l| l.name()), Ok("login"));
}

#[test]
fn a_gate_of_local_rules_needs_no_runtime() {
    let clock = Clock::manual();
    let gate = Tollgate::builder()
        .clock(clock.clone())
        .rule("r", Rule::token_bucket(2, SECOND).mode(Mode::Local))
        .build_local()
        .expect("a local rule");
    let limiter = gate.limiter("r").expect("its rule");
    let user = limiter.key("a");
    let first = at_once(limiter.check("a")).expect("ready at once");
    assert!(first.is_allowed() && first.source() == Source::Local && first.remaining() == 1);
    assert!(user.check_blocking().is_allowed());
    let no = limiter.check_now("a");
    assert!(!no.is_allowed() && no.refused_by() == Some("r") && no.trouble().is_none());
    assert_eq!(no.retry_after(), Some(SECOND / 2));
    assert!(at_once(limiter.check("b")).expect("at once").is_allowed(), "another key");
    clock.advance(SECOND / 2);
    assert!(user.check_now().is_allowed() && !user.check_now().is_allowed());
    assert!(at_once(user.peek()).is_some_and(|d| !d.is_allowed()));
    assert!(limiter.check_n_is_never("a"), "a cost above the burst");
    assert_eq!(at_once(gate.shutdown()), Some(Ok(())));
    clock.advance(SECOND);
    assert!(limiter.check_now("a").is_allowed(), "local rules go on after a shutdown");
}

trait IsNever {
    fn check_n_is_never(&self, key: &str) -> bool;
}

impl IsNever for Limiter {
    fn check_n_is_never(&self, key: &str) -> bool {
        at_once(self.check_n(key, 3)).is_some_and(|d| d.is_never() && d.retry_after().is_none())
    }
}

#[test]
fn build_local_takes_local_rules_and_no_store() {
    let local = || Tollgate::builder().rule("r", Rule::token_bucket(2, SECOND).mode(Mode::Local));
    let error = local().rule("shared", Rule::token_bucket(2, SECOND)).build_local().expect_err("a shared rule");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("\"shared\": mode"), "{error}");
    let error = local().store(MemoryStore::default()).build_local().expect_err("a store");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("store"), "{error}");
}

// ---- asking

#[tokio::test]
async fn all_ways_to_ask_spend_from_one_bucket() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let (_gate, limiter) = gate(slow(12).mode(mode)).await;
        let user = limiter.key("a");
        let mut passed = 0;
        for _ in 0..4 {
            passed += u64::from(limiter.check("a").await.is_allowed());
            passed += u64::from(user.check().await.is_allowed());
            let (other, handle) = (limiter.clone(), user.clone());
            let blocking = move || [other.check_blocking("a"), handle.check_blocking()].map(|d| d.is_allowed());
            let both = thread::spawn(blocking).join().expect("no panic");
            passed += both.iter().filter(|yes| **yes).count() as u64;
            passed += u64::from(limiter.check_now("a").is_allowed()) + u64::from(user.check_now().is_allowed());
        }
        assert_eq!(passed, 12, "{mode:?}");
        for no in [limiter.check("a").await, user.check().await, limiter.check_now("a"), user.check_now()] {
            assert!(!no.is_allowed() && !no.is_never(), "{mode:?}: {no:?}");
            assert!(no.retry_after().is_some_and(|wait| wait > Duration::ZERO), "{mode:?}: {no:?}");
            assert!(no.retry_after_secs() >= Some(1));
            assert_eq!((no.refused_by(), no.trouble(), no.limit()), (Some("r"), None, 12));
        }
    }
}

#[tokio::test]
async fn costs_are_taken_whole_or_not_at_all_by_all_ways() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let (_gate, limiter) = gate(slow(10).mode(mode)).await;
        assert!(limiter.check_n("a", 4).await.is_allowed());
        assert!(limiter.key("a").check_n(4).await.is_allowed());
        assert!(!limiter.check_n("a", 3).await.is_allowed(), "{mode:?}: only 2 are left");
        let (other, handle) = (limiter.clone(), limiter.key("a"));
        let blocking = move || (other.check_blocking_n("a", 1), handle.check_blocking_n(1), handle.check_blocking_n(1));
        let (one, two, none) = thread::spawn(blocking).join().expect("no panic");
        assert!(one.is_allowed() && two.is_allowed() && !none.is_allowed(), "{mode:?}");
    }
}

// case C-39: a cost of 0 at the limit says so and changes nothing.
#[tokio::test]
async fn a_look_changes_nothing_and_says_what_is_there() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let (_gate, limiter) = gate(slow(10).mode(mode)).await;
        let user = limiter.key("a");
        let look = async || {
            let (other, key) = (limiter.clone(), user.clone());
            let parked = move || (other.check_blocking_n("a", 0), key.check_blocking_n(0));
            let (one, two) = thread::spawn(parked).join().expect("no panic");
            [limiter.peek("a").await, user.peek().await, limiter.check_n("a", 0).await, user.check_n(0).await, one, two]
        };
        for _ in 0..20 {
            assert!(look().await.iter().all(|d| d.is_allowed() && d.remaining() == 10), "{mode:?}");
            assert!(limiter.check_now_n("a", 0).is_allowed());
        }
        for left in (0..10).rev() {
            assert!(limiter.check("a").await.is_allowed());
            // A look may cross a lease on its way, and miss it for once.
            eventually("what is left", async || look().await.iter().all(|d| d.remaining() == left)).await;
        }
        for no in look().await {
            assert!(!no.is_allowed() && no.retry_after() > Some(Duration::ZERO), "{mode:?}: {no:?}");
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_burst_is_never_and_takes_nothing() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let (gate, limiter) = gate(slow(3).mode(mode)).await;
        let user = limiter.key("a");
        let (other, key) = (limiter.clone(), user.clone());
        let parked = move || (other.check_blocking_n("a", 9), key.check_blocking_n(u64::MAX));
        let (one, two) = thread::spawn(parked).join().expect("no panic");
        for d in [limiter.check_n("a", 4).await, limiter.check_now_n("a", u64::MAX), user.check_now_n(4), one, two] {
            assert!(!d.is_allowed() && d.is_never() && d.refused_by() == Some("r"), "{mode:?}: {d:?}");
            assert_eq!((d.retry_after(), d.retry_after_secs()), (None, None), "waiting is no use");
        }
        assert_eq!(gate.snapshot().never, 5);
        assert_eq!(drain(&limiter, "a").await, 3);
    }
}

#[tokio::test]
async fn what_is_refunded_can_be_had_again_and_no_more_than_was_taken() {
    let (_gate, limiter) = gate(slow(10)).await;
    assert_eq!(drain(&limiter, "a").await, 10);
    assert_eq!(drain(&limiter, "b").await, 10);
    limiter.refund("a", 4);
    limiter.refund("never seen", 4);
    limiter.key("b").refund(0);
    eventually("the refund", async || limiter.peek("a").await.remaining() == 4).await;
    // A no is asked about again within a second.
    eventually("the end of the no", async || limiter.check("a").await.is_allowed()).await;
    assert_eq!(drain(&limiter, "a").await, 3);
    limiter.refund("a", u64::MAX);
    eventually("all that was taken", async || limiter.peek("a").await.remaining() == 10).await;
    limiter.refund("a", 5);
    _ = limiter.peek("a").await; // the engine takes one after the other
    eventually("the end of the no", async || limiter.check("a").await.is_allowed()).await;
    assert_eq!(drain(&limiter, "a").await, 9, "never above the burst");
    assert!(!limiter.check("b").await.is_allowed(), "another key's refund");
}

#[tokio::test]
async fn a_bound_says_the_most_that_passes() {
    let rules = Tollgate::builder()
        .rule("leased", Rule::token_bucket(100, SECOND).burst(50))
        .rule("exact", Rule::token_bucket(100, SECOND).burst(50).mode(Mode::Exact))
        .rule("credit", Rule::token_bucket(100, SECOND).burst(50).cold(Cold::Credit(5)))
        .rule("local", Rule::token_bucket(100, SECOND).burst(50).mode(Mode::Local));
    let gate = rules.build().await.expect("fair rules");
    let bound = |name: &str| gate.limiter(name).expect("a rule").bound();
    assert_eq!(
        [bound("leased"), bound("exact")].map(|b| (b.scope(), b.over(SECOND, 4))),
        [(Scope::AllInstances, 150); 2]
    );
    assert_eq!((bound("credit").over(SECOND, 4), bound("local").over(SECOND, 4)), (150 + 4 * 5, 4 * 150));
    assert_eq!(bound("local").scope(), Scope::EachInstance);
    let listed: Vec<_> = gate.snapshot().rules.into_iter().map(|r| (r.name, r.bound)).collect();
    assert_eq!(listed, ["leased", "exact", "credit", "local"].map(|name| (name, bound(name))));
}

#[tokio::test]
async fn a_cold_credit_is_given_at_once_and_paid_back() {
    let (gate, limiter) = gate(slow(20).cold(Cold::Credit(3))).await;
    assert!(limiter.check_now("a").is_allowed(), "nobody has asked the store yet");
    let mut passed = 1;
    // From the credit, and from what is lent meanwhile.
    while passed < 20 {
        passed += u64::from(limiter.check("a").await.is_allowed());
    }
    eventually("the debt is booked", async || !limiter.check("a").await.is_allowed()).await;
    let snapshot = gate.snapshot();
    let taken = snapshot.cold_allowed + snapshot.lease_allowed + snapshot.authority_allowed;
    assert!((1..=3).contains(&snapshot.cold_allowed), "{snapshot:?}");
    assert!(taken <= limiter.bound().over(Duration::ZERO, 1), "{snapshot:?}");
    assert_eq!(limiter.peek("a").await.remaining(), 0);
}

#[tokio::test]
async fn check_now_says_no_to_a_cold_key_and_asks_in_the_background() {
    let (gate, limiter) = gate(Rule::token_bucket(1_000, SECOND).deadline(PATIENCE)).await;
    let no = limiter.check_now("a");
    assert!(!no.is_allowed() && no.source() == Source::Lease && no.trouble().is_none());
    let wait = no.retry_after().expect("a round trip");
    assert!(wait > Duration::ZERO && wait < SECOND, "{wait:?}");
    eventually("tokens are here", async || limiter.check_now("a").is_allowed()).await;
    assert!(gate.snapshot().cold_denied >= 1);
    // A rule that promises to ask each time has none here, ever.
    let exact = Tollgate::builder().rule("r", Rule::token_bucket(1_000, SECOND).mode(Mode::Exact).deadline(PATIENCE));
    let exact = exact.build().await.expect("a fair rule").limiter("r").expect("its rule");
    assert!(exact.check("a").await.is_allowed());
    assert!(!exact.check_now("a").is_allowed());
}

#[tokio::test]
async fn a_check_that_is_dropped_admits_nothing_and_costs_its_own_tokens_at_most() {
    let (_gate, limiter) = gate(slow(100)).await;
    let mut early = 0;
    for _ in 0..10 {
        early += u64::from(at_once(limiter.check("a")).is_some_and(|d| d.is_allowed()));
    }
    let passed = early + drain(&limiter, "a").await;
    assert!((90..=100).contains(&passed), "{passed}");
}

#[tokio::test]
async fn concurrent_checks_of_a_cold_key_share_a_question() {
    let (gate, limiter) = gate(slow(1_000).mode(Mode::Exact)).await;
    // One thread runs them all: each is asked before the first hears its answer.
    let asking: Vec<_> = (0..1_000)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check("a").await.is_allowed() })
        })
        .collect();
    let mut passed = 0;
    for one in asking {
        passed += u64::from(one.await.expect("no panic"));
    }
    let syncs = gate.snapshot().syncs;
    assert_eq!(passed, 1_000);
    assert!(syncs < 200, "{syncs} questions for 1,000 checks");
}

// ---- keys

#[tokio::test]
async fn any_bytes_are_a_key_and_none_is_another() {
    let (_gate, limiter) = gate(slow(2)).await;
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    let longer = "x".repeat(KEY_BYTES_MAX + 2);
    let keys: &[&[u8]] = &[
        b"",
        b" ",
        b"a",
        b"A",
        b"{a}",
        b"a:b",
        b"a\nb",
        b"\0",
        b"\xff\xfe",
        b"\r\n*1",
        "限流".as_bytes(),
        &long.as_bytes()[..KEY_BYTES_MAX],
        long.as_bytes(),
        longer.as_bytes(),
    ];
    for key in keys {
        assert!(limiter.check_n(key, 2).await.is_allowed(), "{key:?}");
    }
    for key in keys {
        assert!(!limiter.check(key).await.is_allowed(), "{key:?}");
    }
}

#[tokio::test]
async fn long_keys_are_hashed_or_refused_by_choice() {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let gate = builder(&clock, &store, slow(2)).long_keys(LongKeys::Refuse).build().await.expect("fair settings");
    let limiter = gate.limiter("r").expect("its rule");
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    let no = [limiter.check(&long).await, limiter.check_now(&long), limiter.key(&long).check().await];
    for d in no {
        assert!(!d.is_allowed() && d.trouble() == Some(ErrorKind::BadKey) && d.retry_after().is_none(), "{d:?}");
    }
    assert!(limiter.check(&long[1..]).await.is_allowed());
    assert_eq!(gate.snapshot().bad_keys, 3);
}

/// Counts events about a full registry.
#[derive(Clone, Default)]
struct Full(Arc<AtomicU64>);

impl Observer for Full {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Saturated { keys_max: 3 }) {
            // ordering: Relaxed, a count.
            self.0.fetch_add(1, Relaxed);
        }
    }
}

#[tokio::test]
async fn at_the_cap_new_keys_get_the_saturated_policy_and_old_ones_go_on() {
    for (mode, policy) in
        [Mode::Local, Mode::Leased, Mode::Exact].map(|m| [(m, Saturated::Deny), (m, Saturated::Allow)]).concat()
    {
        let (clock, full) = (Clock::manual(), Full::default());
        let store = MemoryStore::with_clock(clock.clone());
        let builder = builder(&clock, &store, slow(5).mode(mode)).keys_max(3).saturated(policy).observer(full.clone());
        let gate = builder.build().await.expect("fair settings");
        let limiter = gate.limiter("r").expect("its rule");
        for key in ["a", "b", "c"] {
            assert!(limiter.check(key).await.is_allowed(), "{mode:?}");
        }
        for key in ["d", "e"] {
            let d = limiter.check(key).await;
            assert_eq!(d.is_allowed(), policy == Saturated::Allow, "{mode:?} {d:?}");
            assert_eq!((d.trouble(), d.source(), d.retry_after()), (Some(ErrorKind::Saturated), Source::Local, None));
        }
        assert!(limiter.check("a").await.is_allowed(), "{mode:?}: an old key");
        let snapshot = gate.snapshot();
        assert_eq!((snapshot.saturated, snapshot.keys), (2, 3), "{mode:?}");
        assert_eq!(full.0.load(Relaxed), 1, "told once a second at most");
        clock.advance(SECOND);
        _ = limiter.check("f").await;
        assert_eq!(full.0.load(Relaxed), 2);
    }
}

#[tokio::test]
async fn a_handle_keeps_its_key_a_place_and_without_one_an_idle_key_goes() {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let gate = builder(&clock, &store, slow(5)).keys_max(1).build().await.expect("fair settings");
    let limiter = gate.limiter("r").expect("its rule");
    let user = limiter.key("a");
    assert!(user.check().await.is_allowed());
    let idle = async |steps: u32| {
        for _ in 0..steps {
            clock.advance(SECOND);
            tokio::time::sleep(Duration::from_millis(3)).await; // the engine looks each millisecond
        }
    };
    idle(60).await;
    assert_eq!(limiter.check("b").await.trouble(), Some(ErrorKind::Saturated));
    assert!(user.clone().check().await.is_allowed());
    drop(user);
    eventually("the place is free", async || {
        idle(1).await;
        limiter.check("b").await.is_allowed()
    })
    .await;
    assert_eq!(gate.snapshot().keys, 1);
}

// ---- counts

#[tokio::test]
async fn every_check_is_counted_once() {
    let store = MemoryStore::default();
    let gate = builder(&Clock::system(), &store, slow(50))
        .rule("local", slow(5).mode(Mode::Local))
        .rule("exact", slow(5).mode(Mode::Exact))
        .rule("credit", slow(5).cold(Cold::Credit(2)))
        .rule("denied", slow(5).outage(Outage::Deny))
        .long_keys(LongKeys::Refuse)
        .keys_max(20)
        .build()
        .await
        .expect("fair settings");
    let long = "x".repeat(KEY_BYTES_MAX + 1);
    let mut asked = 0;
    let round = async |asked: &mut u64| {
        for name in ["r", "local", "exact", "credit", "denied"] {
            let limiter = gate.limiter(name).expect("its rule");
            let user = limiter.key("a");
            for n in 0..10 {
                let key = format!("key {n}");
                _ = limiter.check("a").await;
                _ = limiter.check_now("a");
                _ = user.check().await;
                _ = user.check_now();
                _ = limiter.check_n(&key, 2).await;
                _ = limiter.check_now(&key);
                _ = limiter.check_n("a", 1_000).await;
                _ = limiter.check_now(&long);
                *asked += 8;
                // These are none.
                _ = limiter.peek("a").await;
                _ = limiter.check_now_n(&key, 0);
            }
        }
    };
    round(&mut asked).await;
    assert_eq!(checks(&gate.snapshot()), asked, "{:?}", gate.snapshot());
    store.set_reachable(false);
    round(&mut asked).await;
    let snapshot = gate.snapshot();
    assert_eq!(checks(&snapshot), asked, "{snapshot:?}");
    assert!(snapshot.outage_denied > 0 && snapshot.saturated > 0 && snapshot.never == 100 && snapshot.bad_keys == 100);
    _ = gate.shutdown().await;
    round(&mut asked).await;
    assert_eq!(checks(&gate.snapshot()), asked, "{:?}", gate.snapshot());
}

#[tokio::test]
async fn a_snapshot_tells_of_holds_members_and_the_store() {
    let (gate, limiter) = gate(Rule::token_bucket(1_000, SECOND).deadline(PATIENCE)).await;
    for _ in 0..50 {
        assert!(limiter.check("a").await.is_allowed());
    }
    eventually("the first heartbeat", async || gate.snapshot().members == Some(1)).await;
    let snapshot = gate.snapshot();
    assert!(snapshot.syncs >= 1 && snapshot.batches >= 1 && snapshot.batches <= snapshot.syncs, "{snapshot:?}");
    assert_eq!((snapshot.keys, snapshot.link, snapshot.bucket_errors), (1, tollgate::Link::Up, 0));
    let shown = format!("{gate:?} {limiter:?} {:?} {snapshot:?}", limiter.key("secret"));
    assert!(!shown.contains("secret"), "{shown}");
}

// ---- the end

/// Has an instance borrow some of the tokens of "a"; how many it spent.
async fn borrow(gate: &Tollgate) -> u64 {
    let limiter = gate.limiter("r").expect("its rule");
    let mut spent = 0;
    let start = Instant::now();
    while gate.snapshot().held == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing is lent: {:?}", gate.snapshot());
        spent += u64::from(limiter.check("a").await.is_allowed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    spent
}

/// Two instances that share a store.
async fn two(burst: u64) -> (MemoryStore, Tollgate, Tollgate) {
    let (clock, store) = (Clock::system(), MemoryStore::default());
    let one = builder(&clock, &store, slow(burst)).build().await.expect("fair settings");
    let other = builder(&clock, &store, slow(burst)).build().await.expect("fair settings");
    (store, one, other)
}

#[tokio::test]
async fn a_shutdown_returns_the_leases_and_ends_the_checks() {
    let (_store, one, other) = two(10_000).await;
    let spent = borrow(&one).await;
    let limiter = one.limiter("r").expect("its rule");
    let user = limiter.key("a");
    assert_eq!(one.shutdown().await, Ok(()));
    assert_eq!(one.shutdown().await, Ok(()), "a second call has the same end");
    assert_eq!(one.snapshot().held, 0);

    let over = |d: Decision| {
        assert!(!d.is_allowed() && d.trouble() == Some(ErrorKind::ShutDown) && d.retry_after().is_none(), "{d:?}");
    };
    over(limiter.check("a").await);
    over(limiter.check("new").await);
    over(user.check().await);
    over(limiter.peek("a").await);
    let parked = limiter.clone();
    over(thread::spawn(move || parked.check_blocking("a")).join().expect("no panic"));
    drop(one);
    over(limiter.check("a").await); // a limiter may outlive its gate
    over(limiter.check_now("a"));
    over(limiter.check_now("another"));
    limiter.refund("a", 1);

    let rest = other.limiter("r").expect("its rule");
    assert!(rest.check_n("a", 10_000 - spent).await.is_allowed(), "all that was not spent");
    assert!(!rest.check("a").await.is_allowed());
}

#[tokio::test]
async fn a_gate_that_is_dropped_returns_its_leases_too() {
    let (_store, one, other) = two(10_000).await;
    let spent = borrow(&one).await;
    drop(one);
    let rest = other.limiter("r").expect("its rule");
    eventually("the leases are back", async || rest.peek("a").await.remaining() == 10_000 - spent).await;
}

#[tokio::test]
async fn a_gate_lives_as_long_as_its_last_limiter() {
    let (one, limiter) = gate(slow(10)).await;
    drop(one);
    assert!(limiter.check("a").await.is_allowed());
    let user = limiter.key("a");
    drop(limiter);
    assert!(user.check().await.is_allowed());
}

#[tokio::test]
async fn a_shutdown_that_cannot_return_the_leases_says_so_and_ends() {
    let (store, one, _other) = two(10_000).await;
    borrow(&one).await;
    store.set_reachable(false);
    let start = Instant::now();
    let result = one.shutdown().await;
    assert_eq!(result.map_err(|e| e.kind()), Err(ErrorKind::Deadline));
    assert!(start.elapsed() < PATIENCE);
    let again = one.shutdown().await;
    assert_eq!(again.map_err(|e| e.kind()), Err(ErrorKind::Deadline), "the same end");
}

#[tokio::test]
async fn a_shutdown_that_is_dropped_goes_on() {
    let (_store, one, other) = two(10_000).await;
    let spent = borrow(&one).await;
    _ = at_once(one.shutdown());
    let rest = other.limiter("r").expect("its rule");
    eventually("the leases are back", async || rest.peek("a").await.remaining() == 10_000 - spent).await;
    let limiter = one.limiter("r").expect("its rule");
    eventually("the end", async || limiter.check("a").await.trouble() == Some(ErrorKind::ShutDown)).await;
}

#[tokio::test]
async fn what_is_waited_for_is_answered_when_the_gate_ends() {
    let (gate, limiter) = gate(slow(1).mode(Mode::Exact)).await;
    let waiting: Vec<_> = (0..50)
        .map(|n| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(format!("key {n}")).await })
        })
        .collect();
    _ = gate.shutdown().await;
    for one in waiting {
        let d = one.await.expect("no panic");
        assert!(d.is_allowed() || d.trouble() == Some(ErrorKind::ShutDown), "{d:?}");
    }
}

#[test]
fn the_gate_outlives_the_runtime_that_built_it() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (gate, limiter) = runtime.block_on(gate(slow(10)));
    drop(runtime);
    let passed = (0..20).filter(|_| limiter.check_blocking("a").is_allowed()).count();
    assert_eq!(passed, 10);
    assert_eq!(tokio::runtime::Runtime::new().expect("another").block_on(gate.shutdown()), Ok(()));
}

// ---- clocks

// case C-29: while a machine sleeps its monotonic clock stands still, and the authority's goes on.
#[tokio::test]
async fn a_suspend_adds_what_was_held_when_it_began_at_most() {
    let store = MemoryStore::default();
    let rule = Rule::token_bucket(10, SECOND).burst(10_000).deadline(PATIENCE);
    let gate = builder(&Clock::system(), &store, rule).build().await.expect("fair settings");
    borrow(&gate).await;
    let held = gate.snapshot().held;
    // The lease is over there, and the bucket is full again; so long that its key expires it is not.
    store.step_clock(30_000_000);
    let (start, limiter) = (Instant::now(), gate.limiter("r").expect("its rule"));
    let passed = drain(&limiter, "a").await;
    let most = 10_000 + held + 10 * (start.elapsed().as_secs() + 1);
    assert!((10_000..=most).contains(&passed), "{passed} of 10,000 and the {held} that were held");
}

#[tokio::test]
async fn a_clock_that_steps_forward_adds_the_refill_of_the_step_at_most() {
    let store = MemoryStore::default();
    let gate = builder(&Clock::system(), &store, slow(100)).build().await.expect("fair settings");
    let limiter = gate.limiter("r").expect("its rule");
    for (hours, refill) in [(3, 3), (50, 50)] {
        let first = drain(&limiter, "a").await;
        assert!(first == 100 || first == 0, "{first}");
        store.step_clock(hours * 3_600 * 1_000_000);
        // A no is asked about again within a second.
        let mut passed = 0;
        eventually("the refill", async || {
            passed += u64::from(limiter.check("a").await.is_allowed());
            passed >= refill
        })
        .await;
        assert_eq!(drain(&limiter, "a").await, 0, "after {hours} h");
    }
}

#[test]
fn a_local_gate_that_is_started_anew_starts_full() {
    let start = || Tollgate::builder().rule("r", slow(5).mode(Mode::Local)).build_local().expect("a local rule");
    for _ in 0..2 {
        let limiter = start().limiter("r").expect("its rule");
        assert_eq!((0..9).filter(|_| limiter.check_now("a").is_allowed()).count(), 5);
    }
}
