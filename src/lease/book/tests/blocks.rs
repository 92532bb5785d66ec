//! Blocking a key and clearing it.

use super::*;

fn of(algorithm: Algorithm) -> Sync {
    let (window, offset) =
        if algorithm.is_window() { (Micros(10 * SECOND), Micros::ZERO) } else { (Micros::ZERO, Micros::ZERO) };
    Sync { numbers: Numbers { algorithm, window, offset, ..numbers(1, SECOND, 10) }, ..hello() }
}

#[test]
fn a_blocked_key_settles_and_gives_nothing_until_its_time_is_over() {
    for algorithm in ALL {
        let mut book = Book::default();
        let ask = Sync { need: need(1, 1), want: 4, ..of(algorithm) };
        let first = book.apply(&ask, at(0));
        assert_eq!(first.given, 1, "{algorithm:?}");
        let order = Sync { act: Act::Block(Micros(100 * SECOND)), instance: InstanceId(9), ..of(algorithm) };
        let reply = book.apply(&order, at(0));
        assert_eq!((reply.blocked, reply.free, reply.retry_after), (true, 0, Micros(100 * SECOND)));
        assert_eq!(book.records().len(), 1, "an order leaves no record");
        let before = book.records()[0].out;
        assert_eq!(before, first.grant);

        let reply = book.apply(&Sync { seq: 2, ..ask }, at(40 * SECOND));
        assert_eq!((reply.given, reply.grant, reply.free), (0, 0, 0), "{algorithm:?}");
        assert_eq!((reply.blocked, reply.retry_after), (true, Micros(60 * SECOND)));
        assert_eq!(out(&book), 0, "what was lent is settled");
        let look = book.apply(&Sync { act: Act::Peek, ..ask }, at(40 * SECOND));
        assert_eq!((look.blocked, look.free, look.retry_after), (true, 0, Micros(60 * SECOND)));
        assert!(reply.key_ttl >= Micros(60 * SECOND) && book.expires_at() >= at(100 * SECOND));

        let reply = book.apply(&Sync { seq: 3, ..ask }, at(100 * SECOND));
        assert_eq!((reply.blocked, reply.given), (false, 1), "{algorithm:?}");
    }
}

#[test]
fn a_block_of_no_time_lifts_it_and_a_block_alone_makes_a_bucket() {
    let mut book = Book::default();
    let order = |span| Sync { act: Act::Block(Micros(span)), ..hello() };
    assert_eq!(book.apply(&order(0), at(0)).generation, 0);
    assert_eq!(book, Book::default(), "there was nothing to lift");
    let reply = book.apply(&order(500 * SECOND), at(0));
    assert_eq!((reply.generation, reply.key_ttl, book.expires_at()), (77, Micros(500 * SECOND), at(500 * SECOND)));
    assert!(book.apply(&Sync { need: need(1, 1), ..hello() }, at(1)).blocked);
    assert!(!book.apply(&order(0), at(2)).blocked);
    assert_eq!(book.apply(&Sync { seq: 2, need: need(1, 1), ..hello() }, at(3)).given, 1);
}

#[test]
fn a_block_moves_along_when_the_clock_steps_back() {
    let mut book = Book::default();
    book.apply(&Sync { act: Act::Block(Micros(50 * SECOND)), ..hello() }, at(1_000 * SECOND));
    let reply = book.apply(&hello(), at(0));
    assert_eq!((reply.blocked, reply.retry_after), (true, Micros(50 * SECOND)));
}

#[test]
fn a_cleared_key_has_all_that_is_not_lent() {
    for algorithm in ALL {
        let mut book = Book::default();
        let reply = book.apply(&Sync { want: 4, debt: Total { sum: 20, acked: 0 }, ..of(algorithm) }, at(0));
        let full = if algorithm == Algorithm::LeakyQueue { 11 } else { 10 };
        assert_eq!((reply.grant, reply.free), (0, 0), "{algorithm:?}");
        book.apply(&Sync { act: Act::Block(Micros(50 * SECOND)), ..of(algorithm) }, at(0));
        let reply = book.apply(&Sync { act: Act::Clear, draw: 5, ..of(algorithm) }, at(0));
        assert_eq!((reply.free, reply.generation, reply.blocked), (full, 77, false), "{algorithm:?}");
        let reply = book.apply(&Sync { seq: 2, want: 4, debt: Total { sum: 20, acked: 0 }, ..of(algorithm) }, at(0));
        assert_eq!(reply.grant, if algorithm == Algorithm::LeakyQueue { 0 } else { 4 }, "{algorithm:?}");
        let free = book.apply(&Sync { act: Act::Clear, ..of(algorithm) }, at(0)).free;
        assert_eq!(free + reply.grant, full, "{algorithm:?}");
    }
}

#[test]
fn where_there_is_nothing_to_clear_nothing_is_written() {
    for algorithm in ALL {
        let mut book = Book::default();
        let reply = book.apply(&Sync { act: Act::Clear, ..of(algorithm) }, at(0));
        assert_eq!((reply.outcome, reply.generation, reply.key_ttl), (Outcome::Applied, 0, Micros::ZERO));
        assert_eq!(book, Book::default());
    }
}

#[test]
fn an_order_that_is_dead_when_it_arrives_is_not_done() {
    let mut book = Book::default();
    let order = Sync { act: Act::Block(Micros(SECOND)), not_after: at(5), ..hello() };
    assert_eq!(book.apply(&order, at(6)).outcome, Outcome::Late);
    assert_eq!(book, Book::default());
}
