//! Windows in the book, rule by rule, and the cases that people met. The bounds as a whole are judged in `adversary`.

use super::*;

const KINDS: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter];

/// A first message to a window of this limit and length in seconds.
fn first(algorithm: Algorithm, limit: u64, seconds: u64) -> Sync {
    let window = Micros(seconds * SECOND);
    let numbers = Numbers { algorithm, window, ..numbers(limit, seconds * SECOND, limit) };
    Sync { numbers, ..hello() }
}

fn counted(book: &Book) -> u64 {
    let head = book.header().expect("a bucket");
    match &head.meter {
        Meter::Window(window) => window.counted(head.frame()),
        Meter::Bucket(_) => panic!("a bucket"),
    }
}

/// Asks for one as a new instance each time, which has nothing and keeps nothing.
struct Asker(u64, Sync);

impl Asker {
    fn given(&mut self, book: &mut Book, when: u64, cost: u64) -> bool {
        self.0 += 1;
        let sync = Sync { seq: self.0, epoch: self.0, need: need(cost, 1), instance: InstanceId(77), ..self.1 };
        book.apply(&sync, at(when)).given == 1
    }
}

#[test]
fn free_is_the_limit_less_what_is_counted_and_lent() {
    for kind in KINDS {
        let mut book = Book::default();
        let hello = first(kind, 10, 10);
        let reply = book.apply(&Sync { want: 4, need: need(1, 2), ..hello }, at(0));
        assert_eq!((reply.given, reply.grant, reply.free), (2, 4, 4), "{kind:?}");
        assert_eq!((counted(&book), out(&book)), (2, 4));
        // Of the four, three were spent and none is left: one never arrived.
        let reply = book.apply(&Sync { seq: 2, used: 3, ..hello }, at(SECOND));
        assert_eq!((counted(&book), out(&book), reply.free), (5, 0, 5), "{kind:?}");
    }
}

// cases: a lease ends with its window, the next one begins with nothing counted and says when it ends.
#[test]
fn a_fixed_window_ends_its_leases_and_begins_with_nothing() {
    let mut book = Book::default();
    let hello = first(Algorithm::FixedWindow, 50, 60);
    let start = START - START % (60 * SECOND);
    let late = Sync { want: 10, span: Micros(10_250_000), ..hello };
    let reply = book.apply(&late, Micros(start + 59 * SECOND));
    assert_eq!((reply.grant, reply.window, reply.ends_in), (10, Micros(start), Micros(SECOND)));
    assert_eq!(book.records()[0].end, Micros(start + 60 * SECOND));
    // At once at the edge, though all was read less than 250 ms ago.
    let other = Sync { instance: InstanceId(2), ..hello };
    book.apply(&other, Micros(start + 60 * SECOND - 1));
    let reply = book.apply(&Sync { seq: 2, ..other }, Micros(start + 60 * SECOND));
    assert_eq!((reply.free, reply.window, reply.ends_in), (50, Micros(start + 60 * SECOND), Micros(60 * SECOND)));
    assert_eq!((out(&book), counted(&book)), (0, 0));
}

// case A-20: over three windows of a steady caller the end of the window stands still, and each begins full.
#[test]
fn the_end_of_a_window_stands_still_and_each_begins_full() {
    let mut book = Book::default();
    let mut asker = Asker(0, first(Algorithm::FixedWindow, 5, 10));
    let passed: Vec<_> = (0..30).filter(|s| asker.given(&mut book, s * SECOND, 1)).collect();
    assert_eq!(passed, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24]);
    let look = |s: u64| book.clone().apply(&Sync { act: Act::Peek, ..asker.1 }, at(s * SECOND));
    assert_eq!(look(23).now.plus(look(23).ends_in), look(29).now.plus(look(29).ends_in));
}

// case A-01: 5 in 10 s; five were let through while the store was away, and are told when their window is over.
#[test]
fn what_was_spent_in_an_old_window_is_not_booked_in_a_new_one() {
    let mut book = Book::default();
    let hello = first(Algorithm::FixedWindow, 5, 10);
    book.apply(&hello, at(0));
    let told = Total { sum: 5, acked: 0 };
    let late = Sync { seq: 2, window: at(0), used: 3, hold: 2, debt: told, outage: told, want: 5, ..hello };
    let reply = book.apply(&Sync { need: need(1, 6), ..late }, at(12_500_000));
    assert_eq!((reply.given, reply.grant, counted(&book), out(&book)), (5, 0, 5, 0));
    // It is noted all the same, and not booked later either.
    let next = Sync { seq: 3, window: at(10 * SECOND), hold: 0, want: 0, need: need(1, 1), ..late };
    let reply = book.apply(&next, at(13 * SECOND));
    assert_eq!((reply.given, counted(&book)), (0, 5));
    assert_eq!(reply.retry_after, Micros(7 * SECOND));
}

