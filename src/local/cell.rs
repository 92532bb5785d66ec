//! What this process knows of one key of one rule. Two faces: checks spend, the engine fills.
//!
//! A cold cell is some 130 bytes with its key; what only hot or troubled keys need lies in a box that is made on first use.

use super::{
    first::First,
    front::Ask,
    keyed::{Keyed, Name, Probe},
    purse::{CreditSlot, HIGH_MAX, Lease, Moves, Purse, high, low, pack},
    tier::Local,
};
use crate::{
    atomic::{
        AtomicU32, AtomicU64, Mutex,
        Ordering::{AcqRel, Relaxed},
    },
    clock::Clock,
    error::ErrorKind,
    time::Micros,
};
use std::{
    fmt,
    sync::{Arc, OnceLock},
};

mod engine;

/// The engine has been told, and has not said that it is done.
const CALLED: u32 = 1 << 31;
/// Threads may hold credit of it.
const HOT: u32 = 1 << 30;
/// Out of use: the next look-up makes a new one.
const CLOSED: u32 = 1 << 29;
/// Its leases end at a time of their own, with no margin behind it.
const SHARP: u32 = 1 << 28;
/// The rest counts handles.
const PINS: u32 = SHARP - 1;

/// A lease that ends sharply is taken for over by the coarse hand so long before its end: it may be that far behind.
const SOFT: Micros = Micros::from_millis(250);

/// So often a check yields to the engine that takes over a first allowance.
const PATIENCE: u32 = 100;
/// And so often it sleeps for a moment after that, some milliseconds in all, before it takes no for an answer.
const NAPS: u32 = 50;
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

/// No engine has a number for it.
const NO_SLOT: u32 = u32::MAX;

/// One key of one rule. What a check of a cold key reads lies close together, at the front.
#[repr(C)]
pub(crate) struct Cell {
    name: Name,
    pub(super) purse: Purse,
    /// CALLED, HOT, CLOSED and the number of handles, in one word: no handle comes to a cell that
    /// is being closed for want of handles.
    state: AtomicU32,
    /// A pool below this calls the engine.
    low: AtomicU32,
    /// The number of the tier that it belongs to.
    gate: u32,
    /// The largest cost that was refused lately.
    costly: AtomicU32,
    /// What the authority last said it had left.
    free: AtomicU64,
    /// cost | until ms, rounded up: who asks for that cost or more before then is denied here.
    deny: AtomicU64,
    /// Tokens refused outside of slots, and in slots that are gone.
    refused: AtomicU64,
    engine_slot: AtomicU32,
    first: First,
    rare: OnceLock<Box<Rare>>,
}

/// What few cells need.
#[derive(Default)]
struct Rare {
    moves: Moves,
    debt: AtomicU64,
    outage: AtomicU64,
    /// tokens | start in ms: what was given on credit in this span
    cold: AtomicU64,
    trouble: Mutex<Option<ErrorKind>>,
    /// Open reservations.
    reserved: AtomicU32,
}

/// A cell as the engine sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Tokens of the present generation that are not spent; never too low.
    pub(crate) hold: u64,
    /// Those of them that lie in the pool.
    pub(crate) pool: u64,
    /// Tokens that were asked for and refused, in all.
    pub(crate) refused: u64,
}

/// What a cell answers without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    Allowed {
        remaining: u64,
        /// The pool is below `low`.
        low: bool,
    },
    Denied {
        wait: Micros,
        remaining: u64,
    },
    /// It has too little and does not know better.
    Cold,
    Closed,
}

impl Keyed for Cell {
    fn name(&self) -> &Name {
        &self.name
    }

    fn is_closed(&self) -> bool {
        Cell::is_closed(self)
    }
}

/// For checks.
impl Cell {
    pub(super) fn new(name: Name, gate: u32) -> Cell {
        Cell {
            name,
            gate,
            purse: Purse::default(),
            deny: AtomicU64::new(0),
            free: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            costly: AtomicU32::new(0),
            low: AtomicU32::new(0),
            state: AtomicU32::new(0),
            engine_slot: AtomicU32::new(NO_SLOT),
            first: First::default(),
            rare: OnceLock::new(),
        }
    }

    /// The number of its tier.
    pub(super) fn gate(&self) -> u32 {
        self.gate
    }

