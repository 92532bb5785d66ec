//! How much of a limit is used, and how fairly.

use crate::{
    seeds,
    worlds::{Kind, SECOND, SHARED},
};
use fastrand::Rng;
use tollgate::{
    Mode, Rule,
    sim::{Report, Traffic, World},
};

/// A limit with room for leases: a tenth of a second's rate may come at once.
fn roomy(kind: Kind, mode: Mode, rate: u64) -> Rule {
    let rule = match kind {
        Kind::TokenBucket => Rule::token_bucket(rate, SECOND).burst(rate / 10),
        Kind::LeakyBucket => Rule::leaky_bucket(rate, SECOND).burst(rate / 10),
        Kind::LeakyQueue => Rule::leaky_queue(rate, SECOND).burst(rate / 10),
        Kind::FixedWindow => Rule::fixed_window(rate, SECOND),
        Kind::SlidingLog => Rule::sliding_log(rate, SECOND),
        Kind::SlidingCounter => Rule::sliding_counter(rate, SECOND),
    };
    rule.mode(mode)
}

fn busy(kind: Kind, mode: Mode, seed: u64, instances: usize, weights: &[f64]) -> Result<Report, String> {
    let mut rng = Rng::with_seed(seed);
    let rate = rng.u64(1_000..8_000);
    let world = World::builder()
        .instances(instances)
        .rule(roomy(kind, mode, rate))
        .traffic(Traffic::poisson(rate as f64 * 1.5).weights(weights))
        .span(4 * SECOND)
        .compare()
        .seed(seed);
    let report = world.build().map_err(|e| e.to_string())?.run();
    if report.holds() { Ok(report) } else { Err(format!("{kind:?} {mode:?}: {report}")) }
}

#[test]
fn at_saturation_nearly_all_of_the_limit_is_used() {
    for &(kind, mode) in SHARED {
        for instances in [4, 16] {
            seeds::few("at_saturation_nearly_all_of_the_limit_is_used", 6, |seed| {
                let report = busy(kind, mode, seed, instances, &[])?;
                let used = report.used();
                if used >= 0.97 { Ok(()) } else { Err(format!("{kind:?} {mode:?}: {used:.4} used: {report}")) }
            });
        }
    }
}

#[test]
fn everybody_gets_the_same_part_of_what_it_asks_for() {
    for &(kind, mode) in SHARED {
        for (instances, weights) in
            [(4, &[1.0][..]), (16, &[1.0]), (2, &[10.0, 1.0]), (4, &[10.0, 10.0, 1.0, 1.0]), (16, &[10.0, 1.0])]
        {
            seeds::few("everybody_gets_the_same_part_of_what_it_asks_for", 4, |seed| {
                let report = busy(kind, mode, seed, instances, weights)?;
                let fair = report.fairness();
                if fair >= 0.95 { Ok(()) } else { Err(format!("{kind:?} {mode:?} {weights:?}: {fair:.3}: {report}")) }
            });
        }
    }
}
