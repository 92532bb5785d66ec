//! The script and the book, message by message: the same answers, and the same state.

use super::*;
use crate::{
    algorithm::{Algorithm, FixedWindow, SlidingCounter, SlidingLog, TokenBucket, Window},
    lease::{Act, Book, Header, InstanceId, Lost, Meter, Need, Numbers, Outcome, Record, Sync, Total, bounded},
    rate::Rate,
    store::redis::wire::{Doubles, kind, pack, unpack},
};

use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000;
const YEAR: u64 = 366 * 86_400 * SECOND;
/// About now, on a wall clock.
const TODAY: u64 = 1_780_000_000 * SECOND;

/// The packed state of some buckets: fields and values, and the time to live.
const STATE: &str = "local all = {}
for i = 1, #KEYS do all[i] = { redis.call('HGETALL', KEYS[i]), redis.call('PTTL', KEYS[i]) } end
return all";

/// Asks about each bucket at `now` (0: the server's clock); the packed answers.
pub(super) async fn ask(to: &Connection, script: &Script, now: u64, messages: &[(&[u8], Sync)]) -> Vec<Vec<u8>> {
    let mut args = vec![now.to_string().into_bytes()];
    args.extend(messages.iter().map(|(_, sync)| pack(sync)));
    let call = Call { keys: messages.iter().map(|(key, _)| *key).collect(), args };
    match to.call(script, &call).await.expect("an answer") {
        Value::Array(parts) => parts.into_iter().map(bulk).collect(),
        other => panic!("{other:?}"),
    }
}

