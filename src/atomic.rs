//! The one door to atomics and their companions, so that loom can stand in for them.
//!
//! Built with `--cfg tollgate_loom`, every type here is loom's, and the models beside the
//! concurrent parts explore each interleaving. Otherwise they are the standard library's.

#[cfg(not(tollgate_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

#[cfg(tollgate_loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// For the models themselves: threads, and how far to explore.
#[cfg(all(test, tollgate_loom))]
pub(crate) use loom::{model, thread};
