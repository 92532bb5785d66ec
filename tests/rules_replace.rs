//! Rules that are replaced while a gate runs, by the public face.
#![cfg(feature = "redis")]

#[path = "support/gates.rs"]
mod gates;

use gates::{Seen, slow, until};
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tollgate::{Clock, Decision, ErrorKind, Event, Limiter, MemoryStore, Mode, Rule, Rules, Source, Tollgate};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

fn one(rule: Rule) -> Rules {
    Rules::new().rule("r", rule)
}

/// A gate of one rule called "r", and its limiter.
async fn gate(rule: Rule) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().rules(one(rule)).build().await.expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    (gate, limiter)
}

async fn passed(limiter: &Limiter, key: &str) -> u64 {
    let mut passed = 0;
    while passed < 10_000 && limiter.check(key).await.is_allowed() {
        passed += 1;
    }
    passed
}

fn is_lifted(decision: &Decision) -> bool {
    decision.is_allowed() && decision.trouble() == Some(ErrorKind::UnknownRule)
}

// case A-23: a limit that is changed, removed and set again takes effect, for limiters from before too.
#[tokio::test]
async fn a_limit_of_30_that_is_removed_and_comes_back_as_150_is_followed() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let (gate, limiter) = gate(slow(30).mode(mode)).await;
        let handle = limiter.key("a");
        assert_eq!(passed(&limiter, "a").await, 30, "{mode:?}");
        assert!(!handle.check().await.is_allowed());

        let other = Rules::new().rule("other", slow(5).mode(mode));
        let replaced = gate.replace_rules(other).expect("a fair rule");
        assert_eq!((replaced.added, replaced.removed, replaced.kept), (vec!["other"], vec!["r"], 0));
        let asked = [limiter.check("a").await, limiter.check_now("b"), handle.check().await, handle.check_now()];
        assert!(asked.iter().all(is_lifted), "{mode:?} {asked:?}");
        assert!(is_lifted(&limiter.peek("a").await));
        let error = gate.limiter("r").expect_err("it is gone");
        assert_eq!((error.kind(), error.to_string().contains("other")), (ErrorKind::UnknownRule, true));
        assert_eq!(gate.snapshot().lifted, 4);
        assert_eq!(gate.snapshot().rules.iter().map(|rule| rule.name).collect::<Vec<_>>(), ["other"]);

        let back = one(slow(150).mode(mode)).rule("other", slow(5).mode(mode));
        let replaced = gate.replace_rules(back).expect("fair rules");
        assert_eq!((replaced.added, replaced.removed, replaced.kept), (vec!["r"], vec![], 1));
        for limiter in [&limiter, &gate.limiter("r").expect("it is back")] {
            assert_eq!((limiter.check("c").await.limit(), limiter.check("c").await.trouble()), (150, None), "{mode:?}");
        }
        assert_eq!(passed(&limiter, "fresh").await, 150, "{mode:?}");
        assert_eq!(handle.check().await.limit(), 150, "{mode:?}");
    }
}

