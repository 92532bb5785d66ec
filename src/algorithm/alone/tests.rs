//! Machines by themselves, one table for all, and the cases that people met.

use super::*;

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;
const ALL: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyMeter,
    Algorithm::LeakyQueue,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

fn limit(algorithm: Algorithm, burst: u64, length: u64) -> Limit {
    let rate = Rate::per_micros(burst, Micros(length)).expect("a fair rate");
    Limit { algorithm, rate, burst, frame: Frame::new(Micros(length), Micros::ZERO) }
}

struct Key(Alone, Limit);

impl Key {
    fn new(algorithm: Algorithm, burst: u64, length: u64) -> Key {
        let limit = limit(algorithm, burst, length);
        Key(Alone::new(&limit, Micros(START)), limit)
    }
    /// Asks at a time in µs after the start.
    fn ask(&mut self, at: u64, cost: u64) -> Verdict {
        self.0.take(&self.1, cost, Micros(START + at))
    }
    fn passes(&mut self, at: u64, cost: u64) -> bool {
        matches!(self.ask(at, cost), Verdict::Allowed { .. })
    }
}

// case C-31: requests of one instant do not collapse into one.
#[test]
fn exactly_the_limit_passes_at_one_instant() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 20, 60 * SECOND);
        let passed = (0..10_000).filter(|k| key.passes(k * 100, 1)).count() as u64;
        let most = key.1.cost_max();
        assert!((20..=most).contains(&passed), "{algorithm:?}: {passed}");
    }
}

// cases C-19, C-20, C-21: costs are what is counted, refused ones change nothing, and what never fits is told so.
#[test]
fn costs_add_up_and_refused_ones_change_nothing() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 10, 60 * SECOND);
        let spare = key.1.cost_max() - 10;
        let answers: Vec<_> = [6, 5 + spare, 4, 1 + spare].map(|cost| key.passes(0, cost)).into();
        assert_eq!(answers, [true, false, true, false], "{algorithm:?}");
        let before = key.0.clone();
        for cost in [1_000_000, u64::MAX] {
            assert_eq!(key.ask(0, cost), Verdict::Never { remaining: spare }, "{algorithm:?}");
        }
        assert_eq!(key.0, before, "{algorithm:?}");
    }
}

// case C-39: a cost of nothing is a look.
#[test]
fn a_cost_of_nothing_takes_nothing_and_says_what_is_there() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 2, SECOND);
        while key.passes(0, 1) {}
        let before = key.0.clone();
        assert_eq!(key.ask(0, 0), Verdict::Allowed { remaining: 0, delay: Micros::ZERO });
        assert_eq!(key.0, before, "{algorithm:?}");
    }
}

// cases B-12, C-10, C-32: who waits as told is let in, whoever asked in vain before; and not before that.
#[test]
fn whoever_waits_as_told_is_let_in() {
    for algorithm in ALL {
        for cost in [1, 3] {
            let mut key = Key::new(algorithm, 7, 10 * SECOND);
            let mut at = 1_234_567;
            for _ in 0..50 {
                match key.ask(at, cost) {
                    Verdict::Allowed { .. } => at += 77_777,
                    Verdict::Denied { wait, .. } => {
                        assert!(wait > Micros::ZERO);
                        assert!(!key.passes(at + wait.0 - 1, cost), "{algorithm:?} before {wait:?}");
                        at += wait.0;
                        assert!(key.passes(at, cost), "{algorithm:?} after {wait:?}");
                    }
                    Verdict::Never { .. } => panic!("it fits"),
                }
            }
        }
    }
}

// case C-32: 2 in 4 s, asked once a second.
#[test]
fn refused_requests_are_not_counted() {
    // A log notes a time up to a 1,024th of its length late, so that the fourth second is a little early.
    let table: [(_, &[u64]); 2] = [(Algorithm::FixedWindow, &[0, 1, 4, 5, 8]), (Algorithm::SlidingLog, &[0, 1, 5, 6])];
    for (algorithm, seconds) in table {
        let mut key = Key::new(algorithm, 2, 4 * SECOND);
        let passed: Vec<_> = (0..9).filter(|second| key.passes(second * SECOND, 1)).collect();
        assert_eq!(passed, seconds, "{algorithm:?}");
    }
}

// case B-05: steady traffic below the limit is never refused.
#[test]
fn steady_traffic_below_the_limit_always_passes() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 5, 10 * SECOND);
        assert!((0..200).all(|k| key.passes(k * 3 * SECOND, 1)), "{algorithm:?}");
    }
}

