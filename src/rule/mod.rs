//! Rules: what is limited, how, and what happens when the authority is away.
//!
//! A rule is plain data that a user builds and a gate checks. Nothing here decides a request, reads a
//! clock or talks to a store.

#[cfg(feature = "rules-file")]
mod file;
mod lists;
mod model;
mod plain;
mod plan;
mod policy;
mod reload;
mod rules;
mod terms;

pub(crate) use lists::Lists;
pub(crate) use model::Constant;
pub use model::Rule;
pub(crate) use plain::Template;
pub(crate) use plan::Plan;
pub use policy::{Abandoned, Cold, Mode, Outage};
pub(crate) use reload::{Current, Seen};
pub use rules::Rules;
pub(crate) use terms::{LEASE_MARGIN, Terms};
