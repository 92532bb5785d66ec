//! Rules that answer by themselves: deny all, unlimited, lists of keys, overrides, shadow mode.
#![cfg(feature = "redis")]

#[path = "support/gates.rs"]
mod gates;

use gates::{Seen, slow, until};
use std::time::Duration;
use tollgate::{
    Decision, ErrorKind, Event, Limiter, LongKeys, MemoryStore, Mode, Outage, RedisStore, Rule, Source, Tollgate,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn local(burst: u64) -> Rule {
    Rule::token_bucket(1, HOUR).burst(burst).mode(Mode::Local)
}

/// A gate of one local rule, and its limiter.
fn alone(rule: Rule) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().rule("r", rule).build_local().expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    (gate, limiter)
}

/// How many of 1,000 checks pass.
fn passed(limiter: &Limiter, key: &str) -> u64 {
    (0..1_000).map(|_| u64::from(limiter.check_now(key).is_allowed())).sum()
}

async fn passed_waiting(limiter: &Limiter, key: &str) -> u64 {
    let mut passed = 0;
    while passed < 1_000 && limiter.check(key).await.is_allowed() {
        passed += 1;
    }
    passed
}

#[tokio::test]
async fn a_rule_without_numbers_says_the_same_to_all_calls_and_asks_nobody() {
    for (rule, allowed) in [(Rule::unlimited(), true), (Rule::deny_all(), false)] {
        let (gate, limiter) = alone(rule);
        let handle = limiter.key("a");
        let limit = if allowed { u64::MAX } else { 0 };
        let all = [
            limiter.check_now("a"),
            limiter.check("a").await,
            limiter.check_n("a", u64::MAX).await,
            limiter.check_blocking("a"),
            handle.check_now(),
            handle.check().await,
            handle.check_blocking_n(7),
        ];
        let looks = [limiter.peek("a").await, limiter.check_now_n("a", 0), limiter.check_blocking_n("a", 0)];
        for decision in all.into_iter().chain(looks) {
            assert_eq!((decision.is_allowed(), decision.is_never()), (allowed, !allowed));
            assert_eq!((decision.limit(), decision.remaining()), (limit, limit));
            assert_eq!((decision.retry_after(), decision.retry_after_secs()), (None, None));
            assert_eq!((decision.reset_after(), decision.trouble()), (Duration::ZERO, None));
            assert_eq!((decision.source(), decision.refused_by()), (Source::Rule, (!allowed).then_some("r")));
        }
        limiter.refund("a", 5);
        let snapshot = gate.snapshot();
        let right = if allowed { (7, 0, 0) } else { (0, 7, 0) };
        assert_eq!((snapshot.rule_allowed, snapshot.rule_denied, snapshot.keys), right);
        assert_eq!(limiter.bound().over(SECOND, 3), limit);
        assert_eq!(limiter.bound().to_string(), if allowed { "no bound" } else { "0" });
    }
}

#[test]
fn exact_entries_win_then_deny_then_allow_then_overrides_then_the_first_pattern() {
    let rule = local(3)
        .override_limit("a*", 2)
        .override_key("ab*", local(7))
        .override_key("abc-exact", local(9))
        .allow("*-free")
        .allow("bot-7")
        .deny("bot-*")
        .deny("both")
        .allow("both")
        .override_key("bot-8", local(4))
        .deny(r"literal-\*");
    let (_gate, limiter) = alone(rule);
    let limit = |key: &str| limiter.check_now(key).limit();
    let table = [
        ("x", 3),
        ("a", 6), // the count is doubled, and the burst with it
        ("ab", 6),
        ("abc-exact", 9),
        ("a-free", u64::MAX),
        ("bot-1", 0),
        ("bot-1-free", 0),
        ("bot-7", u64::MAX),
        ("bot-8", 4),
        ("both", 0),
        ("literal-*", 0),
        ("literal-x", 3),
    ];
    for (key, right) in table {
        assert_eq!(limit(key), right, "{key}");
        assert_eq!(limiter.key(key).check_now().limit(), right, "{key} by handle");
    }
}

