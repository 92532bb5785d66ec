//! The token bucket against plain arithmetic, and against what went wrong elsewhere.

use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const CENTURY: u64 = 100 * 366 * 86_400 * SECOND;

fn rate(count: u64, micros: u64) -> Rate {
    Rate::per_micros(count, Micros(micros)).expect("a fair rate")
}

/// A bucket with the numbers that the machine takes as arguments.
struct Limit {
    bucket: TokenBucket,
    rate: Rate,
    burst: i64,
}

impl Limit {
    fn new(count: u64, micros: u64, burst: i64) -> Limit {
        Limit { bucket: TokenBucket::full(burst as u64, Micros(SECOND)), rate: rate(count, micros), burst }
    }

    /// Asks for `cost`, `at` µs after the bucket was made.
    fn ask(&mut self, at: u64, cost: u64) -> bool {
        self.bucket.refill(self.rate, self.burst, Micros(SECOND + at));
        self.bucket.take(cost)
    }

    fn wait(&self, cost: i64) -> u64 {
        self.bucket.time_until(cost, self.rate).0
    }
}

// case C-01: an older time neither refills nor lets the next one refill again.
#[test]
fn a_caller_whose_clock_is_behind_gives_nobody_a_second_refill() {
    let mut limit = Limit::new(2, SECOND, 4);
    let now = 20 * SECOND;
    let first: Vec<_> = (0..5).map(|_| limit.ask(now, 1)).collect();
    assert_eq!(first, [true, true, true, true, false]);
    assert!(!limit.ask(now - 10 * SECOND, 1));
    assert!((0..5).all(|_| !limit.ask(now, 1)));
}

// case C-03: 10,000 a second come one by one, not in lumps.
#[test]
fn tokens_of_a_fast_rate_arrive_one_by_one() {
    let mut limit = Limit::new(10_000, SECOND, 10_000);
    assert!(limit.ask(0, 10_000));
    for k in 1..=1_000 {
        assert!(!limit.ask(k * 100 - 1, 1));
        assert!(limit.ask(k * 100, 1));
    }
}

// case C-04: a fraction of a token outlives a refill, and counts in the wait.
#[test]
fn a_fraction_of_a_token_is_kept() {
    let mut limit = Limit::new(1, SECOND, 10);
    assert!(limit.ask(0, 10));
    assert!(limit.ask(1_900_000, 1));
    assert!(limit.ask(2_000_000, 1));

    let mut limit = Limit::new(5, 300 * SECOND, 5);
    assert!(limit.ask(0, 5));
    assert!(!limit.ask(59 * SECOND, 1));
    assert_eq!(limit.wait(1), SECOND);
}

// case C-05: hits do not stop the refill.
#[test]
fn steady_load_does_not_stop_the_refill() {
    let mut limit = Limit::new(10, 30 * SECOND, 10);
    let left: Vec<_> = (0..10)
        .map(|second| {
            assert!(limit.ask(second * SECOND, 1));
            limit.bucket.tokens
        })
        .collect();
    assert_eq!(left, [9, 8, 7, 7, 6, 5, 5, 4, 3, 3]);
}

// case C-06: no jump to full at the end of a period.
#[test]
fn after_the_burst_tokens_pass_at_the_rate() {
    let mut limit = Limit::new(3, SECOND, 3);
    let passed: Vec<_> = (0..30u64).filter(|k| limit.ask(k * 100_000, 1)).collect();
    assert_eq!(passed, [0, 1, 2, 4, 7, 10, 14, 17, 20, 24, 27]);
}

// case C-08: a look counts the time that has passed.
#[test]
fn what_is_left_counts_the_time_that_passed() {
    let mut limit = Limit::new(5, SECOND, 5);
    assert!(limit.ask(0, 5));
    assert!(limit.ask(400_000, 0));
    assert_eq!(limit.bucket.tokens, 2);
}

