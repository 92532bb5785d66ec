use super::*;
use crate::key::LongKeys;
use Verdict::{Allowed, Denied, Never};

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes(), LongKeys::Hash).expect("no long keys here")
}

fn rate(count: u64, micros: u64) -> Rate {
    Rate::per_micros(count, Micros(micros)).expect("a fair rate")
}

/// One rule of a gate that has a thousand places.
struct Limit {
    governed: Arc<Paces>,
    quota: Pace,
    rule: u32,
}

impl Limit {
    fn of(quota: Pace, clock: &Clock, keys_max: usize) -> Limit {
        Limit { governed: Arc::new(Paces::new(clock.clone(), keys_max)), quota, rule: 0 }
    }

    fn check(&self, key: &Key<'_>, cost: u64) -> Verdict {
        self.governed.check(self.rule, key, cost, &self.quota)
    }

    fn peek(&self, key: &Key<'_>, cost: u64) -> Verdict {
        self.governed.known(self.rule, key, cost, &self.quota)
    }
}

fn limit(rate: Rate, burst: u64, clock: &Clock) -> Limit {
    Limit::of(Pace::new(rate, burst).expect("fair numbers"), clock, 1_000)
}

fn ms(millis: u64) -> Micros {
    Micros::from_millis(millis)
}

/// How many of `asked` single tokens are given now.
fn given(limit: &Limit, asked: u64) -> u64 {
    (0..asked).filter(|_| matches!(limit.check(&key("k"), 1), Allowed { .. })).count() as u64
}

#[test]
fn a_burst_passes_and_then_one_token_per_interval() {
    let clock = Clock::manual();
    let limit = limit(rate(10, 1_000_000), 3, &clock);
    assert_eq!(limit.check(&key("k"), 2), Allowed { remaining: 1 });
    assert_eq!(limit.check(&key("k"), 2), Denied { wait: ms(100), remaining: 1 });
    assert_eq!(limit.check(&key("k"), 1), Allowed { remaining: 0 });
    assert_eq!(limit.check(&key("k"), 1), Denied { wait: ms(100), remaining: 0 });
    clock.advance(Micros(99_999));
    assert_eq!(limit.check(&key("k"), 1), Denied { wait: Micros(1), remaining: 0 });
    clock.advance(Micros(1));
    assert_eq!(limit.check(&key("k"), 1), Allowed { remaining: 0 });
    assert_eq!(limit.check(&key("other"), 3), Allowed { remaining: 0 });
}

// case C-08: what remains takes the time that has passed into account.
#[test]
fn what_remains_grows_while_nobody_asks() {
    let clock = Clock::manual();
    let limit = limit(rate(5, 1_000_000), 5, &clock);
    assert_eq!(limit.check(&key("k"), 5), Allowed { remaining: 0 });
    clock.advance(ms(400));
    assert_eq!(limit.check(&key("k"), 0), Allowed { remaining: 2 });
    assert_eq!(limit.peek(&key("k"), 2), Allowed { remaining: 2 });
    assert_eq!(limit.peek(&key("k"), 4), Denied { wait: ms(400), remaining: 2 });
    assert_eq!(limit.check(&key("k"), 4), Denied { wait: ms(400), remaining: 2 });
    clock.advance(ms(400));
    assert_eq!(limit.check(&key("k"), 4), Allowed { remaining: 0 });
}

#[test]
fn a_peek_stores_nothing() {
    let limit = limit(rate(5, 1_000_000), 5, &Clock::manual());
    assert_eq!(limit.peek(&key("k"), 5), Allowed { remaining: 5 });
    assert_eq!(limit.check(&key("k"), 0), Allowed { remaining: 5 });
    assert_eq!(limit.governed.counts().keys, 0);
}

#[test]
fn a_cost_above_the_burst_never_passes_and_changes_nothing() {
    let limit = limit(rate(5, 1_000_000), 5, &Clock::manual());
    for cost in [6, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
        assert_eq!(limit.check(&key("k"), cost), Never);
    }
    assert_eq!(limit.check(&key("k"), 5), Allowed { remaining: 0 });
}

