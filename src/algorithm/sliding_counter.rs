//! Two windows of the clock: what was counted in this one, and in the last one by how much of it still counts.
//!
//! It takes the last window's events for evenly spread, which makes it small and only nearly exact: any span of one
//! length stays below twice the limit. (Described by Cloudflare, 2017, as an approximation of the sliding log.)

use super::{frame::Frame, window::COUNT_MAX};
use crate::time::Micros;

/// What was counted in the window of [`at`](Self::at), and in the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlidingCounter {
    /// Never above [`COUNT_MAX`], as `last`.
    pub(crate) current: u64,
    pub(crate) last: u64,
    /// Up to when the time has been looked at.
    pub(crate) at: Micros,
}

impl SlidingCounter {
    /// Goes on to `now`: the next window takes this one for its last, a later one has none.
    pub(super) fn advance(&mut self, frame: Frame, now: Micros) {
        let end = frame.end(self.at);
        if now >= end {
            let next = frame.start(now) == end;
            (self.last, self.current) = (if next { self.current } else { 0 }, 0);
        }
        self.at = self.at.max(now);
    }

    /// The estimate: all of this window, and the last one's part that still counts, rounded up.
    pub(super) fn counted(&self, frame: Frame) -> u64 {
        let counts = u128::from(frame.ends_in(self.at).0);
        let last = (u128::from(self.last) * counts).div_ceil(u128::from(frame.length().0));
        self.current.saturating_add(u64::try_from(last).unwrap_or(u64::MAX))
    }

    /// Counts what was spent at `when`, in this window or the last one.
    pub(super) fn add(&mut self, frame: Frame, when: Micros, tokens: u64) {
        let start = frame.start(self.at);
        let more = |n: u64| n.saturating_add(tokens).min(COUNT_MAX);
        if when >= start {
            self.current = more(self.current);
        } else if frame.end(when) == start {
            self.last = more(self.last);
        }
    }

    /// Takes back what was spent no earlier than `fresh`, if that was in this window.
    pub(super) fn take_back(&mut self, frame: Frame, fresh: Micros, tokens: u64) {
        if fresh >= frame.start(self.at) {
            self.current = self.current.saturating_sub(tokens);
        }
    }

    /// The time until at most `room` is counted, exactly.
    pub(super) fn time_until(&self, frame: Frame, room: u64) -> Micros {
        if self.counted(frame) <= room {
            return Micros::ZERO;
        }
        let (length, ends_in) = (frame.length(), frame.ends_in(self.at));
        // Of a last window with this count, so much time may be left where no more than `room` of it counts.
        let left = |last: u64, room: u64| {
            let parts = u128::from(room) * u128::from(length.0) / u128::from(last.max(1));
            length.min(Micros(u64::try_from(parts).unwrap_or(u64::MAX)))
        };
        match room.checked_sub(self.current) {
            Some(room) => ends_in.minus(left(self.last, room)),
            // Only when this window is the last one.
            None => ends_in.plus(length.minus(left(self.current, room))),
        }
    }
}
