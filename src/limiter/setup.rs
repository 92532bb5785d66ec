//! What a limiter is made of. The gate puts it together.

use super::{line::Lines, listed::Listed, outage::Saturated};
use crate::{
    atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    clock::Clock,
    key::LongKeys,
    local::{Governed, Quota},
    observe::{Event, Observer},
    rule::{Constant, Mode, Terms},
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
    /// By the rule alone, always in the same way.
    Constant(Constant),
    /// The rule was removed: its limiters let everything pass.
    Lifted,
}

/// Which road a check takes, so that the one that nearly all take asks one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
enum Road {
    /// From tokens that lie here, whatever the key is.
    Straight,
    /// Not leased, or nobody is refused.
    Plain,
    /// The key may be on a list.
    Listed,
    /// The rule was replaced: the gate's present set knows the one that took its place.
    Stale,
}

/// One rule of one gate, ready for use. Never changes, but for being replaced.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) rule: u32,
    /// A [`Road`] as a number.
    road: AtomicU32,
    pub(crate) terms: Terms,
    pub(crate) long: LongKeys,
    pub(crate) saturated: Saturated,
    pub(crate) clock: Clock,
    pub(crate) way: Way,
    pub(crate) tallies: Arc<Tallies>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) lines: Arc<Lines>,
    /// What keys on lists get.
    pub(super) listed: Option<Box<Listed>>,
}

/// What all setups of one gate have in common.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) long: LongKeys,
    pub(crate) saturated: Saturated,
    pub(crate) clock: Clock,
    pub(crate) tallies: Arc<Tallies>,
    pub(crate) alarm: Arc<Alarm>,
    /// Whoever waits, whatever the rules are at the moment.
    pub(crate) lines: Arc<Lines>,
}

impl Setup {
    pub(crate) fn new(rule: u32, terms: Terms, way: Way, listed: Option<Listed>, common: &Common) -> Setup {
        let road = match &way {
            _ if listed.is_some() => Road::Listed,
            Way::Shared { .. } if matches!(terms.mode, Mode::Leased | Mode::Buffered) && !terms.shadow => {
                Road::Straight
            }
            _ => Road::Plain,
        };
        let Common { long, saturated, clock, tallies, alarm, lines } = common.clone();
        // What is shared with other programs is under the key itself, where nobody looks for a hash.
        let long = if terms.plain.is_some() { LongKeys::Refuse } else { long };
        let (road, listed) = (AtomicU32::new(road as u32), listed.map(Box::new));
        Setup { rule, road, terms, long, saturated, clock, way, tallies, alarm, lines, listed }
    }

    /// Whether a check can be answered from leased tokens without looking at anything else.
    #[inline]
    pub(super) fn is_straight(&self) -> bool {
        self.road() == Road::Straight as u32
    }

    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.road() == Road::Stale as u32
    }

    #[inline]
    fn road(&self) -> u32 {
        // ordering: Acquire: who finds the rule replaced finds the set that did it.
        self.road.load(Acquire)
    }

    /// Another setup has taken its place in the gate's set.
    pub(super) fn retire(&self) {
        // ordering: Release, with the Acquire above: the new set is in its place.
        self.road.store(Road::Stale as u32, Release);
    }
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
    pub(crate) rule_allowed: AtomicU64,
    pub(crate) rule_denied: AtomicU64,
    /// Let through since the rule is gone.
    pub(crate) lifted: AtomicU64,
    /// Of all refusals, those that a shadowing rule let through.
    pub(crate) shadow_denied: AtomicU64,
}

/// Tells the observer what limiters notice, and not too often. One for each gate.
pub(crate) struct Alarm {
    observer: Arc<dyn Observer>,
    keys_max: usize,
    /// When a full registry may be told again, in µs.
    next: AtomicU64,
}

impl Alarm {
    pub(crate) fn new(observer: Arc<dyn Observer>, keys_max: usize) -> Alarm {
        Alarm { observer, keys_max, next: AtomicU64::new(0) }
    }

    /// Tells what has happened.
    pub(crate) fn event(&self, event: &Event) {
        self.observer.event(event);
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
