//! Four instances share one limit, under as much load as a few threads can make; then the proof that it held.
//!
//! Runs on the embedded store, or with `--redis URL` (or REDIS_URL) on a Redis. A worker calls `check_now` in a tight
//! loop: some calls for one hot key that is asked far above its limit, then as many for keys that stay below theirs.
//! Every admission of the hot key is recorded, and the merged trace of all instances is replayed through one reference
//! bucket. The exit code is 0 only when that finds no violation.

use std::{
    error::Error,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tollgate::{
    Clock, Limiter, MemoryStore, Micros, Outage, Rate, Rule, Store, Tollgate,
    sim::{Admission, Judge},
};

const HELP: &str = "\
Shares one limit between some instances, measures the decisions, and proves that the limit held.

usage: quickstart [--redis URL] [--seconds N] [--instances N] [--threads N]

  --redis URL      share through this Redis; else REDIS_URL if set; else the embedded store
  --seconds N      how long to measure, 1 to 3600 (5)
  --instances N    how many instances share the limit, 1 to 64 (4)
  --threads N      how many threads make the load, 1 to 64 (one for each core, at most one for each instance)
  --help           this text";

const SECOND: Duration = Duration::from_secs(1);

/// The hot key's limit: far below what a thread can ask.
const HOT: (u64, u64) = (100_000, 10_000);
/// The limit of each of the other keys, and how many there are: far above what each of them is asked.
const CALM: (u64, u64) = (100_000, 100_000);
const CALM_KEYS: usize = 2_000;

/// Checks between two looks at the clock. Few enough that the trace is exact to a few microseconds, and many enough
/// that the look, dearer than a decision, does not show in the time.
const STRETCH: u64 = 64;

struct Options {
    redis: Option<String>,
    seconds: u64,
    instances: usize,
    threads: usize,
}

/// What all workers share.
struct Shared {
    clock: Clock,
    keys: Vec<String>,
    ready: Barrier,
    stop: AtomicBool,
    decisions: AtomicU64,
    admitted: AtomicU64,
}

/// The limiters of one instance.
struct Instance {
    hot: Limiter,
    calm: Limiter,
}

/// What one worker did.
#[derive(Default)]
struct Work {
    hot: Timed,
    calm: Timed,
    trace: Vec<Admission>,
}

#[derive(Default)]
struct Timed {
    asked: u64,
    allowed: u64,
    took: Micros,
}

impl Timed {
    fn add(&mut self, allowed: u64, took: Micros) {
        self.asked += STRETCH;
        self.allowed += allowed;
        self.took = self.took.plus(took);
    }

    fn merge(&mut self, other: &Timed) {
        self.asked += other.asked;
        self.allowed += other.allowed;
        self.took = self.took.plus(other.took);
    }

    fn nanos(&self) -> f64 {
        self.took.0 as f64 * 1e3 / self.asked.max(1) as f64
    }

    fn allowed_percent(&self) -> f64 {
        100.0 * self.allowed as f64 / self.asked.max(1) as f64
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("quickstart: {error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Option<Options>, lexopt::Error> {
    use lexopt::prelude::*;
    let cores = thread::available_parallelism().map_or(2, |n| n.get());
    let redis = std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty());
    let (mut options, mut threads) = (Options { redis, seconds: 5, instances: 4, threads: 0 }, None);
    let mut words = lexopt::Parser::from_env();
    let within = |name: &str, number: u64, most: u64| match number {
        n if (1..=most).contains(&n) => Ok(n),
        n => Err(lexopt::Error::Custom(format!("--{name}: 1 to {most}, not {n}").into())),
    };
    while let Some(word) = words.next()? {
        match word {
            Long("redis") => options.redis = Some(words.value()?.string()?),
            Long("seconds") => options.seconds = within("seconds", words.value()?.parse()?, 3_600)?,
            Long("instances") => options.instances = within("instances", words.value()?.parse()?, 64)? as usize,
            Long("threads") => threads = Some(within("threads", words.value()?.parse()?, 64)? as usize),
            Long("help") | Short('h') => return Ok(None),
            _ => return Err(word.unexpected()),
        }
    }
    options.threads = threads.unwrap_or(cores.min(options.instances));
    Ok(Some(options))
}

/// What an outage policy lets through is no part of the bound; here a store that does not answer in time means no.
fn rule((rate, burst): (u64, u64)) -> Rule {
    Rule::token_bucket(rate, SECOND).burst(burst).outage(Outage::Deny).overload(Outage::Deny)
}

/// Whether the limit held.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (store, store_name) = runtime.block_on(open(options.redis.as_deref()))?;
    // On a Redis that others use too, nobody's keys are touched; ours go by themselves.
    let prefix = format!("quickstart-{:016x}", fastrand::u64(..));
    let mut gates = Vec::new();
    for _ in 0..options.instances {
        let gate = Tollgate::builder()
            .store(store.clone())
            .key_prefix(&prefix)
            .rule("hot", rule(HOT))
            .rule("calm", rule(CALM));
        gates.push(runtime.block_on(gate.build())?);
    }
    let instances = gates
        .iter()
        .map(|gate| Ok(Instance { hot: gate.limiter("hot")?, calm: gate.limiter("calm")? }))
        .collect::<Result<Vec<_>, tollgate::Error>>()?;

    let (count, threads) = (options.instances, options.threads);
    println!("{count} instances on {store_name}, {threads} threads, {} s; limits are leased", options.seconds);
    println!("hot key: {}/s, burst {}, asked far above it", HOT.0, HOT.1);
    println!("{CALM_KEYS} keys: {}/s, burst {} for each, asked below it\n", CALM.0, CALM.1);

    let shared = Shared {
        clock: Clock::system(),
        keys: (0..CALM_KEYS).map(|n| format!("user:{n:011}")).collect(),
        ready: Barrier::new(threads + 1),
        stop: AtomicBool::new(false),
        decisions: AtomicU64::new(0),
        admitted: AtomicU64::new(0),
    };
    let (work, syncs, elapsed) = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                // Each instance has its worker; where there are more workers than instances they share them.
                let mine: Vec<_> = if threads < count {
                    instances.iter().skip(n).step_by(threads).collect()
                } else {
                    vec![&instances[n % count]]
                };
                let shared = &shared;
                scope.spawn(move || worker(shared, &mine))
            })
            .collect();
        shared.ready.wait();
        let (syncs, start) = (syncs(&gates), Instant::now());
        progress(&shared, options.seconds);
        let (syncs, elapsed) = (crate::syncs(&gates) - syncs, start.elapsed());
        // ordering: Relaxed, as everywhere here: counts and a flag that guard nothing; joining orders the rest.
        shared.stop.store(true, Relaxed);
        let mut all = Work::default();
        for worker in workers {
            let work = worker.join().map_err(|_| "a worker panicked")?;
            all.hot.merge(&work.hot);
            all.calm.merge(&work.calm);
            all.trace.extend(work.trace);
        }
        Ok::<_, Box<dyn Error>>((all, syncs, elapsed))
    })?;
    for gate in &gates {
        if let Err(error) = runtime.block_on(gate.shutdown()) {
            eprintln!("quickstart: {error}");
        }
    }
    Ok(report(&work, syncs, elapsed, store_name))
}

