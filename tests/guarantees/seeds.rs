//! Which seeds are tried, and what is said of one that fails.

use std::{
    cell::Cell,
    env,
    io::{Write, stderr},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Seeds that the tests of this file have tried by now.
static TRIED: AtomicU64 = AtomicU64::new(0);

/// What one test has tried, told when its thread ends.
struct Sum {
    test: String,
    seeds: Cell<u64>,
    start: Instant,
}

impl Drop for Sum {
    fn drop(&mut self) {
        // ordering: Relaxed. A count.
        let all = TRIED.fetch_add(self.seeds.get(), Relaxed) + self.seeds.get();
        let (test, seeds, took) = (&self.test, self.seeds.get(), self.start.elapsed().as_secs_f64());
        let _ = writeln!(stderr(), "{test}: {seeds} seeds in {took:.1} s; {all} in all by now");
    }
}

thread_local! {
    static SUM: Sum = Sum {
        test: thread::current().name().unwrap_or("one test").to_owned(),
        seeds: Cell::new(0),
        start: Instant::now(),
    };
}

/// Seeds that once found something in one test or another.
const FOUND: [u64; 11] = [348, 392, 477, 509, 610, 783, 879, 880, 1_264, 1_405, 2_087];

/// The seeds of a test that tries `count` of them, and these, unless told otherwise.
fn seeds(count: u64, more: &[u64]) -> Vec<u64> {
    if let Some(one) = number("TOLLGATE_SEED") {
        return vec![one];
    }
    let count = count.saturating_mul(number("TOLLGATE_SEEDS").unwrap_or(1));
    (0..count).chain(more.iter().copied().filter(|seed| *seed >= count)).collect()
}

/// Tries `what` with each seed, and with those that once found something; the first that fails is told with the line that
/// tries it again.
///
/// `test` is the test's own name. Returns how many seeds were tried.
#[track_caller]
pub(crate) fn each(test: &str, count: u64, what: impl FnMut(u64) -> Result<(), String>) -> u64 {
    all(test, &seeds(count, &FOUND), what)
}

/// [`each`] for worlds that take long: these seeds alone.
#[track_caller]
pub(crate) fn few(test: &str, count: u64, what: impl FnMut(u64) -> Result<(), String>) -> u64 {
    all(test, &seeds(count, &[]), what)
}

#[track_caller]
fn all(test: &str, seeds: &[u64], mut what: impl FnMut(u64) -> Result<(), String>) -> u64 {
    let (start, mut told) = (Instant::now(), Instant::now());
    for (nth, seed) in seeds.iter().copied().enumerate() {
        SUM.with(|sum| sum.seeds.set(sum.seeds.get() + 1));
        // A world that panics is told with its seed as well.
        let came = catch_unwind(AssertUnwindSafe(|| what(seed)));
        if let Err(why) = came.unwrap_or_else(|_| Err("it panicked, see above".to_owned())) {
            panic!(
                "seed {seed}: {why}\n  again: TOLLGATE_SEED={seed} cargo test --all-features --test guarantees {test}"
            );
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            let (done, all) = (nth + 1, seeds.len());
            // Past the harness, which would keep it for the end.
            let _ = writeln!(stderr(), "{test}: {done} of {all} seeds in {:.0} s", start.elapsed().as_secs_f64());
        }
    }
    seeds.len() as u64
}

/// Whether all seeds are tried, so that sums over them mean something.
pub(crate) fn all_are_tried() -> bool {
    number("TOLLGATE_SEED").is_none()
}
