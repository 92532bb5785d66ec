//! Windows against a list of all events, and against what went wrong elsewhere.

use super::*;
use crate::algorithm::sliding_log::ENTRIES_MAX;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;
const KINDS: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter];

fn frame(length: u64, offset: u64) -> Frame {
    Frame::new(Micros(length), Micros(offset))
}

fn window(algorithm: Algorithm, at: u64) -> Window {
    Window::new(algorithm, Micros(at)).expect("it counts in windows")
}

/// The slow truth: all events, each at its time.
struct Events {
    algorithm: Algorithm,
    frame: Frame,
    all: Vec<(u64, u64)>,
}

impl Events {
    /// What counts at `now`, by the words of docs/algorithms.md alone.
    fn counted(&self, now: u64) -> u64 {
        let (length, start) = (self.frame.length().0, self.frame.start(Micros(now)).0);
        let sum = |keep: &dyn Fn(u64) -> bool| self.all.iter().filter(|e| keep(e.0)).map(|e| e.1).sum::<u64>();
        match self.algorithm {
            Algorithm::FixedWindow => sum(&|t| t >= start),
            Algorithm::SlidingLog => sum(&|t| self.frame.slot(Micros(t)).0 + length > now),
            _ => {
                let last = sum(&|t| t < start && t + length >= start);
                let parts = u128::from(last) * u128::from(length - (now - start));
                sum(&|t| t >= start) + parts.div_ceil(u128::from(length)) as u64
            }
        }
    }

