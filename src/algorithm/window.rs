//! One face over everything that counts in windows: what was counted, and when less will be.
//!
//! A window counts what was spent and knows no limit; what may still be spent is for whoever holds one. Each machine
//! says its time in the frame that it is given: both length and offset may change between two calls.

use super::{Algorithm, FixedWindow, Frame, SlidingCounter, SlidingLog};
use crate::time::Micros;
use std::collections::VecDeque;

/// No count goes above this. A sum of eight of them is still exact in a double.
pub(crate) const COUNT_MAX: u64 = 1 << 50;

/// What one key spent, in windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Window {
    Fixed(FixedWindow),
    Log(SlidingLog),
    Counter(SlidingCounter),
}

impl Window {
    /// A window in which nothing is counted; `None` for algorithms that have none.
    #[must_use]
    pub(crate) fn new(algorithm: Algorithm, at: Micros) -> Option<Window> {
        match algorithm {
            Algorithm::FixedWindow => Some(Window::Fixed(FixedWindow { counted: 0, at })),
            Algorithm::SlidingLog => Some(Window::Log(SlidingLog { entries: VecDeque::new(), sum: 0, at })),
            Algorithm::SlidingCounter => Some(Window::Counter(SlidingCounter { current: 0, last: 0, at })),
            Algorithm::TokenBucket | Algorithm::LeakyMeter | Algorithm::LeakyQueue => None,
        }
    }

    /// Up to when the time has been looked at.
    #[must_use]
    pub(crate) fn at(&self) -> Micros {
        match self {
            Window::Fixed(w) => w.at,
            Window::Log(w) => w.at,
            Window::Counter(w) => w.at,
        }
    }

    /// Lets what has left leave. A time that is not later changes nothing.
    pub(crate) fn advance(&mut self, frame: Frame, now: Micros) {
        match self {
            Window::Fixed(w) => w.advance(frame, now),
            Window::Log(w) => w.advance(frame, now),
            Window::Counter(w) => w.advance(frame, now),
        }
    }

    /// The clock was put back by this much: all that is dated moves along, and what was counted still counts.
    pub(crate) fn shift_back(&mut self, by: Micros) {
        match self {
            Window::Fixed(w) => w.at = w.at.minus(by),
            Window::Log(w) => {
                w.at = w.at.minus(by);
                w.shift_back(by);
            }
            Window::Counter(w) => w.at = w.at.minus(by),
        }
    }

    /// What counts now.
    #[must_use]
    pub(crate) fn counted(&self, frame: Frame) -> u64 {
        match self {
            Window::Fixed(w) => w.counted,
            Window::Log(w) => w.sum,
            Window::Counter(w) => w.counted(frame),
        }
    }

    /// Counts what was spent at `when`, which is not later than [`at`](Self::at). What has left already is not
    /// counted any more.
    pub(crate) fn add(&mut self, frame: Frame, when: Micros, tokens: u64) {
        match self {
            Window::Fixed(w) => w.add(frame, when, tokens),
            Window::Log(w) => w.add(frame, when, tokens),
            Window::Counter(w) => w.add(frame, when, tokens),
        }
    }

    /// Whether all that was spent at `fresh` or later still counts, as far as that can be given back.
    #[must_use]
    pub(crate) fn has_still(&self, frame: Frame, fresh: Micros) -> bool {
        match self {
            Window::Fixed(w) => fresh >= frame.start(w.at),
            Window::Log(w) => fresh.plus(frame.length()) > w.at,
            Window::Counter(w) => fresh >= frame.start(w.at),
        }
    }

    /// Takes back up to so many of those that were spent no earlier than `fresh`. Nothing, when some of them may have
    /// been spent in another window (fixed, counter) or may have left (log).
    pub(crate) fn take_back(&mut self, frame: Frame, fresh: Micros, tokens: u64) {
        match self {
            Window::Fixed(w) => w.take_back(frame, fresh, tokens),
            Window::Log(w) => w.take_back(frame, fresh, tokens),
            Window::Counter(w) => w.take_back(frame, fresh, tokens),
        }
    }

    /// The time until at most `room` is counted, if nothing is added: after it that is so, and not before. Zero when it
    /// is so now.
    #[must_use]
    pub(crate) fn time_until(&self, frame: Frame, room: u64) -> Micros {
        match self {
            Window::Fixed(w) => w.time_until(frame, room),
            Window::Log(w) => w.time_until(frame, room),
            Window::Counter(w) => w.time_until(frame, room),
        }
    }

    /// Forgets what was counted.
    pub(crate) fn clear(&mut self) {
        match self {
            Window::Fixed(w) => w.counted = 0,
            Window::Log(w) => {
                w.entries.clear();
                w.sum = 0;
            }
            Window::Counter(w) => (w.current, w.last) = (0, 0),
        }
    }

    /// Counts as much as is missing up to `limit`.
    pub(crate) fn fill(&mut self, frame: Frame, limit: u64) {
        let missing = limit.saturating_sub(self.counted(frame));
        self.add(frame, self.at(), missing);
    }

    /// When the present window began; `None` where windows do not begin.
    #[must_use]
    pub(crate) fn start(&self, frame: Frame) -> Option<Micros> {
        match self {
            Window::Fixed(w) => Some(frame.start(w.at)),
            Window::Log(_) | Window::Counter(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
