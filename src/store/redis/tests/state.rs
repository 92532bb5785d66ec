//! What a bucket's key may hold that is not a bucket, and how its state lives and ends in Redis.

use super::{twin::ask, *};
use crate::{
    lease::{Act, InstanceId, Lost, Need, Numbers, Outcome, Reply, Sync, Total},
    rate::Rate,
    store::redis::{fault, wire},
};

const SECOND: u64 = 1_000_000;

/// A first message to a bucket of 10 that gets 10 a minute: one token is needed.
fn needs_one() -> Sync {
    Sync {
        generation: 0,
        draw: 77,
        numbers: Numbers::bucket(0, Rate::per_micros(10, Micros(60 * SECOND)).expect("a fair rate"), 10),
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
    fn new(options: &[&str]) -> World {
        let server = RedisServer::with_options(options);
        let connection = open(&server.url(), PATIENT);
        World { server, connection }
    }

    /// Asks about each key, by the server's clock.
    async fn ask(&self, keys: &[&str], sync: Sync) -> Vec<Result<Reply, Error>> {
        let messages: Vec<_> = keys.iter().map(|k| (k.as_bytes(), sync)).collect();
        let read = |bytes: &Vec<u8>| match bytes.split_first() {
            Some((b'E', words)) => Err(fault::of_bucket(&String::from_utf8_lossy(words))),
            _ => wire::unpack(bytes, sync.numbers.algorithm),
        };
        ask(&self.connection, Script::sync_buckets(), 0, &messages).await.iter().map(read).collect()
    }

    async fn one(&self, key: &str, sync: Sync) -> Reply {
        self.ask(&[key], sync).await.remove(0).expect("an answer")
    }

    fn ttl(&self, key: &str) -> i64 {
        self.server.cli_number(&["PTTL", key])
    }
}

// cases C-15, H-10: what is not ours is an error for that bucket alone, and stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_none_harms_no_other() {
    let world = World::new(&[]);
    let cli = |words: &[&str]| world.server.cli(words);
    cli(&["SET", "text", "hello"]);
    cli(&["RPUSH", "list", "hello"]);
    cli(&["HSET", "short", "h", "hello"]);
    cli(&["HSET", "long", "h", &"x".repeat(113)]);
    let zeros = "return redis.call('HSET', 'zeros', 'h', '\\1' .. string.rep('\\0', 112))";
    cli(&["EVAL", zeros, "0"]);
    let record = "return redis.call('HSET', 'record', string.char(1, 0, 0, 0, 0, 0, 0, 0), 'hello')";
    world.one("record", needs_one()).await;
    cli(&["EVAL", record, "0"]);

    let keys = ["fine", "text", "list", "short", "long", "zeros", "record", "also fine"];
    let answers = world.ask(&keys, Sync { seq: 2, ..needs_one() }).await;
    for (key, answer) in keys.iter().zip(&answers) {
        match answer {
            Ok(reply) => assert!(key.ends_with("fine") && (reply.given, reply.free) == (1, 9), "{key}: {reply:?}"),
            Err(e) => assert!(!key.ends_with("fine") && e.kind() == ErrorKind::WrongType, "{key}: {e:?}"),
        }
    }
    assert_eq!(cli(&["GET", "text"]), "hello");
    assert_eq!(cli(&["HGET", "short", "h"]), "hello");
    // Once more: none of the good ones was applied twice, or not at all.
    let again = world.one("fine", Sync { seq: 3, ..needs_one() }).await;
    assert_eq!((again.outcome, again.free), (Outcome::Applied, 8));
}

// case C-15: what is empty is fresh.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_value_is_a_fresh_bucket() {
    let world = World::new(&[]);
    let cli = |words: &[&str]| world.server.cli(words);
    cli(&["SET", "string", ""]);
    cli(&["HSET", "header", "h", ""]);
    // Case B-08, as far as it concerns us: the header is gone, other fields are there.
    world.one("headless", Sync { want: 5, ..needs_one() }).await;
    cli(&["HSET", "headless", "other", "field"]);
    cli(&["HDEL", "headless", "h"]);
    for key in ["string", "header", "headless"] {
        let reply = world.one(key, needs_one()).await;
        assert_eq!((reply.outcome, reply.given, reply.free), (Outcome::Applied, 1, 9), "{key}");
        assert_eq!(cli(&["TYPE", key]), "hash");
        assert_eq!(cli(&["HLEN", key]), "2");
        assert!(world.ttl(key) > 0);
    }
}