// case B-10: no shorter life than the window's is in the way.
#[test]
fn an_hour_is_an_hour() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter] {
        let mut key = Key::new(algorithm, 10, 3_600 * SECOND);
        assert!((0..10).all(|_| key.passes(0, 1)));
        assert!(!key.passes(301 * SECOND, 1), "{algorithm:?}");
        assert!(key.0.full_after(&key.1) > Micros::from_secs(600), "{algorithm:?}");
    }
}

// case B-06, its numbers: 10 an hour; one at minute 0, eight at 59, nine at 61.
#[test]
fn what_was_spent_late_in_the_last_window_still_counts() {
    let minute = 60 * SECOND;
    let mut key = Key::new(Algorithm::SlidingLog, 10, 60 * minute);
    assert!(key.passes(0, 1));
    assert!((0..8).all(|_| key.passes(59 * minute, 1)));
    assert_eq!((0..9).filter(|_| key.passes(61 * minute, 1)).count(), 2);
}

// case C-23: a raised limit helps at once, since refused hits are not counted.
#[test]
fn a_raised_limit_gives_what_it_is_higher() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 10, 3_600 * SECOND);
        let passed = (0..50).filter(|_| key.passes(0, 1)).count();
        let raised = limit(algorithm, 20, 3_600 * SECOND);
        key.0.change(&key.1, &raised);
        key.1 = raised;
        let more = (0..50).filter(|_| key.passes(0, 1)).count();
        // A bucket does not jump: its tokens come at the new rate.
        let want = match algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyMeter => 0,
            _ => 10,
        };
        assert_eq!((passed as u64 - (key.1.cost_max() - 20), more), (10, want), "{algorithm:?}");
    }
}

#[test]
fn a_queue_lets_go_one_by_one_at_its_rate() {
    let mut key = Key::new(Algorithm::LeakyQueue, 3, 3 * SECOND);
    let delays: Vec<_> = (0..5)
        .map(|_| match key.ask(0, 1) {
            Verdict::Allowed { delay, .. } => Some(delay.0),
            _ => None,
        })
        .collect();
    assert_eq!(delays, [Some(0), Some(SECOND), Some(2 * SECOND), Some(3 * SECOND), None]);
    assert_eq!(key.ask(0, 1), Verdict::Denied { remaining: 0, wait: Micros(SECOND) });
    // Nobody came for a minute: the times that went by are gone.
    assert_eq!(key.ask(60 * SECOND, 2), Verdict::Allowed { remaining: 2, delay: Micros::ZERO });
    assert_eq!(key.ask(60 * SECOND, 1), Verdict::Allowed { remaining: 1, delay: Micros(2 * SECOND) });
}

#[test]
fn what_is_given_back_can_be_had_again_and_no_more() {
    let mut queue = Key::new(Algorithm::LeakyQueue, 5, 10 * SECOND);
    assert!(queue.passes(0, 4));
    queue.0.give_back(&queue.1, 3, Micros(START), Micros(START));
    assert_eq!(queue.0.free(&queue.1), 2, "those behind have their times already");
    for algorithm in ALL.into_iter().filter(|a| *a != Algorithm::LeakyQueue) {
        let mut key = Key::new(algorithm, 5, 10 * SECOND);
        let most = key.1.cost_max();
        assert!(key.passes(0, most));
        key.0.give_back(&key.1, 3, Micros(START), Micros(START));
        assert_eq!(key.0.free(&key.1), 3, "{algorithm:?}");
        key.0.give_back(&key.1, 1_000, Micros(START), Micros(START));
        assert_eq!(key.0.free(&key.1), most, "{algorithm:?}");
        // What was taken in another window stays taken.
        if Window::new(algorithm, Micros::ZERO).is_some() {
            let later = Micros(START + 15 * SECOND);
            assert!(key.passes(15 * SECOND, 5));
            key.0.give_back(&key.1, 5, Micros(START), later);
            assert_eq!(key.0.free(&key.1), 0, "{algorithm:?}");
        }
    }
}

#[test]
fn a_machine_that_may_be_forgotten_is_as_good_as_new() {
    for algorithm in ALL {
        let mut key = Key::new(algorithm, 5, 10 * SECOND);
        key.passes(SECOND, 4);
        key.passes(2 * SECOND, 1);
        let later = key.0.full_after(&key.1).plus(Micros(START + 2 * SECOND));
        key.0.advance(&key.1, later);
        assert_eq!(key.0.free(&key.1), key.1.cost_max(), "{algorithm:?}");
        assert_eq!(key.0.full_after(&key.1), Micros::ZERO);
    }
}
