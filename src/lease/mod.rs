//! The lease protocol's words and its ledger. Pure: no clock, no lock, no await.

mod book;
mod message;
mod sizing;

pub(crate) use book::Book;
#[cfg(any(test, feature = "sim"))]
pub(crate) use book::Fault;
#[cfg(any(feature = "sim", all(test, feature = "redis")))]
pub(crate) use book::Meter;
#[cfg(feature = "redis")]
pub(crate) use book::bounded;
#[cfg(all(test, feature = "redis"))]
pub(crate) use book::{Header, Record};
pub use message::Lost;
pub(crate) use message::{Act, EXACT_MAX, InstanceId, Need, Numbers, Outcome, Reply, Sync, Total};
pub(crate) use sizing::Situation;
