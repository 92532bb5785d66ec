//! One check, side by side with others, in one run: `cargo bench --bench check`.
//!
//! | function | what a check is |
//! | --- | --- |
//! | `tollgate` | `check_now` by key; `Leased` on a real Redis, its engine syncing all the while |
//! | `tollgate_handle` | the same by key handle |
//! | `governor` | `check_key` of governor's keyed limiter as it comes: `String` keys, its own clock |
//! | `floor` | a look-up in a dashmap and one atomic subtraction: no limiter by key does less |
//! | `redis_per_request` | one EVALSHA of a small token bucket, as most Redis limiters do |
//!
//! The groups named after an algorithm are `tollgate` on a hot key by that one, beside the token bucket of the same run.
//!
//! Limits are so high that nothing is refused (in `denied`, all is): each function must see at least 99.9 % of the
//! answers that are meant, or the bench fails, so that nothing idle is timed. Ends with a table of ratios.
#![allow(missing_docs)]

#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use dashmap::DashMap;
use governor::{DefaultKeyedRateLimiter, Quota};
use redis_server::RedisServer;
use std::{
    collections::BTreeMap,
    hint::black_box,
    num::NonZeroU32,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};
use tollgate::{KeyHandle, Limiter, RedisStore, Rule, Tollgate};

const KEYS: usize = 100_000;
const PLENTY: u32 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A token bucket, one key, one token: what is called for each request.
const PER_REQUEST: &str = "
local t = redis.call('TIME')
local now, interval, room = t[1] * 1e6 + t[2], tonumber(ARGV[1]), tonumber(ARGV[2])
local empty_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local next_at = empty_at + interval
if next_at - now > room then return 0 end
redis.call('SET', KEYS[1], string.format('%.17g', next_at), 'PX', math.ceil((next_at - now) / 1000) + 1)
return 1";

/// `iters` checks: how long they took, and how many were allowed.
type Run = Box<dyn FnMut(u64) -> (Duration, u64) + Send>;

fn timed(iters: u64, mut check: impl FnMut() -> bool) -> (Duration, u64) {
    let start = Instant::now();
    let allowed = (0..iters).map(|_| u64::from(check())).sum();
    (start.elapsed(), allowed)
}

/// What is compared: makes a `Run` for a thread, over these keys.
struct World {
    tollgate: Limiter,
    handle: KeyHandle,
    governor: Arc<DefaultKeyedRateLimiter<String>>,
    floor: Arc<DashMap<String, AtomicI64>>,
    redis: redis::Client,
    /// Microseconds between two tokens, and what a full bucket is worth, for the script.
    numbers: (&'static str, &'static str),
    keys: Arc<Vec<String>>,
}

/// Walks over the keys, again and again.
fn walk<'k>(keys: &'k [String], at: &mut usize) -> &'k String {
    let key = &keys[*at];
    *at = if *at + 1 == keys.len() { 0 } else { *at + 1 };
    black_box(key)
}

impl World {
    fn run(&self, name: &str) -> Run {
        let (keys, mut at) = (self.keys.clone(), 0);
        match name {
            "tollgate" => {
                let limiter = self.tollgate.clone();
                Box::new(move |n| timed(n, || limiter.check_now(walk(&keys, &mut at)).is_allowed()))
            }
            "tollgate_handle" => {
                let handle = self.handle.clone();
                Box::new(move |n| timed(n, || black_box(&handle).check_now().is_allowed()))
            }
            "governor" => {
                let governor = self.governor.clone();
                Box::new(move |n| timed(n, || governor.check_key(walk(&keys, &mut at)).is_ok()))
            }
            "floor" => {
                let floor = self.floor.clone();
                Box::new(move |n| {
                    timed(n, || {
                        let tokens = floor.get(walk(&keys, &mut at));
                        // ordering: Relaxed: one number by itself.
                        tokens.is_some_and(|tokens| tokens.fetch_sub(1, Relaxed) > 0)
                    })
                })
            }
            _ => {
                let mut connection = self.redis.get_connection().expect("a connection");
                let hash: String =
                    redis::cmd("SCRIPT").arg("LOAD").arg(PER_REQUEST).query(&mut connection).expect("the script");
                let (interval, room) = self.numbers;
                Box::new(move |n| {
                    timed(n, || {
                        let mut call = redis::cmd("EVALSHA");
                        call.arg(&hash).arg(1).arg(walk(&keys, &mut at)).arg(interval).arg(room);
                        call.query::<i64>(&mut connection).expect("an answer") == 1
                    })
                })
            }
        }
    }