// case A-23: default 100, override 30.
#[tokio::test]
async fn an_override_that_comes_changes_and_goes_is_followed() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let rule = || slow(100).mode(mode);
        let (gate, limiter) = gate(rule()).await;
        let handle = limiter.key("vip");
        for (next, right) in [
            (rule().override_key("vip", rule().burst(30)), 30),
            (rule().override_key("vip", rule().burst(40)), 40),
            (rule().override_key("v*", rule().burst(50)), 50),
            (rule().deny("v*"), 0),
            (rule(), 100),
        ] {
            let replaced = gate.replace_rules(one(next)).expect("fair rules");
            assert_eq!(replaced.changed, ["r"]);
            assert_eq!([limiter.check("vip").await.limit(), handle.check_now().limit()], [right, right], "{mode:?}");
            assert_eq!(limiter.check("other").await.limit(), 100, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn a_lower_limit_clips_what_is_left_and_never_makes_a_debt_of_it() {
    for mode in [Mode::Local, Mode::Exact] {
        let (gate, limiter) = gate(slow(100).mode(mode)).await;
        let _ = limiter.check_n("a", 10).await;
        let _ = limiter.check_n("b", 90).await;
        gate.replace_rules(one(slow(30).mode(mode))).expect("a fair rule");
        let left = [passed(&limiter, "a").await, passed(&limiter, "b").await];
        // 90 of 100 were left of the first and 10 of the second: the authority clips what is there, a local rule keeps what
        // is lacking.
        assert_eq!(left, if mode == Mode::Local { [20, 0] } else { [30, 10] }, "{mode:?}");
    }
}

// case C-23: refused requests cost nothing, so that a limit of 20 after one of 10 lets 10 more pass.
#[tokio::test]
async fn a_raised_limit_helps_those_who_were_refused() {
    let (gate, limiter) = gate(slow(10).mode(Mode::Local)).await;
    let mut allowed = 0;
    for _ in 0..50 {
        allowed += u64::from(limiter.check_now("a").is_allowed());
    }
    gate.replace_rules(one(slow(20).mode(Mode::Local))).expect("a fair rule");
    assert_eq!((allowed, passed(&limiter, "a").await), (10, 10));
}

/// The same with windows, which count what passed.
#[tokio::test]
async fn a_raised_window_lets_the_difference_pass() {
    // Its edge is as good as never near.
    let window = Duration::from_secs(300 * 86_400);
    let kinds = [Rule::fixed_window, Rule::sliding_log, Rule::sliding_counter];
    for (kind, mode) in kinds.into_iter().flat_map(|kind| [(kind, Mode::Exact), (kind, Mode::Local)]) {
        let rule = |limit| one(kind(limit, window).mode(mode).deadline(5 * SECOND));
        let gate = Tollgate::builder().rules(rule(10)).build().await.expect("a fair rule");
        let limiter = gate.limiter("r").expect("its rule");
        let mut allowed = 0;
        for _ in 0..50 {
            allowed += u64::from(limiter.check("a").await.is_allowed());
        }
        gate.replace_rules(rule(20)).expect("a fair rule");
        assert_eq!((allowed, passed(&limiter, "a").await), (10, 10));
        gate.replace_rules(rule(5)).expect("a fair rule");
        assert_eq!(passed(&limiter, "a").await, 0);
    }
}

#[test]
fn local_state_is_kept_when_the_rate_changes() {
    let clock = Clock::manual();
    let per_minute = |n: u64| one(Rule::token_bucket(n, MINUTE).burst(10).mode(Mode::Local));
    let gate = Tollgate::builder().clock(clock.clone()).rules(per_minute(60)).build_local().expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    assert!(limiter.check_now_n("a", 8).is_allowed());
    // Eight are lacking, and come at the new rate of one each ten seconds.
    gate.replace_rules(per_minute(6)).expect("a fair rule");
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 2);
    clock.advance(10 * SECOND);
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 3);
    gate.replace_rules(per_minute(600)).expect("a fair rule");
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 3);
    clock.advance(SECOND / 10);
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 4);
    // Six are lacking of ten, and then all of three: not six of three.
    gate.replace_rules(one(Rule::token_bucket(60, MINUTE).burst(3).mode(Mode::Local))).expect("a fair rule");
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 0);
    clock.advance(SECOND);
    assert_eq!(limiter.check_now_n("a", 0).remaining(), 1, "it owes nothing");
}

#[tokio::test]
async fn a_rule_that_counts_in_another_way_starts_anew() {
    for mode in [Mode::Local, Mode::Exact] {
        let (gate, limiter) = gate(slow(5).mode(mode)).await;
        assert_eq!(passed(&limiter, "a").await, 5);
        let meter = Rule::leaky_bucket(1, HOUR).burst(7).mode(mode).deadline(5 * SECOND);
        gate.replace_rules(one(meter)).expect("a fair rule");
        assert_eq!(limiter.check("a").await.limit(), 7);
        gate.replace_rules(one(slow(5).mode(mode))).expect("a fair rule");
        assert!(!limiter.check("a").await.is_allowed(), "{mode:?}: what was spent before is still spent");
    }
}

