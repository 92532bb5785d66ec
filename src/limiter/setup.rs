//! What a limiter is made of. The gate puts it together.

use super::{line::Lines, outage::Saturated};
use crate::{
    atomic::{AtomicU64, Ordering::Relaxed},
    clock::Clock,
    key::LongKeys,
    local::{Governed, Quota},
    observe::{Event, Observer},
    rule::Terms,
    sync::Driver,
    time::Micros,
};
use std::{fmt, sync::Arc};

/// Between two events about a full registry.
const SATURATED_EVERY: Micros = Micros::from_secs(1);

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
        /// Limits this instance's share while the authority is away. Not the one of the `Local` rules, so
        /// that each counts its own.
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
    pub(crate) alarm: Arc<Alarm>,
    /// One for each gate, whatever its rules are at the moment.
    pub(crate) lines: Arc<Lines>,
}

/// Answers that did not come from the local tier, which counts its own. One for each gate.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) authority_allowed: AtomicU64,
    pub(crate) authority_denied: AtomicU64,
    pub(crate) cold_allowed: AtomicU64,
    pub(crate) cold_denied: AtomicU64,
    pub(crate) outage_allowed: AtomicU64,
    pub(crate) outage_denied: AtomicU64,
    pub(crate) overload: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) never: AtomicU64,
    pub(crate) bad_keys: AtomicU64,
    /// Those that neither the tier nor the governed limiter has counted.
    pub(crate) saturated: AtomicU64,
    /// Reservations that were opened, and those that were committed or abandoned since.
    pub(crate) reserved: AtomicU64,
    pub(crate) committed: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    /// Tokens that commits were too late or too large to be charged.
    pub(crate) uncharged: AtomicU64,
}

/// Tells the observer that the registry is full, and not too often. One for each gate.
pub(crate) struct Alarm {
    observer: Arc<dyn Observer>,
    keys_max: usize,
    /// When it may be told again, in µs.
    next: AtomicU64,
}

impl Alarm {
    pub(crate) fn new(observer: Arc<dyn Observer>, keys_max: usize) -> Alarm {
        Alarm { observer, keys_max, next: AtomicU64::new(0) }
    }

    /// A new key found no place.
    pub(super) fn saturated(&self, now: Micros) {
        let next = now.plus(SATURATED_EVERY).0;
        // ordering: Relaxed. The word is the whole state: of those who come at once one wins.
        let won = self.next.fetch_update(Relaxed, Relaxed, |at| (at <= now.0).then_some(next));
        if won.is_ok() {
            self.observer.event(&Event::Saturated { keys_max: self.keys_max });
        }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("keys_max", &self.keys_max).finish_non_exhaustive()
    }
}

/// One more.
pub(super) fn count(tally: &AtomicU64) {
    // ordering: Relaxed. A count that orders nothing.
    tally.fetch_add(1, Relaxed);
}
