//! Windows and queues that this process keeps alone: a machine for each key, in our own bounded registry.
//!
//! A key whose machine is as good as new is as one that was never seen, and is swept.

use super::{
    front::{self, Count, Totals},
    governed::Verdict,
    keyed::{Keyed, Name, Probe},
    registry::{Registry, Saturated},
    taken::Taken,
    tier::Counts,
};
use crate::{
    algorithm::{self, Algorithm, Alone, Limit},
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

/// One key's machine, the numbers that it last counted by, and what it may get back.
struct State {
    limit: Limit,
    alone: Alone,
    taken: Taken,
}

impl State {
    fn new(limit: &Limit, now: Micros) -> State {
        State { limit: *limit, alone: Alone::new(limit, now), taken: Taken::new(now) }
    }

    /// Goes on to `now`, by these numbers.
    fn advance(&mut self, limit: &Limit, now: Micros) {
        if self.limit != *limit {
            self.alone.change(&self.limit, limit);
            self.limit = *limit;
        }
        self.alone.advance(limit, now);
        match limit.algorithm {
            Algorithm::SlidingLog => self.taken.turn(limit.frame.length(), now),
            // What was taken in an earlier window comes back in none.
            Algorithm::FixedWindow | Algorithm::SlidingCounter => {
                let start = limit.frame.start(now);
                if self.taken.since() < start {
                    self.taken = Taken::new(start);
                }
            }
            _ => {}
        }
    }

    fn take(&mut self, limit: &Limit, cost: u64, now: Micros) -> Verdict {
        self.advance(limit, now);
        match self.alone.take(limit, cost, now) {
            algorithm::Verdict::Allowed { remaining, delay } => {
                self.taken.add(cost);
                if delay > Micros::ZERO { Verdict::Queued { remaining, delay } } else { Verdict::Allowed { remaining } }
            }
            algorithm::Verdict::Denied { remaining, wait } => Verdict::Denied { wait, remaining },
            algorithm::Verdict::Never { .. } => Verdict::Never,
        }
    }

    /// Gives back what was taken at `since` or later. What has left already comes out of nobody else's count.
    fn refund(&mut self, limit: &Limit, tokens: u64, since: Micros, now: Micros) {
        self.advance(limit, now);
        // A turn in a queue perishes: those behind have theirs already, and one that came free in front would be given at
        // the end, where somebody is.
        if self.alone.has_still(limit, since) {
            let (tokens, oldest) = self.taken.refund(tokens);
            self.alone.give_back(limit, tokens, oldest.min(since), now);
        }
    }
}

/// What one check took, so that it can be put back.
pub(crate) struct Spent {
    place: Arc<Place>,
    cost: u64,
    at: Micros,
}

/// One key.
struct Place {
    name: Name,
    state: Mutex<State>,
}

impl Keyed for Place {
    fn name(&self) -> &Name {
        &self.name
    }
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
        let verdict = match self.place(rule, key, limit) {
            // The clock is read under the lock, so that one check's time is never before that of the one ahead of it.
            Ok(place) => place.state().take(limit, cost, self.now()),
            Err(Saturated) => Verdict::Saturated,
        };
        self.count(verdict);
        verdict
    }

    /// [`check`](Windowed::check) for what may have to go back. Counts a refusal alone.
    pub(super) fn take(&self, rule: u32, key: &Key<'_>, cost: u64, limit: &Limit) -> (Verdict, Option<Spent>) {
        let place = match self.place(rule, key, limit) {
            Ok(place) => place,
            Err(Saturated) => {
                self.count(Verdict::Saturated);
                return (Verdict::Saturated, None);
            }
        };
        let (verdict, at) = {
            let (mut state, now) = (place.state(), self.now());
            (state.take(limit, cost, now), now)
        };
        if let Verdict::Allowed { .. } | Verdict::Queued { .. } = verdict {
            return (verdict, Some(Spent { place, cost, at }));
        }
        self.count(verdict);
        (verdict, None)
    }

    pub(super) fn put_back(&self, spent: &Spent) {
        let mut state = spent.place.state();
        // By the numbers that the key has by now: those of the taking may have been replaced.
        let limit = state.limit;
        state.refund(&limit, spent.cost, spent.at, self.now());
    }

    /// Gives tokens back that were taken here, at `since` on the gate's clock or later, and still count.
    pub(super) fn refund(&self, rule: u32, key: &Key<'_>, tokens: u64, since: Micros, limit: &Limit) {
        let since = self.clock.calendar_at(since);
        let back = |place: &Arc<Place>| place.state().refund(limit, tokens, since, self.now());
        self.places.view(&Probe::new(rule, key), back);
    }

    /// Charges what was used already, as far as it fits; how much that was.
    pub(super) fn charge(&self, rule: u32, key: &Key<'_>, tokens: u64, limit: &Limit) -> u64 {
        let Ok(place) = self.place(rule, key, limit) else { return 0 };
        let (mut state, now) = (place.state(), self.now());
        state.advance(limit, now);
        let fits = tokens.min(state.alone.free(limit));
        match state.take(limit, fits, now) {
            Verdict::Allowed { .. } | Verdict::Queued { .. } => fits,
            _ => 0,
        }
    }

    pub(super) fn count(&self, verdict: Verdict) {
        let counted = match verdict {
            Verdict::Allowed { .. } | Verdict::Queued { .. } => Count::Admitted,
            Verdict::Denied { .. } | Verdict::Never => Count::Denied,
            Verdict::Saturated => Count::Saturated,
        };
        front::count(&self.totals, counted);
    }

    /// What a check would say; stores and counts nothing.
    pub(super) fn known(&self, rule: u32, key: &Key<'_>, cost: u64, limit: &Limit) -> Verdict {
        let look = |state: &mut State| {
            state.advance(limit, self.now());
            (state.alone.free(limit), state.alone.wait(limit, cost))
        };
        let found = self.places.view(&Probe::new(rule, key), |place| look(&mut place.state()));
        let (remaining, wait) = found.unwrap_or_else(|| look(&mut State::new(limit, self.now())));
        if remaining >= cost { Verdict::Allowed { remaining } } else { Verdict::Denied { wait, remaining } }
    }

    /// Forgets what was counted for a key.
    pub(super) fn clear(&self, rule: u32, key: &Key<'_>) {
        let now = self.now();
        self.places.view(&Probe::new(rule, key), |place| {
            let mut state = place.state();
            *state = State::new(&state.limit, now);
        });
    }

    /// The key's machine, made where there is none.
    fn place(&self, rule: u32, key: &Key<'_>, limit: &Limit) -> Result<Arc<Place>, Saturated> {
        let probe = Probe::new(rule, key);
        if let Some(place) = self.places.get(&probe) {
            return Ok(place);
        }
        self.sweep();
        let now = self.now();
        self.places.get_or_insert(&probe, |name| Place { name, state: Mutex::new(State::new(limit, now)) })
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
            let mut state = place.state();
            let limit = state.limit;
            state.advance(&limit, now);
            state.alone.full_after(&limit) > Micros::ZERO
        });
        self.sweep_from.store((self.places.len() as u64).saturating_mul(2).max(SWEEP_MIN), Relaxed);
    }
}