// case C-10: the wait is until the next token, not until a full burst.
#[test]
fn the_wait_is_for_what_was_asked() {
    let mut limit = Limit::new(1, SECOND, 3);
    assert!(limit.ask(0, 3));
    assert!(!limit.ask(0, 1));
    assert_eq!((limit.wait(1), limit.wait(3)), (SECOND, 3 * SECOND));
}

// cases C-12, C-16: any rate limits, and what is left falls by one a time.
#[test]
fn what_is_left_falls_by_one_at_any_rate() {
    let hour = 3_600 * SECOND;
    for (count, period) in [(6_000, SECOND), (1_000, 60 * SECOND), (1_000_000, hour), (1_000_000, 1_000)] {
        let mut limit = Limit::new(count, period, count as i64);
        let years = 56 * 366 * 86_400 * SECOND; // the size of a present-day wall clock
        assert!(limit.ask(years, 0));
        for left in (0..count as i64).rev() {
            assert!(limit.ask(years, 1));
            assert_eq!(limit.bucket.tokens, left);
        }
        assert!(!limit.ask(years, 1));
    }
}

// case C-13: more than 1,000 a second is no special case.
#[test]
fn more_than_a_thousand_a_second_is_exact() {
    for count in [1_500, 2_000] {
        let mut limit = Limit::new(count, SECOND, 1);
        let passed = (0..SECOND).filter(|at| limit.ask(*at, 1)).count() as u64;
        // With a burst of one and a clock of whole microseconds, a token may wait a part of one.
        assert!(passed <= count && passed >= count - 1, "{passed} of {count}");
    }
}

// case C-19: costs are what is counted.
#[test]
fn mixed_costs_add_up() {
    let mut limit = Limit::new(10, 60 * SECOND, 10);
    let answers: Vec<_> = [6, 5, 4, 1].into_iter().map(|cost| limit.ask(0, cost)).collect();
    assert_eq!(answers, [true, false, true, false]);
}

// cases C-20, C-21: a cost above what is there is refused and takes nothing, however large.
#[test]
fn a_refused_cost_changes_nothing() {
    let mut limit = Limit::new(10, 60 * SECOND, 10);
    assert!(limit.ask(0, 5));
    assert!(limit.ask(0, 3));
    for cost in [5, 11, 100, 1_000_000, i64::MAX as u64, u64::MAX] {
        let before = limit.bucket;
        assert!(!limit.ask(0, cost));
        assert_eq!(limit.bucket, before);
    }
    assert_eq!(limit.wait(10), 48 * SECOND);
}

// case C-26: after any idle time the bucket is exactly full.
#[test]
fn long_idleness_fills_the_bucket_and_no_more() {
    for idle in [12 * 3_600 * SECOND, CENTURY, u64::MAX - SECOND] {
        for (count, period) in [(10, SECOND), (1_000, 1), (1, 366 * 86_400 * SECOND)] {
            let mut limit = Limit::new(count, period, 10);
            assert!(limit.ask(0, 10));
            let passed = (0..1_000).filter(|_| limit.ask(idle, 1)).count();
            let exact = u128::from(idle) * u128::from(count) / u128::from(period);
            assert_eq!(passed as u128, exact.min(10));
        }
    }
}

// case C-28: a clock that steps back locks nobody out.
#[test]
fn a_step_back_takes_no_tokens() {
    let mut limit = Limit::new(10, SECOND, 10);
    assert!((0..3).all(|_| limit.ask(20 * SECOND, 1)));
    assert!(limit.ask(9 * SECOND, 1));
    assert_eq!(limit.bucket.tokens, 6);
}

// case C-30: the ends of every range saturate.
#[test]
fn the_ends_of_every_range_saturate() {
    let slow = rate(1, 366 * 86_400 * SECOND);
    let mut bucket = TokenBucket { tokens: i64::MIN, rem: slow.period() - 1, at: Micros::ZERO };
    assert_eq!(bucket.time_until(i64::MAX, slow), Micros::MAX);
    bucket.refill(rate(1_000, 1), i64::MAX, Micros::MAX);
    assert!(bucket.tokens > i64::MIN);
    assert_eq!(TokenBucket::full(u64::MAX, Micros::MAX).tokens, i64::MAX);
}

