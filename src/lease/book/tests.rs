//! The book, rule by rule. What it promises as a whole is judged in `adversary`.

use super::*;
use crate::{
    algorithm::{Algorithm, TokenBucket, Window},
    lease::message::{Act, Need, Numbers, Total},
    rate::Rate,
};

mod adversary;
mod blocks;
mod queues;
mod windows;

const SECOND: u64 = 1_000_000;
/// When these tests begin.
const START: u64 = 1_000 * SECOND;

fn numbers(count: u64, micros: u64, burst: u64) -> Numbers {
    Numbers::bucket(0, Rate::per_micros(count, Micros(micros)).expect("a fair rate"), burst)
}

/// A first message that asks for nothing, to a bucket of 10 that gets 1 a second.
fn hello() -> Sync {
    Sync {
        generation: 0,
        draw: 77,
        numbers: numbers(1, SECOND, 10),
        instance: InstanceId(1),
        epoch: 1,
        seq: 1,
        born: 1,
        not_after: Micros::ZERO,
        used: 0,
        hold: 0,
        age: Micros::ZERO,
        need: Need::default(),
        want: 0,
        demand: 1_000,
        span: Micros(10 * SECOND),
        debt: Total::default(),
        outage: Total::default(),
        lost: Lost::Empty,
        window: Micros::ZERO,
        fresh: Micros::ZERO,
        act: Act::Sync,
    }
}

fn need(cost: u64, count: u64) -> Need {
    Need { cost, count }
}

/// `at` µs after these tests begin.
fn at(at: u64) -> Micros {
    Micros(START + at)
}

fn bucket(head: &Header) -> TokenBucket {
    match head.meter {
        Meter::Bucket(bucket) => bucket,
        Meter::Window(_) => panic!("a window"),
    }
}

fn tokens(book: &Book) -> i64 {
    bucket(book.header().expect("a bucket")).tokens
}

fn out(book: &Book) -> u64 {
    book.header().expect("a bucket").out
}

#[test]
fn a_bucket_is_full_when_it_is_first_asked() {
    let mut book = Book::default();
    assert_eq!((book.header(), book.expires_at()), (None, Micros::ZERO));
    let reply = book.apply(&Sync { want: 4, ..hello() }, at(0));
    assert_eq!((reply.outcome, reply.generation, reply.grant, reply.free), (Outcome::Applied, 77, 4, 6));
    assert_eq!((reply.epoch, reply.seq, reply.now, reply.lost), (1, 1, at(0), false));
    // Its lease ends after 10 s, and late messages are told from new ones for 60 s more.
    assert_eq!(reply.key_ttl, Micros(70 * SECOND));
    assert_eq!(book.expires_at(), at(70 * SECOND));
}

#[test]
fn a_repeated_or_overtaken_message_changes_nothing() {
    let mut book = Book::default();
    let second = Sync { seq: 2, want: 4, ..hello() };
    book.apply(&second, at(0));
    let before = book.clone();
    for (epoch, seq) in [(1, 2), (1, 1), (0, 9)] {
        let reply = book.apply(&Sync { epoch, seq, hold: 9, need: need(1, 1), ..second }, at(SECOND));
        assert_eq!((reply.outcome, reply.given, reply.now), (Outcome::Stale, 0, at(SECOND)));
        assert_eq!(book, before);
    }
}

#[test]
fn a_question_that_is_dead_when_it_arrives_changes_nothing() {
    let mut book = Book::default();
    book.apply(&hello(), at(0));
    let before = book.clone();
    let late = Sync { seq: 2, not_after: at(50), need: need(1, 1), ..hello() };
    let reply = book.apply(&late, at(51));
    assert_eq!((reply.outcome, reply.given, reply.now), (Outcome::Late, 0, at(51)));
    assert_eq!(book, before);
    assert_eq!(book.apply(&late, at(50)).given, 1);
}

// case C-39: a look tells what is free and how long to wait, and changes nothing.
#[test]
fn a_look_changes_nothing() {
    let mut book = Book::default();
    let look = Sync { act: Act::Peek, need: need(4, 1), want: 5, ..hello() };
    let reply = book.apply(&look, at(0));
    assert_eq!(
        (reply.outcome, reply.generation, reply.free, reply.retry_after),
        (Outcome::Applied, 0, 10, Micros::ZERO)
    );
    assert_eq!(book, Book::default());

    book.apply(&Sync { need: need(5, 2), ..hello() }, at(0));
    let before = book.clone();
    // The same (epoch, seq), and past its time: a look has no order.
    let reply = book.apply(&Sync { not_after: at(1), ..look }, at(SECOND));
    assert_eq!((reply.given, reply.grant, reply.free, reply.retry_after), (0, 0, 1, Micros(3 * SECOND)));
    assert_eq!(reply.generation, 77);
    assert_eq!(book, before);
}

