//! Rules: what is limited, how, and what happens when the authority is away.
//!
//! A rule is plain data that a user builds and a gate checks. Nothing here decides a request, reads a
//! clock or talks to a store.

mod model;
mod terms;

pub use model::{Abandoned, Cold, Mode, Outage, Rule};
pub(crate) use terms::{LEASE_MARGIN, Terms};