    /// Whether it is the cell of this key in the tier of this number.
    #[inline]
    pub(super) fn is_of(&self, gate: u32, probe: &Probe<'_>) -> bool {
        self.gate == gate && self.name.probe() == *probe
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    pub(super) fn moves(&self) -> &Moves {
        &self.rare().moves
    }

    /// Answers from the pool, or from the last denial.
    pub(super) fn serve(&self, cost: u64, ask: &Ask<'_>) -> Served {
        if self.is_closed() {
            return Served::Closed;
        }
        let (lease, now) = (self.purse.lease(), ask.now);
        if self.is_live(lease, now, ask.clock)
            && let Ok(left) = self.purse.spend(lease.generation(), cost)
        {
            return Served::Allowed { remaining: left.saturating_add(self.free()), low: self.is_low(left) };
        }
        match self.denied(cost, now) {
            Some(wait) => {
                self.refuse(cost);
                Served::Denied { wait, remaining: self.remaining(now) }
            }
            None => Served::Cold,
        }
    }

    /// Whether tokens of this lease may be spent at `now`, which is the coarse hand's. One that ends sharply is compared
    /// with the precise hand as soon as the coarse one may be too far behind.
    #[inline]
    pub(super) fn is_live(&self, lease: Lease, now: Micros, clock: &Clock) -> bool {
        lease.is_live(now) || self.is_just_live(lease, clock)
    }

    #[cold]
    fn is_just_live(&self, lease: Lease, clock: &Clock) -> bool {
        // ordering: Relaxed: set before the first grant of this lease, whose word is as relaxed.
        self.state.load(Relaxed) & SHARP != 0 && lease.is_live_with(SOFT, clock.now())
    }

    /// How long a request for `cost` must wait, by the last denial.
    #[inline]
    pub(super) fn denied(&self, cost: u64, now: Micros) -> Option<Micros> {
        // ordering: Relaxed. One word, that guards no other memory; a stale one is a late answer.
        let word = self.deny.load(Relaxed);
        let until = Micros::from_millis(low(word));
        (now < until && cost.min(HIGH_MAX) >= high(word)).then(|| until.minus(now))
    }

    /// Whether one token could be had as far as is known here; asks nobody and changes nothing.
    pub(super) fn known(&self, now: Micros) -> Local {
        let remaining = self.remaining(now);
        match self.denied(1, now) {
            Some(wait) if remaining == 0 => Local::Denied { wait, remaining },
            _ => Local::Allowed { remaining },
        }
    }

    /// Tokens that can probably be had: pool and what the authority last had free.
    pub(super) fn remaining(&self, now: Micros) -> u64 {
        let lease = self.purse.lease();
        let pool = if lease.is_live(now) { self.purse.pool(lease.generation()) } else { 0 };
        pool.saturating_add(self.free())
    }

    #[inline]
    pub(super) fn free(&self) -> u64 {
        // ordering: Relaxed: an estimate.
        self.free.load(Relaxed)
    }

    #[inline]
    pub(super) fn is_low(&self, pool: u64) -> bool {
        // ordering: Relaxed: a mark that only decides when the engine is told.
        pool < u64::from(self.low.load(Relaxed))
    }

    #[inline]
    pub(super) fn is_called(&self) -> bool {
        // ordering: Relaxed: a first glance; `mark_called` decides.
        self.state.load(Relaxed) & CALLED != 0
    }

    /// Whether this call is the first since [`uncall`](Cell::uncall).
    pub(crate) fn mark_called(&self) -> bool {
        // ordering: AcqRel: what this thread did before is seen by the engine that clears the mark,
        // or else the mark was clear.
        self.state.fetch_or(CALLED, AcqRel) & CALLED == 0
    }

    /// Has the next check that finds too little call again. The engine looks once more after this.
    pub(crate) fn uncall(&self) {
        // ordering: AcqRel: see `mark_called`.
        self.state.fetch_and(!CALLED, AcqRel);
    }

    #[inline]
    pub(super) fn is_hot(&self) -> bool {
        // ordering: Relaxed: a hint.
        self.state.load(Relaxed) & HOT != 0
    }

    /// A slot for this thread's credit.
    pub(super) fn add_slot(&self) -> Arc<CreditSlot> {
        self.moves().add_slot()
    }

    /// Puts a slot's credit back and forgets the slot. Only its own thread may.
    pub(super) fn drop_slot(&self, slot: &Arc<CreditSlot>) {
        let moves = self.moves();
        self.purse.put_back(moves, slot);
        // A sum of many refusals: it counts as demand, and is nobody's cost.
        // ordering: Relaxed, as in `refuse`.
        moves.drop_slot(slot, |refused| _ = self.refused.fetch_add(refused, Relaxed));
    }

    /// Counts tokens that were refused, as demand.
    pub(crate) fn refuse(&self, cost: u64) {
        // ordering: Relaxed, both: a count, and a hint to the engine of how much to lend at least.
        self.refused.fetch_add(cost, Relaxed);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if cost > self.costly.load(Relaxed) {
            self.costly.fetch_max(cost, Relaxed);
        }
    }

    /// Spends from the first allowance of a `Buffered` key: up to so many tokens while no engine has taken charge of the
    /// cell. The engine is to be called.
    pub(crate) fn take_first(&self, cost: u64, allowance: u64) -> bool {
        // An engine that takes over needs some microseconds for it. One that was interrupted needs a processor first: a
        // short sleep makes room for it, where yielding does not.
        for round in 0..PATIENCE + NAPS {
            match self.first.take(cost, allowance) {
                Some(spent) => return spent,
                None if round < PATIENCE => std::thread::yield_now(),
                None => std::thread::sleep(NAP),
            }
        }
        false
    }

    /// What was left of the first allowance lies in the pool by now.
    pub(crate) fn first_moved(&self) {
        self.first.moved();
    }

    /// Gives `cost` tokens on credit, at most `credit` in any span `ttl` that begins with one, and books
    /// them as debt.
    pub(crate) fn cold_credit(&self, cost: u64, credit: u64, ttl: Micros, now: Micros) -> bool {
        let (now, ttl, credit) = (now.as_millis(), ttl.0.div_ceil(1_000), credit.min(HIGH_MAX));
        let next = |word| {
            // A span that has not begun is over as well: its start is 0, long ago.
            let (given, start) = if now.saturating_sub(low(word)) >= ttl { (0, now) } else { (high(word), low(word)) };
            let given = given.saturating_add(cost);
            (given <= credit).then(|| pack(given, start))
        };
        // ordering: Relaxed. The word is the whole state.
        let given = self.rare().cold.fetch_update(Relaxed, Relaxed, next).is_ok();
        if given {
            self.add_debt(cost);
        }
        given
    }

    /// Books tokens that were spent without a grant and may push the bucket below empty.
    pub(crate) fn add_debt(&self, tokens: u64) {
        // ordering: Relaxed: a rising total.
        self.rare().debt.fetch_add(tokens, Relaxed);
    }

    /// Books tokens that were let through while the authority was away.
    pub(crate) fn add_outage(&self, tokens: u64) {
        // ordering: Relaxed: a rising total.
        self.rare().outage.fetch_add(tokens, Relaxed);
    }

    /// Keeps the cell while a handle to it lives; `false` when it is closed already.
    pub(crate) fn pin(&self) -> bool {
        let next = |state| (state & CLOSED == 0 && state & PINS != PINS).then_some(state + 1);
        // ordering: AcqRel, as all changes of the state that somebody waits for.
        self.state.fetch_update(AcqRel, Relaxed, next).is_ok()
    }

    /// Has the engine remember what was taken here until [`unreserve`](Cell::unreserve): some of it may come back.
    pub(crate) fn reserve(&self) {
        // ordering: Relaxed: a count that only keeps the engine from forgetting.
        self.rare().reserved.fetch_add(1, Relaxed);
    }

    /// Undoes one [`reserve`](Cell::reserve).
    pub(crate) fn unreserve(&self) {
        self.rare().reserved.fetch_sub(1, Relaxed);
    }

    /// Whether tokens of it are reserved.
    pub(crate) fn is_reserved(&self) -> bool {
        self.rare.get().is_some_and(|rare| rare.reserved.load(Relaxed) > 0)
    }

    /// Undoes one successful [`pin`](Cell::pin).
    pub(crate) fn unpin(&self) {
        let next = |state| (state & PINS != 0).then(|| state - 1);
        // ordering: AcqRel, as in `pin`. Declines only where there is no pin, which is no harm.
        let _ = self.state.fetch_update(AcqRel, Relaxed, next);
    }
}

impl fmt::Debug for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key: what users are called is not for logs.
        f.debug_struct("Cell").field("rule", &self.rule()).field("look", &self.look()).finish_non_exhaustive()
    }
}
