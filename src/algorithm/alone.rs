//! A machine by itself, with a limit and nobody to share it with: what a rule of one process needs for each key.
//!
//! State and time in, verdict out. Nothing is lent here, and nothing is told to anybody.

use super::{Algorithm, Frame, TokenBucket, Window, leaky_queue, leaky_queue::QUEUE_CAP};
use crate::{rate::Rate, time::Micros};

/// The numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) algorithm: Algorithm,
    /// How fast tokens come; of no meaning for windows.
    pub(crate) rate: Rate,
    /// The burst, the limit of a window, or how many may wait in a queue.
    pub(crate) burst: u64,
    /// Where windows lie; of no meaning for buckets.
    pub(crate) frame: Frame,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may go on after `delay`, which is zero but for queues.
    Allowed { remaining: u64, delay: Micros },
    /// Nothing was taken; after `wait` it would fit if nobody else came. Never zero.
    Denied { remaining: u64, wait: Micros },
    /// It costs more than can ever be had at once.
    Never { remaining: u64 },
}

/// What one key has spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    Bucket(TokenBucket),
    Window(Window),
}

impl Limit {
    /// The most that can be had at once.
    #[must_use]
    pub(crate) fn cost_max(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyQueue => self.burst.saturating_add(QUEUE_CAP.unsigned_abs()),
            _ => self.burst,
        }
    }

    /// What a bucket is filled up to.
    fn cap(&self) -> i64 {
        match self.algorithm {
            Algorithm::LeakyQueue => QUEUE_CAP,
            _ => i64::try_from(self.burst).unwrap_or(i64::MAX),
        }
    }
}

impl Alone {
    /// Nothing spent.
    #[must_use]
    pub(crate) fn new(limit: &Limit, now: Micros) -> Alone {
        match Window::new(limit.algorithm, now) {
            Some(window) => Alone::Window(window),
            None => Alone::Bucket(TokenBucket::full(limit.cap().unsigned_abs(), now)),
        }
    }

    /// Takes `cost`, all or none. A cost of zero takes nothing and is always allowed.
    ///
    /// # Promise
    /// What the limit's algorithm promises, for this key. A refusal changes nothing, and time never runs back.
    pub(crate) fn take(&mut self, limit: &Limit, cost: u64, now: Micros) -> Verdict {
        self.advance(limit, now);
        let free = self.free(limit);
        if cost > limit.cost_max() {
            return Verdict::Never { remaining: free };
        }
        if cost > free {
            return Verdict::Denied { remaining: free, wait: self.wait(limit, cost) };
        }
        let mut delay = Micros::ZERO;
        match self {
            Alone::Bucket(bucket) => {
                if limit.algorithm == Algorithm::LeakyQueue && cost > 0 {
                    delay = leaky_queue::delay(bucket, limit.rate);
                }
                bucket.tokens = bucket.tokens.saturating_sub_unsigned(cost);
            }
            Alone::Window(window) => window.add(limit.frame, window.at(), cost),
        }
        Verdict::Allowed { remaining: free - cost, delay }
    }

    /// Whether what was taken at `fresh` or later can still be given back, after [`advance`](Self::advance).
    #[must_use]
    pub(crate) fn has_still(&self, limit: &Limit, fresh: Micros) -> bool {
        match self {
            Alone::Bucket(_) => limit.algorithm != Algorithm::LeakyQueue,
            Alone::Window(window) => window.has_still(limit.frame, fresh),
        }
    }

    /// Gives back what was taken no earlier than `fresh`, as far as it still counts. Of a queue nothing: those behind
    /// it have their times to leave already.
    pub(crate) fn give_back(&mut self, limit: &Limit, tokens: u64, fresh: Micros, now: Micros) {
        self.advance(limit, now);
        match self {
            Alone::Bucket(_) if limit.algorithm == Algorithm::LeakyQueue => {}
            Alone::Bucket(bucket) => {
                bucket.tokens = bucket.tokens.saturating_add_unsigned(tokens);
                bucket.clip(limit.cap());
            }
            Alone::Window(window) => window.take_back(limit.frame, fresh, tokens),
        }
    }

    /// What can be taken after [`advance`](Self::advance).
    #[must_use]
    pub(crate) fn free(&self, limit: &Limit) -> u64 {
        match self {
            Alone::Bucket(bucket) if limit.algorithm == Algorithm::LeakyQueue => {
                leaky_queue::places(bucket, limit.burst)
            }
            Alone::Bucket(bucket) => u64::try_from(bucket.tokens).unwrap_or(0),
            Alone::Window(window) => limit.burst.saturating_sub(window.counted(limit.frame)),
        }
    }

    /// The time until `cost` can be taken, after [`advance`](Self::advance); zero when it can be now.
    #[must_use]
    pub(crate) fn wait(&self, limit: &Limit, cost: u64) -> Micros {
        match self {
            Alone::Bucket(bucket) if limit.algorithm == Algorithm::LeakyQueue => {
                leaky_queue::time_until(bucket, limit.rate, limit.burst, cost)
            }
            Alone::Bucket(bucket) => bucket.time_until(i64::try_from(cost).unwrap_or(i64::MAX), limit.rate),
            Alone::Window(window) => window.time_until(limit.frame, limit.burst.saturating_sub(cost)),
        }
    }

    /// The time until all is as if nothing had ever been taken: then it may be forgotten. After
    /// [`advance`](Self::advance).
    #[must_use]
    pub(crate) fn full_after(&self, limit: &Limit) -> Micros {
        match self {
            Alone::Bucket(bucket) => bucket.time_until(limit.cap(), limit.rate),
            Alone::Window(window) => window.time_until(limit.frame, 0),
        }
    }

    /// Goes on to `now`: tokens come, or what has left leaves. What is above a lower limit than before is clipped.
    pub(crate) fn advance(&mut self, limit: &Limit, now: Micros) {
        match self {
            Alone::Bucket(bucket) => {
                bucket.refill(limit.rate, limit.cap(), now);
                bucket.clip(limit.cap());
            }
            Alone::Window(window) => window.advance(limit.frame, now),
        }
    }

    /// The numbers changed: what was spent stays spent.
    pub(crate) fn change(&mut self, from: &Limit, to: &Limit) {
        match self {
            Alone::Bucket(bucket) => {
                bucket.convert(from.rate, to.rate);
                bucket.clip(to.cap());
            }
            // A window says its time in the frame that it is given.
            Alone::Window(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