#[tokio::test]
async fn a_rule_may_change_who_decides_where_the_gate_has_an_engine() {
    let (gate, limiter) = gate(slow(5)).await;
    for mode in [Mode::Local, Mode::Exact, Mode::Leased, Mode::Local, Mode::Leased] {
        gate.replace_rules(one(slow(5).mode(mode))).expect("a fair rule");
        let decision = limiter.check(format!("{mode:?}")).await;
        assert!(decision.is_allowed(), "{mode:?} {decision:?}");
        assert_eq!(decision.source() == Source::Local, mode == Mode::Local, "{mode:?} {decision:?}");
    }
    for rule in [Rule::unlimited(), Rule::deny_all(), slow(5)] {
        let allowed = rule != Rule::deny_all();
        gate.replace_rules(one(rule)).expect("a fair rule");
        assert_eq!(limiter.check("fresh").await.is_allowed(), allowed);
    }

    let seen = Seen::default();
    let builder = Tollgate::builder().observer(seen.clone()).rules(one(slow(5).mode(Mode::Local)));
    let alone = builder.build_local().expect("a fair rule");
    let error = alone.replace_rules(one(slow(5))).expect_err("no engine");
    assert!(error.to_string().starts_with("rule \"r\": mode: this gate was built with"), "{error}");
    let lists = one(slow(5).mode(Mode::Local).allow("a")).rule("s", Rule::deny_all().override_key("a", slow(5)));
    assert!(alone.replace_rules(lists).is_err());
    assert_eq!(seen.count(|event| matches!(event, Event::RulesRefused { .. })), 2);
}

#[tokio::test]
async fn a_wrong_set_changes_nothing_and_says_which_rule_and_field() {
    let seen = Seen::default();
    let rules = one(slow(5)).rule("s", slow(6));
    let gate = Tollgate::builder().observer(seen.clone()).rules(rules.clone()).build().await.expect("fair rules");
    let limiter = gate.limiter("r").expect("its rule");
    let fair = || one(slow(50));
    let table: Vec<(Rules, &[&str])> = vec![
        (fair().rule("t", Rule::token_bucket(0, SECOND)), &["rule \"t\": rate: "]),
        (fair().rule("t", Rule::fixed_window(5, Duration::ZERO)), &["rule \"t\": window: "]),
        (fair().rule("t", Rule::fixed_window(5, SECOND).utc_offset(86_400)), &["rule \"t\": utc_offset: "]),
        (fair().rule("t", slow(5).deny("a\\")), &["rule \"t\": deny: "]),
        (fair().rule("", slow(5)), &["name"]),
        (fair().rule("r", slow(5)), &["rule \"r\": name: ", "two rules"]),
        (one(slow(5).mode(Mode::Local).burst(u64::MAX)), &["rule \"r\": burst: "]),
    ];
    let wrong = table.len();
    for (set, words) in table {
        let error = gate.replace_rules(set).expect_err("a wrong set");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        let told = Event::RulesRefused { message: error.to_string() };
        assert_eq!(seen.all().last(), Some(&told));
    }
    assert_eq!(
        [limiter.check("a").await.limit(), gate.limiter("s").expect("still there").check("a").await.limit()],
        [5, 6]
    );
    let same = gate.replace_rules(rules).expect("fair rules");
    assert_eq!((same.kept, same.added.len() + same.changed.len() + same.removed.len()), (2, 0));
    assert_eq!(seen.count(|event| matches!(event, Event::RulesRefused { .. })), wrong);
    let replaced = gate.replace_rules(fair().rule("new", slow(1))).expect("fair rules");
    assert_eq!((replaced.changed, replaced.added, replaced.removed), (vec!["r"], vec!["new"], vec!["s"]));
    let told = Event::RulesReplaced { added: vec!["new"], changed: vec!["r"], removed: vec!["s"] };
    assert_eq!(seen.all().last(), Some(&told));
}

#[tokio::test]
async fn all_rules_may_go_and_come_back() {
    let (gate, limiter) = gate(slow(5)).await;
    gate.replace_rules(Rules::new()).expect("no rules are fair rules");
    assert!(is_lifted(&limiter.check("a").await));
    assert!(gate.limiter("r").is_err());
    gate.replace_rules(one(slow(5))).expect("a fair rule");
    assert_eq!(passed(&limiter, "a").await, 5);
}

