//! How many admissions the simulator makes in a second of real time, on one core: `cargo bench --features sim --bench world`.
//!
//! Whole worlds, the judge's replay included. Prints a line for each; the last column is what it is about.
#![allow(missing_docs)]

use std::time::{Duration, Instant};
use tollgate::{
    Mode, Rule,
    sim::{Builder, Faults, Network, Traffic, World},
};

const SECOND: Duration = Duration::from_secs(1);

fn measure(name: &str, world: Builder) {
    let world = match world.build() {
        Ok(world) => world,
        Err(error) => return eprintln!("{name}: {error}"),
    };
    // The best of three: what else the machine does only makes it slower.
    let mut best = (f64::INFINITY, None);
    for _ in 0..3 {
        let start = Instant::now();
        let report = world.run();
        let took = start.elapsed().as_secs_f64();
        if took < best.0 {
            best = (took, Some(report));
        }
    }
    let (took, Some(report)) = best else { return };
    println!(
        "{name:<44} {:>10} requests {:>10} admitted {:>7.0} ms {:>6.2} M requests/s {:>6.2} M admissions/s {}",
        report.requests,
        report.admissions,
        took * 1e3,
        report.requests as f64 / took / 1e6,
        report.admissions as f64 / took / 1e6,
        if report.holds() { "" } else { "BROKEN" },
    );
}

fn main() {
    let leased = |rate| Rule::token_bucket(rate, SECOND).burst(rate / 10);
    let world =
        |instances, rule, demand| World::builder().instances(instances).rule(rule).traffic(Traffic::poisson(demand));
    measure("4 instances, 100,000/s, demand at 150 %", world(4, leased(100_000), 150_000.0).span(20 * SECOND));
    measure("4 instances, 1,000,000/s, demand at 90 %", world(4, leased(1_000_000), 900_000.0).span(3 * SECOND));
    measure("16 instances, 100,000/s, demand at 90 %", world(16, leased(100_000), 90_000.0).span(20 * SECOND));
    measure("4 instances, 10,000/s, demand at 90 %", world(4, leased(10_000), 9_000.0).span(50 * SECOND));
    let many = world(4, leased(1_000), 100_000.0).traffic(Traffic::poisson(100_000.0).zipf(10_000, 1.0));
    measure("4 instances, 10,000 keys by Zipf", many.span(5 * SECOND));
    let hostile = world(4, leased(10_000), 9_000.0)
        .network(Network::default().loss(0.05).repeat(0.05).slow(0.05, SECOND))
        .faults(Faults::none().crashes(SECOND, SECOND / 10).freezes(SECOND, SECOND / 10).stalls(SECOND, SECOND / 10));
    measure("4 instances, 10,000/s, much goes wrong", hostile.span(50 * SECOND));
    let exact = leased(10_000).mode(Mode::Exact);
    measure("4 instances, 10,000/s, Exact", world(4, exact, 9_000.0).span(10 * SECOND));
}