#[test]
fn a_long_key_is_matched_before_it_is_hashed() {
    let long = "x".repeat(5_000);
    let rules = Tollgate::builder().rule("r", local(3).deny("xx*").override_limit("y*", 2)).long_keys(LongKeys::Refuse);
    let strict = rules.build_local().expect("fair rules").limiter("r").expect("its rule");
    assert_eq!(strict.check_now(&long).trouble(), Some(ErrorKind::BadKey));
    let (_gate, limiter) = alone(local(3).deny("xx*"));
    assert!(limiter.check_now(&long).is_never());
    assert_eq!(passed(&limiter, &format!("y{long}")), 3);
}

#[test]
fn each_key_of_an_override_has_a_limit_of_its_own_under_the_rules_name() {
    let (gate, limiter) = alone(local(10).override_key("vip-*", local(30)).override_key("slow", local(2)));
    assert_eq!([passed(&limiter, "vip-1"), passed(&limiter, "vip-2"), passed(&limiter, "slow")], [30, 30, 2]);
    assert_eq!(passed(&limiter, "other"), 10);
    let refused = limiter.check_now("vip-1");
    assert_eq!((refused.refused_by(), refused.limit()), (Some("r"), 30));
    assert_eq!(gate.snapshot().rules.len(), 1);
}

#[tokio::test]
async fn an_override_in_the_authority_has_buckets_of_its_own() {
    let store = MemoryStore::default();
    let gate = |rule: Rule| {
        let builder = Tollgate::builder().store(store.clone()).rule("r", rule.clone()).rule("r=", rule);
        async { builder.build().await.expect("fair rules") }
    };
    let exact = |burst| slow(burst).mode(Mode::Exact);
    let one = gate(exact(5).override_key("vip", exact(8)).override_key("v*", exact(3))).await;
    let limiter = one.limiter("r").expect("its rule");
    assert_eq!([passed_waiting(&limiter, "vip").await, passed_waiting(&limiter, "v").await], [8, 3]);
    assert_eq!(passed_waiting(&limiter, "other").await, 5);
    // Another instance without the overrides, and one where the same key has another override.
    let plain = gate(exact(5)).await.limiter("r").expect("its rule");
    assert_eq!(passed_waiting(&plain, "vip").await, 5, "the rule's own bucket of that key");
    assert_eq!(passed_waiting(&plain, "other").await, 0, "which all share");
    let third = gate(exact(5).override_key("vip", exact(8)).override_key("v*", exact(3))).await;
    assert_eq!(passed_waiting(&third.limiter("r").expect("its rule"), "vip").await, 0, "the same override's");
    assert_eq!(passed_waiting(&third.limiter("r=").expect("its rule"), "vip").await, 8, "another rule's");
}

#[tokio::test]
async fn leased_rules_have_lists_too() {
    let rule = slow(100).deny("bad").allow("good").override_key("few", slow(4));
    let gate = Tollgate::builder().rule("r", rule).build().await.expect("fair rules");
    let limiter = gate.limiter("r").expect("its rule");
    assert_eq!([passed_waiting(&limiter, "few").await, passed_waiting(&limiter, "x").await], [4, 100]);
    assert!(limiter.check("bad").await.is_never() && limiter.key("bad").check().await.is_never());
    assert_eq!(passed_waiting(&limiter, "good").await, 1_000);
    let few = limiter.key("few");
    assert_eq!((few.check().await.limit(), few.check().await.is_allowed()), (4, false));
    limiter.refund("few", 1);
    until("the refund of an override's key comes back", || limiter.check_now("few").is_allowed()).await;
}

#[test]
fn an_override_that_matches_nothing_is_told_once() {
    let seen = Seen::default();
    let rule = local(10).override_key("here", local(2)).override_key("tpyo-*", local(3)).deny("nobody");
    let gate = Tollgate::builder().rule("r", rule).observer(seen.clone()).build_local().expect("fair rules");
    let limiter = gate.limiter("r").expect("its rule");
    for _ in 0..9_998 {
        let _ = limiter.check_now("key");
    }
    let _ = limiter.check_now("here");
    assert!(seen.all().is_empty(), "{:?}", seen.all());
    for _ in 0..30_000 {
        let _ = limiter.check_now("key");
    }
    let told = seen.all();
    assert!(
        matches!(&told[..], [Event::Warning { message }] if message.contains("\"r\"") && message.contains("\"tpyo-*\"")),
        "{told:?}"
    );
}

