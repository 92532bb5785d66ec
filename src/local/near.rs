//! The cells that a thread met lately, found by hash without a lock: what stands between a check and the
//! registry when keys are many.
//!
//! Bounded, and a mere shortcut: whatever is not here is found in the registry. It keeps no cell in
//! use; one that is closed is not handed out, and is let go soon. Knows no clock and holds no tokens.
//!
//! A set is one cache line: six cells, and 16 bits of each one's hash. A place is told by 23 bits of the
//! hash, of which a set's number is as many of the upper ones as the table's size has, and the lower 16 are
//! kept beside the cell. So the table grows without a look at any cell.

use super::cell::Cell;
use std::sync::Arc;

#[cfg(all(test, not(tollgate_loom)))]
mod tests;

/// Cells in a set: with 16 bits for each, and a count, they fill a cache line.
const WAYS: usize = 6;
/// Bits of the hash that tell a cell's place and what is kept beside it.
const BITS: u32 = 23;
/// Of those, the ones that are kept.
const KEPT: u32 = 16;
/// The first table: 128 sets, 8 KiB.
const FIRST: u32 = BITS - KEPT;
/// The largest table: 32,768 sets, 2 MiB.
const LAST: u32 = if cfg!(test) { FIRST + 4 } else { 15 };
/// A table grows to so many times its size, in bits.
const STEP: u32 = 2;
/// One in so many cells, as a shift, drives another one out of a full set. Cells that come by once in a
/// while then leave those alone that come often, and a thread with more keys than places spends little on
/// exchanging them.
const LOTTERY: u32 = 3;
/// A place is looked at, for a closed cell, each so many points; a hit is one point, a miss sixteen.
const SWEEP: u32 = 32;
const MISS: u32 = 16;

/// The most cells that one thread keeps.
#[cfg(test)]
pub(super) const CELLS_MAX: usize = WAYS << LAST;

const _: () = assert!(size_of::<Set>() == 64, "a set is a cache line");
const _: () = assert!((LAST - FIRST).is_multiple_of(STEP) && LAST <= BITS, "sizes lead up to the last one");

#[derive(Default)]
#[repr(align(64))]
struct Set {
    cells: [Option<Arc<Cell>>; WAYS],
    kept: [u16; WAYS],
    /// Whom the next one drives out.
    next: u16,
}

/// Where a cell is looked for. Gates with the same keys and rules do not meet in the same sets.
#[derive(Clone, Copy)]
pub(super) struct Spot(u32);

impl Spot {
    #[inline]
    pub(super) fn new(hash: u64, gate: u32) -> Spot {
        let mixed = hash ^ u64::from(gate).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        // Bits that the registry's maps do not use first.
        Spot((mixed >> 24) as u32 & ((1 << BITS) - 1))
    }

    #[inline]
    fn set(self, bits: u32) -> usize {
        (self.0 >> (BITS - bits)) as usize
    }

    #[inline]
    fn kept(self) -> u16 {
        self.0 as u16
    }
}

/// See the head of this file.
pub(super) struct Near {
    /// Empty until the first cell comes.
    sets: Vec<Set>,
    bits: u32,
    cells: usize,
    /// Cells that found their set full, since the table has this size.
    crowded: usize,
    dice: u32,
    points: u32,
    /// The place that is looked at next.
    broom: usize,
}

impl Near {
    pub(super) const fn new() -> Near {
        Near { sets: Vec::new(), bits: FIRST, cells: 0, crowded: 0, dice: 1, points: 0, broom: 0 }
    }

