//! The limiter: the handle that answers checks.
//!
//! It joins the local tier, the engine and the outage policy; none of them knows the others.

mod answer;
mod bound;
mod handle;
mod key;
mod listed;
mod outage;
mod set;
mod setup;

pub use bound::{Bound, Scope};
pub use handle::Limiter;
pub use key::KeyHandle;
pub(crate) use listed::{Answer as ListAnswer, Listed};
pub use outage::Saturated;
pub(crate) use set::{Home, Set};
pub(crate) use setup::{Alarm, Common, Setup, Tallies, Way};
