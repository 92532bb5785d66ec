//! Many keys that are each asked now and then: what that costs in syncs, and whether somebody is refused.

use crate::{Report, gates, redis_server::RedisServer};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep_until;
use tollgate::{Limiter, Rule, Tollgate};

const KEYS: usize = 20_000;
const INSTANCES: usize = 4;
/// Tasks of one instance; each asks for its part of the keys, one after the other, once a second.
const TASKS: usize = 80;
/// Keys that a task asks for at one waking.
const AT_ONCE: usize = 5;
const WARM_UP: u64 = 10;
const MEASURED: u64 = 8;

#[derive(Clone, Copy, Default)]
struct Seen {
    checks: u64,
    refused: u64,
    troubled: u64,
}

pub(crate) async fn measure(report: &mut Report) {
    println!(
        "\nkeys: {KEYS} keys, each asked once a second by each of {INSTANCES} instances, 100/s and burst 100 each"
    );
    let server = RedisServer::start();
    let rule = Rule::token_bucket(100, Duration::from_secs(1));
    let gates = gates(&server, INSTANCES, "keys", &[("api".to_owned(), rule)]).await;
    let keys: Arc<Vec<String>> = Arc::new((0..KEYS).map(|n| format!("user:{n:011}")).collect());
    for (name, seconds) in [("at first", WARM_UP), ("then", MEASURED)] {
        let (syncs, batches, start) = (count(&gates).0, count(&gates).1, Instant::now());
        let mut tasks = Vec::new();
        for gate in &gates {
            let limiter = gate.limiter("api").expect("a rule");
            tasks.extend((0..TASKS).map(|n| tokio::spawn(ask(limiter.clone(), keys.clone(), n, seconds))));
        }
        let mut seen = Seen::default();
        for task in tasks {
            let more = task.await.expect("a task");
            seen.checks += more.checks;
            seen.refused += more.refused;
            seen.troubled += more.troubled;
        }
        let per_check = (count(&gates).0 - syncs) as f64 / seen.checks as f64;
        let refused = 100.0 * seen.refused as f64 / seen.checks as f64;
        println!(
            "{name}, {:.1} s: {} checks, {per_check:.3} syncs each, {} batches, {refused:.3} % refused, {} in trouble",
            start.elapsed().as_secs_f64(),
            seen.checks,
            count(&gates).1 - batches,
            seen.troubled,
        );
        if name == "then" {
            report.figure("syncs per check", &format!("{per_check:.3}"), "at most 0.25", per_check <= 0.25);
            report.figure("refused", &format!("{refused:.3} %"), "at most 0.1 %", refused <= 0.1);
        }
    }
    for gate in &gates {
        let _ = gate.shutdown().await;
    }
}

fn count(gates: &[Tollgate]) -> (u64, u64) {
    gates.iter().map(Tollgate::snapshot).fold((0, 0), |sum, s| (sum.0 + s.syncs, sum.1 + s.batches))
}

/// Asks for every key of a part once a second.
async fn ask(limiter: Limiter, keys: Arc<Vec<String>>, part: usize, seconds: u64) -> Seen {
    let mine = &keys[part * KEYS / TASKS..(part + 1) * KEYS / TASKS];
    let pause = Duration::from_secs(1) * AT_ONCE as u32 / mine.len() as u32;
    let start = tokio::time::Instant::now() + pause * part as u32 / TASKS as u32;
    let mut seen = Seen::default();
    let wakings = (0..seconds).flat_map(|_| mine.chunks(AT_ONCE)).enumerate();
    for (n, some) in wakings {
        sleep_until(start + pause * n as u32).await;
        for key in some {
            let decision = limiter.check(key).await;
            seen.checks += 1;
            seen.refused += u64::from(!decision.is_allowed());
            seen.troubled += u64::from(decision.trouble().is_some());
        }
    }
    seen
}
