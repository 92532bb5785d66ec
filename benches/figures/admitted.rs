//! How much is admitted: never above the bound, and nearly all of what one central bucket would admit.
//!
//! Every check is recorded with the times around it. The merged trace of all instances is judged; beside it stands what
//! one reference bucket admits of the same attempts. A hot loop asks without end, so there that is all there ever was.

use crate::{Report, gates, redis_server::RedisServer};
use std::time::Duration;
use tokio::{task::yield_now, time::sleep_until};
use tollgate::{
    Clock, Limiter, Micros, Outage, Rate, Rule, Tollgate,
    sim::{Admission, Judge},
};

const SECOND: Duration = Duration::from_secs(1);
const RATES: [u64; 2] = [10_000, 100];
/// Bursts, in tenths of a second of the rate.
const BURSTS: [u64; 3] = [1, 10, 100];
const COSTS: [u64; 2] = [1, 5];
const INSTANCES: [usize; 3] = [1, 4, 16];
const HOT_FOR: Duration = Duration::from_millis(2_500);
/// After this the syncs of a hot loop are counted.
const SETTLED: Duration = Duration::from_millis(500);
const PACED_FOR: Duration = Duration::from_secs(4);
/// The paced demand of all instances together, to the limit.
const PACE: f64 = 1.5;
const SHARE: f64 = 97.0;
const SYNCS: f64 = 100.0;

#[derive(Clone, Copy)]
struct Case {
    rate: u64,
    burst: u64,
    cost: u64,
}

impl Case {
    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for rate in RATES {
            for burst in BURSTS.map(|tenths| rate * tenths / 10) {
                all.extend(COSTS.map(|cost| Case { rate, burst, cost }));
            }
        }
        all
    }

    fn rule(self) -> String {
        format!("{}-{}", self.rate, self.burst)
    }
}

/// One attempt: when it began, and the admission it led to.
type Attempt = (Micros, Option<Admission>);

#[derive(Default)]
struct Worst {
    violations: u64,
    share: f64,
    syncs: f64,
}

