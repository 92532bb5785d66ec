//! Worlds by seed: rules of every kind, and how much goes wrong.

use fastrand::Rng;
use std::time::Duration;
use tollgate::{
    Mode, Outage, Rule,
    sim::{Builder, Faults, Network, Report, Traffic, World},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// An algorithm with some numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    TokenBucket,
    LeakyBucket,
    LeakyQueue,
    FixedWindow,
    SlidingLog,
    SlidingCounter,
}

/// Every algorithm in every mode that makes sense over several instances.
pub(crate) const SHARED: &[(Kind, Mode)] = &[
    (Kind::TokenBucket, Mode::Leased),
    (Kind::TokenBucket, Mode::Exact),
    (Kind::TokenBucket, Mode::Buffered),
    (Kind::LeakyBucket, Mode::Leased),
    (Kind::LeakyBucket, Mode::Exact),
    (Kind::LeakyBucket, Mode::Buffered),
    (Kind::LeakyQueue, Mode::Exact),
    (Kind::FixedWindow, Mode::Leased),
    (Kind::FixedWindow, Mode::Exact),
    (Kind::FixedWindow, Mode::Buffered),
    (Kind::SlidingLog, Mode::Leased),
    (Kind::SlidingLog, Mode::Exact),
    (Kind::SlidingLog, Mode::Buffered),
    (Kind::SlidingCounter, Mode::Leased),
    (Kind::SlidingCounter, Mode::Exact),
    (Kind::SlidingCounter, Mode::Buffered),
];

/// Every algorithm, each instance by itself.
pub(crate) const LOCAL: &[(Kind, Mode)] = &[
    (Kind::TokenBucket, Mode::Local),
    (Kind::LeakyBucket, Mode::Local),
    (Kind::LeakyQueue, Mode::Local),
    (Kind::FixedWindow, Mode::Local),
    (Kind::SlidingLog, Mode::Local),
    (Kind::SlidingCounter, Mode::Local),
];

/// A rule of this kind, its demand in tokens a second, and the largest cost that it ever admits.
pub(crate) fn rule(kind: Kind, mode: Mode, rng: &mut Rng) -> (Rule, f64, u64) {
    let rate = rng.choice([20, 100, 2_000]).unwrap_or(20);
    let burst = rng.choice([1, 5, 50, 500]).unwrap_or(5);
    let window = rng.choice([50 * MS, 300 * MS, SECOND]).unwrap_or(SECOND);
    // A window of any length that lets as much pass as the rate does.
    let limit = ((rate as f64 * window.as_secs_f64()) as u64).max(burst.min(5));
    let (rule, rate, burst) = match kind {
        Kind::TokenBucket => (Rule::token_bucket(rate, SECOND).burst(burst), rate, burst),
        Kind::LeakyBucket => (Rule::leaky_bucket(rate, SECOND).burst(burst), rate, burst),
        Kind::LeakyQueue => (Rule::leaky_queue(rate, SECOND).burst(burst), rate, burst),
        Kind::FixedWindow => (Rule::fixed_window(limit, window), rate, limit),
        Kind::SlidingLog => (Rule::sliding_log(limit, window), rate, limit),
        Kind::SlidingCounter => (Rule::sliding_counter(limit, window), rate, limit),
    };
    let rule = if mode == Mode::Buffered && rng.bool() { rule.delta_max(rng.u64(1..=burst)) } else { rule };
    let outage = rng.choice([Outage::Deny, Outage::Share, Outage::Allow]).unwrap_or(Outage::Deny);
    let rule = rule.mode(mode).outage(outage).lease_ttl(500 * MS).horizon(50 * MS);
    (rule, rate as f64, burst)
}

/// A world in which messages are lost, late, repeated and overtaken, and instances crash, freeze and are cut off. The
/// authority stalls at times, and forgets nothing.
pub(crate) fn hostile(seed: u64, kind: Kind, mode: Mode) -> Builder {
    let mut rng = Rng::with_seed(seed);
    let (rule, rate, burst) = rule(kind, mode, &mut rng);
    let network = Network::default().loss(rng.f64() * 0.3).repeat(rng.f64() * 0.2).slow(rng.f64() * 0.1, 3 * SECOND);
    let faults = Faults::none()
        .crashes(2 * SECOND, 200 * MS)
        .freezes(2 * SECOND, 800 * MS)
        .cuts(2 * SECOND, 600 * MS)
        .stalls(2 * SECOND, 600 * MS);
    World::builder()
        .instances(rng.usize(1..6))
        .rule(rule)
        .traffic(traffic(rate, burst, &mut rng))
        .network(network)
        .faults(faults)
        .span(3 * SECOND)
        .start(Duration::from_micros(rng.u64(0..2_000_000)))
        .seed(seed)
}

/// Demand between nothing and ten times the rate, in several costs, for one key or some; now and then all at once, by the
/// hours of a short day, or most of it at one instance.
pub(crate) fn traffic(rate: f64, burst: u64, rng: &mut Rng) -> Traffic {
    let costs: &[u64] = if burst >= 5 { &[1, 1, 1, 3, 5] } else { &[1] };
    let mean = costs.iter().sum::<u64>() as f64 / costs.len() as f64;
    let traffic = Traffic::poisson(rate / mean).restless(400 * MS).costs(costs).waits(0.5);
    let traffic = if rng.u32(0..4) == 0 { traffic.zipf(3, 1.0) } else { traffic };
    match rng.u32(0..8) {
        0 => traffic.bursts(rng.u32(30..800) * MS, rng.u64(1..2 * burst + 20)),
        1 => traffic.daily(rng.u32(500..3_000) * MS, 0.05),
        2 => traffic.weights(&[10.0, 1.0]),
        _ => traffic,
    }
}

/// Runs it, and wants the bound to hold.
pub(crate) fn holds(world: Builder) -> Result<Report, String> {
    let report = world.build().map_err(|error| error.to_string())?.run();
    if report.holds() { Ok(report) } else { Err(report.to_string()) }
}
