//! One gate's cells: the check, and the calls to the engine.
//!
//! A check never waits and never reads a precise clock but when it takes credit.

use super::{
    cell::{Cell, Served},
    front::{self, Ask, Count, Dry, Quick, Totals},
    keyed::{Keyed, Probe},
    registry::{Registry, Saturated},
};
use crate::{
    atomic::{AtomicBool, Ordering::AcqRel},
    clock::Clock,
    key::Key,
    time::Micros,
};
use crossbeam::queue::SegQueue;
use std::{
    fmt,
    sync::{Arc, PoisonError},
};

mod flight;
#[cfg(all(test, not(tollgate_loom)))]
mod tests;

pub(crate) use flight::{Draw, Drawn};

/// Told when the queue of calls got its first.
pub(crate) trait Bell: Send + Sync {
    fn ring(&self);
}

/// What this process answers by itself.
#[derive(Clone, Debug)]
pub(crate) enum Local {
    /// Tokens that lay here were spent.
    Allowed { remaining: u64 },
    /// The authority has said not to ask again so soon.
    Denied { wait: Micros, remaining: u64 },
    /// Nothing here; the engine has been called.
    Cold(Arc<Cell>),
    /// A new key, and no room for it.
    Saturated,
}

/// What a tier has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) saturated: u64,
    pub(crate) keys: u64,
}

/// One gate's part of the process.
pub(crate) struct Tier {
    clock: Clock,
    /// No other tier of this process has this number.
    gate: u32,
    registry: Registry<Cell>,
    totals: Arc<Totals>,
    calls: SegQueue<Arc<Cell>>,
    /// The bell has rung since the engine last found no call.
    rung: AtomicBool,
    bell: Arc<dyn Bell>,
}

impl Tier {
    /// A tier with room for `keys_max` keys.
    pub(crate) fn new(clock: Clock, keys_max: usize, bell: Arc<dyn Bell>) -> Arc<Tier> {
        Tier::numbered(clock, keys_max, bell, new_gate())
    }

    /// One whose number is chosen: for a thread that meets no others, and has to place keys the same way each time.
    #[cfg(feature = "sim")]
    pub(crate) fn with_number(clock: Clock, keys_max: usize, bell: Arc<dyn Bell>, gate: u32) -> Arc<Tier> {
        Tier::numbered(clock, keys_max, bell, gate)
    }

    fn numbered(clock: Clock, keys_max: usize, bell: Arc<dyn Bell>, gate: u32) -> Arc<Tier> {
        Arc::new(Tier {
            clock,
            gate,
            registry: Registry::new(keys_max),
            totals: Totals::new(),
            calls: SegQueue::new(),
            rung: AtomicBool::new(false),
            bell,
        })
    }

    /// Asks for `cost` tokens by key. A cost of 0 takes and counts nothing, makes no cell, and is answered
    /// by what is [known](Cell::known) here (`u64::MAX` where nothing is).
    #[inline]
    pub(crate) fn check(&self, rule: u32, key: &Key<'_>, cost: u64) -> Local {
        let probe = Probe::new(rule, key);
        if cost == 0 {
            let known = self.registry.view(&probe, |cell| cell.known(self.clock.coarse()));
            return known.unwrap_or(Local::Allowed { remaining: u64::MAX });
        }
        let ask = self.ask(cost);
        match front::spend(&ask, front::of_gate(self.gate, probe.hash), |cell| cell.is_of(self.gate, &probe)) {
            Quick::Spent(remaining) => Local::Allowed { remaining },
            Quick::Denied(wait) => Local::Denied { wait, remaining: 0 },
            Quick::Dry => self.check_dry(&probe, &ask),
            Quick::Miss => self.check_near(&probe, &ask),
        }
    }

    /// Asks for `cost` tokens by handle; no look-up.
    #[inline]
    pub(crate) fn check_cell(&self, cell: &Arc<Cell>, cost: u64) -> Local {
        if cost == 0 {
            return cell.known(self.clock.coarse());
        }
        let ask = self.ask(cost);
        match front::spend(&ask, front::of_gate(self.gate, cell.name().hash()), |there| Arc::ptr_eq(there, cell)) {
            Quick::Spent(remaining) => Local::Allowed { remaining },
            Quick::Denied(wait) => Local::Denied { wait, remaining: 0 },
            Quick::Dry => self.check_dry(&cell.name().probe(), &ask),
            Quick::Miss => self.check_found(cell, &ask),
        }
    }