// case C-39: a cost of 0 always passes and takes nothing.
#[test]
fn a_cost_of_zero_is_a_look() {
    let mut limit = Limit::new(1, SECOND, 1);
    assert!(limit.ask(0, 1));
    assert!(limit.ask(0, 0));
    assert_eq!((limit.bucket.tokens, limit.wait(1)), (0, SECOND));
    limit.bucket.tokens = -3;
    assert!(limit.ask(0, 0));
    assert_eq!(limit.bucket.tokens, -3);
}

/// A rate of the whole domain, from one in 366 days to 1,000,000,000 a second.
fn any_rate() -> impl Strategy<Value = Rate> {
    let period = prop_oneof![1..1_000u64, 1..=SECOND, Just(86_400 * SECOND), 1..=366 * 86_400 * SECOND];
    (period, 0.0..1.0f64).prop_map(|(period, part)| {
        let most = (period as f64 * 1_000.0).ln();
        rate(((part * most).exp() as u64).clamp(1, period * 1_000), period)
    })
}

fn any_gap() -> impl Strategy<Value = u64> {
    prop_oneof![1..100u64, 1..=SECOND, 1..=86_400 * SECOND, 1..=CENTURY]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    // What passes in any steps is what one exact account of the whole time lets pass.
    #[test]
    fn no_refill_is_lost_and_none_is_made(
        rate in any_rate(),
        burst in prop_oneof![1..100u64, 1..=1_000_000_000u64],
        steps in prop::collection::vec((any_gap(), 0.0..1.2f64), 1..60),
    ) {
        let mut bucket = TokenBucket::full(burst, Micros::ZERO);
        // The oracle counts in 1 / period of a token, and caps there.
        let (count, period) = (u128::from(rate.count()), u128::from(rate.period()));
        let cap = u128::from(burst) * period;
        let (mut level, mut now) = (cap, 0u64);
        for (gap, part) in steps {
            now = now.saturating_add(gap);
            level = cap.min(level + u128::from(gap) * count);
            bucket.refill(rate, burst as i64, Micros(now));
            let exact = level / period;
            prop_assert_eq!(bucket.tokens as u128, exact);
            prop_assert_eq!(u128::from(bucket.rem), level % period);
            let cost = (exact as f64 * part) as u64;
            let passes = u128::from(cost) <= exact;
            prop_assert_eq!(bucket.take(cost), passes);
            if passes {
                level -= u128::from(cost) * period;
            }
        }
    }

    #[test]
    fn after_the_wait_the_tokens_are_there_and_not_before(
        rate in any_rate(),
        short in 1..1_000_000i64,
        part in 0.0..1.0f64,
    ) {
        let rem = (rate.period() as f64 * part) as u64;
        let bucket = TokenBucket { tokens: -short, rem: rem.min(rate.period() - 1), at: Micros::ZERO };
        let wait = bucket.time_until(1, rate);
        let after = |span: u64| {
            let mut later = bucket;
            later.refill(rate, i64::MAX, Micros(span));
            later.tokens
        };
        prop_assert!(wait == Micros::MAX || after(wait.0) >= 1);
        prop_assert!(after(wait.0 - 1) < 1);
    }

    #[test]
    fn a_change_of_numbers_never_adds(from in any_rate(), to in any_rate(), part in 0.0..1.0f64) {
        let rem = ((from.period() as f64 * part) as u64).min(from.period() - 1);
        let mut bucket = TokenBucket { tokens: 0, rem, at: Micros::ZERO };
        bucket.convert(from, to);
        prop_assert!(bucket.rem < to.period());
        // new rem / new period <= old rem / old period, by less than one unit of the new period
        let (old, new) = (u128::from(rem) * u128::from(to.period()), u128::from(bucket.rem) * u128::from(from.period()));
        prop_assert!(new <= old && old - new < u128::from(from.period()));
    }
}
