//! At most so many in each window of the clock. One number: when the next window begins, it is zero again.
//!
//! Around an edge up to twice the limit may pass in less than one length; who cannot have that takes a sliding one.

use super::{frame::Frame, window::COUNT_MAX};
use crate::time::Micros;

/// What was counted in the window of [`at`](Self::at).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    /// Never above [`COUNT_MAX`].
    pub(crate) counted: u64,
    /// Up to when the time has been looked at.
    pub(crate) at: Micros,
}

impl FixedWindow {
    /// Goes on to `now`; in another window nothing is counted yet.
    pub(super) fn advance(&mut self, frame: Frame, now: Micros) {
        if now >= frame.end(self.at) {
            self.counted = 0;
        }
        self.at = self.at.max(now);
    }

    /// Counts what was spent at `when`, if that was in this window.
    pub(super) fn add(&mut self, frame: Frame, when: Micros, tokens: u64) {
        if when >= frame.start(self.at) {
            self.counted = self.counted.saturating_add(tokens).min(COUNT_MAX);
        }
    }

    /// Takes back what was spent no earlier than `fresh`, if that was in this window.
    pub(super) fn take_back(&mut self, frame: Frame, fresh: Micros, tokens: u64) {
        if fresh >= frame.start(self.at) {
            self.counted = self.counted.saturating_sub(tokens);
        }
    }

    /// The time until at most `room` is counted.
    pub(super) fn time_until(&self, frame: Frame, room: u64) -> Micros {
        if self.counted <= room { Micros::ZERO } else { frame.ends_in(self.at) }
    }
}
