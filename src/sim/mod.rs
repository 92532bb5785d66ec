//! Tools that look at a limiter from outside: what it admitted, and whether it may have.
//!
//! The judge is always there, since tests, examples and users ask the same one. A whole `World` of instances is there
//! with the feature `sim`. Nothing here reads a clock.

#[cfg(feature = "sim")]
mod central;
mod judge;
mod reference;
#[cfg(test)]
mod tests;
#[cfg(feature = "sim")]
mod world;

pub use judge::{Admission, Judge, Verdict};
pub use reference::Reference;
#[cfg(feature = "sim")]
pub use world::{Builder, Conserved, Fault, Faults, Network, Place, Planted, Report, Traffic, Violation, World};
