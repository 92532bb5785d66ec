//! A token bucket that loses nothing: whole tokens, and the fraction of the next one.
//!
//! The fraction is kept in units of 1 / period, so each refill is exact however far apart two of
//! them are. Products are taken in 128 bits; results saturate. It never reads a clock, and never
//! knows its own rate or size: both may change between two calls, so both are arguments.

use crate::{rate::Rate, time::Micros};

/// What is in one bucket, and since when that has been so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    /// Whole tokens; below zero when more was spent than was there.
    pub(crate) tokens: i64,
    /// The part of the next token that has come, in units of 1 / period; below the period.
    pub(crate) rem: u64,
    /// Up to when the refill has been counted.
    pub(crate) at: Micros,
}

impl TokenBucket {
    /// A bucket that holds `burst` at `at`.
    #[must_use]
    pub(crate) fn full(burst: u64, at: Micros) -> TokenBucket {
        TokenBucket { tokens: i64::try_from(burst).unwrap_or(i64::MAX), rem: 0, at }
    }

    /// Counts the refill up to `until`, filling no higher than `cap`. What is above the cap already stays.
    ///
    /// A time that is not later than [`at`](Self::at) changes nothing, so a clock that runs back
    /// neither takes tokens nor gives them twice.
    pub(crate) fn refill(&mut self, rate: Rate, cap: i64, until: Micros) {
        if until <= self.at {
            return;
        }
        let span = until.minus(self.at);
        self.at = until;
        if self.tokens >= cap {
            self.rem = 0;
            return;
        }
        // The cap is above the tokens, so the difference is positive and fits.
        let missing = cap.abs_diff(self.tokens);
        // span < 2^64 and count < 2^55: no overflow in 128 bits, the remainder included.
        let parts = u128::from(span.0) * u128::from(rate.count()) + u128::from(self.rem);
        let period = u128::from(rate.period());
        match i64::try_from(parts / period) {
            Ok(whole) if whole.unsigned_abs() < missing => {
                self.tokens += whole;
                self.rem = (parts % period) as u64; // below the period, which is a u64
            }
            _ => (self.tokens, self.rem) = (cap, 0),
        }
    }

    /// Takes away what is above `cap`. At the cap the fraction goes too: a full bucket holds no more.
    pub(crate) fn clip(&mut self, cap: i64) {
        if self.tokens >= cap {
            (self.tokens, self.rem) = (cap, 0);
        }
    }

    /// Takes `cost` tokens, all or none; whether they were there. A refusal changes nothing. The book
    /// takes in bulk; this is the machine as a bucket of its own, which the tests compare with arithmetic.
    #[cfg(test)]
    pub(crate) fn take(&mut self, cost: u64) -> bool {
        match i64::try_from(cost) {
            Ok(cost) if cost <= self.tokens || cost == 0 => {
                self.tokens -= cost;
                true
            }
            _ => false,
        }
    }

    /// The time until `tokens` are there at this rate, rounded up: after it they are. Zero when
    /// they are there now; saturates.
    #[must_use]
    pub(crate) fn time_until(&self, tokens: i64, rate: Rate) -> Micros {
        if self.tokens >= tokens {
            return Micros::ZERO;
        }
        let missing = u128::from(tokens.abs_diff(self.tokens));
        let parts = (missing * u128::from(rate.period())).saturating_sub(u128::from(self.rem));
        Micros(u64::try_from(parts.div_ceil(u128::from(rate.count()))).unwrap_or(u64::MAX))
    }

    /// Says the fraction in units of another period. Rounds down: a change of numbers never gives a token.
    pub(crate) fn convert(&mut self, from: Rate, to: Rate) {
        if from.period() != to.period() {
            let rem = u128::from(self.rem) * u128::from(to.period()) / u128::from(from.period());
            self.rem = u64::try_from(rem).unwrap_or(u64::MAX).min(to.period() - 1);
        }
    }
}

#[cfg(test)]
mod tests;
