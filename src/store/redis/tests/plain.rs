//! Plain counters, which older code may share: the same on a real server and in the embedded store.

use super::*;
use crate::{
    algorithm::Frame,
    clock::Clock,
    store::{
        MemoryStore,
        op::{Counted, Hit},
    },
};

const SECOND: u64 = 1_000_000;
/// So long that no test meets its edge.
const LONG: Frame = Frame::new(Micros::from_secs(200 * 86_400), Micros::ZERO);

fn name(text: &str) -> BucketName {
    BucketName::from_bytes(text.as_bytes())
}

struct Both {
    server: RedisServer,
    redis: Connection,
    memory: MemoryStore,
}

impl Both {
    fn new() -> Both {
        let server = RedisServer::start();
        let redis = open(&server.url(), PATIENT);
        Both { server, redis, memory: MemoryStore::with_clock(Clock::manual()) }
    }

    /// The start of the present window in each, by a look at a key that means another one.
    async fn starts(&self, frame: Frame) -> [Micros; 2] {
        let look = Hit { limit: 1, cost: 0, frame, start: Micros(1) };
        let redis = self.redis.count_plain(&name("look"), &look).await.expect("an answer");
        let memory = self.memory.count_plain(&name("look"), &look).expect("an answer");
        [redis, memory].map(|answer| match answer {
            Counted::OtherWindow { now } => frame.start(now),
            other => panic!("{other:?}"),
        })
    }

    /// One hit on both: whether it was taken, and what is counted then.
    async fn hit(&self, key: &str, limit: u64, cost: i64, starts: [Micros; 2]) -> (bool, i64) {
        let hit = |start| Hit { limit, cost, frame: LONG, start };
        let redis = self.redis.count_plain(&name(key), &hit(starts[0])).await.expect("an answer");
        let memory = self.memory.count_plain(&name(key), &hit(starts[1])).expect("an answer");
        let [redis, memory] = [redis, memory].map(|answer| match answer {
            Counted::Taken { count, ends_in, .. } if ends_in > Micros::ZERO => (true, count),
            Counted::Refused { count, ends_in, .. } if ends_in > Micros::ZERO => (false, count),
            other => panic!("{other:?}"),
        });
        assert_eq!(redis, memory, "{key}, cost {cost}");
        redis
    }
}

