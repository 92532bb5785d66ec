//! The only file that asks the operating system for the time.
//!
//! A [`Clock`] has two hands. The precise one costs 20 to 40 ns a look. The coarse one is one atomic
//! that a thread of its own renews each millisecond; a hot path reads it for the price of a load. Both
//! run on one monotonic line that starts when the process first asks.
//!
//! The same thread wakes who [sleeps](Clock::sleep_until) or has set an [alarm](Clock::alarm), so that waiting needs
//! no runtime; while nobody does, that costs one load a tick.

use crate::time::Micros;
use std::{
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
// Not through `atomic`: a loom model never takes a clock inside, it passes times as numbers.
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Relaxed, Release},
};

mod alarms;

pub(crate) use alarms::Alarm;
use alarms::Alarms;

/// How often the coarse hand moves.
pub(crate) const COARSE_TICK: Duration = Duration::from_millis(1);

const TICK_MICROS: u64 = COARSE_TICK.as_micros() as u64;

/// Where every clock starts, so that "a while ago" is a time too.
const ORIGIN: Micros = Micros::from_secs(1_000);

/// What the calendar shows when a manual clock begins: a time such as servers have, so that nothing relies on small
/// numbers, and the start of a minute.
const MANUAL_BEGAN: Micros = Micros::from_secs(1_700_001_000);

/// One cache line of its own, for the hand that everybody reads.
#[repr(align(128))]
struct Hand(AtomicU64);

/// What all clones of a clock share.
struct Face {
    hand: Hand,
    alarms: Alarms,
    /// Its thread runs.
    ticks: AtomicBool,
}

impl Face {
    fn new(now: Micros) -> Face {
        Face { hand: Hand(AtomicU64::new(now.0)), alarms: Alarms::default(), ticks: AtomicBool::new(false) }
    }
}

/// A monotonic clock. Clones are the same clock.
#[derive(Clone)]
pub struct Clock {
    face: Arc<Face>,
    precise: Option<System>,
}

#[derive(Clone)]
struct System {
    clock: quanta::Clock,
    start: quanta::Instant,
    /// What the calendar showed when the line began.
    began: Micros,
}

impl System {
    fn now(&self) -> Micros {
        ORIGIN.plus(self.clock.now().duration_since(self.start).into())
    }
}

impl Clock {
    /// The system's monotonic clock. All such clocks of a process share one ticking thread, which
    /// ends when the last of them is dropped.
    #[must_use]
    pub fn system() -> Clock {
        static SYSTEM: OnceLock<System> = OnceLock::new();
        static FACE: Mutex<Weak<Face>> = Mutex::new(Weak::new());
        let system = SYSTEM.get_or_init(|| {
            let clock = quanta::Clock::new();
            let start = clock.now();
            let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().into();
            System { clock, start, began }
        });
        let mut shared = FACE.lock().unwrap_or_else(PoisonError::into_inner);
        let face = shared.upgrade().unwrap_or_else(|| {
            let face = Arc::new(Face::new(system.now()));
            *shared = Arc::downgrade(&face);
            face
        });
        let clock = Clock { face, precise: Some(system.clone()) };
        clock.keep_ticking();
        clock
    }

    /// A clock that stands still until it is [advanced](Clock::advance): for tests and simulators.
    #[must_use]
    pub fn manual() -> Clock {
        Clock { face: Arc::new(Face::new(ORIGIN)), precise: None }
    }

    /// The time to the microsecond; 20 to 40 ns. Also moves the coarse hand, where that is a tick or more behind.
    #[must_use]
    pub fn now(&self) -> Micros {
        match &self.precise {
            Some(system) => {
                let now = system.now();
                // ordering: Relaxed, here and below. The hand guards no other memory, and `max`
                // keeps it from running backwards whoever writes last. Written seldom: every check of every
                // thread reads this line.
                if now.0 >= self.face.hand.0.load(Relaxed).saturating_add(TICK_MICROS) {
                    self.face.hand.0.fetch_max(now.0, Relaxed);
                }
                now
            }
            None => self.coarse(),
        }
    }

    /// The time as of the last tick, at most a few milliseconds old; about 1 ns.
    #[inline]
    #[must_use]
    pub fn coarse(&self) -> Micros {
        Micros(self.face.hand.0.load(Relaxed))
    }

    /// The time of the calendar, in microseconds since 1970, as the system had it when the process first asked for a
    /// time, and steady from there on. A manual clock begins on a day in 2023.
    #[must_use]
    pub(crate) fn calendar(&self) -> Micros {
        self.calendar_at(self.now())
    }

    /// What the [calendar](Clock::calendar) shows at this time of ours.
    #[must_use]
    pub(crate) fn calendar_at(&self, at: Micros) -> Micros {
        let began = self.precise.as_ref().map_or(MANUAL_BEGAN, |system| system.began);
        began.plus(at.minus(ORIGIN))
    }

    /// Moves a manual clock on, and wakes those whose time has come. Does nothing to the system's.
    pub fn advance(&self, span: impl Into<Micros>) {
        if self.precise.is_none() {
            let span = span.into();
            let _ = self.face.hand.0.fetch_update(Relaxed, Relaxed, |at| Some(Micros(at).plus(span).0));
            self.face.alarms.ring(self.coarse());
        }
    }

    /// Whether it only moves when told to.
    #[must_use]
    pub fn is_manual(&self) -> bool {
        self.precise.is_none()
    }
}

impl Clock {
    /// Starts the thread that moves the hand until nobody looks at it any more, where it does not run yet.
    ///
    /// When no thread can be had, the hand moves only with precise looks; leases then end early at the
    /// latest with the next engine turn, which makes one. Whoever sleeps tries again.
    fn keep_ticking(&self) {
        let Some(system) = &self.precise else { return };
        // ordering: Relaxed for the glance; AcqRel so that of those who come at once one starts it.
        if self.face.ticks.load(Relaxed) || self.face.ticks.swap(true, AcqRel) {
            return;
        }
        let (face, system) = (Arc::downgrade(&self.face), system.clone());
        let body = move || {
            loop {
                thread::sleep(COARSE_TICK);
                let Some(face) = face.upgrade() else { return };
                let now = system.now();
                face.hand.0.fetch_max(now.0, Relaxed);
                if face.alarms.is_due(now) {
                    face.alarms.ring(now);
                }
            }
        };
        if thread::Builder::new().name("tollgate-clock".into()).spawn(body).is_err() {
            // ordering: Release, with the swap above.
            self.face.ticks.store(false, Release);
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_manual() { "manual" } else { "system" };
        write!(f, "Clock({kind}, {:?})", self.coarse())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_saturates() {
        let clock = Clock::manual();
        let start = clock.now();
        assert_eq!(clock.coarse(), start);
        clock.advance(Duration::from_micros(7));
        assert_eq!(clock.now(), start.plus(Micros(7)));
        clock.advance(Micros::MAX);
        assert_eq!(clock.now(), Micros::MAX);
    }

    #[test]
    fn the_coarse_hand_follows_the_precise_one_by_itself() {
        let clock = Clock::system();
        let before = clock.coarse();
        // Real time, wide margin: the hand must move within ten seconds.
        let moved = (0..10_000).any(|_| {
            thread::sleep(COARSE_TICK);
            clock.coarse() > before
        });
        assert!(moved);
        assert!(clock.now() >= clock.coarse().minus(Micros(1)));
    }
}