fn bulk(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Header and records as Redis keeps them, and the time to live in ms.
async fn state(of: &Connection, keys: &[(&[u8], Algorithm)]) -> Vec<(Option<Header>, Vec<Record>, i64)> {
    let call = Call { keys: keys.iter().map(|(key, _)| *key).collect(), args: Vec::new() };
    let Value::Array(buckets) = of.call(&Script::new(STATE), &call).await.expect("the state") else { panic!() };
    let read = |(bucket, algorithm)| {
        let Value::Array(mut pair) = bucket else { panic!() };
        let (ttl, flat) = (pair.pop(), pair.pop());
        let (Some(Value::Int(ttl)), Some(Value::Array(flat))) = (ttl, flat) else { panic!() };
        let flat: Vec<_> = flat.into_iter().map(bulk).collect();
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.strip_prefix("entries:")?.parse().ok();
        let log = flat.chunks(2).filter_map(|pair| Some((number(&pair[0])?, &pair[1][..])));
        let log: BTreeMap<u64, &[u8]> = log.collect();
        let (mut head, mut records) = (None, Vec::new());
        for pair in flat.chunks(2) {
            match &pair[0][..] {
                b"h" => head = Some(header(&pair[1], algorithm, &log)),
                field if number(field).is_some() => assert_eq!(algorithm, Algorithm::SlidingLog),
                id => records.push(record(id, &pair[1])),
            }
        }
        records.sort_by_key(|r| r.instance);
        (head, records, ttl)
    };
    buckets.into_iter().zip(keys.iter().map(|(_, algorithm)| *algorithm)).map(read).collect()
}

fn signed(d: &mut Doubles<'_>) -> i64 {
    d.next().expect("a number") as i64
}

fn header(bytes: &[u8], algorithm: Algorithm, log: &BTreeMap<u64, &[u8]>) -> Header {
    assert_eq!(bytes[0], 1 + 16 * kind(algorithm));
    let usual = match algorithm {
        Algorithm::SlidingLog => 113 + 16 + 24,
        _ if algorithm.is_window() => 113 + 16,
        _ => 113,
    };
    assert!([usual, usual + 8].contains(&bytes.len()), "{}", bytes.len());
    let d = &mut Doubles(&bytes[1..]);
    let tokens = signed(d);
    let mut n = || d.whole().expect("a whole number");
    let (rem, at) = (n(), Micros(n()));
    let (out, demand, earliest, latest) = (n(), n(), Micros(n()), Micros(n()));
    let (generation, policy_done, revision) = (n(), n() == 1, n() as u32);
    let rate = d.rate().expect("a rate");
    let mut n = || d.whole().expect("a whole number");
    let mut numbers = Numbers { algorithm, ..Numbers::bucket(revision, rate, n()) };
    if algorithm.is_window() {
        (numbers.window, numbers.offset) = (Micros(n()), Micros(n()));
    }
    let (first, last, count) = if algorithm == Algorithm::SlidingLog { (n(), n(), n()) } else { (1, 0, 0) };
    assert!(log.keys().copied().eq(first..=last), "all pieces, and none that is gone");
    let blocked = if bytes.len() > usual { Micros(n()) } else { Micros::ZERO };
    let log = log.values().copied().collect::<Vec<_>>().concat();
    assert_eq!(log.len() as u64, 16 * count);
    let counted = tokens as u64;
    let meter = match Window::new(algorithm, at) {
        None => Meter::Bucket(TokenBucket { tokens, rem, at }),
        Some(Window::Fixed(_)) => Meter::Window(Window::Fixed(FixedWindow { counted, at })),
        Some(Window::Counter(_)) => Meter::Window(Window::Counter(SlidingCounter { current: counted, last: rem, at })),
        Some(Window::Log(_)) => {
            let d = &mut Doubles(&log);
            let mut n = || d.whole().expect("a whole number");
            let entries = (0..log.len() / 16).map(|_| (Micros(n()), n())).collect();
            Meter::Window(Window::Log(SlidingLog { entries, sum: counted, at }))
        }
    };
    Header { meter, out, demand, earliest, latest, generation, policy_done, blocked, numbers }
}

fn record(field: &[u8], bytes: &[u8]) -> Record {
    assert_eq!((bytes[0], bytes.len()), (1, 73));
    let instance = InstanceId(u64::from_le_bytes(field.try_into().expect("8 bytes")));
    let d = &mut Doubles(&bytes[1..]);
    let (epoch, seq) = (d.whole().expect("an epoch"), d.whole().expect("a seq"));
    let used = signed(d);
    let mut n = || d.whole().expect("a whole number");
    let (out, end, demand, debt, outage, born) = (n(), Micros(n()), n(), n(), n(), n());
    Record { instance, epoch, seq, used, out, end, demand, debt, outage, born }
}

/// A small generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }
    fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }
    /// Any size, small ones as often as large ones.
    fn any(&mut self) -> u64 {
        let bits = self.below(64);
        self.roll() >> bits
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
    fn numbers(&mut self, algorithm: Algorithm) -> Numbers {
        let period = match self.below(5) {
            0 => 1 + self.below(1_000),
            1 => SECOND,
            2 => 1 + self.below(100 * SECOND),
            3 => YEAR,
            _ => 1 + self.below(YEAR),
        };
        let count = match self.below(5) {
            0 => 1,
            1 => period * 1_000,
            2 => 1 + self.below(period * 1_000),
            _ => (1 + self.any()).min(period * 1_000),
        };
        let rate = Rate::per_micros(count, Micros(period)).expect("a fair rate");
        let burst = match self.below(4) {
            0 => 1 + self.below(20),
            1 => 1 + self.below(1_000_000_000),
            2 => 1_000_000_000,
            _ => 1 + self.below(10_000),
        };
        let window = match self.below(8) {
            0 => 1 + self.below(3_000),
            1 => self.any(), // also what no rule may say
            2 => YEAR,
            3 | 4 => SECOND,
            5 => 1 + self.below(100 * SECOND),
            _ => 10 * SECOND,
        };
        let offset = Micros(if self.percent(60) { 0 } else { self.any() });
        let numbers = Numbers::bucket(self.pick(&[0, 0, 0, 0, 1, 2]), rate, burst);
        Numbers { algorithm, window: Micros(window), offset, ..numbers }
    }
}

