//! One central token bucket in the plainest exact arithmetic: what everything else is measured against.
//!
//! Shares no code with the limiter's own machine, so that the two check each other.

use crate::{rate::Rate, time::Micros};

/// A single bucket, full at first, that is asked in the order of time.
///
/// Whole tokens and a remainder in `u128`: no refill is ever lost or invented.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Micros, Rate, sim::Reference};
///
/// let rate = Rate::new(2, Duration::from_secs(1))?;
/// let mut bucket = Reference::new(rate, 1);
/// assert!(bucket.offer(Micros::ZERO, 1));
/// assert!(!bucket.offer(Micros::from_millis(499), 1));
/// assert!(bucket.offer(Micros::from_millis(500), 1));
/// # Ok::<(), tollgate::RateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reference {
    rate: Rate,
    burst: u64,
    tokens: u64,
    /// A part of one token, in units of 1 / period.
    rem: u64,
    /// The last time it was asked; nothing before the first.
    at: Option<Micros>,
}

impl Reference {
    /// A full bucket of `burst` tokens that fills at `rate`.
    #[must_use]
    pub fn new(rate: Rate, burst: u64) -> Reference {
        Reference { rate, burst, tokens: burst, rem: 0, at: None }
    }

    /// Takes `cost` tokens at time `at` if they are there, all or none, and says whether it did.
    ///
    /// A time before the last one counts as the last one. Constant cost.
    pub fn offer(&mut self, at: Micros, cost: u64) -> bool {
        let since = self.at.map_or(Micros::ZERO, |last| at.minus(last));
        self.at = self.at.max(Some(at));

        let (count, period) = (u128::from(self.rate.count()), u128::from(self.rate.period()));
        // Below 2^64 * 2^64: a rate's count is at most 10^9 a second over 366 days, far below 2^63.
        let parts = u128::from(since.0) * count + u128::from(self.rem);
        let tokens = u128::from(self.tokens) + parts / period;
        if tokens >= u128::from(self.burst) {
            (self.tokens, self.rem) = (self.burst, 0);
        } else {
            // Both fit: tokens are below `burst`, the remainder below `period`.
            (self.tokens, self.rem) = (tokens as u64, (parts % period) as u64);
        }
        let fits = cost <= self.tokens;
        if fits {
            self.tokens -= cost;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    // case C-04: nine tenths of a token are kept from one look to the next.
    #[test]
    fn a_part_of_a_token_is_kept() {
        let mut bucket = Reference::new(Rate::new(1, Duration::from_secs(1)).expect("a fair rate"), 10);
        assert!(bucket.offer(Micros::ZERO, 10));
        assert!(bucket.offer(Micros::from_millis(1_900), 1));
        assert!(bucket.offer(Micros::from_millis(2_000), 1));
        assert!(!bucket.offer(Micros::from_millis(2_999), 1));
    }

    #[test]
    fn a_cost_above_the_burst_is_refused_and_takes_nothing() {
        let mut bucket = Reference::new(Rate::new(1, Duration::from_secs(1)).expect("a fair rate"), 10);
        assert!(!bucket.offer(Micros::ZERO, 11));
        assert!(!bucket.offer(Micros::MAX, u64::MAX));
        assert!(bucket.offer(Micros::ZERO, 10), "an earlier time neither refills nor panics");
        assert!(!bucket.offer(Micros::ZERO, 1));
    }
}
