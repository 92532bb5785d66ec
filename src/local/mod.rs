//! The tier inside the process: what this instance holds of each key, and the check that spends it.
//!
//! Nothing here awaits, and nothing here talks to the authority; the engine does, through
//! [`Cell`]'s second face.

mod cell;
mod front;
mod governed;
mod keyed;
mod near;
mod purse;
mod registry;
mod tier;

pub(crate) use cell::{Cell, Look};
pub(crate) use governed::{Governed, Quota, Spent, Verdict};
pub(crate) use tier::{Bell, Draw, Drawn, Local, Tier};
