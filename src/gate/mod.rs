//! The gate: the builder that assembles everything, and the handle to the whole.

mod assemble;
mod builder;
mod handle;
mod replace;
mod snapshot;
#[cfg(feature = "watch")]
mod watch;

pub use builder::Builder;
pub use handle::Tollgate;
pub use replace::Replaced;
pub use snapshot::{RuleSnapshot, Snapshot};
#[cfg(feature = "watch")]
pub use watch::RulesWatch;
