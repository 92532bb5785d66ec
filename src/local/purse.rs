//! Where the tokens of one lease lie, and the rules by which they move. Proved by the loom models
//! in `purse/models.rs`.
//!
//! Three parties: threads that check, each the only writer of its own [`CreditSlot`]; and one engine,
//! the only one that grants, empties, begins a new generation and looks. A token is in the pool,
//! in one slot, in flight between the two, or spent. Nothing here reads a clock or knows a key.
//!
//! # What a look promises
//!
//! The hold it returns is never below what was really unspent when it ended. Whatever moves tokens adds
//! to `started` before and to `finished` after. The look reads finished, pool, the list of slots, the
//! credits, started, in this order. A token that it finds neither in the pool nor in a slot was on its
//! way in between: it left the one before it was looked at and came to the other after that. So
//! its move had not finished when `finished` was read, and had started when `started` was: the
//! difference counts it. Tokens counted twice only make the hold too high, which is safe.
//!
//! # What a generation promises
//!
//! A slot's tokens count only while their generation is that of the lease; pool and lease words
//! carry it too. A thread that slept over the end of a lease finds its tokens worthless and cannot put
//! them back, even though the lease's new end lies ahead. The number has 24 bits: it would take 16 million
//! lives of one cell, years at the shortest ttl, for an old credit to look fresh.

use crate::{
    atomic::{
        AtomicU32, AtomicU64, Mutex, MutexGuard,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Micros,
};
use crossbeam::utils::CachePadded;
use std::sync::{Arc, PoisonError};

mod flight;
#[cfg(all(test, tollgate_loom))]
mod models;

/// The most tokens that a thread takes ahead from a small pool, and from one that is so large that a thousandth of it is more.
const CREDIT_SMALL: u64 = 64;
const CREDIT_LARGE: u64 = 1_024;

/// How many tokens a thread takes ahead from this pool, when so many threads do: what leaves as much to each
/// other thread, at most 64 or, where that is more, a thousandth of the pool up to 1,024. Taking is the
/// only thing by which threads with credit disturb each other.
#[inline]
fn credit(pool: u64, threads: u64) -> u64 {
    (pool / (2 * threads)).min((pool / 1_024).clamp(CREDIT_SMALL, CREDIT_LARGE))
}

const LOW_BITS: u32 = 40;
/// The most that the low part of a word can say: tokens, or milliseconds (34 years).
pub(super) const LOW_MAX: u64 = (1 << LOW_BITS) - 1;
/// The most that the high part can say.
pub(super) const HIGH_MAX: u64 = (1 << (64 - LOW_BITS)) - 1;

/// Both parts saturate, so that neither runs into the other.
#[inline]
pub(super) fn pack(high: u64, low: u64) -> u64 {
    high.min(HIGH_MAX) << LOW_BITS | low.min(LOW_MAX)
}

#[inline]
pub(super) fn high(word: u64) -> u64 {
    word >> LOW_BITS
}

#[inline]
pub(super) fn low(word: u64) -> u64 {
    word & LOW_MAX
}

/// Which lease it is, and until when its tokens may be spent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lease(u64);

impl Lease {
    #[inline]
    pub(super) fn generation(self) -> u64 {
        high(self.0)
    }

    #[inline]
    pub(super) fn is_live(self, now: Micros) -> bool {
        // 2^40 ms are 2^50 µs: no overflow.
        now.0 < low(self.0) * 1_000
    }

    /// Whether it is live at `now`, where its end lies so much later than it says. One that never began is not.
    pub(super) fn is_live_with(self, margin: Micros, now: Micros) -> bool {
        low(self.0) > 0 && now.0 < low(self.0) * 1_000 + margin.0
    }
}

/// One thread's tokens of one cell, ready to be spent with a plain store. Its counts are the thread's alone.
#[derive(Default)]
pub(super) struct CreditSlot(CachePadded<Credit>);

#[derive(Default)]
struct Credit {
    /// generation | tokens
    word: AtomicU64,
    /// Checks that were admitted from this slot.
    admitted: AtomicU64,
    /// Checks that were denied beside it.
    denied: AtomicU64,
    /// Tokens that those had asked for.
    refused: AtomicU64,
}

impl CreditSlot {
    /// Tokens of this generation that it holds.
    #[inline]
    pub(super) fn tokens(&self, generation: u64) -> u64 {
        // ordering: Acquire, so that an engine that sees a put-back's zero sees its `started` too.
        let word = self.0.word.load(Acquire);
        if high(word) == generation { low(word) } else { 0 }
    }

    /// Spends `cost` tokens of this generation, and says how many are left. Only its own thread may.
    #[inline]
    pub(super) fn spend(&self, generation: u64, cost: u64) -> Option<u64> {
        // ordering: Relaxed. No other thread writes this word.
        let word = self.0.word.load(Relaxed);
        let have = low(word);
        if high(word) != generation || have < cost {
            return None;
        }
        // `cost <= have`: no borrow into the generation.
        // ordering: Release keeps the promise of `look`: an engine that sees this value sees all
        // moves before it. On x86 it is a plain store.
        self.0.word.store(word - cost, Release);
        self.admit();
        Some(have - cost)
    }

    /// Counts an admitted check. Only its own thread may.
    #[inline]
    fn admit(&self) {
        // ordering: Relaxed, both: a count with one writer, that guards nothing.
        self.0.admitted.store(self.0.admitted.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Counts a denied check. Only its own thread may.
    #[inline]
    pub(super) fn refuse(&self, cost: u64) {
        // ordering: as in `admit`.
        self.0.denied.store(self.0.denied.load(Relaxed).wrapping_add(1), Relaxed);
        self.0.refused.store(self.0.refused.load(Relaxed).saturating_add(cost), Relaxed);
    }

    /// Checks admitted and denied so far.
    pub(super) fn checks(&self) -> [u64; 2] {
        [self.0.admitted.load(Relaxed), self.0.denied.load(Relaxed)]
    }
}

/// What moves between pool and slots, and which slots there are.
#[derive(Default)]
pub(super) struct Moves {
    started: AtomicU64,
    finished: AtomicU64,
    /// As many as `slots` has, for those who do not lock.
    threads: AtomicU32,
    slots: Mutex<Vec<Arc<CreditSlot>>>,
}

impl Moves {
    fn slots(&self) -> MutexGuard<'_, Vec<Arc<CreditSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new slot, in the list before it can hold anything.
    pub(super) fn add_slot(&self) -> Arc<CreditSlot> {
        let slot = Arc::new(CreditSlot::default());
        let mut slots = self.slots();
        slots.push(slot.clone());
        // ordering: Relaxed, here and where it is read: it only sizes credits.
        self.threads.store(u32::try_from(slots.len()).unwrap_or(u32::MAX), Relaxed);
        slot
    }

    /// Takes an emptied slot from the list; `fold` gets its refused tokens before any look can miss them.
    pub(super) fn drop_slot(&self, slot: &Arc<CreditSlot>, fold: impl FnOnce(u64)) {
        let mut slots = self.slots();
        if let Some(at) = slots.iter().position(|s| Arc::ptr_eq(s, slot)) {
            slots.swap_remove(at);
            fold(slot.0.refused.load(Relaxed));
        }
        self.threads.store(u32::try_from(slots.len()).unwrap_or(u32::MAX), Relaxed);
    }

    /// Runs `with` on the sum of the slots' refused tokens, while no slot can come or go.
    pub(super) fn refused<T>(&self, with: impl FnOnce(u64) -> T) -> T {
        let slots = self.slots();
        with(slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.0.refused.load(Relaxed))))
    }
}

/// The lease and the pool of one cell.
#[derive(Default)]
pub(super) struct Purse {
    /// generation | end in ms, rounded down
    lease: AtomicU64,
    /// generation | tokens
    pool: AtomicU64,
}

/// Not enough tokens of this generation here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short;

/// What a move of tokens into a slot left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) pool: u64,
    pub(super) credit: u64,
}