    /// The cell at this spot that `is` the one. No write but to the thread's own lines.
    #[inline]
    pub(super) fn find(&mut self, spot: Spot, is: impl Fn(&Cell) -> bool) -> Option<&Arc<Cell>> {
        self.sweep(1);
        let set = self.sets.get(spot.set(self.bits))?;
        // All ways at once, as a mask: which of them it is cannot be predicted, that it is one can.
        let kept = spot.kept();
        let mut ways = set.kept.iter().rev().fold(0_u32, |mask, there| mask << 1 | u32::from(*there == kept));
        while ways != 0 {
            let cell = set.cells.get(ways.trailing_zeros() as usize)?.as_ref();
            if let Some(cell) = cell.filter(|cell| is(cell)) {
                return Some(cell);
            }
            ways &= ways - 1;
        }
        None
    }

    /// Whether a cell that was not found here should come in now.
    pub(super) fn wants(&mut self, spot: Spot) -> bool {
        self.sweep(MISS);
        let Some(set) = self.sets.get(spot.set(self.bits)) else { return true };
        if set.cells.iter().any(Option::is_none) {
            return true;
        }
        self.crowded += 1;
        // A linear congruential generator: its upper bits are good enough to draw lots.
        self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.dice >> (32 - LOTTERY) == 0
    }

    /// Lets a cell in, and hands out the one that it drove out.
    pub(super) fn put(&mut self, spot: Spot, cell: Arc<Cell>) -> Option<Arc<Cell>> {
        if self.sets.is_empty() {
            self.sets.resize_with(1 << FIRST, Set::default);
        }
        if self.bits < LAST && self.crowded >= self.sets.len() && self.cells * 2 >= self.sets.len() * WAYS {
            self.grow();
        }
        let set = self.sets.get_mut(spot.set(self.bits))?;
        let at = set.cells.iter().position(Option::is_none).unwrap_or_else(|| {
            set.next = (set.next + 1) % WAYS as u16;
            usize::from(set.next)
        });
        set.kept[at] = spot.kept();
        let old = set.cells[at].replace(cell);
        self.cells += usize::from(old.is_none());
        old
    }

    /// Lets this very cell go.
    pub(super) fn forget(&mut self, spot: Spot, gone: impl Fn(&Cell) -> bool) {
        let Some(set) = self.sets.get_mut(spot.set(self.bits)) else { return };
        for place in &mut set.cells {
            if place.take_if(|cell| gone(cell)).is_some() {
                self.cells -= 1;
            }
        }
    }

    /// Looks at one place now and then, and lets its cell go if it is closed. A gate that goes closes all its cells.
    #[inline]
    fn sweep(&mut self, points: u32) {
        self.points += points;
        if self.points >= SWEEP {
            self.points = 0;
            self.sweep_one();
        }
    }

    fn sweep_one(&mut self) {
        let set = self.broom / WAYS;
        let Some(place) = self.sets.get_mut(set).and_then(|set| set.cells.get_mut(self.broom % WAYS)) else {
            self.broom = 0;
            return;
        };
        self.broom += 1;
        if place.take_if(|cell| cell.is_closed()).is_some() {
            self.cells -= 1;
        }
    }

    /// Four times the size. Moves pointers from one line to four neighbours; looks at no cell.
    #[cold]
    fn grow(&mut self) {
        let bits = (self.bits + STEP).min(LAST);
        let mut sets: Vec<Set> = Vec::new();
        sets.resize_with(1 << bits, Set::default);
        for (at, set) in std::mem::take(&mut self.sets).into_iter().enumerate() {
            let upper = (at as u32) >> (self.bits - FIRST) << KEPT;
            for (cell, kept) in set.cells.into_iter().zip(set.kept) {
                let to = sets.get_mut(Spot(upper | u32::from(kept)).set(bits));
                // A set's cells are at most as many as one set takes.
                if let (Some(cell), Some(to)) = (cell, to)
                    && let Some(free) = to.cells.iter().position(Option::is_none)
                {
                    to.kept[free] = kept;
                    to.cells[free] = Some(cell);
                }
            }
        }
        (self.sets, self.bits, self.crowded, self.broom) = (sets, bits, 0, 0);
    }

    /// How many cells there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.cells, self.sets.iter().flat_map(|set| &set.cells).flatten().count());
        self.cells
    }
}
