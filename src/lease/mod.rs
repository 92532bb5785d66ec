//! The lease protocol's words and its ledger. Pure: no clock, no lock, no await.

mod book;
mod message;

pub use book::Book;
pub use message::{EXACT_MAX, InstanceId, Lost, Need, Numbers, Outcome, Reply, Sync, Total};
