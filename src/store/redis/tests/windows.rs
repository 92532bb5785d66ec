//! How windows and queues live in Redis: their time to live, their size, and what is not theirs.

use super::{twin::ask, *};
use crate::{
    algorithm::Algorithm,
    lease::{Act, InstanceId, Lost, Need, Numbers, Reply, Sync, Total},
    rate::Rate,
    store::redis::{fault, wire},
};

const SECOND: u64 = 1_000_000;
const ALL: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyMeter,
    Algorithm::LeakyQueue,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

/// A first message that needs one, of 10 in 60 s.
fn needs_one(algorithm: Algorithm) -> Sync {
    let window = Micros(if algorithm.is_window() { 60 * SECOND } else { 0 });
    let rate = Rate::per_micros(10, Micros(60 * SECOND)).expect("a fair rate");
    Sync {
        generation: 0,
        draw: 77,
        numbers: Numbers { algorithm, window, ..Numbers::bucket(0, rate, 10) },
        instance: InstanceId(1),
        epoch: 1,
        seq: 1,
        born: 1,
        not_after: Micros::ZERO,
        used: 0,
        hold: 0,
        age: Micros::ZERO,
        need: Need { cost: 1, count: 1 },
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

struct World {
    server: RedisServer,
    connection: Connection,
}

impl World {
    fn new() -> World {
        let server = RedisServer::start();
        let connection = open(&server.url(), PATIENT);
        World { server, connection }
    }

    /// Asks at `now`; zero asks the server's clock.
    async fn ask(&self, key: &str, now: u64, sync: Sync) -> Result<Reply, Error> {
        let answers = ask(&self.connection, Script::sync_buckets(), now, &[(key.as_bytes(), sync)]).await;
        match answers[0].split_first() {
            Some((b'E', words)) => Err(fault::of_bucket(&String::from_utf8_lossy(words))),
            _ => wire::unpack(&answers[0], sync.numbers.algorithm),
        }
    }

    fn ttl(&self, key: &str) -> i64 {
        self.server.cli_number(&["PTTL", key])
    }
}

// cases B-01, B-03, B-06, B-10: a time to live from the first message on, whatever it cost, as long as it counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_has_a_time_to_live_as_long_as_it_counts() {
    let world = World::new();
    for algorithm in ALL {
        let key = algorithm.kind();
        let seven = Sync { need: Need { cost: 7, count: 1 }, ..needs_one(algorithm) };
        let reply = world.ask(key, 0, seven).await.expect("an answer");
        assert_eq!(reply.given, 1, "{algorithm:?}");
        // At least as long as late messages may come; at most two windows.
        let ttl = world.ttl(key);
        assert!((59_000..=121_000).contains(&ttl), "{algorithm:?}: {ttl}");
        if algorithm == Algorithm::SlidingCounter {
            assert!(ttl > 60_000);
        }
        world.server.cli(&["PERSIST", key]);
        world.ask(key, 0, Sync { seq: 2, ..seven }).await.expect("an answer");
        assert!(world.ttl(key) > 0, "{algorithm:?}: repaired");
        let order = Sync { act: Act::Block(Micros(500 * SECOND)), ..seven };
        assert!(world.ask(key, 0, order).await.expect("an answer").blocked);
        assert!(world.ttl(key) > 490_000, "{algorithm:?}: blocked");
        world.server.cli(&["PERSIST", key]);
        world.ask(key, 0, Sync { act: Act::Clear, ..seven }).await.expect("an answer");
        assert!(world.ttl(key) > 0, "{algorithm:?}: cleared");
        // A look, and the clearing of what is not there, leave nothing.
        for act in [Act::Peek, Act::Clear, Act::Block(Micros::ZERO)] {
            world.ask("nothing", 0, Sync { act, ..seven }).await.expect("an answer");
            assert_eq!(world.server.cli(&["EXISTS", "nothing"]), "0");
        }
    }
}

// case C-31: 20 in 60 s, 10,000 in one second; and what is kept is small at any rate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_counts_all_of_one_instant_and_stays_small() {
    let world = World::new();
    let hello = needs_one(Algorithm::SlidingLog);
    let numbers = |limit| Numbers { burst: limit, ..hello.numbers };
    let mut passed = 0;
    for seq in 1..=100 {
        let need = Need { cost: 1, count: 100 };
        let sync = Sync { seq, numbers: numbers(20), need, ..hello };
        passed += world.ask("instant", 1_000 * SECOND + seq * 10_000, sync).await.expect("an answer").given;
    }
    assert_eq!(passed, 20);

    for seq in 1..=2_500 {
        let sync = Sync { seq, numbers: numbers(1_000_000), ..hello };
        let reply = world.ask("steady", 1_000 * SECOND + seq * 30_000, sync).await.expect("an answer");
        assert_eq!(reply.given, 1);
    }
    let bytes = "local n = 0 for _, f in ipairs(redis.call('HKEYS', KEYS[1])) do
        if f:match('^entries:%d+$') then n = n + redis.call('HSTRLEN', KEYS[1], f) end end return n";
    let entries = world.server.cli_number(&["EVAL", bytes, "1", "steady"]) / 16;
    assert!((1_000..=1_025).contains(&entries), "{entries}");
    let look = Sync { act: Act::Peek, numbers: numbers(1_000_000), ..hello };
    let reply = world.ask("steady", 1_000 * SECOND + 2_500 * 30_000, look).await.expect("an answer");
    assert!((1_997_i64..=2_003).contains(&(1_000_000 - reply.free as i64)), "{reply:?}");
}

