//! The pages of `docs/`, as part of this documentation, so that their examples are run.

#[doc = include_str!("../docs/architecture.md")]
pub mod architecture {}

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}