#[test]
fn a_window_that_is_to_come_is_taken_for_the_present_one() {
    let mut book = Book::default();
    let hello = first(Algorithm::FixedWindow, 5, 10);
    let ahead = Sync { window: at(10 * SECOND), debt: Total { sum: 2, acked: 0 }, ..hello };
    assert_eq!(book.apply(&ahead, at(9 * SECOND)).free, 3);
}

#[test]
fn windows_begin_at_their_offset() {
    let mut book = Book::default();
    let hello = first(Algorithm::FixedWindow, 5, 10);
    let shifted = Sync { numbers: Numbers { offset: Micros(3 * SECOND), ..hello.numbers }, ..hello };
    let reply = book.apply(&shifted, at(0));
    assert_eq!((reply.window, reply.ends_in), (Micros(START - 3 * SECOND), Micros(7 * SECOND)));
}

#[test]
fn an_ended_lease_counts_as_spent_at_its_end() {
    for kind in [Algorithm::SlidingLog, Algorithm::SlidingCounter] {
        let mut book = Book::default();
        let hello = Sync { span: Micros(2 * SECOND), ..first(kind, 10, 10) };
        assert_eq!(book.apply(&Sync { want: 10, ..hello }, at(0)).grant, 10);
        let look = |book: &Book, s: u64| {
            let sync = Sync { act: Act::Peek, instance: InstanceId(2), ..hello };
            book.clone().apply(&sync, at(s * SECOND)).free
        };
        let free: Vec<_> = [1, 3, 10, 11, 13].map(|s| look(&book, s)).into();
        let want: &[u64] = if kind == Algorithm::SlidingLog { &[0, 0, 0, 0, 10] } else { &[0, 0, 0, 1, 3] };
        assert_eq!(free, want, "{kind:?}");
        // A new life of the cell drops the old lease as spent too.
        let reply = book.apply(&Sync { epoch: 2, ..hello }, at(SECOND));
        assert_eq!((reply.free, counted(&book), out(&book)), (0, 10, 0), "{kind:?}");
    }
}

#[test]
fn a_refund_of_another_window_or_of_what_may_have_left_comes_to_nothing() {
    for kind in KINDS {
        for (fresh, back) in [(0, 0), (START - SECOND, 0), (START + SECOND, 3)] {
            let mut book = Book::default();
            let hello = first(kind, 10, 10);
            book.apply(&Sync { need: need(1, 8), ..hello }, at(2 * SECOND));
            let now = if kind == Algorithm::SlidingLog { 9_500_000 } else { 3 * SECOND };
            let refund = Sync { seq: 2, used: -3, fresh: Micros(fresh), ..hello };
            let reply = book.apply(&refund, at(now));
            assert_eq!(reply.free, 2 + back, "{kind:?} {fresh}");
        }
    }
}

#[test]
fn what_is_spent_while_something_older_is_refunded_counts_from_now() {
    let mut book = Book::default();
    let hello = first(Algorithm::SlidingLog, 1, 10);
    assert_eq!(book.apply(&Sync { need: need(1, 1), ..hello }, at(0)).given, 1);
    // Nine seconds later it is refunded, and the place lent and spent again before that is told.
    let fresh = at(0);
    let again = book.apply(&Sync { seq: 2, used: -1, fresh, want: 1, ..hello }, at(9 * SECOND));
    assert_eq!(again.grant, 1);
    book.apply(&Sync { seq: 3, used: 0, ..hello }, at(9_500_000));
    let mut asker = Asker(0, hello);
    assert!(!asker.given(&mut book, 11 * SECOND, 1), "spent at 9.5 s");
    assert!(asker.given(&mut book, 20 * SECOND, 1));

    // The same with both in one message.
    let mut book = Book::default();
    let hello = first(Algorithm::SlidingLog, 2, 10);
    book.apply(&Sync { need: need(1, 1), want: 1, span: Micros(30 * SECOND), ..hello }, at(0));
    book.apply(&Sync { seq: 2, used: 0, fresh, ..hello }, at(9_500_000));
    assert_eq!(counted(&book), 1);
    let mut asker = Asker(0, hello);
    let passed: Vec<_> = [11, 11, 20, 22].map(|s| asker.given(&mut book, s * SECOND, 1)).into();
    assert_eq!(passed, [true, false, true, true]);
}