#[test]
fn what_is_neither_used_nor_held_goes_back() {
    let mut book = Book::default();
    book.apply(&Sync { want: 8, ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (2, 8));
    // Of the 8 it spent 3 and holds 4: one never arrived.
    book.apply(&Sync { seq: 2, used: 3, hold: 4, ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (3, 4));
    // A refund lowers `used`.
    book.apply(&Sync { seq: 3, used: 1, hold: 4, ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (5, 4));
}

#[test]
fn a_refund_never_fills_above_the_burst() {
    let mut book = Book::default();
    book.apply(&Sync { want: 4, ..hello() }, at(0));
    book.apply(&Sync { seq: 2, used: -50, hold: 4, ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (6, 4));
}

#[test]
fn need_is_given_its_longest_prefix_and_nothing_is_lent_beside_a_refusal() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { need: need(3, 5), want: 1, ..hello() }, at(0));
    assert_eq!((reply.given, reply.grant, reply.free), (3, 0, 1));
    // One token is there, three are asked.
    assert_eq!(reply.retry_after, Micros(2 * SECOND));
}

// case C-20: a cost above the burst is given nothing, and takes nothing.
#[test]
fn a_cost_above_the_burst_is_given_nothing() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { need: need(11, 1), ..hello() }, at(0));
    assert_eq!((reply.given, reply.free), (0, 10));
    let reply = book.apply(&Sync { seq: 2, need: need(u64::MAX, u64::MAX), ..hello() }, at(0));
    assert_eq!((reply.given, reply.free), (0, 10));
}

#[test]
fn lending_follows_demand() {
    let mut book = Book::default();
    book.apply(&Sync { demand: 3_000, ..hello() }, at(0));
    let other = Sync { instance: InstanceId(2), want: 100, demand: 1_000, ..hello() };
    // A quarter of ten, in whole tokens.
    assert_eq!(book.apply(&other, at(0)).grant, 2);
    // It has its share already.
    let reply = book.apply(&Sync { seq: 2, hold: 2, ..other }, at(0));
    assert_eq!((reply.grant, reply.retry_after), (0, Micros::ZERO));
    assert_eq!(book.apply(&Sync { seq: 2, want: 100, demand: 3_000, ..hello() }, at(0)).grant, 7);
}

#[test]
fn while_tokens_are_lent_the_refill_stops_below_the_burst() {
    let mut book = Book::default();
    book.apply(&Sync { want: 4, span: Micros(100 * SECOND), ..hello() }, at(0));
    // Held all the time: only 6 may be free.
    book.apply(&Sync { seq: 2, hold: 4, age: Micros(50 * SECOND), ..hello() }, at(50 * SECOND));
    assert_eq!((tokens(&book), out(&book)), (6, 4));
}

#[test]
fn since_the_sender_last_spent_its_spent_tokens_make_room() {
    let mut book = Book::default();
    book.apply(&Sync { want: 4, span: Micros(100 * SECOND), ..hello() }, at(0));
    // Spent 3 of 4 at once, tells it after 10 s: those have come back, at one a second.
    let told = Sync { seq: 2, used: 3, hold: 1, ..hello() };
    let mut aged = book.clone();
    aged.apply(&Sync { age: Micros(2 * SECOND), ..told }, at(10 * SECOND));
    assert_eq!((tokens(&aged), out(&aged)), (8, 1));
    // Without an age they count as out until now, which is safe.
    book.apply(&told, at(10 * SECOND));
    assert_eq!((tokens(&book), out(&book)), (6, 1));
}

#[test]
fn what_a_lost_reply_granted_is_no_room_before_it_goes_back() {
    let mut book = Book::default();
    book.apply(&Sync { want: 4, span: Micros(100 * SECOND), ..hello() }, at(0));
    // The reply never came: nothing used, nothing held, never spent.
    book.apply(&Sync { seq: 2, age: Micros(10 * SECOND), ..hello() }, at(10 * SECOND));
    assert_eq!((tokens(&book), out(&book)), (10, 0));
}

