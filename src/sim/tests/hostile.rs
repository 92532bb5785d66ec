//! Every algorithm and mode against losses, delays past the lease, and crashes: never above the bound.

use super::{
    modes::{LENDING, rule},
    *,
};
use crate::{algorithm::Algorithm, rule::Mode};

/// One bad world, by its seed; what was admitted.
fn world_of(algorithm: Algorithm, mode: Mode, seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let limit = rng.choice([5, 50, 500]).unwrap_or(5);
    let instances = rng.usize(1..5);
    let per = Duration::from_millis(rng.choice([200, 500, 1_000]).unwrap_or(500));
    let rule = rule(algorithm, limit, per).mode(mode).lease_ttl(Duration::from_millis(500));
    let rule = rule.horizon(Duration::from_millis(50));
    let rule = if mode == Mode::Buffered { rule.delta_max((limit / 10).max(1)) } else { rule };
    let mut world = World::new(instances, &[rule]);
    world.rng = rng.fork();
    world.faults = Some((rng.u32(0..30), rng.u32(0..10)));
    let per_second = world.terms[0].numbers.rate.per_second();
    let mut per_tick = 0.0;
    let mut crashes = 0;
    for tick in 0..20_000 {
        if tick % 4_000 == 0 {
            let factor = rng.choice([0.0, 0.5, 1.5, 10.0]).unwrap_or(1.5);
            per_tick = per_second * factor * TICK.as_secs_f64() / instances as f64;
        }
        if rng.u32(0..20_000) == 0 {
            world.store.set_reachable(false);
        } else if rng.u32(0..5_000) == 0 {
            world.store.set_reachable(true);
        }
        for node in 0..instances {
            if rng.f64() < per_tick {
                world.check_by_mode(node, "k", if rng.u32(0..4) == 0 { 3 } else { 1 });
            }
            if rng.u32(0..40_000) == 0 {
                world.crash(node);
                crashes += 1;
            }
        }
        world.tick();
    }
    let ahead = world.terms[0].ahead(1);
    world.assert_bound(ahead, instances as u64 + crashes, &format!("{algorithm:?} {mode:?} seed {seed}"));
    world.admitted()
}

fn worlds(algorithm: Algorithm, mode: Mode) {
    let admitted: u64 = (0..25).map(|seed| world_of(algorithm, mode, seed)).sum();
    assert!(admitted > 500, "only {admitted} in all: nothing was tried");
}

#[test]
fn no_fault_lets_a_leased_rule_admit_more() {
    LENDING.into_iter().for_each(|algorithm| worlds(algorithm, Mode::Leased));
}

#[test]
fn no_fault_lets_an_exact_rule_admit_more() {
    LENDING.into_iter().for_each(|algorithm| worlds(algorithm, Mode::Exact));
}

#[test]
fn no_fault_lets_a_buffered_rule_go_further_ahead_than_it_may() {
    LENDING.into_iter().for_each(|algorithm| worlds(algorithm, Mode::Buffered));
}