// cases C-15, B-08: what is not ours, or not whole, is an error for that key alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_is_damaged_is_that_keys_error() {
    let world = World::new();
    for algorithm in ALL {
        let (key, other) = (algorithm.kind(), if algorithm.is_window() { "tb" } else { "fw" });
        world.ask(key, 0, needs_one(algorithm)).await.expect("an answer");
        let stranger = ALL.into_iter().find(|a| a.kind() == other).expect("a kind");
        let answer = world.ask(key, 0, needs_one(stranger)).await;
        assert_eq!(answer.map_err(|e| e.kind()).map(|_| ()), Err(ErrorKind::WrongType), "{algorithm:?} as {other}");
    }
    let next = Sync { seq: 2, ..needs_one(Algorithm::SlidingLog) };
    for damage in [&["HSET", "sl", "entries:1", "hello"][..], &["HDEL", "sl", "entries:1"]] {
        world.server.cli(damage);
        assert_eq!(world.ask("sl", 0, next).await.map_err(|e| e.kind()).map(|_| ()), Err(ErrorKind::WrongType));
    }
    assert!(world.ttl("sl") > 0, "and it ends by itself");
    // Without its header it is new, and nothing old is left of it.
    world.server.cli(&["HDEL", "sl", "h"]);
    assert_eq!(world.ask("sl", 0, next).await.map(|r| (r.given, r.free)), Ok((1, 9)));
    assert_eq!(world.server.cli(&["HLEN", "sl"]), "3");
}

// cases A-01, C-21, C-23, C-39 on a real server: what the book does, the script does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_windows_report_is_charged_to_nobody_and_refused_costs_to_nothing() {
    let world = World::new();
    let hello = needs_one(Algorithm::FixedWindow);
    let start = 60_000 * SECOND;
    let told = Total { sum: 9, acked: 0 };
    let late = Sync { window: Micros(start), debt: told, outage: told, used: 3, hold: 2, ..hello };
    let now = start + 61 * SECOND;
    let reply = world.ask("key", now, late).await.expect("an answer");
    assert_eq!((reply.given, reply.free, reply.window), (1, 9, Micros(start + 60 * SECOND)));
    assert_eq!(reply.ends_in, Micros(59 * SECOND));
    for (seq, cost) in [(2, 10), (3, 1_000_000)] {
        let need = Need { cost, count: 1 };
        let sync = Sync { seq, need, window: reply.window, hold: 0, ..late };
        let reply = world.ask("key", now, sync).await.expect("an answer");
        assert_eq!((reply.given, reply.free, reply.retry_after), (0, 9, reply.ends_in));
    }
    let look = Sync { act: Act::Peek, need: Need { cost: 9, count: 1 }, ..hello };
    assert_eq!(world.ask("key", now, look).await.map(|r| (r.free, r.retry_after)), Ok((9, Micros::ZERO)));
}
