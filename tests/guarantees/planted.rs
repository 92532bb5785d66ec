//! Tests of the judge: each rule of the protocol that is skipped must be noticed.

use crate::worlds::{Kind, MS, SECOND};
use fastrand::Rng;
use tollgate::{
    Mode, Rule,
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

/// A world in which much gets lost, late or overtaken, with a rule of this kind, that lets some 100 to 2,000 pass in a second.
fn lossy(seed: u64, kind: Kind) -> Builder {
    lossy_in(seed, kind, Mode::Leased)
}

fn lossy_in(seed: u64, kind: Kind, mode: Mode) -> Builder {
    let mut rng = Rng::with_seed(seed);
    let rate = rng.u64(100..2_000);
    let rule = match kind {
        Kind::FixedWindow => Rule::fixed_window(rate / 5, SECOND / 5),
        Kind::SlidingLog => Rule::sliding_log(rate / 5, SECOND / 5),
        Kind::SlidingCounter => Rule::sliding_counter(rate / 5, SECOND / 5),
        _ => Rule::token_bucket(rate, SECOND).burst(rate / 5),
    };
    World::builder()
        .instances(rng.usize(2..6))
        .rule(rule.mode(mode).lease_ttl(500 * MS).horizon(100 * MS))
        .traffic(Traffic::poisson(rate as f64).restless(400 * MS).waits(0.5))
        .network(Network::default().loss(0.05).repeat(0.3).slow(0.2, SECOND / 2))
        .span(3 * SECOND)
        .seed(seed)
}

/// Few instances with large leases that outlive a cut, and end while nobody can tell of them.
fn cut_off(seed: u64, kind: Kind) -> Builder {
    let mut rng = Rng::with_seed(seed);
    let rate = rng.u64(100..1_000);
    let rule = match kind {
        Kind::SlidingLog => Rule::sliding_log(rate, SECOND),
        Kind::SlidingCounter => Rule::sliding_counter(rate, SECOND),
        _ => Rule::token_bucket(rate, SECOND).burst(rate / 2),
    };
    World::builder()
        .instances(2)
        .rule(rule.lease_ttl(400 * MS).horizon(400 * MS))
        .traffic(Traffic::poisson(rate as f64 * 0.7).restless(300 * MS).waits(0.5))
        .network(Network::default().loss(0.1).slow(0.1, SECOND / 5))
        .faults(Faults::none().cuts(SECOND / 2, SECOND).stalls(SECOND, SECOND))
        .span(8 * SECOND)
        .seed(seed)
}

/// Mistakes of the book that no engine as it is can bring to light (it is too careful: `DropFirst`, `HoldCap`, `CountEarly`,
/// `NetRefunds`, `RefundStale`, `RefundNewest`) are left to the adversarial runs of the book itself.
fn all_are_noticed(all: &[(Planted, Kind)], world: impl Fn(u64, Kind) -> Builder) {
    let missed: Vec<_> = all
        .iter()
        .filter(|&&(fault, kind)| {
            let seed = caught(fault, |seed| world(seed, kind));
            eprintln!("{fault:?}, {kind:?}: noticed with seed {seed:?}");
            seed.is_none()
        })
        .collect();
    assert!(missed.is_empty(), "never noticed: {missed:?}");
}

#[test]
fn an_authority_that_forgets_what_ended_leases_spent_is_noticed() {
    all_are_noticed(&[(Planted::ForgetEnded, Kind::SlidingLog)], cut_off);
}

#[test]
fn every_rule_that_is_skipped_is_noticed() {
    let all = [
        (Planted::SpendsDeadLeases, Kind::TokenBucket),
        (Planted::HidesHold, Kind::TokenBucket),
        (Planted::HidesUse, Kind::TokenBucket),
        (Planted::TakesLateAnswers, Kind::TokenBucket),
        (Planted::ForgetsOrder, Kind::TokenBucket),
        (Planted::NoCap, Kind::TokenBucket),
        (Planted::HidesUse, Kind::FixedWindow),
        (Planted::LeaseOutlivesWindow, Kind::FixedWindow),
        (Planted::ForgetOutstanding, Kind::FixedWindow),
        (Planted::ForgetOutstanding, Kind::SlidingLog),
        (Planted::ForgetOutstanding, Kind::SlidingCounter),
    ];
    all_are_noticed(&all, lossy);
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
}

#[test]
fn debts_that_are_not_told_are_noticed() {
    let all = [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingLog, Kind::SlidingCounter];
    let all = all.map(|kind| (Planted::HidesDebt, kind));
    all_are_noticed(&all, |seed, kind| lossy_in(seed, kind, Mode::Buffered));
}
