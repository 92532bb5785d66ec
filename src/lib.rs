//! Tollgate limits and counts at very high request rates: almost every question is answered inside
//! the process, and Redis keeps all instances honest.

#[allow(dead_code)] // until the tiers above use it
mod algorithm;
mod atomic;
mod clock;
mod decision;
mod error;
mod ewma;
mod hash;
mod key;
#[allow(dead_code, unused_imports)] // until the tiers above use it
mod lease;
mod observe;
mod rate;
#[allow(dead_code, unused_imports)] // until the tiers above use it
mod store;
mod time;

pub use clock::Clock;
pub use decision::{Decision, Source};
pub use error::{Error, ErrorKind};
pub use key::{KEY_BYTES_MAX, LongKeys};
pub use lease::Lost;
pub use observe::{Event, Link, Observer};
pub use rate::{Rate, RateError};
pub use store::{MemoryStore, Store};
#[cfg(feature = "redis")]
pub use store::{RedisStore, RedisStoreBuilder};