// cases B-01, B-03, B-07: each key has a time to live from its first message on, whatever it cost,
// and gets it back when somebody took it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_has_a_time_to_live() {
    let world = World::new(&[]);
    let reply = world.one("seven", Sync { need: Need { cost: 7, count: 1 }, ..needs_one() }).await;
    assert_eq!(reply.key_ttl, Micros(70 * SECOND));
    assert!((1..=70_000).contains(&world.ttl("seven")));

    world.server.cli(&["PERSIST", "seven"]);
    assert_eq!(world.ttl("seven"), -1);
    // A repeat writes nothing; the next message does.
    world.one("seven", needs_one()).await;
    assert_eq!(world.ttl("seven"), -1);
    world.one("seven", Sync { seq: 2, ..needs_one() }).await;
    assert!((1..=70_000).contains(&world.ttl("seven")));

    let names: Vec<_> = (0..10_000).map(|i| format!("user:{i}")).collect();
    for part in names.chunks(500) {
        let part: Vec<_> = part.iter().map(String::as_str).collect();
        assert!(world.ask(&part, needs_one()).await.iter().all(|a| a.as_ref().is_ok_and(|r| r.given == 1)));
    }
    let without = "local n = 0
        for _, key in ipairs(redis.call('KEYS', '*')) do
          local ttl = redis.call('PTTL', key)
          if ttl <= 0 or ttl > 70000 then n = n + 1 end
        end
        return { n, redis.call('DBSIZE') }";
    assert_eq!(world.server.cli(&["EVAL", without, "0"]).split_whitespace().collect::<Vec<_>>(), ["0", "10001"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_debt_outlives_the_usual_time() {
    let world = World::new(&[]);
    let owes = Sync { debt: Total { sum: 100, acked: 0 }, ..needs_one() };
    // 101 tokens are missing, at 6 s each, less what has come since.
    let reply = world.one("debtor", owes).await;
    assert_eq!((reply.given, reply.key_ttl), (0, Micros(600 * SECOND)));
    assert!((590_000..=600_000).contains(&world.ttl("debtor")));
}

// case B-16: without memory a question fails, with its kind, and leaves nothing half done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_memory_nothing_is_half_written() {
    let world = World::new(&["--maxmemory-policy", "noeviction"]);
    world.one("old", Sync { want: 3, ..needs_one() }).await;
    let cli = |words: &[&str]| world.server.cli(words);
    let dump = |key: &str| {
        world.server.cli(&["EVAL", "return redis.sha1hex(table.concat(redis.call('HGETALL', KEYS[1])))", "1", key])
    };
    let before = dump("old");
    cli(&["CONFIG", "SET", "maxmemory", "1"]);

    let next = Sync { seq: 2, hold: 3, want: 0, ..needs_one() };
    for answer in world.ask(&["new", "old", "newer"], next).await {
        assert_eq!(answer.map_err(|e| e.kind()), Err(ErrorKind::OutOfMemory));
    }
    assert_eq!(cli(&["EXISTS", "new", "newer"]), "0");
    assert_eq!(dump("old"), before);
    // A look needs no memory.
    assert_eq!(world.one("old", Sync { act: Act::Peek, ..next }).await.free, 6);

    cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(world.one("old", next).await.free, 5);
}

// case C-16: the count falls one by one, whatever the size of the clock's numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_an_hour_counts_by_ones() {
    let world = World::new(&[]);
    let rate = Rate::per_micros(1_000_000, Micros(3_600 * SECOND)).expect("a fair rate");
    let numbers = Numbers::bucket(0, rate, 1_000_000);
    let mut free = Vec::new();
    for seq in 1..=3 {
        free.push(world.one("hourly", Sync { seq, numbers, ..needs_one() }).await.free);
    }
    // At 278 a second some may come back between two questions, but none is lost.
    assert_eq!(free[0], 999_999);
    assert!(free[1] >= 999_998 && free[2] >= 999_997, "{free:?}");
}

// case H-25: the server's clock decides, in the same script that writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_is_the_servers() {
    let world = World::new(&[]);
    let time = || world.server.cli(&["EVAL", "local t = redis.call('TIME') return t[1] * 1000000 + t[2]", "0"]);
    let before: u64 = time().parse().expect("a time");
    let now = world.one("any", needs_one()).await.now.0;
    let after: u64 = time().parse().expect("a time");
    assert!(before <= now && now <= after, "{before} {now} {after}");
}