#[tokio::test]
async fn rules_are_replaced_after_a_shutdown_too() {
    let rules = |n| one(slow(n)).rule("near", slow(n).mode(Mode::Local));
    let gate = Tollgate::builder().rules(rules(5)).build().await.expect("fair rules");
    gate.shutdown().await.expect("nothing to give back");
    gate.replace_rules(rules(9)).expect("fair rules");
    let [far, near] = ["r", "near"].map(|name| gate.limiter(name).expect("its rule").check_now("a"));
    assert_eq!((far.trouble(), near.limit(), near.is_allowed()), (Some(ErrorKind::ShutDown), 9, true));
}

/// Other instances may still have the old numbers: each counts by its own, in one bucket.
#[tokio::test]
async fn instances_change_over_one_by_one() {
    let store = MemoryStore::default();
    let mut gates = Vec::new();
    for _ in 0..2 {
        let builder = Tollgate::builder().store(store.clone()).rules(one(slow(10).mode(Mode::Exact)));
        gates.push(builder.build().await.expect("a fair rule"));
    }
    let [old, new] = [0, 1].map(|at: usize| gates[at].limiter("r").expect("its rule"));
    assert!(old.check_n("a", 4).await.is_allowed());
    gates[1].replace_rules(one(slow(3).mode(Mode::Exact))).expect("a fair rule");
    assert_eq!(passed(&new, "a").await, 3, "clipped");
    assert_eq!(passed(&old, "a").await, 0);
}

/// Threads check while the rules are replaced again and again. Limit and rate of a decision, and what each override and
/// each mode says, must always be those of one edition.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn ten_thousand_replacements_are_never_seen_by_halves() {
    const EDITIONS: u64 = 10_000;
    let clock = Clock::manual();
    // Edition n has a burst of n + 10, and needs as many seconds for each token: no other does.
    let edition = |n: u64| {
        let size = n % 97 + 10;
        let rule = Rule::token_bucket(1, SECOND * u32::try_from(size).expect("small")).burst(size);
        let double = Rule::token_bucket(1, SECOND * u32::try_from(size).expect("small")).burst(size * 2);
        let listed = rule.clone().override_key("twice", double.clone()).override_key("twice-*", double);
        let mode = [Mode::Local, Mode::Leased][usize::from(n.is_multiple_of(3))];
        let rules = Rules::new()
            .rule("plain", rule.clone())
            .rule("listed", listed)
            .rule("near", rule.clone().mode(Mode::Local));
        let rules = rules.rule("turns", rule.clone().mode(mode));
        if n.is_multiple_of(5) { rules } else { rules.rule("comes", rule) }
    };
    let gate = Tollgate::builder().clock(clock).rules(edition(1)).build().await.expect("fair rules");
    let names = ["plain", "listed", "near", "turns", "comes"];
    let limiters = names.map(|name| gate.limiter(name).expect("its rule"));
    let (done, checks, mut last) = (AtomicBool::new(false), AtomicU64::new(0), 1);
    thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (gate, done, checks, limiters) = (&gate, &done, &checks, &limiters);
            scope.spawn(move || {
                let handles: Vec<_> = limiters.iter().map(|limiter| limiter.key("by-handle")).collect();
                let mut asked = 0_u64;
                while !done.load(Relaxed) {
                    for (limiter, handle) in limiters.iter().zip(&handles) {
                        asked += 1;
                        let key = format!("{thread}-{}", asked % 20);
                        whole(limiter.check_now(&key), 1);
                        whole(handle.check_now(), 1);
                    }
                    whole(limiters[1].check_now("twice"), 2);
                    whole(limiters[1].check_now("twice-as-much"), 2);
                    if let Ok(fresh) = gate.limiter("comes") {
                        whole(fresh.check_now("fresh"), 1);
                    }
                    checks.store(asked, Relaxed);
                }
            });
        }
        // The machine may be busy: until both have happened often.
        while last <= EDITIONS || checks.load(Relaxed) < 10_000 {
            last += 1;
            gate.replace_rules(edition(last)).expect("fair rules");
            if last.is_multiple_of(97) {
                thread::yield_now();
            }
        }
        done.store(true, Relaxed);
    });
    assert_eq!(limiters[0].check_now("key").limit(), last % 97 + 10);
}