    fn take_back(&mut self, now: u64, fresh: u64, mut tokens: u64) {
        let (length, start) = (self.frame.length().0, self.frame.start(Micros(now)).0);
        let (from, fair) = match self.algorithm {
            Algorithm::SlidingLog => (fresh, fresh + length > now),
            _ => (start, fresh >= start),
        };
        self.all.sort_by_key(|e| self.frame.slot(Micros(e.0)));
        for (t, weight) in self.all.iter_mut().filter(|_| fair) {
            let noted = if self.algorithm == Algorithm::SlidingLog { self.frame.slot(Micros(*t)).0 } else { *t };
            if noted >= from {
                let some = tokens.min(*weight);
                *weight -= some;
                tokens -= some;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn what_counts_is_what_a_list_of_all_events_says(
        kind in 0..3usize,
        length in prop_oneof![Just(1u64), 1..5_000u64, Just(10 * SECOND), Just(3_600 * SECOND)],
        offset in 0..20_000u64,
        steps in prop::collection::vec((0.0..1.3f64, 0..4u8, 0..20u64, 0.0..1.5f64), 1..80),
    ) {
        let (frame, mut now) = (frame(length, offset), 1_780_000_000 * SECOND);
        let mut window = window(KINDS[kind], now);
        let mut events = Events { algorithm: KINDS[kind], frame, all: Vec::new() };
        for (part, what, tokens, back) in steps {
            now += if what == 0 { 0 } else { (part.powi(3) * length as f64) as u64 };
            window.advance(frame, Micros(now));
            prop_assert_eq!(window.counted(frame), events.counted(now));
            let before = now - (back.powi(2) * length as f64) as u64;
            match what {
                3 => {
                    window.take_back(frame, Micros(before), tokens);
                    events.take_back(now, before, tokens);
                }
                2 => {
                    // Heard of later: an ended lease.
                    window.add(frame, Micros(before), tokens);
                    events.all.push((before, tokens));
                }
                _ => {
                    window.add(frame, Micros(now), tokens);
                    events.all.push((now, tokens));
                }
            }
            prop_assert_eq!(window.counted(frame), events.counted(now));
        }
    }

    #[test]
    fn after_the_wait_it_fits_and_not_before(
        kind in 0..3usize,
        length in prop_oneof![1..50u64, 1..5_000u64, Just(60 * SECOND)],
        events in prop::collection::vec((0.0..0.9f64, 1..30u64), 1..20),
        room in 0..60u64,
    ) {
        let (frame, mut now) = (frame(length, 3), 7 * length);
        let mut window = window(KINDS[kind], now);
        for (part, tokens) in events {
            now += (part.powi(3) * length as f64) as u64;
            window.advance(frame, Micros(now));
            window.add(frame, Micros(now), tokens);
        }
        let wait = window.time_until(frame, room).0;
        let after = |span: u64| {
            let mut later = window.clone();
            later.advance(frame, Micros(now + span));
            later.counted(frame)
        };
        prop_assert!(after(wait) <= room);
        prop_assert!(wait == 0 || after(wait - 1) > room);
        prop_assert_eq!(wait == 0, window.counted(frame) <= room);
    }

    #[test]
    fn absurd_input_neither_panics_nor_counts_below_zero(
        kind in 0..3usize,
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 0..6u8), 1..60),
    ) {
        let mut window = window(KINDS[kind], 0);
        for (time, tokens, length, offset, what) in steps {
            let some = |n: u64| n >> (n % 64);
            let (frame, time) = (frame(some(length), offset), Micros(some(time)));
            match what {
                0 => window.shift_back(time),
                1 => window.take_back(frame, time, some(tokens)),
                2 => window.fill(frame, some(tokens)),
                3 => window.advance(frame, time),
                _ => window.add(frame, time, some(tokens)),
            }
            prop_assert!(window.counted(frame) <= 2 * COUNT_MAX);
            let _ = window.time_until(frame, some(tokens));
            if let Window::Log(log) = &window {
                prop_assert!(log.entries.len() <= ENTRIES_MAX);
                prop_assert_eq!(log.entries.iter().map(|e| e.1).sum::<u64>(), log.sum);
                prop_assert!(log.entries.iter().zip(log.entries.iter().skip(1)).all(|(a, b)| a.0 <= b.0));
            }
        }
    }
}

// case C-31: what comes at one instant is counted in full; and a log stays small at any rate.
#[test]
fn a_log_keeps_at_most_1_025_entries_at_any_rate() {
    for length in [1_000, 1_500, SECOND, 60 * SECOND] {
        let frame = frame(length, 0);
        let mut window = window(Algorithm::SlidingLog, 0);
        let (mut most, mut now) = (0, 0);
        for _ in 0..300_000 {
            now += length.div_ceil(100_000);
            window.advance(frame, Micros(now));
            window.add(frame, Micros(now), 1);
            let Window::Log(log) = &window else { panic!("another machine") };
            most = most.max(log.entries.len());
        }
        assert!(most <= 1_025, "{length}: {most}");
        assert!(most >= 512, "{length}: {most}");
    }
}

#[test]
fn a_clock_that_is_put_back_again_and_again_makes_no_crowd_of_entries() {
    let frame = frame(10 * SECOND, 0);
    let mut window = window(Algorithm::SlidingLog, 1_000 * SECOND);
    for round in 0..5_000 {
        window.add(frame, window.at(), 1);
        window.shift_back(Micros(SECOND + round % 7));
    }
    let Window::Log(log) = &window else { panic!("another machine") };
    assert_eq!(log.sum, 5_000, "nothing has left");
    assert!(log.entries.len() <= ENTRIES_MAX);
}

#[test]
fn a_clock_that_is_put_back_takes_nothing_along() {
    for kind in KINDS {
        let frame = frame(10 * SECOND, 0);
        let mut window = window(kind, 1_003 * SECOND);
        window.add(frame, Micros(1_003 * SECOND), 5);
        window.shift_back(Micros(500 * SECOND));
        window.advance(frame, Micros(503 * SECOND));
        assert_eq!(window.counted(frame), 5, "{kind:?}");
        window.advance(frame, Micros(523 * SECOND));
        assert_eq!(window.counted(frame), 0, "{kind:?}");
    }
}

#[test]
fn a_time_that_runs_back_by_itself_changes_nothing() {
    for kind in KINDS {
        let frame = frame(10 * SECOND, 0);
        let mut window = window(kind, 1_003 * SECOND);
        window.add(frame, Micros(1_003 * SECOND), 5);
        let before = window.clone();
        window.advance(frame, Micros(900 * SECOND));
        assert_eq!(window, before);
    }
}

#[test]
fn another_length_keeps_what_was_counted() {
    for kind in KINDS {
        let mut window = window(kind, 1_003 * SECOND);
        window.add(frame(60 * SECOND, 0), Micros(1_003 * SECOND), 5);
        let shorter = frame(10 * SECOND, 0);
        window.advance(shorter, Micros(1_004 * SECOND));
        assert_eq!(window.counted(shorter), 5, "{kind:?}");
    }
}

// case B-06: the last window is still there when it is weighted.
#[test]
fn a_counter_weighs_its_last_window() {
    let frame = frame(100, 0);
    let mut window = window(Algorithm::SlidingCounter, 1_000);
    window.add(frame, Micros(1_000), 10);
    let counts = [(1_000, 10), (1_099, 10), (1_100, 10), (1_109, 10), (1_110, 9), (1_150, 5), (1_199, 1), (1_200, 0)];
    for (now, counted) in counts {
        window.advance(frame, Micros(now));
        assert_eq!(window.counted(frame), counted, "at {now}");
    }
}

#[test]
fn filling_counts_what_is_missing_and_clearing_forgets() {
    for kind in KINDS {
        let frame = frame(100, 0);
        let mut window = window(kind, 1_050);
        window.add(frame, Micros(1_050), 3);
        window.fill(frame, 10);
        assert_eq!(window.counted(frame), 10);
        window.fill(frame, 4);
        assert_eq!(window.counted(frame), 10);
        window.clear();
        assert_eq!(window.counted(frame), 0);
    }
}
