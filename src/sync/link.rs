//! How well the store answers, when to try again, and what time it has there.
//!
//! Pure: it is told of successes and failures and decides nothing but the state and the pauses.

use crate::{
    error::ErrorKind,
    observe::{Event, Link},
    time::Micros,
};

/// Failures in a row, each of a message sent after the one before had failed, until the link is down.
const FAILURES_TO_DOWN: u32 = 3;
/// The first pause of a link that is down, and the longest.
const PAUSE: (Micros, Micros) = (Micros::from_millis(20), Micros::from_secs(1));

/// The state of the road to the authority.
#[derive(Debug, Default)]
pub(super) struct Road {
    state: Link,
    cause: Option<ErrorKind>,
    failures: u32,
    failed_at: Micros,
    pause: Micros,
    retry_at: Micros,
    /// Smoothed time from question to answer, in µs.
    round_trip: f64,
    /// The authority's clock less ours, never too small: taken from the time before the question left.
    ahead: Option<i64>,
    /// The same, never too large: taken from the time when the answer was here.
    ahead_at_least: Option<i64>,
}

impl Road {
    pub(super) fn state(&self) -> Link {
        self.state
    }

    pub(super) fn is_down(&self) -> bool {
        self.state == Link::Down
    }

    /// Why it is not up.
    pub(super) fn cause(&self) -> ErrorKind {
        self.cause.unwrap_or(ErrorKind::Unreachable)
    }

    /// When the next probe is due while the link is down.
    pub(super) fn retry_at(&self) -> Micros {
        self.retry_at
    }

    /// From question to answer; a millisecond until one was measured.
    pub(super) fn round_trip(&self) -> Micros {
        if self.round_trip == 0.0 { Micros::from_millis(1) } else { Micros(self.round_trip as u64) }
    }

    /// A message that left at `sent` was answered at `now` by an authority that had the time `there`.
    pub(super) fn answered(&mut self, sent: Micros, now: Micros, there: Micros) -> Option<Event> {
        let trip = now.minus(sent).0 as f64;
        self.round_trip = if self.round_trip == 0.0 { trip } else { self.round_trip + (trip - self.round_trip) / 8.0 };
        if there != Micros::ZERO {
            self.ahead = Some((there.0 as i64).saturating_sub(sent.0 as i64));
            self.ahead_at_least = Some((there.0 as i64).saturating_sub(now.0 as i64));
        }
        self.failures = 0;
        self.pause = Micros::ZERO;
        self.turn(Link::Up, None)
    }

    /// A message that left at `sent` failed at `now`. `jitter` is random in 0..1.
    pub(super) fn failed(&mut self, sent: Micros, now: Micros, kind: ErrorKind, jitter: f64) -> Option<Event> {
        if self.failures > 0 && sent < self.failed_at {
            return None; // left before the last failure was known: the same fault, not one more
        }
        self.failures = self.failures.saturating_add(1);
        self.failed_at = now;
        // Nobody there, or nobody who lets us in: more questions would tell nothing new.
        let down = self.failures >= FAILURES_TO_DOWN || kind == ErrorKind::Auth || self.is_down();
        if !down {
            return self.turn(Link::Shaky, Some(kind));
        }
        self.pause = Micros((self.pause.0 * 2).clamp(PAUSE.0.0, PAUSE.1.0));
        // Half of the pause is fixed, half random, so that instances do not come back in step.
        self.retry_at = now.plus(Micros((self.pause.0 as f64 * (0.5 + 0.5 * jitter)) as u64));
        self.turn(Link::Down, Some(kind))
    }

    /// The authority's clock less ours, in µs, never too small; `None` when unknown.
    pub(super) fn ahead(&self) -> Option<i64> {
        self.ahead
    }

    /// What the authority's clock will show at our time `at`, never too early; `None` when unknown.
    pub(super) fn there(&self, at: Micros) -> Option<Micros> {
        self.ahead.map(|ahead| shifted(at, ahead))
    }

    /// What the authority's clock shows at our time `at`, never too late; `None` when unknown.
    pub(super) fn there_at_least(&self, at: Micros) -> Option<Micros> {
        self.ahead_at_least.map(|ahead| shifted(at, ahead))
    }

    fn turn(&mut self, state: Link, cause: Option<ErrorKind>) -> Option<Event> {
        self.cause = cause;
        let changed = state != self.state;
        self.state = state;
        changed.then_some(Event::Link { now: state, cause })
    }
}

fn shifted(at: Micros, by: i64) -> Micros {
    Micros(u64::try_from((at.0 as i64).saturating_add(by)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Micros {
        Micros::from_millis(ms)
    }

    #[test]
    fn one_failure_is_shaky_three_in_a_row_are_down_and_an_answer_is_up() {
        let mut road = Road::default();
        assert!(road.failed(at(0), at(10), ErrorKind::Unanswered, 0.0).is_some());
        assert_eq!(road.state(), Link::Shaky);
        assert!(road.failed(at(5), at(11), ErrorKind::Unanswered, 0.0).is_none(), "the same fault");
        road.failed(at(12), at(20), ErrorKind::Unanswered, 0.0);
        assert_eq!(road.state(), Link::Shaky);
        let event = road.failed(at(21), at(30), ErrorKind::Unreachable, 0.0);
        assert_eq!(event, Some(Event::Link { now: Link::Down, cause: Some(ErrorKind::Unreachable) }));
        assert!(road.answered(at(40), at(41), Micros(5)).is_some());
        assert_eq!(road.state(), Link::Up);
    }

    // case A-25: there is no last try.
    #[test]
    fn the_pauses_grow_to_a_second_and_stay_there() {
        let (mut road, mut now) = (Road::default(), at(0));
        for _ in 0..200 {
            now = now.plus(at(1));
            road.failed(now, now, ErrorKind::Unreachable, 1.0);
            now = now.max(road.retry_at());
        }
        assert_eq!(road.retry_at().minus(now), Micros::ZERO);
        road.failed(now, now, ErrorKind::Unreachable, 1.0);
        assert_eq!(road.retry_at().minus(now), Micros::from_secs(1));
    }

    #[test]
    fn the_other_clock_is_never_thought_to_be_behind() {
        let mut road = Road::default();
        assert_eq!(road.there(at(1)), None);
        road.answered(at(100), at(104), at(1_002));
        assert_eq!(road.there(at(104)), Some(at(1_006)), "in truth between 1,002 and 1,006");
        assert_eq!(road.there_at_least(at(104)), Some(at(1_002)));
    }
}