    /// Asks until nearly all is answered as meant.
    fn warm_up(&self, meant: bool) {
        let (mut run, keys, start) = (self.run("tollgate"), self.keys.len() as u64, Instant::now());
        // A key that is new is lent little at first: let all of them become old acquaintances before they are asked in
        // a hurry.
        for _ in 0..3 {
            run(keys);
            thread::sleep(Duration::from_millis(if keys > 1 { 3_000 } else { 100 }));
        }
        let asked = (1_000_000 / keys).max(2) * keys;
        loop {
            let (_, allowed) = run(asked);
            let right = if meant { allowed } else { asked - allowed };
            if right * 10_000 >= asked * 9_995 {
                println!("warmed up in {:.1} s\n", start.elapsed().as_secs_f64());
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "after two minutes {right} of {asked} are as meant");
        }
    }
}

/// Two threads that run the same at once; the slower one counts.
struct Pair {
    to: Vec<Sender<u64>>,
    from: Receiver<(Duration, u64)>,
}

impl Pair {
    fn new(mut make: impl FnMut() -> Run) -> Pair {
        let (tell, from) = channel();
        let to = (0..2).map(|_| {
            let ((to, orders), tell, mut run) = (channel(), tell.clone(), make());
            thread::spawn(move || orders.iter().for_each(|n| _ = tell.send(run(n))));
            to
        });
        Pair { to: to.collect(), from }
    }

    fn run(&self, iters: u64) -> (Duration, u64) {
        self.to.iter().for_each(|to| to.send(iters).expect("a thread"));
        let mut all = (Duration::ZERO, 0);
        for (took, allowed) in self.from.iter().take(2) {
            all = (all.0.max(took), all.1 + allowed);
        }
        all
    }
}

/// Nanoseconds of each sample, by group and function.
#[derive(Default)]
struct Figures(BTreeMap<(String, String), Vec<f64>>);

impl Figures {
    fn median(&self, group: &str, function: &str) -> Option<f64> {
        let mut samples = self.0.get(&(group.to_owned(), function.to_owned()))?.clone();
        samples.sort_by(f64::total_cmp);
        samples.get(samples.len() / 2).copied()
    }
}

struct Bench<'c> {
    criterion: &'c mut Criterion,
    figures: Figures,
    gate: Tollgate,
}

impl Bench<'_> {
    fn group(&mut self, name: &str, world: &World, functions: &[&str], threads: u64, meant: bool) {
        println!("\n{name}");
        world.warm_up(meant);
        let mut group = self.criterion.benchmark_group(name);
        for function in functions {
            let before = self.gate.snapshot().syncs;
            let start = Instant::now();
            let (asked, allowed) = measure(&mut group, &mut self.figures, name, function, world, threads);
            if asked == 0 {
                continue; // filtered out
            }
            let right = if meant { allowed } else { asked - allowed };
            let share = right as f64 / asked as f64;
            let what = if meant { "allowed" } else { "refused" };
            let mode = match *function {
                "tollgate" | "tollgate_handle" => {
                    let syncs = (self.gate.snapshot().syncs - before) as f64 / start.elapsed().as_secs_f64();
                    format!("mode Leased, store Redis, {syncs:.0} syncs/s meanwhile; ")
                }
                _ => String::new(),
            };
            println!("{name}/{function}: {mode}{asked} checks, {:.4} % {what}\n", share * 100.0);
            assert!(share >= 0.999, "{name}/{function}: this is not what was to be measured");
        }
        group.finish();
    }
}

/// Runs one function under criterion; returns how many checks were made and how many allowed.
fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    figures: &mut Figures,
    group_name: &str,
    function: &str,
    world: &World,
    threads: u64,
) -> (u64, u64) {
    let (mut asked, mut all_allowed) = (0, 0);
    let mut run: Run = if threads == 1 {
        world.run(function)
    } else {
        let pair = Pair::new(|| world.run(function));
        Box::new(move |n| pair.run(n))
    };
    let samples = figures.0.entry((group_name.to_owned(), function.to_owned())).or_default();
    group.bench_function(function, |bencher| {
        bencher.iter_custom(|iters| {
            let (took, allowed) = run(iters);
            samples.push(took.as_nanos() as f64 / iters as f64);
            asked += threads * iters;
            all_allowed += allowed;
            took
        });
    });
    (asked, all_allowed)
}

fn plenty() -> Rule {
    Rule::token_bucket(u64::from(PLENTY), Duration::from_secs(1))
}

