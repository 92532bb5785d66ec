//! What a thread keeps for itself: its credit of hot keys, and its counts of what it did.
//!
//! One small table per thread, for all gates of the process. A hit reads lines that others seldom write
//! and writes only the thread's own. A thread that ends puts its credit back.

use super::{
    cell::{Cell, Served},
    keyed::{Keyed, Probe},
    near::{Near, Spot},
    purse::CreditSlot,
    tier::Local,
};
use crate::{
    atomic::{AtomicU64, Mutex, MutexGuard, Ordering::Relaxed},
    clock::Clock,
    time::Micros,
};
use crossbeam::utils::CachePadded;
use std::{
    cell::RefCell,
    sync::{Arc, PoisonError, Weak},
};

/// Places in a thread's table; a power of two.
const PLACES: usize = 256;
/// So often must a hot key find its place taken before it drives the other out.
const PATIENCE: u8 = 64;

const _: () = assert!(PLACES.is_power_of_two(), "a place is picked by a mask");

/// A check on its way through a thread's table.
pub(super) struct Ask<'a> {
    pub(super) clock: &'a Clock,
    pub(super) cost: u64,
    /// By the coarse hand.
    pub(super) now: Micros,
}

/// What the thread's own credit makes of a check. Small enough to come back in registers.
#[derive(Clone, Copy)]
pub(super) enum Quick {
    /// Spent; so many tokens probably remain.
    Spent(u64),
    /// One token, and the last no to that still holds for so long. Nothing remains.
    Denied(Micros),
    /// The thread knows the cell and has too little credit of it.
    Dry,
    /// Not a matter for the table.
    Miss,
}

/// What the table makes of a check that found too little credit.
pub(super) enum Dry {
    Answer(Local),
    /// This answer, and the engine should hear of it.
    Call(Local, Arc<Cell>),
    /// Not a matter for the table any more.
    Miss,
}

/// What is counted.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Admitted,
    Denied,
    Saturated,
}

/// One thread's counts for one gate, by [`Count`], beside what its slots have counted.
#[derive(Default)]
struct Tally {
    counts: CachePadded<[AtomicU64; 3]>,
    slots: Mutex<Vec<Arc<CreditSlot>>>,
}

impl Tally {
    /// Only its own thread may.
    #[inline]
    fn add(&self, count: Count, checks: u64) {
        let place = &self.counts[count as usize];
        // ordering: Relaxed, both: a count with one writer.
        place.store(place.load(Relaxed).wrapping_add(checks), Relaxed);
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<CreditSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what the slot has counted. Only its own thread may.
    fn forget(&self, slot: &Arc<CreditSlot>) {
        let mut slots = self.slots();
        slots.retain(|there| !Arc::ptr_eq(there, slot));
        let [admitted, denied] = slot.checks();
        self.add(Count::Admitted, admitted);
        self.add(Count::Denied, denied);
    }

    /// Admitted, denied, saturated.
    fn sum(&self) -> [u64; 3] {
        let slots = self.slots();
        // ordering: Relaxed: counts; a slot that goes is folded in under the same lock.
        let own = [0, 1, 2].map(|at: usize| self.counts[at].load(Relaxed));
        slots
            .iter()
            .map(|slot| slot.checks())
            .fold(own, |[a, d, s], [more_a, more_d]| [a.wrapping_add(more_a), d.wrapping_add(more_d), s])
    }
}

/// One gate's counts over all threads, those that have ended included.
#[derive(Default)]
pub(super) struct Totals {
    gone: [AtomicU64; 3],
    live: Mutex<Vec<Arc<Tally>>>,
}

impl Totals {
    pub(super) fn new() -> Arc<Totals> {
        Arc::default()
    }

