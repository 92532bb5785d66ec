//! What was taken here and may still be given back, and since when.
//!
//! A bucket's refund only fills it up again, whenever the tokens were taken. A window's undoes a count, and
//! must not undo one that has left the window already: so the counts lie in two spans, each half a window
//! at most, and a refund tells the start of the oldest span that it drew from.

use crate::time::Micros;

/// Tokens taken and not refunded, the most that may come back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    young: u64,
    /// All of `young` was taken at this time or later, on the gate's clock; of `old` likewise.
    young_from: Micros,
    old: u64,
    old_from: Micros,
}

impl Taken {
    pub(crate) fn new(now: Micros) -> Taken {
        Taken { young: 0, young_from: now, old: 0, old_from: now }
    }

    /// Counts tokens that were taken since the last call of [`turn`](Taken::turn) at the earliest.
    pub(crate) fn add(&mut self, tokens: u64) {
        self.young = self.young.saturating_add(tokens);
    }

    /// Begins a new span where it is time to. All that was taken before `now` has been added. A `window` of zero: there
    /// are no spans.
    pub(crate) fn turn(&mut self, window: Micros, now: Micros) {
        if window == Micros::ZERO {
            return;
        }
        if self.young == 0 {
            self.young_from = now;
        } else if now.minus(self.young_from) >= Micros(window.0 / 2) {
            (self.old, self.old_from) = (self.young, self.young_from);
            (self.young, self.young_from) = (0, now);
        }
        if now.minus(self.old_from) >= window {
            self.old = 0;
        }
    }

    /// Since when all that it knows was taken.
    pub(crate) fn since(&self) -> Micros {
        if self.old > 0 { self.old_from } else { self.young_from }
    }

    /// Takes out up to so many tokens, the youngest first: how many, and since when they were taken.
    pub(crate) fn refund(&mut self, tokens: u64) -> (u64, Micros) {
        let young = tokens.min(self.young);
        let old = (tokens - young).min(self.old);
        self.young -= young;
        self.old -= old;
        (young.saturating_add(old), if old > 0 { self.old_from } else { self.young_from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Micros {
        Micros::from_millis(ms)
    }

    #[test]
    fn a_refund_is_never_more_than_was_taken_and_tells_since_when() {
        let mut taken = Taken::new(at(0));
        taken.add(3);
        taken.turn(at(1_000), at(100));
        assert_eq!(taken.refund(2), (2, at(0)));
        taken.turn(at(1_000), at(500)); // half a window: a new span
        taken.add(4);
        assert_eq!(taken.refund(1), (1, at(500)));
        assert_eq!(taken.refund(9), (4, at(0)));
        assert_eq!(taken.refund(9).0, 0);
    }

    #[test]
    fn what_may_have_left_the_window_is_forgotten() {
        let mut taken = Taken::new(at(0));
        taken.add(3);
        taken.turn(at(1_000), at(600));
        taken.add(5);
        taken.turn(at(1_000), at(1_000));
        assert_eq!(taken.refund(9), (5, at(600)));
        // A bucket has no window: all of it may come back whenever it was taken.
        let mut taken = Taken::new(at(0));
        taken.add(3);
        taken.turn(Micros::ZERO, at(1_000_000));
        assert_eq!(taken.refund(9), (3, at(0)));
    }

    #[test]
    fn a_span_in_which_nothing_was_taken_begins_later() {
        let mut taken = Taken::new(at(0));
        taken.turn(at(1_000), at(900));
        taken.add(1);
        assert_eq!(taken.refund(1), (1, at(900)));
    }
}