#[test]
fn a_lease_counts_up_to_its_own_end_and_is_spent_after_it() {
    let mut book = Book::default();
    book.apply(&Sync { want: 10, ..hello() }, at(0));
    let other = Sync { instance: InstanceId(2), ..hello() };
    // The first lease ends at 10 s. Only from then on is there room.
    book.apply(&other, at(13 * SECOND));
    assert_eq!((tokens(&book), out(&book)), (3, 0));
    let first = book.records()[0];
    assert_eq!((first.live(), first.out, first.end), (false, 0, at(10 * SECOND)));
    // A late message of it hands nothing back. What it says to hold is taken from what is free.
    let back = book.apply(&Sync { seq: 2, used: 8, hold: 2, ..hello() }, at(13 * SECOND));
    assert_eq!((back.free, out(&book)), (1, 2));
}

#[test]
fn a_record_is_kept_for_60_s_after_its_lease() {
    let mut book = Book::default();
    book.apply(&hello(), at(0));
    let other = Sync { instance: InstanceId(2), span: Micros(SECOND), ..hello() };
    for (seq, second, kept) in [(1, 11, 2), (2, 70, 2), (3, 72, 1)] {
        book.apply(&Sync { seq, ..other }, at(second * SECOND));
        assert_eq!(book.records().len(), kept, "at {second} s");
    }
}

#[test]
fn all_records_are_read_at_most_once_in_250_ms() {
    let mut book = Book::default();
    let short = Sync { want: 10, span: Micros(1_000), ..hello() };
    book.apply(&short, at(0));
    assert_eq!(book.header().map(|h| h.earliest), Some(at(250_000)));
    // Its lease is over, but nobody looks yet: it counts as out, which is safe.
    let other = Sync { instance: InstanceId(2), ..hello() };
    book.apply(&other, at(200_000));
    assert_eq!(out(&book), 10);
    book.apply(&Sync { seq: 2, ..other }, at(250_000));
    assert_eq!(out(&book), 0);
}

#[test]
fn the_senders_own_lease_is_over_when_it_is_over() {
    let mut book = Book::default();
    let short = Sync { want: 10, span: Micros(1_000), ..hello() };
    book.apply(&short, at(0));
    // Nobody looked yet; what it was lent is spent all the same.
    book.apply(&Sync { seq: 2, ..short }, at(100_000));
    assert_eq!((tokens(&book), out(&book)), (0, 0));
}

#[test]
fn a_new_life_of_a_cell_drops_the_old_lease_as_spent() {
    let mut book = Book::default();
    book.apply(&Sync { want: 6, ..hello() }, at(0));
    book.apply(&Sync { epoch: 2, born: 2, ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (4, 0));
    // A refund may be the first that it tells.
    book.apply(&Sync { epoch: 3, used: -2, ..hello() }, at(0));
    assert_eq!(tokens(&book), 6);
}

#[test]
fn debt_may_push_below_empty_and_is_charged_once() {
    let mut book = Book::default();
    let owes = Sync { debt: Total { sum: 14, acked: 0 }, ..hello() };
    let reply = book.apply(&Sync { need: need(1, 1), ..owes }, at(0));
    assert_eq!((tokens(&book), reply.free, reply.given), (-4, 0, 0));
    assert_eq!(reply.retry_after, Micros(5 * SECOND));
    // 14 s until it is full again: the key lives longer than that.
    assert_eq!(reply.key_ttl, Micros(70 * SECOND));
    book.apply(&Sync { seq: 2, ..owes }, at(0));
    assert_eq!(tokens(&book), -4);
    // The same series in a later epoch; then a cell that was born anew.
    book.apply(&Sync { epoch: 2, debt: Total { sum: 15, acked: 0 }, ..owes }, at(0));
    assert_eq!(tokens(&book), -5);
    book.apply(&Sync { epoch: 3, born: 3, debt: Total { sum: 2, acked: 1 }, ..owes }, at(0));
    assert_eq!(tokens(&book), -6);
}

#[test]
fn outage_use_is_charged_down_to_empty_at_most() {
    let mut book = Book::default();
    let used = Sync { outage: Total { sum: 1_000, acked: 993 }, ..hello() };
    book.apply(&used, at(0));
    assert_eq!(tokens(&book), 3);
    book.apply(&Sync { seq: 2, outage: Total { sum: 5_000, acked: 0 }, ..used }, at(0));
    assert_eq!(tokens(&book), 0);
    book.apply(
        &Sync { seq: 3, outage: Total { sum: 5_001, acked: 0 }, debt: Total { sum: 1, acked: 0 }, ..used },
        at(0),
    );
    assert_eq!(tokens(&book), -1);
}

#[test]
fn the_key_lives_until_a_debt_is_paid() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { debt: Total { sum: 1_000, acked: 0 }, ..hello() }, at(0));
    assert_eq!(reply.key_ttl, Micros(1_000 * SECOND));
}

