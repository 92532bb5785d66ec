//! The lease protocol's words and its ledger. Pure: no clock, no lock, no await.

mod book;
mod message;
mod sizing;

pub(crate) use book::Book;
#[cfg(feature = "redis")]
pub(crate) use book::bounded;
#[cfg(test)]
pub(crate) use book::{Header, Record};
pub use message::{EXACT_MAX, InstanceId, Lost, Need, Numbers, Outcome, Reply, Sync, Total};
pub(crate) use sizing::Situation;