/// `counts`: for how many instances; none means all.
pub(crate) async fn measure(report: &mut Report, counts: &[usize]) {
    println!("\nadmitted: Leased, check().await; hot loops one key at a time, paced at {PACE} x the limit all at once");
    println!(
        "{:<6}{:>10}{:>9}{:>9}{:>6}{:>10}{:>10}{:>9}{:>12}{:>12}",
        "", "instances", "rate/s", "burst", "cost", "admitted", "central", "share", "violations", "syncs/s each"
    );
    let server = RedisServer::start();
    let clock = Clock::system();
    let mut worst = Worst { share: f64::INFINITY, ..Worst::default() };
    for count in INSTANCES.into_iter().filter(|count| counts.is_empty() || counts.contains(count)) {
        let rules: Vec<_> =
            Case::all().iter().filter(|case| case.cost == 1).map(|case| (case.rule(), rule(*case))).collect();
        let gates = gates(&server, count, &format!("admitted-{count}"), &rules).await;
        while gates.iter().any(|gate| gate.snapshot().members != Some(count as u32)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let limiters = |case: Case| -> Vec<Limiter> {
            gates.iter().map(|gate| gate.limiter(&case.rule()).expect("a rule")).collect()
        };
        for case in Case::all() {
            let start = clock.now();
            let until = start.plus(HOT_FOR.into());
            let tasks: Vec<_> = limiters(case)
                .into_iter()
                .map(|limiter| tokio::spawn(hot(limiter, clock.clone(), case.cost, until)))
                .collect();
            // A key that is new is asked for more often until it is known: that is over by then.
            tokio::time::sleep(SETTLED).await;
            let (before, settled) = (syncs(&gates), clock.now());
            let mut attempts = Vec::new();
            for task in tasks {
                attempts.extend(task.await.expect("a task"));
            }
            let span = clock.now().minus(settled);
            let each = (syncs(&gates) - before) as f64 / count as f64 / span.as_secs_f64();
            // There is always somebody who asks, so one bucket would give whatever it has.
            let central = judge(case).bound(until.minus(start)) / case.cost * case.cost;
            row(&mut worst, "hot", count, case, &attempts, central, Some(each));
        }
        let tasks: Vec<_> = Case::all()
            .into_iter()
            .map(|case| {
                let tasks: Vec<_> = limiters(case)
                    .into_iter()
                    .map(|limiter| tokio::spawn(paced(limiter, clock.clone(), case, count)))
                    .collect();
                (case, tasks)
            })
            .collect();
        for (case, tasks) in tasks {
            let mut attempts = Vec::new();
            for task in tasks {
                attempts.extend(task.await.expect("a task"));
            }
            attempts.sort_unstable_by_key(|attempt| attempt.0);
            let asked: Vec<_> = attempts.iter().map(|attempt| (attempt.0, case.cost)).collect();
            let central = judge(case).reference(&asked);
            row(&mut worst, "paced", count, case, &attempts, central, None);
        }
        for gate in &gates {
            let snapshot = gate.snapshot();
            if snapshot.late + snapshot.in_doubt > 0 {
                println!("  {} checks late, {} syncs without an answer", snapshot.late, snapshot.in_doubt);
            }
            let _ = gate.shutdown().await;
        }
    }
    report.figure("violations", &worst.violations.to_string(), "0", worst.violations == 0);
    let value = format!("{:.1} % at worst", worst.share);
    report.figure("of what one central bucket admits", &value, "at least 97 %", worst.share >= SHARE);
    let value = format!("{:.0} at most", worst.syncs);
    report.figure("syncs per instance and hot key, a second", &value, "at most 100", worst.syncs <= SYNCS);
}

/// A check that this machine kept waiting past its deadline would be decided by the outage policy, which is no part of
/// the bound: so it waits longer here, and is refused then.
fn rule(case: Case) -> Rule {
    Rule::token_bucket(case.rate, SECOND).burst(case.burst).outage(Outage::Deny).overload(Outage::Deny).deadline(SECOND)
}

fn judge(case: Case) -> Judge {
    Judge::new(Rate::new(case.rate, SECOND).expect("a fair rate"), case.burst)
}

fn syncs(gates: &[Tollgate]) -> u64 {
    gates.iter().map(|gate| gate.snapshot().syncs).sum()
}

fn row(worst: &mut Worst, kind: &str, count: usize, case: Case, attempts: &[Attempt], central: u64, each: Option<f64>) {
    let trace: Vec<Admission> = attempts.iter().filter_map(|attempt| attempt.1).collect();
    let verdict = judge(case).violations(&trace);
    let share = 100.0 * verdict.admitted as f64 / central.max(1) as f64;
    let Case { rate, burst, cost } = case;
    let (admitted, violations) = (verdict.admitted, verdict.violations);
    let syncs = each.map_or_else(String::new, |each| format!("{each:.0}"));
    let mark = if share < SHARE || violations > 0 { "  <-" } else { "" };
    println!(
        "{kind:<6}{count:>10}{rate:>9}{burst:>9}{cost:>6}{admitted:>10}{central:>10}{share:>8.1}%{violations:>12}{syncs:>12}{mark}"
    );
    if violations > 0 {
        println!("  {verdict}");
    }
    worst.violations += violations;
    worst.share = worst.share.min(share);
    worst.syncs = worst.syncs.max(each.unwrap_or(0.0));
}

/// One check with the times around it.
async fn attempt(limiter: &Limiter, clock: &Clock, key: &str, cost: u64) -> Attempt {
    let before = clock.now();
    let decision = limiter.check_n(key, cost).await;
    // The clock cuts off: it was before the microsecond after the one it shows.
    let admission = decision.is_allowed().then(|| Admission { before, after: clock.now().plus(Micros(1)), cost });
    (before, admission)
}

/// Asks again as soon as there is an answer. Keeps only what was admitted.
async fn hot(limiter: Limiter, clock: Clock, cost: u64, until: Micros) -> Vec<Attempt> {
    let key = format!("hot-{cost}");
    let mut kept = Vec::new();
    let mut refused = 0_u32;
    loop {
        let attempt = attempt(&limiter, &clock, &key, cost).await;
        if attempt.0 >= until {
            return kept;
        }
        match attempt.1 {
            Some(_) => kept.push(attempt),
            None => refused += 1,
        }
        if (kept.len() as u32).wrapping_add(refused).is_multiple_of(32) {
            yield_now().await;
        }
    }
}

/// Asks at an even pace, as often as its part of the demand says.
async fn paced(limiter: Limiter, clock: Clock, case: Case, instances: usize) -> Vec<Attempt> {
    let key = format!("paced-{}", case.cost);
    let per_second = PACE * case.rate as f64 / case.cost as f64 / instances as f64;
    let tick = Duration::from_secs_f64((1.0 / per_second).max(0.005));
    // Tasks that start together do not ask together.
    let start = tokio::time::Instant::now() + tick.mul_f64(fastrand::f64());
    let (mut kept, mut made, mut at) = (Vec::new(), 0, start);
    while at < start + PACED_FOR {
        sleep_until(at).await;
        let due = (start.elapsed().as_secs_f64() * per_second) as u64;
        for _ in made..due {
            kept.push(attempt(&limiter, &clock, &key, case.cost).await);
        }
        made = due.max(made);
        at = (at + tick).max(tokio::time::Instant::now());
    }
    kept
}
