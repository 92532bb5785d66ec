//! Tests of the judge: each rule of the protocol that is skipped must be noticed.

use crate::worlds::{self, MS, SECOND};
use fastrand::Rng;
use tollgate::{
    Rule,
    sim::{Builder, Faults, Network, Planted, Traffic, World},
};

/// The first world of many that is broken.
fn caught(fault: Planted, world: impl Fn(u64) -> Builder) -> Option<u64> {
    (0..400).find(|&seed| {
        let with = world(seed).planted(fault).build().expect("a fair world").run();
        let without = world(seed).build().expect("a fair world").run();
        assert!(without.holds(), "without {fault:?}: {without}");
        !with.holds()
    })
}

fn lossy(seed: u64) -> Builder {
    let mut rng = Rng::with_seed(seed);
    let rate = rng.u64(100..2_000);
    World::builder()
        .instances(rng.usize(2..6))
        .rule(Rule::token_bucket(rate, SECOND).burst(rate / 5).lease_ttl(500 * MS).horizon(100 * MS))
        .traffic(Traffic::poisson(rate as f64).restless(400 * MS).waits(0.5))
        .network(Network::default().loss(0.05).repeat(0.3).slow(0.2, SECOND / 2))
        .span(3 * SECOND)
        .seed(seed)
}

#[test]
fn every_rule_that_is_skipped_is_noticed() {
    for fault in [
        Planted::SpendsDeadLeases,
        Planted::HidesHold,
        Planted::HidesUse,
        Planted::TakesLateAnswers,
        Planted::ForgetsOrder,
    ] {
        let seed = caught(fault, lossy);
        assert!(seed.is_some(), "{fault:?} was never noticed");
        eprintln!("{fault:?}: noticed with seed {seed:?}");
    }
}

#[test]
fn an_instance_that_does_not_tell_what_it_knows_of_is_noticed_when_memory_is_lost() {
    // Awake, so that an authority that starts empty is right: see the exception of the same kind.
    let world = |seed| {
        World::builder()
            .instances(4)
            .rule(Rule::token_bucket(200, SECOND).burst(1_000))
            .traffic(Traffic::poisson(1_000.0))
            .faults(Faults::none().wipes(SECOND))
            .span(10 * SECOND)
            .seed(seed)
    };
    let excess = |world: Builder| {
        let report = world.build().expect("a fair world").run();
        report.excess
    };
    let honest: f64 = (0..10).map(|seed| excess(world(seed))).sum();
    let lying: f64 = (0..10).map(|seed| excess(world(seed).planted(Planted::ForgetsGeneration))).sum();
    assert!(honest < 10.0 * 400.0 && lying > 10.0 * 2_000.0, "{honest} {lying}");
    _ = worlds::MS;
}