#[test]
fn whatever_is_wrong_with_a_list_is_an_error_that_names_rule_field_and_entry() {
    let fair = || Rule::token_bucket(10, SECOND);
    let many = (0..1_001).fold(fair(), |rule, n| rule.deny(format!("{n}*")));
    let table: Vec<(Rule, &[&str])> = vec![
        (fair().allow("a\\"), &["allow", "\"a\\\\\"", "backslash"]),
        (fair().deny(r"a\b"), &["deny"]),
        (fair().override_limit(r"a\b", 5), &["overrides"]),
        (fair().override_limit("x".repeat(1_025), 5), &["overrides", "1024 bytes"]),
        (fair().override_limit("a", 0), &["overrides", "\"a\"", "rate", "zero"]),
        (fair().override_limit("a", u64::MAX), &["overrides", "\"a\"", "rate"]),
        (fair().override_limit("a", 5).override_limit("a", 6), &["overrides", "\"a\"", "two overrides"]),
        (fair().override_key("a", fair().shadow(true)), &["overrides", "\"a\"", "shadow: "]),
        (fair().override_key("a", Rule::fixed_window(5, SECOND)), &["overrides", "\"a\"", "algorithm", "TokenBucket"]),
        (fair().override_key("a", fair().mode(Mode::Exact)), &["overrides", "\"a\"", "mode", "Leased", "Exact"]),
        (fair().override_key("a", fair().deny("b")), &["overrides", "\"a\"", "no lists"]),
        (fair().override_key("a", fair().burst(0)), &["overrides", "\"a\"", "burst", "not 0"]),
        (Rule::unlimited().override_limit("a", 5), &["overrides", "\"a\"", "without numbers"]),
        (Rule::unlimited().burst(5), &["burst", "unlimited"]),
        (Rule::deny_all().mode(Mode::Exact), &["mode", "denies all"]),
        (many, &["lists", "1000 patterns", "1001"]),
    ];
    for (rule, words) in table {
        let error = Tollgate::builder().rule("login", rule).build_local().expect_err("a wrong list");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        for word in words.iter().chain(&["rule \"login\": "]) {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
    assert!(
        Tollgate::builder().rule("r", Rule::deny_all().override_key("a", fair())).build_local().is_err(),
        "a store"
    );
}

// ---- shadow mode

fn would_refuse(decision: Decision) {
    assert!(decision.is_allowed() && !decision.is_never(), "{decision:?}");
    assert_eq!((decision.source(), decision.refused_by()), (Source::Shadow, Some("r")));
    assert_eq!(decision.retry_after(), None, "nobody has to wait");
    let real = decision.would_be();
    assert!(!real.is_allowed() && real.source() != Source::Shadow && real.refused_by() == Some("r"), "{real:?}");
}

#[tokio::test]
async fn a_shadowing_rule_refuses_nobody_and_tells_whom_it_would_have() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let gate = Tollgate::builder().rule("r", slow(3).mode(mode).shadow(true)).build().await.expect("fair rules");
        let limiter = gate.limiter("r").expect("its rule");
        let handle = limiter.key("a");
        for _ in 0..3 {
            let decision = limiter.check("a").await;
            assert!(decision.is_allowed() && decision.source() != Source::Shadow, "{mode:?} {decision:?}");
            assert_eq!((decision.would_be(), decision.refused_by()), (decision, None));
        }
        let refused = [
            limiter.check("a").await,
            limiter.check_now("a"),
            handle.check().await,
            handle.check_now(),
            handle.check_n(2).await,
        ];
        refused.into_iter().for_each(would_refuse);
        let blocking = std::thread::spawn(move || (limiter.check_blocking("a"), limiter)).join();
        let (decision, limiter) = blocking.expect("an answer");
        would_refuse(decision);
        assert!(decision.would_be().retry_after().is_some(), "{mode:?}");
        let never = limiter.check_n("a", 4).await;
        would_refuse(never);
        assert!(never.would_be().is_never(), "{mode:?}");
        assert_eq!(gate.snapshot().shadow_denied, 7, "{mode:?}");
        let look = limiter.peek("a").await;
        would_refuse(look);
        assert_eq!(gate.snapshot().shadow_denied, 7, "{mode:?}: a look is counted nowhere");
        assert_eq!(limiter.bound().over(SECOND, 1), u64::MAX);
    }
}