/// What one instance last said about one bucket.
#[derive(Clone, Copy, Default)]
struct Said {
    epoch: u64,
    seq: u64,
    used: i64,
    hold: u64,
    debt: u64,
    outage: u64,
    born: u64,
    generation: u64,
}

/// A bucket under test: its book, its name, and what is said about it.
struct Twin {
    name: Vec<u8>,
    book: Book,
    said: [Said; 4],
    numbers: [Numbers; 3],
}

const ALL: [Algorithm; 6] = [
    Algorithm::TokenBucket,
    Algorithm::LeakyMeter,
    Algorithm::LeakyQueue,
    Algorithm::FixedWindow,
    Algorithm::SlidingLog,
    Algorithm::SlidingCounter,
];

impl Twin {
    fn new(dice: &mut Dice, number: usize) -> Twin {
        let algorithm = ALL[number % ALL.len()];
        let mut numbers = [(); 3].map(|()| dice.numbers(algorithm));
        if dice.percent(50) {
            // Often of one length, so that what was counted meets other limits.
            (numbers[1].window, numbers[1].offset) = (numbers[0].window, numbers[0].offset);
        }
        if dice.percent(50) {
            numbers[0].burst = 1 + dice.below(20); // so that refusals are everyday
        }
        Twin {
            name: format!("tollgate:{{16.3}}:twin:{number}").into(),
            book: Book::default(),
            said: <_>::default(),
            numbers,
        }
    }

    /// Mostly what an instance would say next; at times a repeat, something stale, or nonsense.
    fn message(&mut self, dice: &mut Dice, now: u64) -> Sync {
        let who = dice.below(4);
        let said = &mut self.said[who as usize];
        let wild = dice.percent(8);
        match dice.below(20) {
            0 => {
                *said = Said {
                    epoch: said.epoch + 1,
                    generation: said.generation,
                    born: said.born,
                    debt: said.debt,
                    ..Said::default()
                }
            }
            1 => *said = Said { epoch: said.epoch + 1, born: said.epoch + 1, ..Said::default() },
            2 => said.seq = said.seq.saturating_sub(dice.below(3)),
            3 => said.epoch = said.epoch.saturating_sub(1),
            _ => said.seq += 1,
        }
        let burst = self.numbers[0].burst;
        let spent = if said.hold > 0 { dice.below(said.hold + 1) } else { 0 };
        said.used += spent as i64;
        said.hold -= spent;
        match dice.below(12) {
            0 => said.used -= dice.below(burst.min(5)) as i64,
            1 => said.hold = 0,
            2 => said.hold += dice.below(5),
            _ => {}
        }
        said.debt += if dice.percent(15) { dice.below(burst * 2) } else { 0 };
        said.outage += if dice.percent(15) { dice.below(burst * 2) } else { 0 };
        let acked = |dice: &mut Dice, sum: u64| sum.saturating_sub(dice.pick(&[0, 0, 3, sum]));
        let small = |dice: &mut Dice| if dice.percent(50) { 0 } else { dice.below(burst + 2) };
        Sync {
            generation: if dice.percent(10) { dice.below(3) } else { said.generation },
            draw: dice.roll() >> 11,
            numbers: if dice.percent(80) { self.numbers[0] } else { dice.pick(&self.numbers) },
            instance: InstanceId(if who == 3 { u64::MAX } else { who }),
            epoch: if wild { dice.any() >> 60 } else { said.epoch },
            seq: said.seq,
            born: said.born,
            not_after: Micros(if dice.percent(90) { 0 } else { (now + dice.below(SECOND)).saturating_sub(SECOND / 2) }),
            used: if wild { dice.any() as i64 } else { said.used },
            hold: if wild { dice.any() } else { said.hold },
            age: Micros(match dice.below(4) {
                0 => 0,
                1 => dice.any(),
                _ => dice.below(2 * SECOND),
            }),
            need: match dice.below(8) {
                0 => Need { cost: dice.any(), count: dice.any() },
                1..4 => Need { cost: 1 + dice.below(3), count: dice.below(6) },
                _ => Need::default(),
            },
            want: if wild { dice.any() } else { small(dice) },
            demand: if wild { dice.any() } else { dice.below(1_000_000) },
            span: Micros(match dice.below(8) {
                0 => dice.any(),
                1 => 0,
                2 => dice.below(300_000),
                _ => 10_250_000,
            }),
            debt: Total { sum: if wild { dice.any() } else { said.debt }, acked: acked(dice, said.debt) },
            outage: Total { sum: if wild { dice.any() } else { said.outage }, acked: acked(dice, said.outage) },
            lost: dice.pick(&[Lost::Empty, Lost::Full]),
            window: Micros(match dice.below(6) {
                0..3 => 0,
                3 => dice.any(),
                _ => now.saturating_sub(dice.below(20 * SECOND)),
            }),
            fresh: Micros(match dice.below(6) {
                0..2 => 0,
                2 => dice.any(),
                3 => now,
                _ => now.saturating_sub(dice.below(12 * SECOND)),
            }),
            act: match dice.below(100) {
                0..8 => Act::Peek,
                8 => Act::Clear,
                9 if wild => Act::Block(Micros(dice.any())),
                9 | 10 => Act::Block(Micros(dice.below(20 * SECOND))),
                11 => Act::Block(Micros::ZERO),
                _ => Act::Sync,
            },
        }
    }
}