#[test]
fn lost_state_starts_empty_once_in_a_generation() {
    let mut book = Book::default();
    let knew = Sync { generation: 5, used: 40, hold: 3, debt: Total { sum: 9, acked: 9 }, ..hello() };
    let reply = book.apply(&Sync { want: 5, ..knew }, at(0));
    assert_eq!((reply.lost, reply.generation, reply.grant), (true, 77, 0));
    assert_eq!((tokens(&book), out(&book)), (0, 3));
    // The others' holds are booked; the policy is not applied again.
    let other = Sync { instance: InstanceId(2), hold: 4, ..knew };
    let reply = book.apply(&other, at(2 * SECOND));
    assert_eq!((reply.lost, tokens(&book), out(&book)), (false, 2, 7));
    // From then on they settle as ever.
    book.apply(&Sync { generation: 77, seq: 2, used: 41, hold: 1, ..knew }, at(2 * SECOND));
    assert_eq!((tokens(&book), out(&book)), (3, 5));
}

#[test]
fn lost_state_may_start_full() {
    let mut book = Book::default();
    let reply = book.apply(&Sync { generation: 5, hold: 3, lost: Lost::Full, ..hello() }, at(0));
    assert_eq!((reply.lost, tokens(&book), out(&book)), (true, 7, 3));
}

#[test]
fn the_first_sender_that_knew_another_generation_triggers_the_policy() {
    let mut book = Book::default();
    assert!(!book.apply(&hello(), at(0)).lost);
    let knew = Sync { instance: InstanceId(2), generation: 5, ..hello() };
    assert!(book.apply(&knew, at(0)).lost);
    assert_eq!(tokens(&book), 0);
    assert!(!book.apply(&Sync { instance: InstanceId(3), ..knew }, at(0)).lost);
}

#[test]
fn debt_is_charged_once_though_the_reply_about_the_loss_was_lost() {
    let mut book = Book::default();
    let knew = Sync { generation: 5, debt: Total { sum: 9, acked: 4 }, ..hello() };
    book.apply(&knew, at(0));
    assert_eq!(tokens(&book), -5);
    book.apply(&Sync { seq: 2, ..knew }, at(0));
    assert_eq!(tokens(&book), -5);
}

#[test]
fn a_clock_that_jitters_never_runs_back() {
    let mut book = Book::default();
    book.apply(&Sync { need: need(10, 1), ..hello() }, at(5 * SECOND));
    let reply = book.apply(&Sync { seq: 2, ..hello() }, at(4 * SECOND));
    assert_eq!((reply.now, reply.free), (at(5 * SECOND), 0));
    assert_eq!(book.apply(&Sync { seq: 3, ..hello() }, at(6 * SECOND)).free, 1);
}

// case C-28: after a step back the refill goes on, and leases live as long as they had to.
#[test]
fn after_a_step_back_everything_moves_along() {
    let mut book = Book::default();
    book.apply(&Sync { want: 3, need: need(1, 7), ..hello() }, at(100 * SECOND));
    let other = Sync { instance: InstanceId(2), ..hello() };
    let reply = book.apply(&other, at(40 * SECOND));
    assert_eq!((reply.now, reply.free), (at(40 * SECOND), 0));
    assert_eq!(book.records()[0].end, at(50 * SECOND));
    let head = book.header().expect("a bucket");
    assert_eq!((head.earliest, head.latest), (at(50 * SECOND), at(50 * SECOND)));
    assert_eq!(book.apply(&Sync { seq: 2, ..other }, at(42 * SECOND)).free, 2);
}

#[test]
fn a_higher_revision_wins_and_an_older_one_is_told() {
    let mut book = Book::default();
    book.apply(&hello(), at(0));
    let newer = Numbers { revision: 2, ..numbers(1, 2 * SECOND, 4) };
    let reply = book.apply(&Sync { seq: 2, numbers: newer, ..hello() }, at(0));
    assert_eq!((reply.numbers, reply.free), (None, 4));
    let reply = book.apply(&Sync { seq: 3, ..hello() }, at(0));
    assert_eq!((reply.numbers, reply.free), (Some(newer), 4));
}

