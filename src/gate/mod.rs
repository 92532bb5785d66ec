//! The gate: the builder that assembles everything, and the handle to the whole.

mod builder;
mod handle;
mod snapshot;

pub use builder::Builder;
pub use handle::Tollgate;
pub use snapshot::{RuleSnapshot, Snapshot};
