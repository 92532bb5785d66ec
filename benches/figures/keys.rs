//! Many keys that are each asked now and then: what that costs in syncs, and whether somebody is refused.

use crate::{Report, gates, redis_server::RedisServer};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep_until};
use tollgate::{Decision, Limiter, Rule, Snapshot, Tollgate};

const KEYS: usize = 20_000;
const INSTANCES: usize = 4;
/// Each instance wakes so often in a second and asks for that part of the keys; nobody waits for another's answer, as in a server.
const WAKINGS: usize = 200;
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
        let limiters = gates.iter().map(|gate| gate.limiter("api").expect("a rule"));
        let tasks: Vec<_> = limiters.map(|limiter| tokio::spawn(ask(limiter, keys.clone(), seconds))).collect();
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
        let snapshots: Vec<_> = gates.iter().map(Tollgate::snapshot).collect();
        let most = |f: fn(&Snapshot) -> u64| snapshots.iter().map(f).max().unwrap_or(0);
        let (late, in_doubt, held) = (most(|s| s.late), most(|s| s.in_doubt), most(|s| s.held));
        println!(
            "  of one instance at most: {late} checks late, {in_doubt} syncs without an answer, {held} tokens held"
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

/// Asks for every key once a second.
async fn ask(limiter: Limiter, keys: Arc<Vec<String>>, seconds: u64) -> Seen {
    let (start, part) = (Instant::now(), KEYS / WAKINGS);
    let (mut seen, mut under_way) = (Seen::default(), JoinSet::new());
    for n in 0..seconds as usize * WAKINGS {
        sleep_until((start + Duration::from_secs(1) * n as u32 / WAKINGS as u32).into()).await;
        for key in (n % WAKINGS * part..).take(part) {
            let (limiter, keys) = (limiter.clone(), keys.clone());
            under_way.spawn(async move { limiter.check(&keys[key]).await });
        }
        while let Some(decision) = under_way.try_join_next() {
            seen.add(decision.expect("a check"));
        }
    }
    while let Some(decision) = under_way.join_next().await {
        seen.add(decision.expect("a check"));
    }
    seen
}

impl Seen {
    fn add(&mut self, decision: Decision) {
        self.checks += 1;
        self.refused += u64::from(!decision.is_allowed());
        self.troubled += u64::from(decision.trouble().is_some());
    }
}
