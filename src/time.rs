//! Microseconds, as a point on some clock's line or as a span between two points.
//!
//! Arithmetic saturates: a sum past the end is the end, a difference below zero is zero. Nothing
//! here knows what time it is.

use std::time::Duration;

/// A number of microseconds: a point in time on one clock, or a span of time.
///
/// Which clock a point belongs to is said where it is kept. Sums and differences saturate, so that
/// a clock at either end of its range gives "very late" or "no time at all" and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// The start of every clock's line, and the empty span.
    pub const ZERO: Micros = Micros(0);
    /// Later than any time that is ever reached.
    pub const MAX: Micros = Micros(u64::MAX);

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1_000))
    }

    /// A span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Micros {
        Micros(secs.saturating_mul(1_000_000))
    }

    /// This point, `span` later.
    #[must_use]
    pub const fn plus(self, span: Micros) -> Micros {
        Micros(self.0.saturating_add(span.0))
    }

    /// The span since `earlier`; zero when `earlier` is in fact later.
    #[must_use]
    pub const fn minus(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds, as a floating-point number.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<Duration> for Micros {
    /// Rounds up to the next microsecond, and saturates after 584,000 years.
    fn from(span: Duration) -> Micros {
        Micros(u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Duration {
        Duration::from_micros(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case C-30: a clock at the end of its range saturates.
    #[test]
    fn time_at_the_end_of_its_range_saturates() {
        assert_eq!(Micros::MAX.plus(Micros::from_secs(1)), Micros::MAX);
        assert_eq!(Micros::ZERO.minus(Micros::MAX), Micros::ZERO);
        assert_eq!(Micros::from_millis(u64::MAX), Micros::MAX);
        assert_eq!(Micros::from(Duration::MAX), Micros::MAX);
    }

    #[test]
    fn a_part_of_a_microsecond_counts_as_a_whole_one() {
        assert_eq!(Micros::from(Duration::from_nanos(1)), Micros(1));
        assert_eq!(Micros::from(Duration::from_nanos(2_000)), Micros(2));
    }
}