// case C-26: after any idle time a key is exactly full.
#[test]
fn a_key_that_was_idle_for_a_century_is_full_and_no_more() {
    for idle in [Micros::from_secs(12 * 3_600), Micros::from_secs(100 * 366 * 86_400)] {
        let clock = Clock::manual();
        let limit = limit(rate(10, 1_000_000), 10, &clock);
        assert_eq!(given(&limit, 1_000), 10);
        clock.advance(idle);
        assert_eq!(given(&limit, 1_000), 10);
    }
}

// case C-30: a clock at the end of its range neither panics nor gives.
#[test]
fn a_clock_at_the_end_of_its_range_stands_still() {
    let clock = Clock::manual();
    clock.advance(Micros::MAX);
    let limit = limit(rate(10, 1_000_000), 10, &clock);
    assert_eq!(given(&limit, 1_000), 10);
    clock.advance(Micros::MAX);
    assert_eq!(given(&limit, 1_000), 0);
}

// case C-28: the clock is monotonic, so there are no steps to obey; standing still gives nothing.
#[test]
fn a_drained_key_gets_nothing_while_no_time_passes() {
    let clock = Clock::manual();
    let limit = limit(rate(10, 1_000_000), 3, &clock);
    assert_eq!(given(&limit, 3), 3);
    assert_eq!(given(&limit, 1_000), 0);
    clock.advance(ms(100));
    assert_eq!(given(&limit, 1_000), 1);
}