#[test]
fn of_equal_revisions_each_counts_by_its_own_numbers() {
    let mut book = Book::default();
    book.apply(&Sync { need: need(10, 1), ..hello() }, at(0));
    book.apply(&Sync { seq: 2, ..hello() }, at(SECOND / 2));
    // Half a token is half a token in the other's period too.
    let other = Sync { numbers: numbers(3, 7 * SECOND, 20), ..hello() };
    let reply = book.apply(&Sync { seq: 3, ..other }, at(SECOND / 2));
    assert_eq!((reply.numbers, reply.free), (None, 0));
    assert_eq!(book.header().map(|h| bucket(h).rem), Some(7 * SECOND / 2));
    book.apply(&Sync { seq: 4, ..other }, at(SECOND / 2 + 70 * SECOND));
    assert_eq!(tokens(&book), 20);
}

#[test]
fn a_lower_burst_makes_no_debt() {
    let mut book = Book::default();
    book.apply(&Sync { want: 6, ..hello() }, at(0));
    book.apply(&Sync { seq: 2, hold: 6, numbers: numbers(1, SECOND, 2), ..hello() }, at(0));
    assert_eq!((tokens(&book), out(&book)), (0, 6));
}

#[test]
fn at_the_cap_a_fraction_goes_too() {
    let mut book = Book::default();
    book.apply(&Sync { need: need(2, 1), ..hello() }, at(0));
    // 9.5 tokens; a refund of one would make 10.5.
    book.apply(&Sync { seq: 2, used: 0, ..hello() }, at(3 * SECOND / 2));
    book.apply(&Sync { seq: 3, used: -1, ..hello() }, at(3 * SECOND / 2));
    let head = book.header().expect("a bucket");
    assert_eq!((bucket(head).tokens, bucket(head).rem), (10, 0));
}

const ALL: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyMeter,
    Algorithm::LeakyQueue,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

#[test]
fn absurd_fields_neither_panic_nor_give() {
    let mut seed = 1u64;
    let mut any = || {
        // splitmix64
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> (z % 64)
    };
    for round in 0..900 {
        let mut book = Book::default();
        let algorithm = ALL[round % ALL.len()];
        for seq in 1..40 {
            let sync = Sync {
                generation: any(),
                draw: any(),
                numbers: Numbers {
                    revision: any() as u32,
                    burst: any(),
                    algorithm,
                    window: Micros(any()),
                    offset: Micros(any()),
                    ..numbers(1 + any() % 1_000, 1 + any() % SECOND, 1)
                },
                instance: InstanceId(any() % 4),
                epoch: any() % 3,
                seq,
                born: any() % 3,
                not_after: Micros::ZERO,
                used: any() as i64,
                hold: any(),
                age: Micros(any()),
                need: need(any(), any()),
                want: any(),
                demand: any(),
                span: Micros(any()),
                debt: Total { sum: any(), acked: any() },
                outage: Total { sum: any(), acked: any() },
                lost: if any() % 2 == 0 { Lost::Empty } else { Lost::Full },
                window: Micros(any()),
                fresh: Micros(any()),
                act: match any() % 16 {
                    0..4 => Act::Peek,
                    4 => Act::Clear,
                    5 => Act::Block(Micros(any())),
                    _ => Act::Sync,
                },
            };
            let reply = book.apply(&sync, Micros(any()));
            assert!(reply.given == 0 || !reply.blocked);
            let Some(head) = book.header() else { continue };
            match &head.meter {
                Meter::Bucket(bucket) => {
                    assert!(bucket.tokens <= head.numbers.burst.saturating_sub(head.out) as i64);
                    assert!(bucket.rem < head.numbers.rate.period());
                }
                Meter::Window(_) if reply.grant > 0 => assert!(head.free() >= 0),
                Meter::Window(_) => {}
            }
        }
    }
}

#[test]
fn a_lease_is_whole_requests() {
    let mut book = Book::default();
    let five = Need { cost: 5, count: 0 };
    let reply = book.apply(&Sync { want: 9, need: five, ..hello() }, at(0));
    assert_eq!((reply.grant, reply.free), (5, 5));
    // Four more would make nine in hand: of no use before there are ten.
    let reply = book.apply(&Sync { seq: 2, hold: 5, want: 4, need: five, ..hello() }, at(0));
    assert_eq!((reply.grant, reply.free), (0, 5));
}

#[test]
fn one_request_is_not_cut_by_a_share_that_would_never_serve_it() {
    let mut book = Book::default();
    let crowd = Sync { demand: 1_000_000, ..hello() };
    book.apply(&crowd, at(0));
    let small = Sync { instance: InstanceId(2), demand: 1, need: Need { cost: 3, count: 0 }, ..hello() };
    assert_eq!(book.apply(&Sync { want: 3, ..small }, at(0)).grant, 3);
    assert_eq!(book.apply(&Sync { want: 6, hold: 3, seq: 2, used: 0, ..small }, at(0)).grant, 0);
}
