//! What a limiter is made of. The gate puts it together.

use super::outage::Saturated;
use crate::{
    atomic::{AtomicU64, Ordering::Relaxed},
    clock::Clock,
    key::LongKeys,
    local::{Governed, Quota},
    rule::Terms,
    sync::Driver,
};
use std::sync::Arc;

/// How a rule's questions are answered.
#[derive(Debug)]
pub(crate) enum Way {
    /// By this process alone.
    Local {
        /// The keys' states.
        governed: Arc<Governed>,
        /// The rule's numbers as governor takes them.
        quota: Quota,
    },
    /// From leases, by way of the engine; the governed limiter is for outages.
    Shared {
        /// The engine, and the tier it looks after.
        driver: Driver,
        /// Limits this instance's share while the authority is away.
        fallback: Arc<Governed>,
    },
}

/// One rule of one gate, ready for use.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) rule: u32,
    pub(crate) terms: Terms,
    pub(crate) long: LongKeys,
    pub(crate) saturated: Saturated,
    pub(crate) clock: Clock,
    pub(crate) way: Way,
    pub(crate) tallies: Arc<Tallies>,
}

/// Answers that did not come from the local tier, which counts its own. One for each gate.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) authority_allowed: AtomicU64,
    pub(crate) authority_denied: AtomicU64,
    pub(crate) outage_allowed: AtomicU64,
    pub(crate) outage_denied: AtomicU64,
    pub(crate) overload: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) never: AtomicU64,
    pub(crate) bad_keys: AtomicU64,
}

/// One more.
pub(super) fn count(tally: &AtomicU64) {
    // ordering: Relaxed. A count that orders nothing.
    tally.fetch_add(1, Relaxed);
}