#[test]
fn lost_state_is_taken_for_used_up_or_for_new() {
    for kind in KINDS {
        let knew = Sync { generation: 5, used: 40, hold: 3, ..first(kind, 10, 10) };
        let mut book = Book::default();
        let reply = book.apply(&Sync { want: 5, ..knew }, at(0));
        assert_eq!((reply.lost, reply.grant, reply.free, out(&book)), (true, 0, 0, 3), "{kind:?}");
        let mut book = Book::default();
        let reply = book.apply(&Sync { lost: Lost::Full, ..knew }, at(0));
        assert_eq!((reply.lost, reply.free, out(&book)), (true, 7, 3), "{kind:?}");
    }
}

#[test]
fn a_debt_goes_below_nothing_and_an_outage_does_not() {
    for kind in KINDS {
        let mut book = Book::default();
        let total = |sum| Total { sum, acked: 0 };
        book.apply(&Sync { debt: total(14), ..first(kind, 10, 10) }, at(0));
        assert_eq!(counted(&book), 14, "{kind:?}");
        let mut book = Book::default();
        book.apply(&Sync { want: 2, outage: total(14), ..first(kind, 10, 10) }, at(0));
        assert_eq!((counted(&book), out(&book)), (10, 0), "{kind:?}");
    }
}

// cases C-19, C-20, C-21, C-31, C-39: costs add up, refused ones change nothing, of one instant all are counted.
#[test]
fn costs_are_counted_in_full_and_refused_ones_not_at_all() {
    for kind in KINDS {
        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 10, 60));
        let answers: Vec<_> = [6, 5, 4, 1].map(|cost| asker.given(&mut book, 0, cost)).into();
        assert_eq!(answers, [true, false, true, false], "{kind:?}");
        assert!(!asker.given(&mut book, 0, 1_000_000));
        assert_eq!(counted(&book), 10);
        let look = book.apply(&Sync { act: Act::Peek, ..asker.1 }, at(SECOND));
        assert!(look.free == 0 && look.retry_after > Micros::ZERO, "{kind:?}");
        assert!(look.retry_after <= Micros(121 * SECOND), "{kind:?}");

        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 20, 60));
        assert_eq!((0..10_000).filter(|k| asker.given(&mut book, k * 100, 1)).count(), 20, "{kind:?}");
    }
}

// cases C-23, C-32, B-05: refused ones are not counted, so a raised limit and a steady caller get what is theirs.
#[test]
fn refused_questions_are_not_counted() {
    for kind in KINDS {
        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 10, 3_600));
        assert_eq!((0..50).filter(|_| asker.given(&mut book, 0, 1)).count(), 10);
        asker.1 = first(kind, 20, 3_600);
        assert_eq!((0..50).filter(|_| asker.given(&mut book, 1, 1)).count(), 10, "{kind:?}");

        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 5, 10));
        assert!((0..20).all(|k| asker.given(&mut book, k * 3 * SECOND, 1)), "{kind:?}");
    }
}

// cases B-06, B-10: state lives as long as it counts.
#[test]
fn state_lives_as_long_as_it_counts() {
    for (kind, hours) in [(Algorithm::FixedWindow, 1), (Algorithm::SlidingLog, 1), (Algorithm::SlidingCounter, 2)] {
        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 10, 3_600));
        let hour = 3_600 * SECOND;
        let from = hour - START % hour; // at an edge
        assert!((0..10).all(|_| asker.given(&mut book, from, 1)));
        let ttl = book.expires_at().minus(at(from));
        assert!(ttl >= Micros(hours * hour) && ttl <= Micros(hours * hour + 4 * SECOND), "{kind:?}: {ttl:?}");
        assert!(!asker.given(&mut book, from + 301 * SECOND, 1), "{kind:?}");
    }
    // case B-13: of a window that is no whole number of milliseconds the life is rounded up.
    let mut asker = Asker(0, first(Algorithm::SlidingCounter, 10, 600));
    asker.1.numbers.window = Micros(600_000_400);
    let mut book = Book::default();
    assert!(asker.given(&mut book, 0, 1));
    let frame = crate::algorithm::Frame::new(Micros(600_000_400), Micros::ZERO);
    let (counts, lives) = (frame.end(at(0)).plus(frame.length()), book.expires_at());
    assert!(lives >= counts && lives < counts.plus(Micros(1_000)), "{lives:?} {counts:?}");

    let mut book = Book::default();
    let mut asker = Asker(0, first(Algorithm::SlidingLog, 10, 3_600));
    let minute = 60 * SECOND;
    assert!(asker.given(&mut book, 0, 1));
    assert!((0..8).all(|_| asker.given(&mut book, 59 * minute, 1)));
    assert_eq!((0..9).filter(|_| asker.given(&mut book, 61 * minute, 1)).count(), 2);
}

