//! Tollgate limits and counts at very high request rates: almost every question is answered inside
//! the process, and Redis keeps all instances honest.

mod atomic;
mod clock;
mod decision;
mod error;
mod ewma;
pub mod guide;
mod hash;
mod key;
mod lease;
mod observe;
mod rate;
mod rule;
pub mod sim;
mod time;

pub use clock::Clock;
pub use decision::{Decision, Source};
pub use error::{Error, ErrorKind};
pub use key::{KEY_BYTES_MAX, LongKeys};
pub use lease::Lost;
pub use observe::{Event, Link, Observer};
pub use rate::{PERIOD_MAX, RATE_PER_SECOND_MAX, Rate, RateError};
pub use rule::{Cold, Mode, Outage, Rule};
pub use time::Micros;
