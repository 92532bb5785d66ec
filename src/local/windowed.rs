//! Windows and queues that this process keeps alone: a machine for each key, in our own bounded registry.
//!
//! A key whose machine is as good as new is as one that was never seen, and is swept.

use super::{
    front::{self, Count, Totals},
    governed::Verdict,
    keyed::{Keyed, Name, Probe},
    registry::{Registry, Saturated},
    tier::Counts,
};
use crate::{
    algorithm::{self, Alone, Limit},
    atomic::{AtomicU64, Mutex, MutexGuard, Ordering::Relaxed},
    clock::Clock,
    key::Key,
    time::Micros,
};
use std::sync::{Arc, PoisonError};

#[cfg(all(test, not(tollgate_loom)))]
mod tests;

/// How often machines are swept at most.
const SWEEP_PAUSE: Micros = Micros::from_secs(1);
/// Below this many nobody sweeps.
const SWEEP_MIN: u64 = if cfg!(test) { 16 } else { 1_024 };

/// One key's machine, and the numbers that it last counted by.
struct Place {
    name: Name,
    state: Mutex<(Limit, Alone)>,
}

impl Keyed for Place {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Place {
    fn state(&self) -> MutexGuard<'_, (Limit, Alone)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the machine count by these numbers from now on.
    fn with<T>(&self, limit: &Limit, work: impl FnOnce(&mut Alone) -> T) -> T {
        let (last, alone) = &mut *self.state();
        if last != limit {
            alone.change(last, limit);
            *last = *limit;
        }
        work(alone)
    }
}

/// All machines of one gate. At most so many keys have one.
///
/// # Promise
/// For each key what its algorithm promises, to the microsecond.
///
/// # Cost
/// A look-up, a look at the precise clock and a lock that only this key's checks take.
pub(super) struct Windowed {
    clock: Clock,
    places: Registry<Place>,
    totals: Arc<Totals>,
    sweep_at: AtomicU64,
    /// How many must be there for a sweep to be worth its while: twice what the last one left.
    sweep_from: AtomicU64,
}

impl Windowed {
    pub(super) fn new(clock: Clock, keys_max: usize) -> Windowed {
        Windowed {
            clock,
            places: Registry::new(keys_max),
            totals: Totals::new(),
            sweep_at: AtomicU64::new(0),
            sweep_from: AtomicU64::new(SWEEP_MIN),
        }
    }

    /// Takes `cost`, all or none; a cost of 0 only looks.
    pub(super) fn check(&self, rule: u32, key: &Key<'_>, cost: u64, limit: &Limit) -> Verdict {
        if cost == 0 {
            return self.known(rule, key, 0, limit);
        }
        let probe = Probe::new(rule, key);
        let found = self.places.view(&probe, Arc::clone).map_or_else(
            || {
                self.sweep();
                let now = self.now();
                let make = |name| Place { name, state: Mutex::new((*limit, Alone::new(limit, now))) };
                self.places.get_or_insert(&probe, make)
            },
            Ok,
        );
        // The clock is read under the lock, so that one check's time is never before that of the one ahead of it.
        let verdict = match found {
            Ok(place) => place.with(limit, |alone| match alone.take(limit, cost, self.now()) {
                algorithm::Verdict::Allowed { remaining, delay } if delay > Micros::ZERO => {
                    Verdict::Queued { remaining, delay }
                }
                algorithm::Verdict::Allowed { remaining, .. } => Verdict::Allowed { remaining },
                algorithm::Verdict::Denied { remaining, wait } => Verdict::Denied { wait, remaining },
                algorithm::Verdict::Never { .. } => Verdict::Never,
            }),
            Err(Saturated) => Verdict::Saturated,
        };
        let counted = match verdict {
            Verdict::Allowed { .. } | Verdict::Queued { .. } => Count::Admitted,
            Verdict::Denied { .. } | Verdict::Never => Count::Denied,
            Verdict::Saturated => Count::Saturated,
        };
        front::count(&self.totals, counted);
        verdict
    }

    /// What a check would say; stores and counts nothing.
    pub(super) fn known(&self, rule: u32, key: &Key<'_>, cost: u64, limit: &Limit) -> Verdict {
        let look = |alone: &mut Alone| {
            alone.advance(limit, self.now());
            (alone.free(limit), alone.wait(limit, cost))
        };
        let found = self.places.view(&Probe::new(rule, key), |place| place.with(limit, look));
        let (remaining, wait) = found.unwrap_or_else(|| look(&mut Alone::new(limit, self.now())));
        if remaining >= cost { Verdict::Allowed { remaining } } else { Verdict::Denied { wait, remaining } }
    }

    /// Forgets what was counted for a key.
    pub(super) fn clear(&self, rule: u32, key: &Key<'_>) {
        let now = self.now();
        self.places.view(&Probe::new(rule, key), |place| {
            let (limit, alone) = &mut *place.state();
            *alone = Alone::new(limit, now);
        });
    }

    pub(super) fn counts(&self) -> Counts {
        let [admitted, denied, saturated] = self.totals.sum();
        Counts { admitted, denied, saturated, keys: self.places.len() as u64 }
    }

    /// The time by which windows lie: the calendar's.
    fn now(&self) -> Micros {
        self.clock.calendar()
    }

    /// Removes machines that are as good as new, if it is time to. One thread does it; as each sweep waits for twice as
    /// many, a new key pays for one or two looks.
    fn sweep(&self) {
        // ordering: Relaxed, throughout. These only decide who sweeps when; the machines are looked at under their locks.
        let (now, due) = (self.clock.coarse(), self.sweep_at.load(Relaxed));
        let worth = self.places.is_full() || self.places.len() as u64 >= self.sweep_from.load(Relaxed);
        if !worth || now.0 < due {
            return;
        }
        if self.sweep_at.compare_exchange(due, now.plus(SWEEP_PAUSE).0, Relaxed, Relaxed).is_err() {
            return;
        }
        let now = self.now();
        self.places.retain(|place| {
            // Whoever is about to change a machine outside of the registry's locks holds an `Arc` of its place.
            if Arc::strong_count(place) > 1 {
                return true;
            }
            let (limit, alone) = &mut *place.state();
            alone.advance(limit, now);
            alone.full_after(limit) > Micros::ZERO
        });
        self.sweep_from.store((self.places.len() as u64).saturating_mul(2).max(SWEEP_MIN), Relaxed);
    }
}
