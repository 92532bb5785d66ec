//! The state machines behind the rules: (state, numbers, now) in, new state out.
//!
//! Nothing here reads a clock, takes a lock, allocates or awaits.

mod token_bucket;

pub(crate) use token_bucket::TokenBucket;