    fn live(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admitted, denied, saturated.
    pub(super) fn sum(&self) -> [u64; 3] {
        let live = self.live();
        // ordering: Relaxed: counts; a thread's end folds its own in under the same lock.
        let gone = [0, 1, 2].map(|at: usize| self.gone[at].load(Relaxed));
        live.iter().map(|tally| tally.sum()).fold(gone, |[a, d, s], [more_a, more_d, more_s]| {
            [a.wrapping_add(more_a), d.wrapping_add(more_d), s.wrapping_add(more_s)]
        })
    }
}

/// A thread's counts for one gate, given up when the thread ends.
struct Mine {
    totals: Weak<Totals>,
    tally: Arc<Tally>,
}

impl Mine {
    fn is_of(&self, totals: &Arc<Totals>) -> bool {
        // The weak pointer keeps the address from being used again.
        std::ptr::eq(self.totals.as_ptr(), Arc::as_ptr(totals))
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let Some(totals) = self.totals.upgrade() else { return };
        let mut live = totals.live();
        live.retain(|tally| !Arc::ptr_eq(tally, &self.tally));
        for (gone, last) in totals.gone.iter().zip(self.tally.sum()) {
            gone.fetch_add(last, Relaxed);
        }
    }
}

/// A hot cell and the thread's credit of it.
struct Entry {
    cell: Arc<Cell>,
    slot: Arc<CreditSlot>,
    tally: Arc<Tally>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.cell.drop_slot(&self.slot);
        self.tally.forget(&self.slot);
    }
}

#[derive(Default)]
struct Place {
    entry: Option<Entry>,
    conflicts: u8,
}

struct Front {
    /// The hashes of the cells in the places, close together: all that a cold key's check looks at.
    hashes: [u64; PLACES],
    /// Empty until the thread meets its first hot key.
    places: Vec<Place>,
    /// Cells that are looked up now and then.
    near: Near,
    mine: Vec<Mine>,
}

thread_local! {
    static FRONT: RefCell<Front> = const {
        RefCell::new(Front { hashes: [0; PLACES], places: Vec::new(), near: Near::new(), mine: Vec::new() })
    };
}

/// A key's hash within a gate: gates of one process that limit the same keys keep their places apart.
#[inline]
pub(super) fn of_gate(gate: u32, hash: u64) -> u64 {
    // The odd constant spreads small numbers over all bits.
    hash ^ u64::from(gate).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[inline]
fn place_of(hash: u64) -> usize {
    // Other bits than those that the registry's maps use first.
    (hash >> 24) as usize & (PLACES - 1)
}

impl Front {
    /// The entry of the cell with this hash that `is` the one.
    #[inline]
    fn find(&self, hash: u64, is: impl Fn(&Arc<Cell>) -> bool) -> Option<&Entry> {
        let at = place_of(hash);
        if self.hashes[at] != hash {
            return None;
        }
        self.places.get(at)?.entry.as_ref().filter(|entry| is(&entry.cell))
    }
}

/// Spends from the thread's own credit of the cell with this hash that `is` the one.
#[inline]
pub(super) fn spend(ask: &Ask<'_>, hash: u64, is: impl Fn(&Arc<Cell>) -> bool) -> Quick {
    let spent = FRONT.try_with(|front| {
        let Ok(front) = front.try_borrow() else { return Quick::Miss };
        let Some(entry) = front.find(hash, is) else { return Quick::Miss };
        let lease = entry.cell.purse.lease();
        if lease.is_live(ask.now)
            && let Some(left) = entry.slot.spend(lease.generation(), ask.cost)
        {
            let pool = entry.cell.purse.pool(lease.generation());
            return Quick::Spent(left.saturating_add(pool).saturating_add(entry.cell.free()));
        }
        // A remembered no to one token, where none has come in since: nothing remains, and nothing is to be done.
        if ask.cost == 1
            && let Some(wait) = entry.cell.denied(1, ask.now)
            && entry.cell.is_hot()
            && !entry.cell.is_closed()
            && !(entry.cell.purse.pool(lease.generation()) > 0 && entry.cell.is_live(lease, ask.now, ask.clock))
        {
            entry.slot.refuse(1);
            return Quick::Denied(wait);
        }
        Quick::Dry
    });
    spent.unwrap_or(Quick::Miss)
}

/// Puts the thread's own credit of the cell with this hash that `is` the one back into its pool.
pub(super) fn release(hash: u64, is: impl Fn(&Arc<Cell>) -> bool) {
    // Where the thread is ending, its credit goes back by itself.
    _ = FRONT.try_with(|front| {
        let Ok(front) = front.try_borrow() else { return };
        if let Some(entry) = front.find(hash, is) {
            entry.cell.purse.put_back(entry.cell.moves(), &entry.slot);
        }
    });
}

/// Takes more credit of a cell that the thread knows; else denies by the last denial; else is cold.
pub(super) fn dry(ask: &Ask<'_>, hash: u64, is: impl Fn(&Arc<Cell>) -> bool) -> Dry {
    let answer = FRONT.try_with(|front| {
        let Ok(front) = front.try_borrow() else { return Dry::Miss };
        front.find(hash, is).map_or(Dry::Miss, |entry| entry.without_credit(ask))
    });
    answer.unwrap_or(Dry::Miss)
}

impl Entry {
    fn without_credit(&self, ask: &Ask<'_>) -> Dry {
        let (cell, slot) = (&self.cell, &self.slot);
        if cell.is_closed() {
            return Dry::Miss;
        }
        if !cell.is_hot() {
            // It has cooled: what the thread has goes back, and the pool answers.
            cell.purse.put_back(cell.moves(), slot);
            return Dry::Miss;
        }
        let lease = cell.purse.lease();
        let generation = lease.generation();
        let credit = slot.tokens(generation);
        if cell.is_live(lease, ask.now, ask.clock) && cell.purse.pool(generation).saturating_add(credit) >= ask.cost {
            // The one precise look; then the lease again, since it may have been renewed or be over.
            let now = ask.clock.now();
            let lease = cell.purse.lease();
            let live = cell.is_live(lease, now, ask.clock);
            // Of a lease that ends sharply, and soon, the thread's own credit is looked at here first.
            if live && let Some(left) = slot.spend(lease.generation(), ask.cost) {
                let pool = cell.purse.pool(lease.generation());
                let remaining = left.saturating_add(pool).saturating_add(cell.free());
                return Dry::Answer(Local::Allowed { remaining });
            }
            if live && let Ok(taken) = cell.purse.take(cell.moves(), slot, lease.generation(), ask.cost) {
                let remaining = taken.credit.saturating_add(taken.pool).saturating_add(cell.free());
                let answer = Local::Allowed { remaining };
                let call = cell.is_low(taken.pool) && !cell.is_called();
                return if call { Dry::Call(answer, cell.clone()) } else { Dry::Answer(answer) };
            }
        }
        match cell.denied(ask.cost, ask.now) {
            Some(wait) => {
                slot.refuse(ask.cost);
                Dry::Answer(Local::Denied { wait, remaining: cell.remaining(ask.now).saturating_add(credit) })
            }
            None => Dry::Call(Local::Cold(cell.clone()), cell.clone()),
        }
    }
}

/// Gives a hot cell a place in the thread's table, unless another one defends it.
pub(super) fn admit(totals: &Arc<Totals>, cell: &Arc<Cell>, now: Micros) {
    if !cell.is_hot() || cell.is_closed() {
        return;
    }
    let hash = of_gate(cell.gate(), cell.name().hash());
    // Dropped after the table is free again.
    let _old = FRONT.try_with(|front| {
        let mut front = front.try_borrow_mut().ok()?;
        let tally = front.tally(totals);
        if front.places.is_empty() {
            front.places.resize_with(PLACES, Place::default);
        }
        let at = place_of(hash);
        let place = front.places.get_mut(at)?;
        if let Some(there) = &place.entry {
            if Arc::ptr_eq(&there.cell, cell) {
                return None;
            }
            let useless = there.cell.is_closed() || !there.cell.is_hot() || !there.cell.purse.lease().is_live(now);
            if !useless && place.conflicts < PATIENCE {
                place.conflicts += 1;
                return None;
            }
        }
        let slot = cell.add_slot();
        tally.slots().push(slot.clone());
        let entry = Entry { cell: cell.clone(), slot, tally };
        let old = place.entry.replace(entry);
        place.conflicts = 0;
        front.hashes[at] = hash;
        old
    });
}

/// Has the key's cell served, if the thread has it in its list.
#[inline]
pub(super) fn near<T>(
    gate: u32,
    probe: &Probe<'_>,
    serve: impl FnOnce(&Arc<Cell>) -> (Served, T),
) -> Option<(Served, T)> {
    let served = FRONT.try_with(|front| {
        let mut front = front.try_borrow_mut().ok()?;
        let spot = Spot::new(probe.hash, gate);
        let served = serve(front.near.find(spot, |cell| cell.is_of(gate, probe))?);
        if served.0 == Served::Closed {
            front.near.forget(spot, Cell::is_closed);
        }
        Some(served)
    });
    served.ok().flatten()
}

/// Whether a cell that the thread did not have in its list should come in.
pub(super) fn wants(gate: u32, probe: &Probe<'_>) -> bool {
    let spot = Spot::new(probe.hash, gate);
    FRONT.try_with(|front| front.try_borrow_mut().is_ok_and(|mut front| front.near.wants(spot))) == Ok(true)
}

/// Lets a cell into the thread's list.
pub(super) fn bring_near(gate: u32, cell: &Arc<Cell>) {
    let spot = Spot::new(cell.name().hash(), gate);
    // Dropped after the list is free again.
    let _old = FRONT.try_with(|front| front.try_borrow_mut().ok()?.near.put(spot, cell.clone()));
}

/// Counts one check.
#[inline]
pub(super) fn count(totals: &Arc<Totals>, count: Count) {
    let counted = FRONT.try_with(|front| {
        let found = front.try_borrow().is_ok_and(|front| {
            let mine = front.mine.iter().find(|mine| mine.is_of(totals));
            mine.inspect(|mine| mine.tally.add(count, 1)).is_some()
        });
        found
            || front.try_borrow_mut().is_ok_and(|mut front| {
                front.tally(totals).add(count, 1);
                true
            })
    });
    if counted != Ok(true) {
        // The thread is ending.
        totals.gone[count as usize].fetch_add(1, Relaxed);
    }
}

impl Front {
    /// The thread's counts for this gate.
    fn tally(&mut self, totals: &Arc<Totals>) -> Arc<Tally> {
        if let Some(mine) = self.mine.iter().find(|mine| mine.is_of(totals)) {
            return mine.tally.clone();
        }
        // Gates that are gone are forgotten here, so that the list stays as long as the gates are many.
        self.mine.retain(|mine| mine.totals.strong_count() > 0);
        let tally = Arc::<Tally>::default();
        totals.live().push(tally.clone());
        self.mine.push(Mine { totals: Arc::downgrade(totals), tally: tally.clone() });
        tally
    }
}