/// For threads that check.
impl Purse {
    #[inline]
    pub(super) fn lease(&self) -> Lease {
        // ordering: Relaxed. The word guards no other memory. A stale one is an older generation or an
        // earlier end: its tokens are refused by the generation in their own word, or spent as
        // late as if the thread had been slow.
        Lease(self.lease.load(Relaxed))
    }

    /// Tokens of this generation in the pool.
    #[inline]
    pub(super) fn pool(&self, generation: u64) -> u64 {
        // ordering: Relaxed. A guess; what counts is decided by CAS.
        let word = self.pool.load(Relaxed);
        if high(word) == generation { low(word) } else { 0 }
    }

    /// Spends straight from the pool, and says what is left there.
    #[inline]
    pub(super) fn spend(&self, generation: u64, cost: u64) -> Result<u64, Short> {
        let mut seen = self.pool.load(Relaxed);
        loop {
            if high(seen) != generation || low(seen) < cost {
                return Err(Short);
            }
            // ordering: AcqRel as for every change of the pool: one chain of read-modify-writes, so that
            // who sees a change of it sees whatever came before any earlier change.
            match self.pool.compare_exchange_weak(seen, seen - cost, AcqRel, Relaxed) {
                Ok(_) => return Ok(low(seen) - cost),
                Err(now) => seen = now,
            }
        }
    }