/// The other algorithms that are leased, each with limits that are never reached.
fn others() -> [(&'static str, Rule); 4] {
    let (limit, window) = (u64::from(PLENTY), Duration::from_secs(10));
    [
        ("leaky_bucket", Rule::leaky_bucket(limit, Duration::from_secs(1))),
        ("fixed_window", Rule::fixed_window(limit, window)),
        ("sliding_log", Rule::sliding_log(limit, window)),
        ("sliding_counter", Rule::sliding_counter(limit, window)),
    ]
}

fn main() -> ExitCode {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let gate = runtime.block_on(async {
        let store = RedisStore::connect(server.url()).await.expect("the server");
        let mut builder = Tollgate::builder().store(store);
        for (name, rule) in others() {
            builder = builder.rule(name, rule.lease_ttl(Duration::from_secs(1)));
        }
        builder
            // So that the hot key's engine has something to do: where tokens abound it asks once in a lease's life.
            .rule("plenty", plenty().lease_ttl(Duration::from_secs(1)))
            // So that not everything is asked anew meanwhile: each of these is asked some ten times a second.
            .rule("many", plenty().lease_ttl(Duration::from_secs(60)))
            .rule("shut", Rule::token_bucket(1, HOUR))
            .build()
            .await
            .expect("a gate")
    });
    let world = |rule: &str, keys: Vec<String>| {
        let plenty = rule != "shut";
        let limiter = gate.limiter(rule).expect("a rule");
        let quota = if plenty {
            Quota::per_second(NonZeroU32::new(PLENTY).expect("above 0"))
        } else {
            Quota::with_period(HOUR).expect("above 0")
        };
        World {
            handle: limiter.key(&keys[0]),
            tollgate: limiter,
            governor: Arc::new(DefaultKeyedRateLimiter::keyed(quota)),
            floor: Arc::new(
                keys.iter().map(|k| (k.clone(), AtomicI64::new(if plenty { i64::MAX } else { 0 }))).collect(),
            ),
            redis: redis::Client::open(server.url()).expect("a fair URL"),
            numbers: if plenty { ("0.001", "1000000") } else { ("3600000000", "3600000000") },
            keys: Arc::new(keys),
        }
    };
    let hot = || vec!["user:00000000042".to_owned()];
    let mut many: Vec<String> = (0..KEYS).map(|n| format!("user:{n:011}")).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut many);

    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_500))
        .configure_from_args();
    let mut bench = Bench { criterion: &mut criterion, figures: Figures::default(), gate: gate.clone() };
    let all = ["tollgate", "tollgate_handle", "governor", "floor", "redis_per_request"];
    let by_key = ["tollgate", "governor", "floor", "redis_per_request"];
    bench.group("hot_key", &world("plenty", hot()), &all, 1, true);
    for (name, _) in others() {
        // The token bucket again, so that the two are of one minute.
        let (bucket, other) = (world("plenty", hot()), world(name, hot()));
        bench.group(name, &other, &["tollgate"], 1, true);
        bench.group(&format!("{name}_bucket"), &bucket, &["tollgate"], 1, true);
    }
    bench.group("contended", &world("plenty", hot()), &all, 2, true);
    bench.group("denied", &world("shut", hot()), &all, 1, false);
    bench.group("many_keys", &world("many", many), &by_key, 1, true);
    let figures = bench.figures;
    criterion.final_summary();
    let _ = runtime.block_on(gate.shutdown());

    // `cargo test` runs benches too, to see that they work: once, which measures nothing.
    if std::env::args().any(|word| word == "--bench") { table(&figures) } else { ExitCode::SUCCESS }
}

fn table(figures: &Figures) -> ExitCode {
    let rows = [
        ("check_now, hot key, 1 thread", "hot_key", "tollgate", 0.25),
        ("key handle, hot key, 1 thread", "hot_key", "tollgate_handle", 0.15),
        ("check_now, 100,000 keys", "many_keys", "tollgate", 0.45),
        ("check_now, 2 threads on one key", "contended", "tollgate", 0.10),
        ("check_now denied, hot key", "denied", "tollgate", 0.40),
    ];
    let mut missed = false;
    println!(
        "ns per check, medians\n{:<34}{:>10}{:>14}{:>8}{:>8}",
        "hot key", "tollgate", "token bucket", "ratio", "target"
    );
    for (name, _) in others() {
        let bucket = format!("{name}_bucket");
        let (Some(ours), Some(bucket)) = (figures.median(name, "tollgate"), figures.median(&bucket, "tollgate")) else {
            continue; // filtered out
        };
        let ratio = ours / bucket;
        let verdict = if ratio <= 1.1 { "met" } else { "MISSED" };
        missed |= ratio > 1.1;
        println!("{name:<34}{ours:>10.1}{bucket:>14.1}{ratio:>8.3}{:>8}{verdict:>8}", 1.1);
    }
    println!("\nns per check, medians; contended: wall time / checks of each thread\n");
    println!(
        "{:<34}{:>10}{:>10}{:>8}{:>8}{:>8}{:>8}{:>9}",
        "", "tollgate", "governor", "ratio", "target", "", "floor", "Redis"
    );
    for (name, group, function, target) in rows {
        let (Some(ours), Some(theirs)) = (figures.median(group, function), figures.median(group, "governor")) else {
            continue; // filtered out
        };
        let ratio = ours / theirs;
        let verdict = if ratio <= target { "met" } else { "MISSED" };
        missed |= ratio > target;
        let other = |function: &str| figures.median(group, function).map_or_else(String::new, |ns| format!("{ns:.1}"));
        let (floor, redis) = (other("floor"), other("redis_per_request"));
        println!("{name:<34}{ours:>10.1}{theirs:>10.1}{ratio:>8.3}{target:>8.2}{verdict:>8}{floor:>8}{redis:>9}");
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