#[tokio::test]
async fn a_shadowing_rule_lets_pass_what_its_lists_would_refuse() {
    let (gate, limiter) = alone(local(3).shadow(true).deny("bad").override_key("few", local(1)));
    would_refuse(limiter.check_now("bad"));
    assert!(limiter.check_now("few").source() == Source::Local);
    would_refuse(limiter.check_now("few"));
    assert_eq!(gate.snapshot().shadow_denied, 2);
}

#[tokio::test]
async fn a_shadowing_rule_lets_pass_when_its_store_is_away_and_keeps_the_trouble() {
    // Nobody listens at this port: it is reserved.
    let store = RedisStore::lazy("redis://127.0.0.1:1/").expect("a fair URL");
    let rule = slow(3).outage(Outage::Deny).shadow(true).deadline(Duration::from_millis(200));
    let gate = Tollgate::builder().store(store).rule("r", rule).build().await.expect("fair rules");
    let limiter = gate.limiter("r").expect("its rule");
    let decision = limiter.check("a").await;
    would_refuse(decision);
    assert!(decision.trouble().is_some() && decision.would_be().source() == Source::Outage, "{decision:?}");
    let _ = gate.shutdown().await;
    let decision = limiter.check("b").await;
    would_refuse(decision);
    assert_eq!(decision.trouble(), Some(ErrorKind::ShutDown));
}

#[tokio::test]
async fn a_shadowing_rule_holds_up_nobody_who_waits_reserves_or_asks_several_limits() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let gate = Tollgate::builder()
            .rule("r", slow(2).mode(mode).shadow(true))
            .rule("real", slow(3).mode(mode))
            .build()
            .await
            .expect("fair rules");
        let [limiter, real] = ["r", "real"].map(|name| gate.limiter(name).expect("its rule"));
        assert_ne!(limiter.check_n("a", 2).await.source(), Source::Shadow, "{mode:?}");
        would_refuse(limiter.acquire("a", 1, HOUR).await.expect("let through at once"));
        let reservation = limiter.reserve("a", 2).await.expect("let through");
        would_refuse(reservation.decision());
        assert_eq!(reservation.commit(5), tollgate::Settled::default(), "nothing was taken");
        for _ in 0..3 {
            let both = gate.check_all(&[(&limiter, "a", 1), (&real, "a", 1)]).await;
            assert!(both.is_allowed(), "{mode:?} {both:?}");
        }
        let refused = gate.check_all(&[(&limiter, "a", 1), (&real, "a", 1)]).await;
        assert_eq!(
            (refused.is_allowed(), refused.refused_by()),
            (false, Some("real")),
            "{mode:?}: the other one is real"
        );
    }
}

#[tokio::test]
async fn lists_hold_for_who_waits_reserves_or_asks_several_limits() {
    let rule = slow(5).allow("good").deny("bad").override_key("few", slow(1));
    let gate = Tollgate::builder().rule("r", rule).rule("s", slow(5)).build().await.expect("fair rules");
    let [limiter, other] = ["r", "s"].map(|name| gate.limiter(name).expect("its rule"));
    let error = limiter.acquire("bad", 1, HOUR).await.expect_err("on the deny list");
    assert_eq!(error.kind(), ErrorKind::NeverFits, "{error}");
    assert!(limiter.acquire("good", 1_000_000, SECOND).await.is_ok());
    assert!(limiter.reserve("bad", 1).await.is_err());
    let all = [(&limiter, "bad", 1), (&other, "bad", 1)];
    assert!(gate.check_all(&all).await.is_never() && gate.check_all_now(&all).is_never());
    assert_eq!(other.peek("bad").await.remaining(), 5, "not charged");
    assert!(gate.check_all(&[(&limiter, "few", 1), (&other, "few", 1)]).await.is_allowed());
    assert!(!gate.check_all(&[(&limiter, "few", 1), (&other, "few", 1)]).await.is_allowed());
    // What the authority had given comes back with the next sync.
    for _ in 0..4_000 {
        if other.peek("few").await.remaining() == 4 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("charged for what another limit refused");
}