/// In each edition exactly one of two rules refuses; whoever mixed two editions would be let in by both.
#[test]
fn several_limits_in_one_decision_are_of_one_edition() {
    let edition = |first: bool| {
        let [no, yes] = [Rule::deny_all(), Rule::unlimited()];
        let (a, b) = if first { (no, yes) } else { (yes, no) };
        Rules::new().rule("a", a).rule("b", b)
    };
    let gate = Tollgate::builder().rules(edition(true)).build_local().expect("fair rules");
    let [a, b] = ["a", "b"].map(|name| gate.limiter(name).expect("its rule"));
    let (done, refused) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let decision = gate.check_all_now(&[(&a, "key", 1), (&b, "key", 1)]);
                assert!(!decision.is_allowed(), "{decision:?}");
                refused[usize::from(decision.refused_by() == Some("b"))].fetch_add(1, Relaxed);
            }
        });
        let mut n = 0_u32;
        while n < 10_000 || refused.iter().any(|by| by.load(Relaxed) < 100) {
            n += 1;
            gate.replace_rules(edition(n.is_multiple_of(2))).expect("fair rules");
            if n.is_multiple_of(64) {
                thread::yield_now();
            }
        }
        done.store(true, Relaxed);
    });
}

/// The limit of an answer and the time in which it fills up belong to one edition.
#[track_caller]
fn whole(decision: Decision, times: u64) {
    if decision.trouble() == Some(ErrorKind::UnknownRule) {
        assert_eq!(decision.limit(), u64::MAX, "{decision:?}");
        return;
    }
    let seconds_each = decision.limit() / times;
    let lacking = decision.limit() - decision.remaining();
    assert_eq!(decision.limit() % times, 0, "{decision:?}");
    assert_eq!(decision.reset_after(), SECOND * u32::try_from(lacking * seconds_each).expect("small"), "{decision:?}");
}

/// The engine goes by the new numbers as well, also for keys that are warm.
#[tokio::test]
async fn leased_keys_that_are_warm_follow_too() {
    let (gate, limiter) = gate(slow(1_000)).await;
    assert!(limiter.check("a").await.is_allowed());
    gate.replace_rules(one(slow(30))).expect("a fair rule");
    until("what remains is no more than the new limit", || limiter.check_now_n("a", 0).remaining() <= 30).await;
    // The tokens that were lent by the old numbers, an eighth at most, are let go or spent; then the new ones bind.
    let all = passed(&limiter, "a").await;
    assert!(all <= 30 + 250, "{all}");
    gate.replace_rules(one(Rule::token_bucket(1_000, SECOND).deadline(5 * SECOND))).expect("a fair rule");
    until("the new rate refills it", || limiter.check_now("a").is_allowed()).await;
}

/// Rules that count in the same way by very different numbers, without a store.
fn small_and_large() -> Vec<(Rule, Rule)> {
    let pairs = [
        (Rule::token_bucket(1, HOUR).burst(10), Rule::token_bucket(1_000, HOUR)),
        (Rule::fixed_window(10, SECOND), Rule::fixed_window(1_000, 24 * HOUR)),
        (Rule::sliding_log(10, SECOND), Rule::sliding_log(1_000, 24 * HOUR)),
        (Rule::sliding_counter(10, SECOND), Rule::sliding_counter(1_000, 24 * HOUR)),
    ];
    pairs.into_iter().map(|(small, large)| (small.mode(Mode::Local), large.mode(Mode::Local))).collect()
}

#[tokio::test]
async fn a_local_reservation_from_before_a_replacement_gives_back_no_more_than_it_took() {
    for (small, large) in small_and_large() {
        let clock = Clock::manual();
        let gate = Tollgate::builder().clock(clock.clone()).rules(one(small)).build_local().expect("a fair rule");
        let limiter = gate.limiter("r").expect("its rule");
        let reservation = limiter.reserve("a", 5).await.expect("room for 5");
        gate.replace_rules(one(large.clone())).expect("a fair rule");
        assert!(passed(&limiter, "a").await >= 500, "{large:?}");
        clock.advance(2 * SECOND);
        reservation.commit(0);
        let more = passed(&limiter, "a").await;
        assert!(more <= 5, "{more} came back of 5: {large:?}");
    }
}