    #[inline]
    fn ask(&self, cost: u64) -> Ask<'_> {
        Ask { clock: &self.clock, cost, now: self.clock.coarse() }
    }

    /// The key's cell; a new one where there is none. Counts as no check.
    pub(crate) fn cell(&self, rule: u32, key: &Key<'_>) -> Result<Arc<Cell>, Saturated> {
        self.registry.get_or_insert(&Probe::new(rule, key), |name| Cell::new(name, self.gate))
    }

    /// The key's cell, if there is one in use.
    pub(crate) fn find(&self, rule: u32, key: &Key<'_>) -> Option<Arc<Cell>> {
        self.registry.get(&Probe::new(rule, key))
    }

    /// Tells the engine of this cell, once until it has looked.
    pub(crate) fn call(&self, cell: &Arc<Cell>) {
        if !cell.mark_called() {
            return;
        }
        self.calls.push(cell.clone());
        // ordering: AcqRel, as in `next_call`. Either the engine's swap comes first, and this one rings;
        // or this one comes first, and the engine, which looks once more after its own, finds the call.
        if !self.rung.swap(true, AcqRel) {
            self.bell.ring();
        }
    }

    /// The next cell that wants the engine; the bell rings again after this has returned `None`.
    ///
    /// The cell stays called, so that checks do not call it over and over while the engine is at it:
    /// [`Cell::uncall`] ends that, before a last look.
    pub(crate) fn next_call(&self) -> Option<Arc<Cell>> {
        self.calls.pop().or_else(|| {
            self.rung.swap(false, AcqRel);
            self.calls.pop()
        })
    }

    /// Takes tokens from the cell's pool for somebody who waits.
    pub(crate) fn take(&self, cell: &Cell, cost: u64) -> bool {
        cell.take(cost, &self.clock)
    }

    /// Forgets a cell that was closed; a younger one of the same key stays.
    pub(crate) fn remove(&self, cell: &Arc<Cell>) {
        self.registry.remove_if_same(cell);
    }

    /// What has been done so far. Exact once the checking threads have stopped.
    pub(crate) fn counts(&self) -> Counts {
        let [admitted, denied, saturated] = self.totals.sum();
        Counts { admitted, denied, saturated, keys: u64::try_from(self.registry.len()).unwrap_or(u64::MAX) }
    }

    /// The thread knows the cell and has no credit of it.
    #[inline(never)]
    fn check_dry(&self, probe: &Probe<'_>, ask: &Ask<'_>) -> Local {
        match front::dry(ask, front::of_gate(self.gate, probe.hash), |cell| cell.is_of(self.gate, probe)) {
            Dry::Answer(answer) => answer,
            Dry::Call(answer, cell) => {
                self.call(&cell);
                answer
            }
            Dry::Miss => self.check_near(probe, ask),
        }
    }

    /// By the thread's own list of cells: no lock, and no write to a line of others but the pool's.
    #[inline(never)]
    fn check_near(&self, probe: &Probe<'_>, ask: &Ask<'_>) -> Local {
        let serve = |cell: &Arc<Cell>| {
            let served = cell.serve(ask.cost, ask);
            (served, wants_more(cell, served).then(|| cell.clone()))
        };
        match front::near(self.gate, probe, serve) {
            Some((served, cell)) if served != Served::Closed => self.answer(served, cell.as_ref(), ask),
            _ => self.check_shared(probe, ask),
        }
    }

    /// By the registry, under whose lock the cell is read and not cloned without need.
    #[inline(never)]
    fn check_shared(&self, probe: &Probe<'_>, ask: &Ask<'_>) -> Local {
        let comes_near = front::wants(self.gate, probe);
        let found = self.registry.view(probe, |cell| {
            let served = cell.serve(ask.cost, ask);
            (served, (comes_near || wants_more(cell, served)).then(|| cell.clone()))
        });
        if let Some((_, Some(cell))) = &found
            && comes_near
        {
            front::bring_near(self.gate, cell);
        }
        match found {
            Some((Served::Closed, _)) | None => {
                match self.registry.get_or_insert(probe, |name| Cell::new(name, self.gate)) {
                    Ok(cell) => self.answer(cell.serve(ask.cost, ask), Some(&cell), ask),
                    Err(Saturated) => {
                        front::count(&self.totals, Count::Saturated);
                        Local::Saturated
                    }
                }
            }
            Some((served, cell)) => self.answer(served, cell.as_ref(), ask),
        }
    }

    fn check_found(&self, cell: &Arc<Cell>, ask: &Ask<'_>) -> Local {
        if cell.is_closed() {
            return self.check_shared(&cell.name().probe(), ask);
        }
        self.answer(cell.serve(ask.cost, ask), Some(cell), ask)
    }

    /// Counts, calls the engine and lets a hot cell into the thread's table, outside of every lock.
    fn answer(&self, served: Served, cell: Option<&Arc<Cell>>, ask: &Ask<'_>) -> Local {
        match (served, cell) {
            (Served::Allowed { remaining, low }, cell) => {
                front::count(&self.totals, Count::Admitted);
                if let Some(cell) = cell {
                    front::admit(&self.totals, cell, ask.now);
                    if low {
                        self.call(cell);
                    }
                }
                Local::Allowed { remaining }
            }
            (Served::Denied { wait, remaining }, cell) => {
                front::count(&self.totals, Count::Denied);
                if let Some(cell) = cell {
                    front::admit(&self.totals, cell, ask.now);
                }
                Local::Denied { wait, remaining }
            }
            // Closed between two looks: the engine hears of it and sends who waits to its successor.
            (Served::Cold | Served::Closed, Some(cell)) => {
                self.call(cell);
                Local::Cold(cell.clone())
            }
            // Never so: `wants_more` keeps the cell of such an answer.
            (Served::Cold | Served::Closed, None) => Local::Saturated,
        }
    }
}

/// A number that no other tier of this process has: four billion are enough.
fn new_gate() -> u32 {
    // Not through `atomic`: no model makes a tier.
    static LAST: std::sync::Mutex<u32> = std::sync::Mutex::new(0);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    *last = last.wrapping_add(1);
    *last
}

/// Whether the cell is needed after the look-up.
fn wants_more(cell: &Cell, served: Served) -> bool {
    match served {
        Served::Allowed { low, .. } => cell.is_hot() || (low && !cell.is_called()),
        Served::Denied { .. } => cell.is_hot(),
        Served::Cold | Served::Closed => true,
    }
}

impl Drop for Tier {
    /// Other threads' lists let go of closed cells only.
    fn drop(&mut self) {
        self.registry.retain(|cell| {
            cell.close();
            false
        });
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