#[test]
fn numbers_that_would_overflow_or_lose_more_than_a_hundredth_are_refused_with_a_reason() {
    let refused = |rate, burst| {
        let error = Pace::new(rate, burst).expect_err("must be refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        error.to_string()
    };
    assert!(refused(rate(1, 86_400_000_000), 1_000_000).contains("146 years"));
    assert!(refused(rate(1, 1_000_000), 1 << 32).contains("burst"));
    assert!(refused(rate(1, 1_000_000), 0).contains("burst"));
    assert!(refused(rate(700_000_000, 1_000_000), 10).contains("1 %"));
    for (rate, burst) in [
        (rate(1_000_000_000, 1_000_000), u64::from(u32::MAX)),
        (rate(1, 86_400_000_000), 50_000),
        (rate(3, 1_000_000), 1),
        (rate(9_900_991, 1_000_000), 1),
    ] {
        assert!(Pace::new(rate, burst).is_ok(), "{rate:?} {burst}");
    }
}

#[test]
fn where_numbers_do_not_fit_a_share_stays_below_them() {
    let clock = Clock::manual();
    let of = |rate, burst| Limit::of(Pace::share(rate, burst, 1).expect("one member"), &clock, 10);
    assert_eq!(of(rate(1, PERIOD_MAX.0), u64::MAX).check(&key("k"), 1 << 40), Never);
    let fast = of(rate(700_000_000, 1_000_000), 1_000);
    assert_eq!(given(&fast, 5_000), 1_000);
    clock.advance(Micros(1));
    assert!((1..=700).contains(&given(&fast, 5_000)));
    assert!(Pace::share(rate(1, 1), 1, 0).is_err());
}

// A rate that a clock of milliseconds cannot see: 10,000/s with a burst of 1.
#[test]
fn a_small_burst_goes_by_the_precise_clock() {
    let clock = Clock::manual();
    assert!(Pace::new(rate(10_000, 1_000_000), 199).is_ok_and(|quota| quota.span() < PRECISE_BELOW));
    assert!(Pace::new(rate(10_000, 1_000_000), 200).is_ok_and(|quota| quota.span() >= PRECISE_BELOW));
    let limit = limit(rate(10_000, 1_000_000), 1, &clock);
    let mut passed = 0;
    for _ in 0..10_000 {
        passed += given(&limit, 1);
        clock.advance(Micros(100));
    }
    assert_eq!(passed, 10_000);
}

#[test]
fn whoever_waits_as_told_is_let_in() {
    let clock = Clock::manual();
    for (count, micros, burst) in [(3, 1_000_000, 1), (7, 13_000, 5), (1_000, 999_999, 700), (1, 60_000_000, 2)] {
        let limit = limit(rate(count, micros), burst, &clock);
        let _ = given(&limit, burst);
        for cost in 1..=burst.min(5) {
            let Denied { wait, .. } = limit.check(&key("k"), cost) else { panic!("{cost} of nothing") };
            clock.advance(wait.minus(Micros(1)));
            assert!(matches!(limit.check(&key("k"), cost), Denied { .. }), "{cost}");
            clock.advance(Micros(1));
            assert!(matches!(limit.check(&key("k"), cost), Allowed { .. }), "{cost}");
            let _ = given(&limit, burst);
        }
    }
}

// case A-24: ten members together admit what one would.
#[test]
fn shares_add_up_to_no_more_than_the_whole() {
    let clock = Clock::manual();
    let (part, burst) = share(rate(100, 1_000_000), 100, 10);
    assert_eq!((part, burst), (rate(10, 1_000_000), 10));
    let members: Vec<_> = (0..10).map(|_| limit(part, burst, &clock)).collect();
    let all = || members.iter().map(|limit| given(limit, 1_000)).sum::<u64>();
    assert_eq!(all(), 100);
    clock.advance(Micros::from_secs(1));
    assert_eq!(all(), 100);
}

#[test]
fn a_share_is_exact_or_below_and_never_nothing() {
    assert_eq!(share(rate(7, 1_000_000), 5, 3), (rate(7, 3_000_000), 1));
    assert_eq!(share(rate(7, 1_000_000), 2, 3).1, 1);
    assert_eq!(share(rate(7, 1_000_000), 2, 0), (rate(7, 1_000_000), 2));
    // Once in 400 days cannot be said; a little more seldom can.
    let (rare, _) = share(rate(1, 86_400_000_000), 1, 400);
    assert_eq!(rare, rate(1, PERIOD_MAX.0));
    let (odd, _) = share(rate(1_000_003, 366 * 86_400_000_000), 1, 1_000);
    assert!(odd.per_second() <= 1_000_003.0 / 1e3 / (366.0 * 86_400.0));
    let _ = share(rate(1_000_000_000, 1_000_000), u64::MAX, u64::MAX);
}

// case I-06: three million keys that are each seen once leave no more than the cap.
#[test]
fn memory_is_bounded_and_idle_keys_make_room() {
    const CAP: usize = 100_000;
    let clock = Clock::manual();
    let limit = Limit::of(Pace::new(rate(1_000, 1_000_000), 100).expect("fair numbers"), &clock, CAP);
    let states = &limit.governed;
    let (mut saturated, mut most) = (0_u64, 0);
    for n in 0..3_000_000_u64 {
        // 90,000 new keys a second: all the room is used before the next sweep at times.
        if n % 9 == 0 {
            clock.advance(Micros(100));
        }
        let name = n.to_le_bytes();
        let judged = limit.check(&Key::new(&name, LongKeys::Hash).expect("short"), 1);
        saturated += u64::from(judged == Verdict::Saturated);
        most = most.max(states.spots.len());
    }
    assert!(most <= CAP, "{most}");
    assert_eq!(saturated, 0);
    // One that is in debt to its limit is never swept away.
    let busy = key("busy");
    assert_eq!(limit.check(&busy, 100), Allowed { remaining: 0 });
    states.sweep_at.store(0, Relaxed);
    states.sweep_from.store(0, Relaxed);
    states.sweep(clock.now());
    assert!(matches!(limit.check(&busy, 1), Denied { .. }));
}

#[test]
fn at_the_cap_a_new_key_is_told_so_and_the_old_ones_stay() {
    let clock = Clock::manual();
    let limit = Limit::of(Pace::new(rate(1, 1_000_000), 1).expect("fair numbers"), &clock, 2);
    for name in ["a", "b"] {
        assert_eq!(limit.check(&key(name), 1), Allowed { remaining: 0 });
    }
    assert_eq!(limit.check(&key("c"), 1), Verdict::Saturated);
    assert!(matches!(limit.check(&key("a"), 1), Denied { .. }));
    clock.advance(Micros::from_secs(1));
    assert_eq!(limit.check(&key("c"), 1), Allowed { remaining: 0 });
    let counts = limit.governed.counts();
    assert_eq!((counts.admitted, counts.denied, counts.saturated), (3, 1, 1));
    assert!(counts.keys <= 2);
}

#[test]
fn threads_together_get_no_more_than_the_burst() {
    let clock = Clock::manual();
    let limit = limit(rate(1, 60_000_000), 10_000, &clock);
    let sum: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| given(&limit, 10_000))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    assert_eq!(sum, 10_000);
}
