//! Each line of docs/guarantees.md that can be broken by bad luck, tried in many simulated worlds.
//!
//! Everything in a world follows from its seed. A test that fails names the seed and the one line that runs exactly
//! that world again. Each test tells how many seeds it tried, and how many all have by then. `TOLLGATE_SEEDS=10` tries ten times as many, `TOLLGATE_SEED=n` that one alone.
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

/// Worlds that are tried at least: in all modes and algorithms, with five kinds of exceptions, and with an audit.
const TRIED: u64 = worlds::SHARED.len() as u64 * (bounds::EACH + 5 * exceptions::EACH) + conserved::EACH;
const _: () = assert!(TRIED >= 10_000);