// cases B-12, C-10: who waits as told gets it, and not before.
#[test]
fn whoever_waits_as_told_is_served() {
    for kind in KINDS {
        let mut book = Book::default();
        let mut asker = Asker(0, first(kind, 7, 10));
        let mut now = 1_234_567;
        for _ in 0..60 {
            let look = book.clone().apply(&Sync { act: Act::Peek, need: need(2, 1), ..asker.1 }, at(now));
            if look.retry_after > Micros::ZERO {
                assert!(!asker.given(&mut book, now + look.retry_after.0 - 1, 2), "{kind:?} at {now}");
                now += look.retry_after.0;
            }
            assert!(asker.given(&mut book, now, 2), "{kind:?} at {now}");
            now += 200_000;
        }
    }
}

#[test]
fn while_too_much_is_lent_the_wait_is_for_a_lease_or_a_window_to_end() {
    for kind in KINDS {
        let mut book = Book::default();
        book.apply(&Sync { want: 8, ..first(kind, 10, 60) }, at(0));
        let ask = Sync { instance: InstanceId(2), need: need(3, 1), ..first(kind, 10, 60) };
        let reply = book.apply(&ask, at(SECOND));
        assert!(reply.given == 0 && reply.retry_after > Micros::ZERO, "{kind:?}");
        if kind == Algorithm::FixedWindow {
            assert_eq!(reply.retry_after, reply.ends_in);
        } else {
            assert_eq!(reply.retry_after, Micros(9 * SECOND), "{kind:?}");
        }
    }
}

// case C-28: what was counted still counts after a step back, and leaves in the end.
#[test]
fn a_step_back_keeps_what_was_counted() {
    for kind in KINDS {
        let mut book = Book::default();
        let hello = first(kind, 10, 10);
        book.apply(&Sync { need: need(1, 4), want: 3, ..hello }, at(100 * SECOND));
        let other = Sync { instance: InstanceId(2), ..hello };
        assert_eq!(book.apply(&other, at(40 * SECOND)).free, 3, "{kind:?}");
        assert_eq!(book.apply(&Sync { seq: 2, ..other }, at(75 * SECOND)).free, 10, "{kind:?}");
    }
}

#[test]
fn another_limit_or_length_keeps_what_was_counted() {
    for kind in KINDS {
        let mut book = Book::default();
        let hello = first(kind, 10, 60);
        book.apply(&Sync { need: need(1, 6), ..hello }, at(20 * SECOND));
        let newer = Numbers { revision: 1, ..first(kind, 4, 30).numbers };
        let reply = book.apply(&Sync { seq: 2, numbers: newer, ..hello }, at(21 * SECOND));
        assert_eq!((reply.numbers, reply.free, counted(&book)), (None, 0, 6), "{kind:?}");
        let reply = book.apply(&Sync { seq: 3, ..hello }, at(22 * SECOND));
        assert_eq!((reply.numbers, reply.free), (Some(newer), 0), "{kind:?}");
    }
}

// case C-31: a log keeps at most 1,025 entries, however often it is asked.
#[test]
fn a_log_in_the_book_stays_small_at_any_rate() {
    let mut book = Book::default();
    let mut asker = Asker(0, first(Algorithm::SlidingLog, 1_000_000, 10));
    for k in 0..50_000 {
        assert!(asker.given(&mut book, k * 300, 1));
    }
    let Some(Header { meter: Meter::Window(Window::Log(log)), .. }) = book.header() else { panic!("no log") };
    assert!(log.entries.len() <= 1_025 && log.entries.len() > 1_000, "{}", log.entries.len());
}

// case A-10: two instances whose reports come each 0.2 s, 800 a second of a limit of 500.
#[test]
fn two_instances_that_report_late_admit_no_more_than_the_limit_in_any_second() {
    let mut book = Book::default();
    let hello = first(Algorithm::SlidingCounter, 500, 1);
    let mut admitted = Vec::new();
    let (mut used, mut hold) = ([0; 2], [0; 2]);
    for tick in 0..30_000_u64 {
        let who = (tick % 2) as usize;
        if tick % 200 < 2 {
            let sync = Sync { instance: InstanceId(who as u64), seq: tick + 1, want: 80, demand: 400_000, ..hello };
            let reply = book.apply(&Sync { used: used[who], hold: hold[who], ..sync }, at(tick * 1_000));
            hold[who] += reply.grant;
        }
        if hold[who] > 0 && tick % 5 < 4 {
            (used[who], hold[who]) = (used[who] + 1, hold[who] - 1);
            admitted.push(tick * 1_000);
        }
    }
    let seconds: Vec<_> = (0..30).map(|s| admitted.iter().filter(|t| **t / SECOND == s).count()).collect();
    assert!(seconds.iter().all(|n| *n <= 500), "{seconds:?}");
    assert!(admitted.len() > 10_000, "{}", admitted.len());
}
