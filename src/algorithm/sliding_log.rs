//! What was spent when: at most so many in any span of the window's length.
//!
//! An entry is a time and a weight. Times are rounded up to a 1,024th of the length and entries of one time are one
//! entry, so memory does not depend on how many requests there are. Refused ones leave nothing behind.

use super::{frame::Frame, window::COUNT_MAX};
use crate::time::Micros;
use std::collections::VecDeque;

/// More entries than this are never kept. A frame makes at most so many; after a step of the clock or a change of the
/// length there could be more, and then the oldest become one.
pub(crate) const ENTRIES_MAX: usize = 1_025;

/// What was spent in the last length before [`at`](Self::at).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlidingLog {
    /// Times and weights, oldest first; no two of one time, none of no weight.
    pub(crate) entries: VecDeque<(Micros, u64)>,
    /// The sum of the weights; never above [`COUNT_MAX`].
    pub(crate) sum: u64,
    /// Up to when the time has been looked at.
    pub(crate) at: Micros,
}

impl SlidingLog {
    /// Goes on to `now`: what was spent a length ago or longer leaves.
    pub(super) fn advance(&mut self, frame: Frame, now: Micros) {
        self.at = self.at.max(now);
        while let Some(&(_, weight)) = self.entries.front().filter(|e| e.0.plus(frame.length()) <= self.at) {
            self.sum = self.sum.saturating_sub(weight);
            self.entries.pop_front();
        }
    }

    /// All entries move back with the clock.
    pub(super) fn shift_back(&mut self, by: Micros) {
        for (when, _) in &mut self.entries {
            *when = when.minus(by);
        }
    }

    /// Notes what was spent at `when`, no earlier than that.
    pub(super) fn add(&mut self, frame: Frame, when: Micros, tokens: u64) {
        let tokens = tokens.min(COUNT_MAX - self.sum);
        let when = frame.slot(when);
        if tokens == 0 || when.plus(frame.length()) <= self.at {
            return;
        }
        self.sum += tokens;
        // Most often at the end: what ended in the past is the exception.
        let before = self.entries.iter().rposition(|e| e.0 <= when);
        match before.and_then(|place| self.entries.get_mut(place)) {
            Some((there, weight)) if *there == when => *weight += tokens,
            _ => self.entries.insert(before.map_or(0, |place| place + 1), (when, tokens)),
        }
        while self.entries.len() > ENTRIES_MAX {
            if let (Some((_, oldest)), Some((_, next))) = (self.entries.pop_front(), self.entries.front_mut()) {
                *next += oldest;
            }
        }
    }

    /// Takes back what was spent no earlier than `fresh`, from the oldest that it can have been. What stays is then
    /// dated no earlier than the truth, whichever it really was. Nothing, when some of it may have left already.
    pub(super) fn take_back(&mut self, frame: Frame, fresh: Micros, mut tokens: u64) {
        if fresh.plus(frame.length()) <= self.at {
            return;
        }
        for (_, weight) in self.entries.iter_mut().skip_while(|e| e.0 < fresh) {
            let some = tokens.min(*weight);
            *weight -= some;
            tokens -= some;
            self.sum -= some;
            if tokens == 0 {
                break;
            }
        }
        self.entries.retain(|e| e.1 > 0);
    }

    /// The time until at most `room` is counted, exactly.
    pub(super) fn time_until(&self, frame: Frame, room: u64) -> Micros {
        if room == 0 {
            // The newest decides.
            return self.entries.back().map_or(Micros::ZERO, |e| e.0.plus(frame.length()).minus(self.at));
        }
        let mut left = self.sum;
        let mut when = self.at;
        for &(noted, weight) in &self.entries {
            if left <= room {
                break;
            }
            left -= weight;
            when = noted.plus(frame.length());
        }
        when.minus(self.at)
    }
}
