//! The state machines behind the rules: (state, numbers, now) in, new state out.
//!
//! Nothing here reads a clock, takes a lock or awaits.

mod alone;
mod fixed_window;
mod frame;
pub(crate) mod leaky_queue;
mod sliding_counter;
mod sliding_log;
mod token_bucket;
mod window;

pub(crate) use alone::{Alone, Limit, Verdict};
pub(crate) use fixed_window::FixedWindow;
pub(crate) use frame::Frame;
pub(crate) use sliding_counter::SlidingCounter;
pub(crate) use sliding_log::SlidingLog;
pub(crate) use token_bucket::TokenBucket;
pub(crate) use window::{COUNT_MAX, Window};

/// How a rule counts.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Tokens come at a steady rate, up to a burst; each request takes some.
    TokenBucket,
    /// The token bucket's dual: requests fill a bucket that leaks at a steady rate; a full one refuses.
    LeakyMeter,
    /// Requests leave one by one at a steady rate; the answer is how long to wait.
    LeakyQueue,
    /// At most so many in each window of the clock.
    FixedWindow,
    /// At most so many in any span of the window's length.
    SlidingLog,
    /// Two windows of the clock, the older one weighted by how much of it still counts.
    SlidingCounter,
}

impl Algorithm {
    /// Its part of a bucket's name.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Algorithm::TokenBucket => "tb",
            Algorithm::LeakyMeter => "lm",
            Algorithm::LeakyQueue => "lq",
            Algorithm::FixedWindow => "fw",
            Algorithm::SlidingLog => "sl",
            Algorithm::SlidingCounter => "sc",
        }
    }

    /// Whether it counts what was spent in windows, rather than letting tokens come at a rate.
    pub(crate) const fn is_window(self) -> bool {
        matches!(self, Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::SlidingCounter)
    }
}