async fn open(redis: Option<&str>) -> Result<(Store, &'static str), tollgate::Error> {
    match redis {
        None => Ok((MemoryStore::default().into(), "the embedded store")),
        #[cfg(feature = "redis")]
        Some(url) => Ok((tollgate::RedisStore::connect(url).await?.into(), "Redis")),
        #[cfg(not(feature = "redis"))]
        Some(_) => {
            eprintln!("quickstart: built without the feature `redis`; going on with the embedded store");
            Ok((MemoryStore::default().into(), "the embedded store"))
        }
    }
}

fn syncs(gates: &[Tollgate]) -> u64 {
    gates.iter().map(|gate| gate.snapshot().syncs).sum()
}

/// A line each second: in its place on a terminal, one below the other elsewhere.
fn progress(shared: &Shared, seconds: u64) {
    let terminal = io::stderr().is_terminal();
    let mut before = (0, Instant::now());
    for second in 1..=seconds {
        thread::sleep(SECOND);
        let (decisions, now) = (shared.decisions.load(Relaxed), Instant::now());
        let pace = (decisions - before.0) as f64 / (now - before.1).as_secs_f64();
        before = (decisions, now);
        let (lead, end) = if terminal { ("\r", "  ") } else { ("", "\n") };
        let admitted = shared.admitted.load(Relaxed);
        let line =
            format!("{second:>3} of {seconds} s  {:>6.1} M decisions/s  hot key admitted {admitted}", pace / 1e6);
        let mut out = io::stderr().lock();
        // Nobody may be there to read it.
        let _ = write!(out, "{lead}{line}{end}").and_then(|()| out.flush());
    }
    if terminal {
        eprintln!();
    }
}

