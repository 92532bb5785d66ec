//! The tier inside the process: what this instance holds of each key, and the check that spends it.
//!
//! Nothing here awaits, and nothing here talks to the authority; the engine does, through
//! [`Cell`]'s second face.

mod cell;
mod first;
mod front;
mod governed;
mod keyed;
mod limits;
mod near;
mod purse;
mod registry;
mod taken;
mod tier;
mod windowed;

pub(crate) use cell::{Cell, Look};
pub(crate) use governed::Verdict;
pub(crate) use limits::{Governed, Quota, Spent};
pub(crate) use taken::Taken;
pub(crate) use tier::{Bell, Draw, Drawn, Local, Tier};
