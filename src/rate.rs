//! How many tokens in how long a time, in lowest terms.
//!
//! A rate is a fraction, never a float: 1 a day and 1,000,000,000 a second are both exact.

use crate::time::Micros;
use std::{fmt, time::Duration};

/// The most tokens a second that a rate may give.
pub const RATE_PER_SECOND_MAX: u64 = 1_000_000_000;
/// The longest period that a rate may be stated over: 366 days.
pub const PERIOD_MAX: Micros = Micros::from_secs(366 * 86_400);

/// `count` tokens each `period`, reduced to lowest terms.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    period: u64,
}

/// Why two numbers make no [`Rate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateError {
    /// No tokens at all: such a rule would deny for ever.
    CountZero,
    /// The period is below one microsecond, or is no whole number of microseconds.
    PeriodTooFine,
    /// The period is above [`PERIOD_MAX`].
    PeriodTooLong,
    /// More than [`RATE_PER_SECOND_MAX`] a second.
    TooFast,
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RateError::CountZero => "the number of tokens is zero",
            RateError::PeriodTooFine => "the period is not a whole number of microseconds, at least 1",
            RateError::PeriodTooLong => "the period is longer than 366 days",
            RateError::TooFast => "the rate is above 1,000,000,000 tokens a second",
        })
    }
}

impl std::error::Error for RateError {}

impl Rate {
    /// One token a second, where any rate will do.
    pub(crate) const ONE_A_SECOND: Rate = Rate { count: 1, period: 1_000_000 };

    /// `count` tokens each `period`.
    ///
    /// # Errors
    /// [`RateError`]: a zero count, a period that is no whole number of microseconds or is longer than
    /// [`PERIOD_MAX`], and anything faster than [`RATE_PER_SECOND_MAX`].
    pub fn new(count: u64, period: Duration) -> Result<Rate, RateError> {
        if !period.subsec_nanos().is_multiple_of(1_000) && period.as_secs() <= PERIOD_MAX.0 / 1_000_000 {
            return Err(RateError::PeriodTooFine);
        }
        Rate::per_micros(count, Micros::from(period))
    }

    /// The same with the period in microseconds.
    ///
    /// # Errors
    /// As [`Rate::new`].
    pub fn per_micros(count: u64, period: Micros) -> Result<Rate, RateError> {
        if count == 0 {
            return Err(RateError::CountZero);
        }
        if period == Micros::ZERO {
            return Err(RateError::PeriodTooFine);
        }
        if period > PERIOD_MAX {
            return Err(RateError::PeriodTooLong);
        }
        let per_second = u128::from(count) * 1_000_000;
        if per_second > u128::from(RATE_PER_SECOND_MAX) * u128::from(period.0) {
            return Err(RateError::TooFast);
        }
        let shared = gcd(count, period.0);
        Ok(Rate { count: count / shared, period: period.0 / shared })
    }

    /// Tokens in one [`period`](Rate::period), in lowest terms.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// Microseconds in which [`count`](Rate::count) tokens come, in lowest terms.
    #[must_use]
    pub const fn period(self) -> u64 {
        self.period
    }

    /// Tokens a second, as near as a float can say it.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.count as f64 * 1e6 / self.period as f64
    }

    /// Whole tokens that come in `span`, rounded down; saturates.
    #[must_use]
    pub fn tokens_in(self, span: Micros) -> u64 {
        let tokens = u128::from(span.0) * u128::from(self.count) / u128::from(self.period);
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The time in which `tokens` come, rounded up, so that after it they are there; saturates.
    #[must_use]
    pub fn time_for(self, tokens: u64) -> Micros {
        let span = (u128::from(tokens) * u128::from(self.period)).div_ceil(u128::from(self.count));
        Micros(u64::try_from(span).unwrap_or(u64::MAX))
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} per {} µs", self.count, self.period)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_in_lowest_terms() {
        let rate = Rate::new(10_000, Duration::from_secs(1)).expect("a fair rate");
        assert_eq!((rate.count(), rate.period()), (1, 100));
        let fastest = Rate::new(1_000_000_000, Duration::from_secs(1)).expect("the fastest rate");
        assert_eq!((fastest.count(), fastest.period()), (1_000, 1));
    }

    // cases C-14, C-17: zero and absurd numbers are refused before anything runs.
    #[test]
    fn numbers_that_make_no_rate_are_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Rate::new(0, second), Err(RateError::CountZero));
        assert_eq!(Rate::new(1, Duration::ZERO), Err(RateError::PeriodTooFine));
        assert_eq!(Rate::new(1, Duration::from_nanos(1_500)), Err(RateError::PeriodTooFine));
        assert_eq!(Rate::new(1, Duration::from_secs(367 * 86_400)), Err(RateError::PeriodTooLong));
        assert_eq!(Rate::new(1, Duration::MAX), Err(RateError::PeriodTooLong));
        assert_eq!(Rate::new(1_000_000_001, second), Err(RateError::TooFast));
        assert_eq!(Rate::new(u64::MAX, second), Err(RateError::TooFast));
    }

    // case C-13: more than 1,000 a second is no special case.
    #[test]
    fn waiting_the_time_for_some_tokens_brings_them() {
        for (count, micros) in [(1_500, 1_000_000), (2_000, 1_000_000), (1, 86_400_000_000), (7, 13)] {
            let rate = Rate::per_micros(count, Micros(micros)).expect("a fair rate");
            for tokens in [0, 1, 2, 7, 1_000_003] {
                let span = rate.time_for(tokens);
                assert!(rate.tokens_in(span) >= tokens);
                assert!(span == Micros::ZERO || rate.tokens_in(Micros(span.0 - 1)) < tokens);
            }
        }
    }
}
