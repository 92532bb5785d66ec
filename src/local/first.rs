//! The first allowance of a `Buffered` key: what may be spent before an engine has taken charge of its cell.
//!
//! One word, and so one hand-over: what the engine's swap returns was spent, and after it nothing is. Nothing is granted
//! twice, since the engine counts what it is told as granted before it grants the rest.

use crate::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// There is none any more.
const TAKEN_OVER: u32 = 1 << 31;
/// Nor is there, but what was left of it is about to lie in the pool.
const MOVING: u32 = TAKEN_OVER | 1;

/// Spent from the allowance, or that it is over.
#[derive(Default)]
pub(super) struct First(AtomicU32);

impl First {
    /// Spends `cost`, if no more than the allowance is spent then and nobody has taken over; whether it did. `None`: an
    /// engine is taking over at this moment.
    pub(super) fn take(&self, cost: u64, allowance: u64) -> Option<bool> {
        let next = |spent: u32| {
            let sum = u64::from(spent).saturating_add(cost);
            let fits = spent & TAKEN_OVER == 0 && sum <= allowance;
            u32::try_from(sum).ok().filter(|sum| fits && sum & TAKEN_OVER == 0)
        };
        // ordering: Relaxed, here and below: the word is the whole state and guards no other memory, and each change is
        // a read-modify-write, so that all of them lie in one order.
        // Acquire on failure: see `moved`.
        match self.0.fetch_update(Relaxed, Acquire, next) {
            Ok(_) => Some(true),
            Err(MOVING) => None,
            Err(_) => Some(false),
        }
    }

    /// Ends it, and tells what was spent; 0 where that was told before.
    pub(super) fn close(&self) -> u64 {
        match self.0.swap(MOVING, Relaxed) {
            TAKEN_OVER | MOVING => 0,
            spent => u64::from(spent),
        }
    }

    /// What was left of it lies in the pool by now.
    pub(super) fn moved(&self) {
        // ordering: Release: who finds it moved finds the pool filled.
        self.0.store(TAKEN_OVER, Release);
    }

    /// Begins it anew: nothing of the last one is owed any more.
    pub(super) fn open(&self) {
        self.0.store(0, Relaxed);
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_spent_than_allowed_and_nothing_after_the_end() {
        let first = First::default();
        assert_eq!([3, 3, 2, 1].map(|cost| first.take(cost, 5)), [Some(true), Some(false), Some(true), Some(false)]);
        assert_eq!(first.take(u64::MAX, u64::MAX), Some(false));
        assert_eq!((first.close(), first.close()), (5, 0));
        assert_eq!(first.take(1, 5), None, "the engine is at it");
        first.moved();
        assert_eq!(first.take(1, 5), Some(false));
        first.open();
        assert_eq!(first.take(5, 5), Some(true));
    }
}

#[cfg(all(test, tollgate_loom))]
mod models {
    use super::*;
    use crate::atomic::{Arc, model, thread};

    #[test]
    fn loom_what_is_spent_of_a_first_allowance_is_what_the_engine_is_told() {
        model::Builder::new().check(|| {
            let first = Arc::new(First::default());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let first = first.clone();
                    thread::spawn(move || (0..2).filter(|_| first.take(1, 3) == Some(true)).count() as u64)
                })
                .collect();
            let told = first.close();
            let spent: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!((told, first.close()), (spent, 0));
            assert!(spent <= 3);
        });
    }

    // Whoever reads and writes in two steps spends what the engine is not told of.
    #[test]
    #[should_panic(expected = "untold")]
    fn loom_an_allowance_spent_in_two_steps_is_lost_sight_of() {
        model::Builder::new().check(|| {
            let first = Arc::new(First::default());
            let thread = {
                let first = first.clone();
                thread::spawn(move || {
                    let seen = first.0.load(Relaxed);
                    let fits = seen & TAKEN_OVER == 0;
                    if fits {
                        first.0.store(seen + 1, Relaxed);
                    }
                    u64::from(fits)
                })
            };
            let told = first.close();
            assert_eq!(told, thread.join().unwrap(), "untold");
        });
    }
}