/// Drives some instances until told to stop.
fn worker(shared: &Shared, instances: &[&Instance]) -> Work {
    warm_up(shared, instances);
    let (mut work, mut random) = (Work::default(), fastrand::Rng::new());
    shared.ready.wait();
    let mut now = shared.clock.now();
    while !shared.stop.load(Relaxed) {
        for instance in instances {
            let before = now;
            let allowed = (0..STRETCH).filter(|_| instance.hot.check_now("hot").is_allowed()).count() as u64;
            now = shared.clock.now();
            work.hot.add(allowed, now.minus(before));
            if allowed > 0 {
                // The clock cuts off: the admissions came before the microsecond after the one it shows.
                work.trace.push(Admission { before, after: now.plus(Micros(1)), cost: allowed });
            }

            let before = now;
            let mut calm = 0;
            for _ in 0..STRETCH {
                let key = &shared.keys[random.usize(..CALM_KEYS)];
                calm += u64::from(instance.calm.check_now(key).is_allowed());
            }
            now = shared.clock.now();
            work.calm.add(calm, now.minus(before));
            shared.decisions.fetch_add(2 * STRETCH, Relaxed);
            shared.admitted.fetch_add(allowed, Relaxed);
        }
    }
    work
}

/// Makes the calm keys known, at the pace of the load to come: `check_now` never waits, so the first calls for a key are
/// refused and ask for tokens, and the engine learns how many are wanted.
fn warm_up(shared: &Shared, instances: &[&Instance]) {
    let (start, mut random) = (Instant::now(), fastrand::Rng::new());
    while start.elapsed() < 2 * SECOND {
        for instance in instances {
            for _ in 0..STRETCH {
                let _ = instance.calm.check_now(&shared.keys[random.usize(..CALM_KEYS)]);
            }
        }
    }
}

fn report(work: &Work, syncs: u64, elapsed: Duration, store: &str) -> bool {
    let decisions = work.hot.asked + work.calm.asked;
    let per_second = |count: u64| count as f64 / elapsed.as_secs_f64();
    let rate = match Rate::new(HOT.0, SECOND) {
        Ok(rate) => rate,
        Err(error) => {
            eprintln!("quickstart: {error}");
            return false;
        }
    };
    let judge = Judge::new(rate, HOT.1);
    let verdict = judge.violations(&work.trace);
    let bound = judge.bound(verdict.span);
    let row = |name: &str, value: String| println!("{name:<36}{value}");

    println!();
    row("timed", format!("check_now by key, mode Leased, {store}"));
    row("decisions per second", format!("{:.0}", per_second(decisions)));
    row(
        "ns per decision and thread",
        format!(
            "{:.1}  (hot key {:.1}, {:.1} % allowed; {CALM_KEYS} keys {:.1}, {:.2} % allowed)",
            (work.hot.took.0 + work.calm.took.0) as f64 * 1e3 / decisions.max(1) as f64,
            work.hot.nanos(),
            work.hot.allowed_percent(),
            work.calm.nanos(),
            work.calm.allowed_percent(),
        ),
    );
    row("syncs per second", format!("{:.0}", per_second(syncs)));
    row("syncs per million decisions", format!("{:.0}", syncs as f64 * 1e6 / decisions.max(1) as f64));
    row("hot key admitted", format!("{} in {:.3} s", verdict.admitted, verdict.span.as_secs_f64()));
    row("bound, burst + rate * T", bound.to_string());
    row("share of the limit used", format!("{:.1} %", 100.0 * verdict.admitted as f64 / bound.max(1) as f64));
    row("merged trace, one reference bucket", format!("violations {}", verdict.violations));
    if !verdict.holds() {
        eprintln!("quickstart: the limit was broken: {verdict}");
    }
    if verdict.admitted == 0 {
        eprintln!("quickstart: nothing was admitted, so nothing is proved");
    }
    verdict.holds() && verdict.admitted > 0
}