// cases B-03, C-19, C-20, C-21, C-23, C-39: costs add up, refused ones are not counted, a look changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_counter_counts_what_fits_and_nothing_else() {
    let both = Both::new();
    let starts = both.starts(LONG).await;
    assert_eq!(both.hit("key", 10, 0, starts).await, (true, 0));
    assert_eq!(both.server.cli(&["EXISTS", "key"]), "0", "a look leaves nothing");
    let table = [(7, true, 7), (4, false, 7), (3, true, 10), (1, false, 10), (0, true, 10), (1 << 50, false, 10)];
    for (cost, taken, count) in table {
        assert_eq!(both.hit("key", 10, cost, starts).await, (taken, count), "cost {cost}");
    }
    assert_eq!(both.server.cli(&["GET", "key"]), "10", "as older code reads it");
    let ttl = both.server.cli_number(&["PTTL", "key"]);
    assert!((1..=17_280_000_000).contains(&ttl), "{ttl}");
    // A raised limit helps at once.
    assert_eq!(both.hit("key", 20, 10, starts).await, (true, 20));
    // What comes back can be had again, and no more than was counted.
    assert_eq!(both.hit("key", 20, -5, starts).await, (true, 15));
    assert_eq!(both.hit("key", 20, -500, starts).await, (true, 0));
    assert_eq!(both.hit("nothing", 20, -5, starts).await, (true, 0));
    assert_eq!(both.server.cli(&["EXISTS", "nothing"]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_hits_are_counted_alike_by_the_script_and_the_embedded_store() {
    let both = Both::new();
    let dated = both.starts(LONG).await;
    let mut state = 7_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for nth in 0..3_000 {
        let (key, starts) = if below(2) == 0 { ("dated", dated) } else { ("first hit", [Micros::ZERO; 2]) };
        let limit = [1, 10, 1_000, 1 << 40][below(4) as usize];
        let cost = match below(8) {
            0 => 0,
            1 => -(below(2_000) as i64) - 1,
            2 => below(1 << 31) as i64 * 1_024 + 1,
            _ => below(20) as i64 + 1,
        };
        both.hit(&format!("{key} {}", nth / 200), limit, cost, starts).await;
    }
}

// cases B-01, B-05: the end is set once, repaired where it is missing, and never pushed back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_counter_always_ends_with_its_window() {
    let both = Both::new();
    let starts = both.starts(LONG).await;
    let cli = |words: &[&str]| both.server.cli(words);
    both.hit("key", 10, 1, starts).await;
    cli(&["PEXPIRE", "key", "1500"]);
    both.hit("key", 10, 1, starts).await;
    assert!((1..=1_500).contains(&both.server.cli_number(&["PTTL", "key"])));
    // Older code counted and lost its EXPIRE; the hit that repairs it may be one that is refused.
    for (value, taken) in [("3", true), ("99", false)] {
        cli(&["SET", "old", value]);
        let hit = Hit { limit: 10, cost: 1, frame: LONG, start: starts[0] };
        let answer = both.redis.count_plain(&name("old"), &hit).await.expect("an answer");
        assert_eq!(matches!(answer, Counted::Taken { .. }), taken, "{answer:?}");
        assert!((1..=17_280_000_000).contains(&both.server.cli_number(&["PTTL", "old"])));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hit_that_means_another_window_is_told_the_time_and_does_nothing() {
    let both = Both::new();
    let starts = both.starts(LONG).await;
    for wrong in [Micros(1), starts[0].minus(LONG.length()), starts[0].plus(LONG.length())] {
        let hit = Hit { limit: 10, cost: 1, frame: LONG, start: wrong };
        let answer = both.redis.count_plain(&name("key"), &hit).await.expect("an answer");
        let Counted::OtherWindow { now } = answer else { panic!("{answer:?}") };
        assert_eq!(LONG.start(now), starts[0]);
        assert_eq!(both.server.cli(&["EXISTS", "key"]), "0");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_means_no_window_begins_with_its_first_hit() {
    let both = Both::new();
    let none = [Micros::ZERO; 2];
    assert_eq!(both.hit("key", 2, 1, none).await, (true, 1));
    assert_eq!(both.hit("key", 2, 1, none).await, (true, 2));
    assert_eq!(both.hit("key", 2, 1, none).await, (false, 2));
    assert!(both.server.cli_number(&["PTTL", "key"]) > 17_279_000_000);
    both.server.cli(&["PEXPIRE", "key", "10000"]);
    let hit = Hit { limit: 2, cost: 1, frame: LONG, start: Micros::ZERO };
    let answer = both.redis.count_plain(&name("key"), &hit).await.expect("an answer");
    assert!(matches!(answer, Counted::Refused { ends_in, .. } if ends_in <= Micros(10 * SECOND + 1_000)), "{answer:?}");
}

// case C-15: what is no whole number is that key's error; what is empty is nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_holds_something_else_is_an_error_and_stays_as_it_is() {
    let both = Both::new();
    let starts = both.starts(LONG).await;
    both.server.cli(&["SET", "text", "hello"]);
    both.server.cli(&["SET", "part", "1.5"]);
    both.server.cli(&["RPUSH", "list", "hello"]);
    // Digits alone, of which INCRBY makes no number.
    let digits = ["007", "00", "-0", "9223372036854775808", "-9223372036854775809", &"9".repeat(30)];
    digits.iter().for_each(|text| _ = both.server.cli(&["SET", text, text]));
    let hit = Hit { limit: 10, cost: 1, frame: LONG, start: starts[0] };
    for key in ["text", "part", "list"].into_iter().chain(digits) {
        for cost in [1, 0, -1] {
            let answer = both.redis.count_plain(&name(key), &Hit { cost, ..hit }).await;
            assert_eq!(answer.map_err(|e| e.kind()), Err(ErrorKind::WrongType), "{key} {cost}");
        }
    }
    for (text, taken) in [("0", true), ("-9223372036854775807", true), ("9223372036854775807", false)] {
        both.server.cli(&["SET", text, text]);
        let answer = both.redis.count_plain(&name(text), &hit).await.expect("a number");
        assert_eq!(matches!(answer, Counted::Taken { .. }), taken, "{text}: {answer:?}");
    }
    assert_eq!(both.server.cli(&["GET", "text"]), "hello");
    both.server.cli(&["SET", "empty", ""]);
    assert!(matches!(both.redis.count_plain(&name("empty"), &hit).await, Ok(Counted::Taken { count: 1, .. })));
    assert!(both.server.cli_number(&["PTTL", "empty"]) > 0);
}

#[test]
fn counters_of_the_embedded_store_end_and_are_forgotten() {
    let clock = Clock::manual();
    let store = MemoryStore::with_clock(clock.clone());
    let minute = Frame::new(Micros::from_secs(60), Micros::ZERO);
    let hit = Hit { limit: 1, cost: 1, frame: minute, start: Micros::ZERO };
    let taken = |key: &str| matches!(store.count_plain(&name(key), &hit), Ok(Counted::Taken { .. }));
    for k in 0..1_000 {
        assert!(taken(&k.to_string()));
    }
    assert!(!taken("7"));
    clock.advance(Micros::from_secs(60));
    assert!(taken("7"), "a window is over though nobody swept it");
    for k in 0..500 {
        taken(&format!("more {k}"));
    }
    assert!(store.len() <= 501, "{}", store.len());
    store.wipe();
    assert!(store.is_empty());
}
