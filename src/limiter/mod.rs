//! The limiter: the handle that answers checks.
//!
//! It joins the local tier, the engine and the outage policy; none of them knows the others.

mod acquire;
mod answer;
mod bound;
mod handle;
mod key;
mod line;
mod listed;
mod orders;
mod outage;
mod plain;
mod reserve;
mod road;
mod set;
mod setup;
mod together;

pub use bound::{Bound, Scope};
pub use handle::Limiter;
pub use key::KeyHandle;
pub(crate) use line::Lines;
pub(crate) use listed::{Answer as ListAnswer, Listed};
pub use outage::Saturated;
pub use reserve::{Reservation, Settled};
pub(crate) use set::{Home, Set};
pub(crate) use setup::{Alarm, Common, Setup, Tallies, Way};
pub(crate) use together::{check_all, check_all_now};
