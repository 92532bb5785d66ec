//! The pages of `docs/`, as part of this documentation, so that their examples are run.

#[doc = include_str!("../docs/architecture.md")]
pub mod architecture {}

#[doc = include_str!("../docs/algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

// The examples of the read-me files are run like those of any page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../README.zh-CN.md")]
mod readme_zh {}
