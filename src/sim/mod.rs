//! Tools that look at a limiter from outside: what it admitted, and whether it may have.
//!
//! Always compiled, since tests, examples and users ask the same judge. Nothing here reads a clock.

mod judge;
mod reference;
#[cfg(test)]
mod tests;

pub use judge::{Admission, Judge, Verdict};
pub use reference::Reference;
