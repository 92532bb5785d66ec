//! Nothing is made and nothing vanishes: admitted, held, free and what overflowed add up.

use crate::{
    seeds,
    worlds::{MS, SECOND},
};
use fastrand::Rng;
use tollgate::{
    Mode, Outage, Rule,
    sim::{Network, Traffic, World},
};

/// Seeds.
pub(crate) const EACH: u64 = 800;

#[test]
fn what_came_was_admitted_or_is_held_or_free_or_overflowed() {
    let test = "what_came_was_admitted_or_is_held_or_free_or_overflowed";
    seeds::each(test, EACH, |seed| {
        let mut rng = Rng::with_seed(seed);
        let (rate, burst) = (rng.u64(1..2_000), rng.u64(1..2_000));
        let mode = if rng.u32(0..3) == 0 { Mode::Exact } else { Mode::Leased };
        let rule = Rule::token_bucket(rate, SECOND).burst(burst).mode(mode).outage(Outage::Deny).lease_ttl(4 * SECOND);
        let demand = rate as f64 * rng.choice([0.3, 1.0, 3.0]).unwrap_or(1.0);
        let world = World::builder()
            .instances(rng.usize(1..6))
            .rule(rule)
            .traffic(Traffic::poisson(demand).costs(if burst > 20 { &[1, 2, 7] } else { &[1] }).waits(0.7))
            .network(Network::delay(100 * MS / 1_000, MS))
            .span(3 * SECOND)
            // Until all is answered, and what was given to those who had left has gone back.
            .rest(300 * MS)
            .audit()
            .seed(seed);
        let report = world.build().map_err(|e| e.to_string())?.run();
        if let Some(at) = report.unbalanced {
            return Err(format!("the book did not add up at {} µs: {report}", at.0));
        }
        let conserved = report.conserved.ok_or("no audit")?;
        // Whole tokens are counted, so one may be in parts.
        if conserved.missing().abs() > 1 {
            return Err(format!("{} are missing of {conserved:?}: {report}", conserved.missing()));
        }
        if report.holds() { Ok(()) } else { Err(report.to_string()) }
    });
}
