//! Tollgate limits and counts at very high request rates: almost every question is answered inside
//! the process, and Redis keeps all instances honest.

mod algorithm;
mod atomic;
mod clock;
mod decision;
mod error;
mod ewma;
mod gate;
pub mod guide;
mod hash;
mod key;
mod lease;
mod limiter;
mod local;
mod observe;
mod rate;
mod rule;
pub mod sim;
mod store;
mod sync;
mod time;

pub use clock::Clock;
pub use decision::{Decision, Source};
pub use error::{Error, ErrorKind};
pub use gate::{Builder, RuleSnapshot, Snapshot, Tollgate};
pub use key::{KEY_BYTES_MAX, LongKeys};
pub use lease::Lost;
pub use limiter::{Bound, KeyHandle, Limiter, Saturated, Scope};
pub use observe::{Event, Link, Observer};
pub use rate::{PERIOD_MAX, RATE_PER_SECOND_MAX, Rate, RateError};
pub use rule::{Cold, Mode, Outage, Rule};
pub use store::{MemoryStore, Store};
#[cfg(feature = "redis")]
pub use store::{RedisStore, RedisStoreBuilder};
pub use time::Micros;