fn next_time(dice: &mut Dice, now: u64) -> u64 {
    let step = match dice.below(40) {
        0..10 => 0,
        10..18 => dice.below(1_000),
        18..26 => dice.below(300_000),
        26..32 => dice.below(12 * SECOND),
        32 => dice.below(100 * SECOND),
        33 => dice.below(86_400 * SECOND),
        34 => dice.below(YEAR),
        35 if dice.percent(30) => dice.below(100 * YEAR),
        36 | 37 => return now.saturating_sub(dice.below(SECOND)).max(1),
        38 => return now.saturating_sub(SECOND + dice.below(20 * SECOND)).max(1),
        39 if dice.percent(20) => return now.saturating_sub(dice.below(YEAR)).max(1),
        _ => 0,
    };
    (now + step).min(1 << 53)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_answers_and_keeps_what_the_book_does() {
    const BUCKETS: usize = 36;
    let server = RedisServer::start();
    let (connection, script) = (open(&server.url(), PATIENT), Script::sync_buckets());
    let dice = &mut Dice(2);
    let (mut asked, mut applied, mut lent, mut longest) = (0, 0, [0; 6], 0);
    for life in 0..40 {
        let mut now = dice.pick(&[1, SECOND, TODAY, TODAY, TODAY, (1 << 53) - SECOND]);
        let mut twins: Vec<_> = (0..BUCKETS).map(|i| Twin::new(dice, life * BUCKETS + i)).collect();
        let keys: Vec<_> = twins.iter().map(|t| (t.name.clone(), t.numbers[0].algorithm)).collect();
        let keys: Vec<_> = keys.iter().map(|(name, algorithm)| (&name[..], *algorithm)).collect();
        for round in 0..40 {
            now = next_time(dice, now);
            let messages: Vec<_> = twins.iter_mut().map(|t| t.message(dice, now)).collect();
            let named: Vec<_> = twins.iter().zip(&messages).map(|(t, m)| (&t.name[..], *m)).collect();
            let answers = ask(&connection, script, now, &named).await;
            let kept = state(&connection, &keys).await;
            for (i, twin) in twins.iter_mut().enumerate() {
                let (sync, before) = (&messages[i], twin.book.clone());
                let reply = twin.book.apply(sync, Micros(now));
                let context = || format!("life {life}, round {round}, bucket {i}, now {now}\n{sync:#?}\n{before:#?}");
                let answer = unpack(&answers[i], keys[i].1);
                assert_eq!(answer, Ok(reply), "{}\n{}", String::from_utf8_lossy(&answers[i]), context());
                let (head, records, ttl) = &kept[i];
                assert_eq!(head.as_ref(), twin.book.header(), "{}", context());
                assert_eq!(records, twin.book.records(), "{}", context());
                // case B-01: every key has a time to live.
                assert!(head.is_none() || *ttl > 0, "{}", context());
                asked += 1;
                if let Some(Header { meter: Meter::Window(Window::Log(log)), .. }) = head {
                    longest = longest.max(log.entries.len());
                }
                if reply.outcome == Outcome::Applied && sync.act == Act::Sync {
                    applied += 1;
                    lent[i % 6] += u64::from(reply.grant > 0 || reply.given > 0);
                    let who = (bounded(sync).instance.0 % 4) as usize;
                    twin.said[who].hold = twin.said[who].hold.saturating_add(reply.grant).min(1 << 50);
                    twin.said[who].generation = reply.generation;
                }
            }
        }
    }
    assert!(asked >= 50_000 && applied > asked / 2 && longest > 3, "{asked} {applied} {longest}");
    assert!(lent.iter().all(|n| *n > applied / 6 / 10), "{lent:?} of {applied}");
}

/// A log of hundreds of entries, in many pieces: reports in order, ended leases and refunds in the middle, steps back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_is_the_same_in_the_script_and_in_the_book() {
    let server = RedisServer::start();
    let (connection, script) = (open(&server.url(), PATIENT), Script::sync_buckets());
    let dice = &mut Dice(3);
    let key = (&b"tollgate:{16.3}:twin:long"[..], Algorithm::SlidingLog);
    let (mut book, mut now, mut longest) = (Book::default(), TODAY, 0);
    let mut said = [Said::default(); 4];
    let rate = Rate::per_micros(1, Micros(1)).expect("a fair rate");
    let numbers = Numbers { algorithm: key.1, window: Micros(SECOND), ..Numbers::bucket(0, rate, 100_000) };
    for round in 0..4_000_u64 {
        now += dice.below(3_000);
        if dice.percent(1) {
            now -= dice.pick(&[SECOND / 2, 1_100_000, 3 * SECOND]);
        }
        let who = dice.below(4);
        let said = &mut said[who as usize];
        if dice.percent(10) {
            *said = Said { epoch: said.epoch + 1, ..Said::default() };
        }
        said.seq += 1;
        let spent = dice.below(said.hold + 1);
        (said.used, said.hold) = (said.used + spent as i64, said.hold - spent);
        let refunds = dice.percent(15);
        said.used -= if refunds { 1 + dice.below(30) as i64 } else { 0 };
        let sync = Sync {
            generation: 0,
            draw: 1 + round,
            numbers,
            instance: InstanceId(who),
            epoch: said.epoch,
            seq: said.seq,
            born: said.epoch,
            not_after: Micros::ZERO,
            used: said.used,
            hold: said.hold,
            age: Micros::ZERO,
            need: Need { cost: 1, count: dice.below(3) },
            want: dice.below(20),
            demand: 1 + dice.below(1_000),
            span: Micros(dice.pick(&[20_000, 200_000, 600_000])),
            debt: Total::default(),
            outage: Total::default(),
            lost: Lost::Empty,
            window: Micros::ZERO,
            fresh: Micros(if refunds { now - dice.below(SECOND) } else { 0 }),
            act: if dice.below(1_500) == 0 { Act::Clear } else { Act::Sync },
        };
        let answers = ask(&connection, script, now, &[(key.0, sync)]).await;
        let reply = book.apply(&sync, Micros(now));
        assert_eq!(unpack(&answers[0], key.1), Ok(reply), "round {round}: {sync:?}");
        let (head, records, _) = state(&connection, &[key]).await.remove(0);
        assert_eq!(head.as_ref(), book.header(), "round {round}: {sync:?}");
        assert_eq!(records, book.records(), "round {round}: {sync:?}");
        said.hold += reply.grant;
        if let Some(Header { meter: Meter::Window(Window::Log(log)), .. }) = head {
            longest = longest.max(log.entries.len());
        }
    }
    assert!(longest > 300, "{longest}");
}
