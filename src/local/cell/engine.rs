//! The cell's second face: the engine fills, looks, denies and closes.

use super::{CALLED, CLOSED, Cell, HOT, Look, NO_SLOT, PINS, SHARP, SOFT};
use crate::{
    atomic::Ordering::{AcqRel, Acquire, Relaxed},
    clock::Clock,
    error::ErrorKind,
    local::purse::pack,
    time::Micros,
};
use std::sync::PoisonError;

/// For the engine, which is one at a time for each cell.
impl Cell {
    /// What the cell holds and what was asked of it. Never too low a hold.
    pub(crate) fn look(&self) -> Look {
        let (hold, pool) = self.purse.look(|| self.rare.get().map(|rare| &rare.moves));
        // ordering: Relaxed: counts; a slot that goes folds its own in under the lock.
        let sum = |slots: u64| self.refused.load(Relaxed).saturating_add(slots);
        let refused = self.rare.get().map_or_else(|| sum(0), |rare| rare.moves.refused(sum));
        Look { hold, pool, refused }
    }

    /// Takes tokens from the pool for somebody who waits.
    pub(in crate::local) fn take(&self, cost: u64, clock: &Clock) -> bool {
        let lease = self.purse.lease();
        self.is_live(lease, clock.coarse(), clock) && self.purse.spend(lease.generation(), cost).is_ok()
    }

    /// Has its leases end sharply, or with a margin behind their end.
    pub(crate) fn set_sharp(&self, sharp: bool) {
        // ordering: Relaxed: see `is_just_live`.
        if sharp {
            self.state.fetch_or(SHARP, Relaxed);
        } else {
            self.state.fetch_and(!SHARP, Relaxed);
        }
    }

    /// Ends the first allowance, and tells what was spent of it; 0 where that was told before.
    pub(crate) fn close_first(&self) -> u64 {
        self.first.close()
    }

    /// Begins a first allowance anew: nothing of the last one is owed any more.
    pub(crate) fn open_first(&self) {
        self.first.open();
    }

    /// Takes what is booked out of the totals: the next engine's series tells only what is not.
    pub(crate) fn forget_totals(&self, debt: u64, outage: u64) {
        if let Some(rare) = self.rare.get() {
            // ordering: Relaxed, both: counts. No more is taken out than the engine has read before.
            rare.debt.fetch_sub(debt, Relaxed);
            rare.outage.fetch_sub(outage, Relaxed);
        }
    }

    /// Adds granted tokens, and moves the end of the lease.
    pub(crate) fn grant(&self, tokens: u64, end: Micros) {
        // The end first, so that nobody finds the tokens dead.
        // ordering: Relaxed: only the engine, which calls this, changes the bit.
        let sharp = self.state.load(Relaxed) & SHARP != 0;
        self.purse.set_end(if sharp { end.minus(SOFT) } else { end });
        self.purse.grant(tokens);
    }

    /// The largest cost that was refused since the last call of this; 0 where none was.
    pub(crate) fn take_costly(&self) -> u64 {
        // ordering: Relaxed: a hint.
        u64::from(self.costly.swap(0, Relaxed))
    }

    /// Takes what is in the pool; credits and moves in flight stay.
    pub(crate) fn empty_pool(&self) -> u64 {
        self.purse.empty()
    }

    /// Begins a new life: the old lease's tokens, wherever they lie, are worthless.
    pub(crate) fn reborn(&self) {
        self.purse.reborn();
    }

    /// Denies requests for `cost` or more until then; tokens that are here are spent all the same.
    pub(crate) fn deny_until(&self, cost: u64, until: Micros) {
        // ordering: Relaxed: see `denied`.
        self.deny.store(pack(cost, until.0.div_ceil(1_000)), Relaxed);
    }

    /// Forgets the last denial.
    pub(crate) fn clear_denial(&self) {
        self.deny.store(0, Relaxed);
    }

    /// Has the engine called when a take leaves less than this in the pool.
    pub(crate) fn set_low(&self, tokens: u64) {
        self.low.store(u32::try_from(tokens).unwrap_or(u32::MAX), Relaxed);
    }

    /// What the authority has left, as it last said; for `remaining`.
    pub(crate) fn set_free(&self, tokens: u64) {
        self.free.store(tokens, Relaxed);
    }

    /// Whether threads may hold credit of it.
    pub(crate) fn set_hot(&self, hot: bool) {
        // ordering: Relaxed: a hint.
        if hot {
            self.state.fetch_or(HOT, Relaxed);
        } else {
            self.state.fetch_and(!HOT, Relaxed);
        }
    }

    /// Puts it out of use, for good; its tokens are worthless from here on.
    pub(crate) fn close(&self) {
        // ordering: AcqRel, as in `pin`.
        self.state.fetch_or(CLOSED, AcqRel);
        self.purse.reborn();
    }

    /// [`close`](Cell::close), unless a handle holds it or somebody has called.
    pub(crate) fn close_idle(&self) -> bool {
        let next = |state| (state & (PINS | CALLED | CLOSED) == 0).then_some(state | CLOSED);
        // ordering: AcqRel, as in `pin`.
        let closed = self.state.fetch_update(AcqRel, Relaxed, next).is_ok();
        if closed {
            self.purse.reborn();
        }
        closed
    }

    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        // ordering: Acquire, as in `pin`.
        self.state.load(Acquire) & CLOSED != 0
    }

    /// Live handles.
    #[cfg(test)]
    pub(crate) fn pins(&self) -> u32 {
        self.state.load(Acquire) & PINS
    }

    pub(crate) fn rule(&self) -> u32 {
        self.name.probe().rule
    }

    pub(crate) fn key_bytes(&self) -> &[u8] {
        self.name.bytes()
    }

    pub(crate) fn is_digest(&self) -> bool {
        self.name.probe().digest
    }

    /// The engine's own number for it.
    pub(crate) fn engine_slot(&self) -> Option<u32> {
        // ordering: Relaxed, both: only the engine reads and writes it.
        Some(self.engine_slot.load(Relaxed)).filter(|slot| *slot != NO_SLOT)
    }

    pub(crate) fn set_engine_slot(&self, slot: Option<u32>) {
        self.engine_slot.store(slot.unwrap_or(NO_SLOT), Relaxed);
    }

    /// What is wrong with this bucket alone.
    pub(crate) fn set_trouble(&self, trouble: Option<ErrorKind>) {
        if trouble.is_some() || self.rare.get().is_some() {
            *self.rare().trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        }
    }

    /// What is wrong with this bucket alone, as the engine last said.
    pub(crate) fn trouble(&self) -> Option<ErrorKind> {
        *self.rare.get()?.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that was spent without a grant, less what was [forgotten](Cell::forget_totals).
    pub(crate) fn debt(&self) -> u64 {
        self.rare.get().map_or(0, |rare| rare.debt.load(Relaxed))
    }

    /// All that was let through in outages, likewise.
    pub(crate) fn outage(&self) -> u64 {
        self.rare.get().map_or(0, |rare| rare.outage.load(Relaxed))
    }
}