#[tokio::test]
async fn several_limits_that_are_undone_after_a_replacement_give_back_no_more_than_they_took() {
    // A store that never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", silent.local_addr().expect("its address"));
    for (small, large) in small_and_large() {
        let clock = Clock::manual();
        let rules = |rule: Rule| one(rule).rule("asked", slow(5).mode(Mode::Exact));
        let builder = Tollgate::builder().clock(clock.clone()).store(gates::lazy(&url));
        let gate = builder.rules(rules(small)).build().await.expect("fair rules");
        let (limiter, asked) = (gate.limiter("r").expect("its rule"), gate.limiter("asked").expect("its rule"));
        let limits = [(&limiter, "a", 5), (&asked, "a", 1)];
        let mut both = Box::pin(gate.check_all(&limits));
        let waits = std::future::poll_fn(|context| std::task::Poll::Ready(both.as_mut().poll(context).is_pending()));
        assert!(waits.await, "the authority is asked");
        gate.replace_rules(rules(large.clone())).expect("fair rules");
        assert!(passed(&limiter, "a").await >= 500, "{large:?}");
        clock.advance(2 * SECOND);
        drop(both);
        let more = passed(&limiter, "a").await;
        assert!(more <= 5, "{more} came back of 5: {large:?}");
    }
}

#[tokio::test]
async fn what_was_spent_of_a_local_rule_stays_spent_while_it_is_away() {
    let clock = Clock::manual();
    let local = |count, per| one(Rule::token_bucket(count, per).mode(Mode::Local));
    let gate = Tollgate::builder().clock(clock).rules(local(1_000, SECOND)).build_local().expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    assert_eq!(passed(&limiter, "a").await, 1_000);
    gate.replace_rules(Rules::new().rule("other", Rule::unlimited())).expect("a fair rule");
    gate.replace_rules(local(10, HOUR)).expect("a fair rule");
    assert_eq!(passed(&limiter, "a").await, 0);
}

#[tokio::test]
async fn what_a_buffered_key_has_spent_is_booked_though_the_mode_changes_at_once() {
    for mode in [Mode::Leased, Mode::Exact] {
        let store = MemoryStore::default();
        let buffered = one(slow(1_000).mode(Mode::Buffered).delta_max(500));
        let gate = Tollgate::builder().store(store.clone()).rules(buffered).build().await.expect("a fair rule");
        let limiter = gate.limiter("r").expect("its rule");
        assert!(limiter.check_n("a", 100).await.is_allowed());
        gate.replace_rules(one(slow(1_000).mode(mode))).expect("a fair rule");
        assert!(limiter.check("a").await.is_allowed());
        gate.shutdown().await.expect("all is told");
        assert_eq!(gates::left(store, slow(1_000).mode(Mode::Exact), "a").await, 899, "{mode:?}");
    }
}

