//! Leaky queues and meters in the book.

use super::*;

/// A queue that lets go one a second and in which three may wait.
fn queue() -> Sync {
    Sync { numbers: Numbers { algorithm: Algorithm::LeakyQueue, ..numbers(1, SECOND, 3) }, ..hello() }
}

#[test]
fn a_queue_gives_times_to_leave_one_interval_after_the_other() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { need: need(1, 2), want: 5, ..queue() }, at(0));
    assert_eq!((reply.given, reply.grant, reply.free, reply.delay), (2, 0, 2, Micros::ZERO));
    let reply = book.apply(&Sync { seq: 2, need: need(1, 9), ..queue() }, at(SECOND / 2));
    // The first two left at 0 s and 1 s; the next two leave at 2 s and 3 s.
    assert_eq!((reply.given, reply.free, reply.delay), (2, 0, Micros(3 * SECOND / 2)));
    assert_eq!(reply.retry_after, Micros(SECOND / 2));
    assert_eq!(book.apply(&Sync { seq: 3, need: need(1, 1), ..queue() }, at(SECOND - 1)).given, 0);
    let reply = book.apply(&Sync { seq: 4, need: need(1, 1), ..queue() }, at(SECOND));
    assert_eq!((reply.given, reply.delay), (1, Micros(3 * SECOND)));
    // The key lives until the last one has left, at least.
    assert!(reply.key_ttl >= Micros(4 * SECOND));
}

#[test]
fn times_to_leave_that_nobody_takes_perish() {
    let mut book = Book::default();
    book.apply(&Sync { need: need(1, 1), ..queue() }, at(0));
    let reply = book.apply(&Sync { seq: 2, need: need(1, 2), ..queue() }, at(500 * SECOND));
    assert_eq!((reply.given, reply.delay, reply.free), (2, Micros::ZERO, 2));
}

// case C-20: what can never fit takes no place.
#[test]
fn a_cost_above_all_places_is_given_nothing() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { need: need(5, 1), ..queue() }, at(0));
    assert_eq!((reply.given, reply.free), (0, 4));
    let reply = book.apply(&Sync { seq: 2, need: need(4, 1), ..queue() }, at(0));
    assert_eq!((reply.given, reply.free, reply.delay), (1, 0, Micros::ZERO));
}

#[test]
fn a_look_at_a_queue_says_how_long_one_would_wait() {
    let mut book = Book::default();
    book.apply(&Sync { need: need(1, 3), ..queue() }, at(0));
    let reply = book.apply(&Sync { act: Act::Peek, ..queue() }, at(0));
    assert_eq!((reply.free, reply.delay, reply.retry_after), (1, Micros(3 * SECOND), Micros::ZERO));
}

#[test]
fn a_queue_lends_nothing_takes_nothing_back_and_owes_an_outage() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { need: need(1, 4), want: 3, hold: 9, ..queue() }, at(0));
    assert_eq!((reply.given, reply.grant, out(&book)), (4, 0, 0));
    // Those behind it have their times already, so one that is given back can be nobody's.
    let reply = book.apply(&Sync { seq: 2, used: -2, ..queue() }, at(0));
    assert_eq!(reply.free, 0);
    let outage = Total { sum: 100, acked: 0 };
    let reply = book.apply(&Sync { seq: 3, used: -2, outage, ..queue() }, at(2 * SECOND));
    assert_eq!((reply.free, tokens(&book)), (0, -3));
    // State that was lost: as many as may wait are taken to be waiting.
    let mut book = Book::default();
    assert_eq!(book.apply(&Sync { generation: 5, need: need(1, 1), ..queue() }, at(0)).given, 0);
}

#[test]
fn a_meter_is_a_token_bucket_by_another_name() {
    let (mut meter, mut bucket) = (Book::default(), Book::default());
    for (seq, at_second) in [0, 0, 3, 4, 20, 21].into_iter().enumerate() {
        let sync = Sync { seq: seq as u64 + 1, need: need(3, 2), want: 2, ..hello() };
        let as_meter = Sync { numbers: Numbers { algorithm: Algorithm::LeakyMeter, ..sync.numbers }, ..sync };
        let now = at(at_second * SECOND);
        assert_eq!(meter.apply(&as_meter, now), bucket.apply(&sync, now));
    }
}
