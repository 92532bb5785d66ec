//! Where on the clock a window lies: its length, and by how much it begins before a multiple of that.
//!
//! Only arithmetic of times: it counts nothing, and keeps no state.

use crate::time::Micros;

/// A log keeps a length in so many slots: events of one slot are one entry.
const SLOTS: u64 = 1_024;
/// No time is rounded up past this: up to here a double is exact.
const EXACT_MAX: u64 = 1 << 53;

/// The length of windows, and where they begin. Never of length zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    length: u64,
    offset: u64,
}

impl Frame {
    /// Windows that begin where the time plus `offset` is a multiple of `length`. A length of zero is taken for
    /// one microsecond.
    #[must_use]
    pub(crate) const fn new(length: Micros, offset: Micros) -> Frame {
        let length = if length.0 == 0 { 1 } else { length.0 };
        Frame { length, offset: offset.0 % length }
    }

    /// How long a window is.
    #[must_use]
    pub(crate) const fn length(self) -> Micros {
        Micros(self.length)
    }

    /// By how much they begin before a multiple of the length.
    #[cfg(feature = "redis")]
    #[must_use]
    pub(crate) const fn offset(self) -> Micros {
        Micros(self.offset)
    }

    /// How far into its window a time is; below the length.
    #[must_use]
    pub(crate) const fn elapsed(self, at: Micros) -> Micros {
        // In 128 bits: both parts are below the length, which may be anything.
        Micros(((at.0 % self.length) as u128 + self.offset as u128).rem_euclid(self.length as u128) as u64)
    }

    /// When the window of this time began; the window that lies across the beginning of time began then.
    #[must_use]
    pub(crate) const fn start(self, at: Micros) -> Micros {
        at.minus(self.elapsed(at))
    }

    /// How many windows began before that of this time since the beginning of time.
    #[must_use]
    pub(crate) const fn number(self, at: Micros) -> u64 {
        // In 128 bits, as above; a quotient by at least 1 of what is hardly more than a time.
        ((at.0 as u128 + self.offset as u128) / self.length as u128) as u64
    }

    /// How long until the window of this time ends; never zero.
    #[must_use]
    pub(crate) const fn ends_in(self, at: Micros) -> Micros {
        Micros(self.length - self.elapsed(at).0)
    }

    /// When the window of this time ends, and the next one begins.
    #[must_use]
    pub(crate) const fn end(self, at: Micros) -> Micros {
        at.plus(self.ends_in(at))
    }

    /// The time as a log notes it: rounded up to a multiple of a 1,024th of the length, in whole microseconds. So
    /// at most 1,025 different times lie in one length, however many events do.
    #[must_use]
    pub(crate) const fn slot(self, at: Micros) -> Micros {
        let step = self.length.div_ceil(SLOTS);
        match at.0 % step {
            0 => at,
            over if at.0 < EXACT_MAX => {
                let noted = at.plus(Micros(step - over));
                if noted.0 < EXACT_MAX { noted } else { Micros(EXACT_MAX) }
            }
            _ => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000;

    #[test]
    fn a_window_begins_at_its_offset_before_a_multiple_of_its_length() {
        let frame = Frame::new(Micros(10), Micros(3));
        let table: Vec<_> = [6, 7, 16, 17].map(|t| (frame.start(Micros(t)).0, frame.ends_in(Micros(t)).0)).into();
        assert_eq!(table, [(0, 1), (7, 10), (7, 1), (17, 10)]);
        assert_eq!(frame.end(Micros(16)), Micros(17));
        // A day that begins at midnight two hours east of the clock: at 22:00 of it.
        let day = Frame::new(Micros(24 * HOUR), Micros(2 * HOUR));
        assert_eq!(day.start(Micros(100 * 24 * HOUR)), Micros(99 * 24 * HOUR + 22 * HOUR));
    }

    #[test]
    fn a_time_is_noted_at_or_after_itself_and_in_at_most_1_025_places_of_a_length() {
        for length in [1, 7, 1_000, 1_024, 1_025, 2_047, 1_000_000, 366 * 24 * HOUR] {
            let frame = Frame::new(Micros(length), Micros::ZERO);
            let step = length.div_ceil(1_024);
            assert!(length / step <= 1_024, "{length}");
            for at in [0, 1, 999, 12_345_678, 1_780_000_000_123_457] {
                let noted = frame.slot(Micros(at)).0;
                assert!(noted >= at && noted < at + step && noted.is_multiple_of(step), "{length} {at}");
            }
        }
    }

    #[test]
    fn absurd_frames_neither_panic_nor_divide_by_zero() {
        for length in [0, 1, u64::MAX] {
            for offset in [0, 1, u64::MAX] {
                let frame = Frame::new(Micros(length), Micros(offset));
                for at in [0, 1, u64::MAX] {
                    let at = Micros(at);
                    assert!(frame.start(at) <= at && frame.end(at) >= at && frame.slot(at) >= at);
                }
            }
        }
    }
}
