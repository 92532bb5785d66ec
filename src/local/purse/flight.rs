//! Tokens in flight: taken out of the pool, and not yet known to be spent. For whoever needs several limits at once.
//!
//! A flight is one move like any other: announced on `started` before the pool is touched, and on `finished` once its
//! tokens have landed (spent) or are back. In between the look counts them as held, which they are.

use super::{Moves, Purse, Short, high, low, pack};
use crate::atomic::Ordering::{AcqRel, Relaxed, Release};

impl Purse {
    /// Takes `cost` tokens of this generation out of the pool and into the air; what is left there.
    ///
    /// Whoever has drawn must [`land`](Purse::land) or [`restore`](Purse::restore) them once.
    pub(in crate::local) fn draw(&self, moves: &Moves, generation: u64, cost: u64) -> Result<u64, Short> {
        let mut seen = self.pool.load(Relaxed);
        if high(seen) != generation || low(seen) < cost {
            return Err(Short); // not worth an announcement
        }
        // ordering: as in `take`: the CAS releases the announcement, and who does not see the CAS's effect finds
        // the tokens still in the pool.
        moves.started.fetch_add(cost, Relaxed);
        let left = self.take_exactly(&mut seen, generation, cost);
        if left.is_none() {
            moves.finished.fetch_add(cost, Release);
        }
        left.ok_or(Short)
    }

    /// The drawn tokens are spent. The caller has seen that their lease lives.
    pub(in crate::local) fn land(&self, moves: &Moves, cost: u64) {
        // ordering: Release: an engine that counts them as spent sees the draw.
        moves.finished.fetch_add(cost, Release);
    }

    /// The drawn tokens go back to the pool, or nowhere when their generation is over.
    pub(in crate::local) fn restore(&self, moves: &Moves, generation: u64, cost: u64) {
        let mut seen = self.pool.load(Relaxed);
        while high(seen) == generation {
            let next = pack(generation, low(seen).saturating_add(cost));
            // ordering: AcqRel, as in `spend`.
            match self.pool.compare_exchange_weak(seen, next, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // ordering: Release: who sees the end of the move sees the move.
        moves.finished.fetch_add(cost, Release);
    }
}
