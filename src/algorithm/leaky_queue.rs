//! A queue out of which requests leave one by one at a steady rate: a token bucket that holds one token and may owe.
//!
//! Whoever finds the token leaves at once; who does not takes one that is still to come, and leaves when it has. No more
//! than `burst` tokens are owed. Times to leave that nobody takes perish: the bucket never holds two.

use super::TokenBucket;
use crate::{rate::Rate, time::Micros};

/// No more than this is there at once.
pub(crate) const QUEUE_CAP: i64 = 1;

/// How many tokens can still be taken; zero when `burst` or more are owed.
#[must_use]
pub(crate) fn places(bucket: &TokenBucket, burst: u64) -> u64 {
    let burst = i64::try_from(burst).unwrap_or(i64::MAX);
    u64::try_from(bucket.tokens.saturating_add(burst)).unwrap_or(0)
}

/// How long the next one to come has to wait before it may leave.
#[must_use]
pub(crate) fn delay(bucket: &TokenBucket, rate: Rate) -> Micros {
    bucket.time_until(QUEUE_CAP, rate)
}

/// The time until `cost` tokens can be taken; zero when they can be now.
#[must_use]
pub(crate) fn time_until(bucket: &TokenBucket, rate: Rate, burst: u64, cost: u64) -> Micros {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    bucket.time_until(signed(cost).saturating_sub(signed(burst)), rate)
}
