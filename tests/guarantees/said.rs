//! What `Limiter::bound()` says: the formulas of docs/guarantees.md, and that no world goes beyond it.

use crate::{
    seeds,
    worlds::{Kind, LOCAL, MS, SECOND, SHARED},
};
use fastrand::Rng;
use std::time::Duration;
use tollgate::{
    Bound, Mode, Outage, Rule, Scope, Tollgate,
    sim::{Admission, Faults, Network, Traffic, World},
};

const RATE: u64 = 500;
const BURST: u64 = 40;
const LIMIT: u64 = 100;
const WINDOW: Duration = Duration::from_millis(200);
/// Spans in which admissions are counted, those around a window's length among them.
const SPANS: [Duration; 7] = [
    Duration::ZERO,
    MS,
    Duration::from_micros(199_999),
    WINDOW,
    Duration::from_micros(200_001),
    Duration::from_millis(450),
    SECOND,
];

/// A rule of this kind, and how far its instances go ahead.
fn rule(kind: Kind, mode: Mode, ahead: Option<u64>) -> (Rule, u64) {
    let (rule, room) = match kind {
        Kind::TokenBucket => (Rule::token_bucket(RATE, SECOND).burst(BURST), BURST),
        Kind::LeakyBucket => (Rule::leaky_bucket(RATE, SECOND).burst(BURST), BURST),
        Kind::LeakyQueue => (Rule::leaky_queue(RATE, SECOND).burst(BURST), BURST),
        Kind::FixedWindow => (Rule::fixed_window(LIMIT, WINDOW), LIMIT),
        Kind::SlidingLog => (Rule::sliding_log(LIMIT, WINDOW), LIMIT),
        Kind::SlidingCounter => (Rule::sliding_counter(LIMIT, WINDOW), LIMIT),
    };
    let rule = rule.mode(mode).outage(Outage::Deny).lease_ttl(500 * MS).horizon(50 * MS);
    match (mode, ahead) {
        (Mode::Buffered, Some(tokens)) => (rule.delta_max(tokens), tokens),
        (Mode::Buffered, None) => (rule, room / 10),
        _ => (rule, 0),
    }
}

/// The line of docs/guarantees.md, for spans that both of their ends belong to.
fn formula(kind: Kind, mode: Mode, ahead: u64, span: Duration, instances: u64) -> u64 {
    let span = span.as_micros() as u64;
    let length = WINDOW.as_micros() as u64;
    let refill = RATE * span / 1_000_000;
    let touched = if span == 0 { 1 } else { (span - 1) / length + 2 };
    let lengths = span / length + 1;
    let (each, times, refill) = match kind {
        Kind::TokenBucket | Kind::LeakyBucket => (BURST, 1, refill),
        Kind::LeakyQueue => (BURST + 1, 1, refill),
        Kind::FixedWindow => (LIMIT, touched, 0),
        Kind::SlidingLog => (LIMIT, lengths, 0),
        Kind::SlidingCounter => (2 * LIMIT - 1, lengths, 0),
    };
    match mode {
        Mode::Local => (each * times + refill) * instances,
        Mode::Buffered => (each + instances * ahead) * times + refill,
        _ => each * times + refill,
    }
}

fn bound_of(rule: Rule) -> Result<Bound, String> {
    // What a bound says follows from the rule alone; a gate on the embedded store wants a runtime to live in.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let gate = Tollgate::builder().rule("r", rule).build().await.map_err(|e| e.to_string())?;
        let limiter = gate.limiter("r").map_err(|e| e.to_string())?;
        Ok(limiter.bound())
    })
}

/// The most that any span of this length holds, both of its ends included.
fn most(trace: &[Admission], span: Duration) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for last in trace {
        sum += last.cost;
        while trace[first].after.0 + (span.as_micros() as u64) < last.after.0 {
            sum -= trace[first].cost;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

#[test]
fn no_world_goes_beyond_what_its_rule_says_of_its_bound() {
    let test = "no_world_goes_beyond_what_its_rule_says_of_its_bound";
    for &(kind, mode) in SHARED.iter().chain(LOCAL) {
        for ahead in [Some(3), None] {
            if ahead.is_none() && mode != Mode::Buffered {
                continue;
            }
            let (rule, ahead) = rule(kind, mode, ahead);
            let bound = bound_of(rule.clone()).expect("a fair rule");
            assert_eq!(bound.scope() == Scope::EachInstance, mode == Mode::Local, "{kind:?} {mode:?}");
            for span in SPANS {
                for instances in [1, 4] {
                    let (said, is) =
                        (bound.over(span, instances), formula(kind, mode, ahead, span, u64::from(instances)));
                    assert_eq!(said, is, "{kind:?} {mode:?} {ahead} over {span:?} with {instances}: {bound}");
                }
            }
            let mut nearest = 0.0_f64;
            seeds::each(test, 30, |seed| {
                let mut rng = Rng::with_seed(seed);
                let instances = rng.u32(1..6);
                let world = World::builder()
                    .instances(instances as usize)
                    .rule(rule.clone())
                    .traffic(Traffic::poisson(RATE as f64).restless(400 * MS).costs(&[1, 1, 3]).waits(0.5))
                    .network(Network::default().loss(0.1).repeat(0.1).slow(0.05, SECOND))
                    // Nobody dies: as many as there are have lived.
                    .faults(Faults::none().freezes(SECOND, 500 * MS).cuts(SECOND, 400 * MS).stalls(SECOND, 400 * MS))
                    .span(3 * SECOND)
                    .trace()
                    .seed(seed);
                let report = world.build().map_err(|e| e.to_string())?.run();
                if !report.holds() {
                    return Err(format!("{kind:?} {mode:?}: {report}"));
                }
                for span in SPANS {
                    let (passed, said) = (most(&report.trace, span), bound.over(span, instances));
                    if passed > said {
                        return Err(format!("{kind:?} {mode:?}: {passed} in {span:?}, bound {said} ({bound})"));
                    }
                    nearest = nearest.max(passed as f64 / said as f64);
                }
                Ok(())
            });
            // Of a queue turns are spaced, so that a burst never leaves at once; a counter comes near twice its limit for
            // few patterns of demand.
            let reached = if matches!(kind, Kind::LeakyQueue | Kind::SlidingCounter) { 0.3 } else { 0.5 };
            assert!(
                !seeds::all_are_tried() || nearest > reached,
                "{kind:?} {mode:?}: {nearest:.2} of the bound: nothing was tried"
            );
        }
    }
}