    /// Moves tokens from the pool to the thread's own slot and spends `cost` of what is there then.
    ///
    /// Takes [`credit`], but always what the cost needs. The caller has just read the precise clock.
    pub(super) fn take(&self, moves: &Moves, slot: &CreditSlot, generation: u64, cost: u64) -> Result<Taken, Short> {
        let own = slot.tokens(generation);
        let threads = u64::from(moves.threads.load(Relaxed)).max(1);
        let mut seen = self.pool.load(Relaxed);
        loop {
            let have = low(seen);
            if high(seen) != generation || own.saturating_add(have) < cost {
                return Err(Short);
            }
            let move_of = credit(have, threads).max(cost.saturating_sub(own));
            // ordering: Relaxed: the CAS below releases it, and who does not see the CAS's effect
            // finds the tokens still in the pool.
            moves.started.fetch_add(move_of, Relaxed);
            let taken = self.take_exactly(&mut seen, generation, move_of);
            if let Some(pool) = taken {
                let credit = own + move_of - cost;
                // ordering: Release, both: who sees the end of the move sees the move.
                slot.0.word.store(pack(generation, credit), Release);
                moves.finished.fetch_add(move_of, Release);
                slot.admit();
                return Ok(Taken { pool, credit });
            }
            moves.finished.fetch_add(move_of, Release);
        }
    }

    /// The pool less `tokens`, as long as it has them; else what it was seen to be.
    fn take_exactly(&self, seen: &mut u64, generation: u64, tokens: u64) -> Option<u64> {
        while high(*seen) == generation && low(*seen) >= tokens {
            // ordering: AcqRel, as in `spend`.
            match self.pool.compare_exchange_weak(*seen, *seen - tokens, AcqRel, Relaxed) {
                Ok(_) => return Some(low(*seen) - tokens),
                Err(now) => *seen = now,
            }
        }
        None
    }

    /// Moves what the thread's own slot holds back to the pool, or nowhere when its generation is over.
    pub(super) fn put_back(&self, moves: &Moves, slot: &CreditSlot) {
        // ordering: Relaxed. No other thread writes this word.
        let word = slot.0.word.load(Relaxed);
        let (generation, tokens) = (high(word), low(word));
        if tokens == 0 {
            return;
        }
        // ordering: Relaxed: the store below releases it, and who does not see that store finds the
        // tokens still in the slot.
        moves.started.fetch_add(tokens, Relaxed);
        slot.0.word.store(pack(generation, 0), Release);
        let mut seen = self.pool.load(Relaxed);
        while high(seen) == generation {
            let next = pack(generation, low(seen) + tokens);
            // ordering: AcqRel, as in `spend`.
            match self.pool.compare_exchange_weak(seen, next, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // ordering: Release: who sees the end of the move sees the move.
        moves.finished.fetch_add(tokens, Release);
    }
}

/// For the engine, which is one at a time.
impl Purse {
    /// Adds granted tokens to the pool of the present generation.
    pub(super) fn grant(&self, tokens: u64) {
        let add = |word| Some(pack(high(word), low(word).saturating_add(tokens)));
        // ordering: AcqRel, as in `spend`. The closure never declines.
        let _ = self.pool.fetch_update(AcqRel, Relaxed, add);
    }

    /// Until when the present generation's tokens may be spent; rounded down to milliseconds.
    pub(super) fn set_end(&self, end: Micros) {
        // ordering: Relaxed, both: the engine is the word's only writer, and see `lease`.
        let generation = high(self.lease.load(Relaxed));
        self.lease.store(pack(generation, end.as_millis()), Relaxed);
    }

    /// Takes all that is in the pool.
    pub(super) fn empty(&self) -> u64 {
        // ordering: AcqRel, as in `spend`.
        low(self.pool.fetch_and(!LOW_MAX, AcqRel))
    }

    /// Begins the next generation, with empty hands: every token of the old one is worthless from here on.
    pub(super) fn reborn(&self) {
        // ordering: the engine is the lease word's only writer.
        let next = (high(self.lease.load(Relaxed)) + 1) & HIGH_MAX;
        // The pool first: in between nobody can take, since pool and lease differ.
        // ordering: AcqRel, as in `spend`.
        self.pool.swap(pack(next, 0), AcqRel);
        // ordering: Release, so that who sees the new lease finds the new pool.
        self.lease.store(pack(next, 0), Release);
    }

    /// (hold, pool) of the present generation. `moves` finds the moves, if this cell has had any yet.
    ///
    /// The hold is never below what is really unspent at the end of the call.
    pub(super) fn look<'a>(&self, moves: impl Fn() -> Option<&'a Moves>) -> (u64, u64) {
        // ordering: Acquire, everywhere: it keeps the reads in this order, and pairs with the Release of
        // every change, so that a change seen here brings along the `started` before it.
        // Where there are no moves yet, none has finished.
        let finished = moves().map_or(0, |m| m.finished.load(Acquire));
        let pool = self.pool.load(Acquire);
        let (generation, pool) = (high(pool), low(pool));
        // Asked again: whoever took credit from the pool as seen above had made the moves before.
        let Some(moves) = moves() else { return (pool, pool) };
        let credits = moves.slots().iter().fold(0_u64, |sum, slot| sum.saturating_add(slot.tokens(generation)));
        let started = moves.started.load(Acquire);
        let in_flight = started.wrapping_sub(finished);
        (pool.saturating_add(credits).saturating_add(in_flight), pool)
    }
}
