use super::*;
use crate::{
    algorithm::{Algorithm, Frame},
    key::LongKeys,
    rate::Rate,
};
use Verdict::{Allowed, Denied, Never, Queued};
use std::{thread, time::Duration};

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes(), LongKeys::Hash).expect("no long keys here")
}

fn limit(algorithm: Algorithm, burst: u64, seconds: u64) -> Limit {
    let rate = Rate::new(burst, Duration::from_secs(seconds)).expect("a fair rate");
    Limit { algorithm, rate, burst, frame: Frame::new(Micros::from_secs(seconds), Micros::ZERO) }
}

const WINDOWS: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter];

#[test]
fn exactly_the_limit_passes_and_the_wait_is_true() {
    for algorithm in WINDOWS {
        let clock = Clock::manual();
        let windowed = Windowed::new(clock.clone(), 100);
        let limit = limit(algorithm, 5, 10);
        let check = |cost| windowed.check(0, &key("k"), cost, &limit);
        assert_eq!(check(6), Never);
        for left in (0..5).rev() {
            assert_eq!(check(1), Allowed { remaining: left }, "{algorithm:?}");
        }
        let Denied { wait, remaining: 0 } = check(1) else { panic!("{algorithm:?}: above the limit") };
        assert_eq!(windowed.known(0, &key("k"), 1, &limit), Denied { wait, remaining: 0 });
        clock.advance(Micros(wait.0 - 1));
        assert!(matches!(check(1), Denied { .. }), "{algorithm:?}: too early");
        clock.advance(Micros(1));
        assert!(matches!(check(1), Allowed { .. }), "{algorithm:?}: as told");
        let counts = windowed.counts();
        assert_eq!((counts.admitted, counts.denied, counts.keys), (6, 3, 1));
    }
}

#[test]
fn a_queue_lets_go_one_after_the_other_and_refuses_who_would_wait_too_long() {
    let windowed = Windowed::new(Clock::manual(), 100);
    let rate = Rate::new(10, Duration::from_secs(1)).expect("a fair rate");
    let limit = Limit { rate, ..limit(Algorithm::LeakyQueue, 2, 1) };
    let check = || windowed.check(0, &key("k"), 1, &limit);
    assert!(matches!(check(), Allowed { .. }));
    assert!(matches!(check(), Queued { delay: Micros(100_000), .. }));
    assert!(matches!(check(), Queued { delay: Micros(200_000), .. }));
    assert!(matches!(check(), Denied { wait: Micros(100_000), remaining: 0 }));
}

#[test]
fn what_was_spent_stays_spent_when_the_numbers_change_and_a_clear_forgets_it() {
    for algorithm in WINDOWS {
        let windowed = Windowed::new(Clock::manual(), 100);
        let (old, new) = (limit(algorithm, 10, 10), limit(algorithm, 20, 10));
        // case C-23: refused hits are not counted, so a raised limit helps.
        let passed = |limit: &Limit| {
            (0..50).filter(|_| matches!(windowed.check(0, &key("k"), 1, limit), Allowed { .. })).count()
        };
        assert_eq!((passed(&old), passed(&new), passed(&old)), (10, 10, 0), "{algorithm:?}");
        windowed.clear(0, &key("k"));
        assert_eq!(passed(&old), 10, "{algorithm:?}");
    }
}

#[test]
fn what_was_taken_in_an_earlier_window_is_in_nobodys_way_when_something_comes_back() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        let clock = Clock::manual();
        let windowed = Windowed::new(clock.clone(), 100);
        let limit = limit(algorithm, 100, 10);
        let left = || match windowed.known(0, &key("k"), 0, &limit) {
            Allowed { remaining } => remaining,
            other => panic!("{other:?}"),
        };
        windowed.check(0, &key("k"), 5, &limit);
        clock.advance(Micros::from_secs(25)); // nothing of it counts any more
        windowed.check(0, &key("k"), 3, &limit);
        windowed.refund(0, &key("k"), 2, clock.now(), &limit);
        assert_eq!(left(), 99, "{algorithm:?}");
        windowed.refund(0, &key("k"), 50, clock.now(), &limit);
        assert_eq!(left(), 100, "{algorithm:?}: no more than was taken");
        windowed.check(0, &key("k"), 4, &limit);
        windowed.refund(0, &key("k"), 50, clock.now(), &limit);
        assert_eq!(left(), 100, "{algorithm:?}");
    }
}

#[test]
fn at_the_cap_machines_that_are_as_good_as_new_make_room() {
    let clock = Clock::manual();
    let windowed = Windowed::new(clock.clone(), 20);
    let limit = limit(Algorithm::SlidingLog, 5, 10);
    let check = |n: u32| windowed.check(0, &key(&n.to_string()), 1, &limit);
    assert!((0..20).all(|n| matches!(check(n), Allowed { .. })));
    assert_eq!(check(20), Verdict::Saturated);
    clock.advance(Duration::from_secs(21));
    assert!(matches!(check(20), Allowed { .. }));
    assert_eq!(windowed.counts().keys, 1);
}

#[test]
fn threads_together_get_no_more_than_the_limit() {
    for algorithm in WINDOWS {
        let windowed = Windowed::new(Clock::manual(), 100);
        let limit = limit(algorithm, 1_000, 10);
        let passed: usize = thread::scope(|scope| {
            let one =
                || (0..1_000).filter(|_| matches!(windowed.check(0, &key("k"), 1, &limit), Allowed { .. })).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 1_000, "{algorithm:?}");
    }
}

/// One call takes, and is refused by another limit after the window has ended.
#[test]
fn what_was_taken_in_an_old_window_is_not_put_back_into_a_new_one() {
    for algorithm in WINDOWS {
        let clock = Clock::manual();
        let windowed = Windowed::new(clock.clone(), 100);
        let limit = limit(algorithm, 5, 10);
        let spent = windowed.take(0, &key("k"), 3, &limit).1.expect("all are there");
        let since = clock.now();
        clock.advance(Micros::from_secs(20));
        assert!(matches!(windowed.check(0, &key("k"), 5, &limit), Allowed { remaining: 0 }), "{algorithm:?}");
        windowed.put_back(&spent);
        windowed.refund(0, &key("k"), 3, since, &limit);
        assert!(matches!(windowed.known(0, &key("k"), 1, &limit), Denied { .. }), "{algorithm:?}");
        windowed.refund(0, &key("k"), 2, clock.now(), &limit);
        assert_eq!(windowed.known(0, &key("k"), 1, &limit), Allowed { remaining: 2 }, "{algorithm:?}");
    }
}
