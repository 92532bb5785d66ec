//! Each line of docs/guarantees.md that can be broken by bad luck, tried in many simulated worlds.
//!
//! Everything in a world follows from its seed. A test that fails names the seed and the one line that runs exactly
//! that world again. `TOLLGATE_SEEDS=10` tries ten times as many, `TOLLGATE_SEED=n` that one alone.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "guarantees/bounds.rs"]
mod bounds;
#[path = "guarantees/conserved.rs"]
mod conserved;
#[path = "guarantees/exceptions.rs"]
mod exceptions;
#[path = "guarantees/planted.rs"]
mod planted;
#[path = "guarantees/said.rs"]
mod said;
#[path = "guarantees/seeds.rs"]
mod seeds;
#[path = "guarantees/usage.rs"]
mod usage;
#[path = "guarantees/worlds.rs"]
mod worlds;