#[tokio::test]
async fn a_reservation_whose_rule_is_decided_otherwise_by_now_says_what_became_of_it() {
    let modes = [Mode::Leased, Mode::Exact];
    for (from, to, real) in
        modes.into_iter().flat_map(|from| modes.map(|to| [(from, to, 40), (from, to, 300)])).flatten()
    {
        let store = MemoryStore::default();
        let rule = |mode| one(slow(1_000).mode(mode));
        let gate = Tollgate::builder().store(store.clone()).rules(rule(from)).build().await.expect("a fair rule");
        let limiter = gate.limiter("r").expect("its rule");
        let reservation = limiter.reserve("a", 100).await.expect("room for 100");
        gate.replace_rules(rule(to)).expect("a fair rule");
        assert!(limiter.check("a").await.is_allowed());
        let settled = reservation.commit(real);
        assert_eq!(settled.charged, real.saturating_sub(100), "{from:?} {to:?} {settled:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        gate.shutdown().await.expect("all is told");
        let right = 1_000 - 1 - 100 + settled.returned - settled.charged;
        assert_eq!(gates::left(store, slow(1_000).mode(Mode::Exact), "a").await, right, "{from:?} {to:?} {settled:?}");
    }
}

#[tokio::test]
async fn a_reservation_that_was_asked_of_the_old_rule_gives_nothing_back_to_the_new_one() {
    // One rule is shared, or there would be no engine.
    let rules = |mode| one(slow(5).mode(mode)).rule("shared", slow(1));
    // Whether its answer comes at once, and before the rules are replaced, is up to the scheduler.
    for _ in 0..100 {
        let gate = Tollgate::builder().store(MemoryStore::default()).rules(rules(Mode::Exact)).build().await;
        let gate = gate.expect("fair rules");
        let limiter = gate.limiter("r").expect("its rule");
        let mut reserves = Box::pin(limiter.reserve("a", 5));
        let waits =
            std::future::poll_fn(|context| std::task::Poll::Ready(reserves.as_mut().poll(context).is_pending()));
        if !waits.await {
            continue;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        gate.replace_rules(rules(Mode::Local)).expect("fair rules");
        assert_eq!(passed(&limiter, "a").await, 5);
        if let Ok(reservation) = tokio::time::timeout(5 * SECOND, reserves).await.expect("an answer") {
            reservation.commit(0);
            assert_eq!(passed(&limiter, "a").await, 0, "the local limit has taken nothing for it");
            return;
        }
    }
    panic!("no answer ever lay ready when the rules were replaced");
}

#[tokio::test]
async fn what_was_used_beyond_a_reservation_is_charged_where_the_rule_is_decided_by_now() {
    let window = |mode| Rule::fixed_window(1_000, 200 * 24 * HOUR).mode(mode).deadline(5 * SECOND);
    // Each with the books that it is kept in.
    let ways = || {
        let leased = [Mode::Leased, Mode::Exact, Mode::Buffered].map(|mode| ("leased", window(mode)));
        let plain = ("plain", window(Mode::Exact).plain_key("{key}"));
        leased.into_iter().chain([("local", window(Mode::Local)), plain])
    };
    for ((from, old), (to, new)) in ways().flat_map(|from| ways().map(move |to| (from.clone(), to))) {
        // One rule is shared, or there would be no engine.
        let rules = |rule: &Rule| one(rule.clone()).rule("shared", slow(1));
        let gate =
            Tollgate::builder().store(MemoryStore::default()).rules(rules(&old)).build().await.expect("fair rules");
        let limiter = gate.limiter("r").expect("its rule");
        let reservation = limiter.reserve("a", 50).await.expect("room for 50");
        gate.replace_rules(rules(&new)).expect("fair rules");
        let settled = reservation.commit(150);
        assert_eq!((settled.charged, settled.uncharged), (100, 0), "{from} {to}: {new:?}");
        let right = if from == to { 850 } else { 900 };
        let mut left = 0;
        for _ in 0..400 {
            left = limiter.peek("a").await.remaining();
            if left == right {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(left, right, "{old:?} {new:?}");
    }
}

#[tokio::test]
async fn who_waits_for_a_key_whose_rule_becomes_local_is_answered() {
    // A store that never answers, and a deadline that never comes.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let store = gates::lazy(&format!("redis://{}", silent.local_addr().expect("its address")));
    let rules = one(slow(1).mode(Mode::Exact));
    let gate = Tollgate::builder().clock(Clock::manual()).store(store).rules(rules).build().await.expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    let waits = tokio::spawn(async move { limiter.check("a").await });
    until("it waits", || gate.snapshot().keys == 1).await;
    gate.replace_rules(one(slow(1).mode(Mode::Local))).expect("a fair rule");
    let answered = tokio::time::timeout(5 * SECOND, waits).await;
    assert!(answered.is_ok(), "it asks again and again");
    until("its cell is let go", || gate.snapshot().keys == 0).await;
}

#[test]
fn a_local_bucket_that_is_replaced_under_load_adds_a_burst_each_time_at_most() {
    const BURST: u64 = 10_000;
    const TIMES: u64 = 40;
    let by = |hours: u32| one(Rule::token_bucket(BURST, hours * HOUR).mode(Mode::Local));
    let gate = Tollgate::builder().clock(Clock::manual()).rules(by(24)).build_local().expect("a fair rule");
    let limiter = gate.limiter("r").expect("its rule");
    let (done, admitted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                admitted.fetch_add(u64::from(limiter.check_now("a").is_allowed()), Relaxed);
            }
        });
        for time in 0..TIMES {
            gate.replace_rules(by(if time % 2 == 0 { 1 } else { 24 })).expect("a fair rule");
            thread::sleep(Duration::from_millis(2));
        }
        done.store(true, Relaxed);
    });
    let admitted = admitted.load(Relaxed);
    assert!((1..=BURST * (1 + TIMES)).contains(&admitted), "{admitted}");
    assert!(!limiter.check_now_n("a", BURST).is_allowed(), "what was spent stays spent");
}
