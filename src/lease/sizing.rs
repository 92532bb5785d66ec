//! How much an instance lends ahead, and how often it asks. Pure: numbers in, numbers out.
//!
//! Nothing here keeps the bound: the authority does, whatever is asked. This decides what the bound
//! costs: how many messages, and how much of the limit lies about unused.

use crate::time::Micros;

/// What is known about one bucket when a question is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// The bucket's burst.
    pub(crate) burst: u64,
    /// Tokens a second at which it refills.
    pub(crate) rate: f64,
    /// Measured demand here, tokens a second.
    pub(crate) demand: f64,
    /// Tokens that one request takes.
    pub(crate) cost: u64,
    /// Instances that share it.
    pub(crate) members: u32,
    /// Tokens that nobody had at the last answer.
    pub(crate) free: u64,
    /// How far ahead is lent, pressure included.
    pub(crate) horizon: Micros,
    /// Life of a lease: the longest horizon.
    pub(crate) ttl: Micros,
    /// How long this instance has asked for the bucket.
    pub(crate) known_for: Micros,
    /// By how much the want was raised because holds ran dry; at least 1.
    pub(crate) boost: f64,
}

impl Situation {
    /// Whether free tokens abound, so that leases may be large and long.
    fn is_ample(&self) -> bool {
        self.free > self.burst / 2
    }

    /// Tokens that this instance should have in hand; 0 where lending ahead makes no sense and each
    /// request is to be given its own tokens.
    pub(crate) fn target(&self) -> u64 {
        let members = u64::from(self.members.max(1));
        let small = self.burst < members.saturating_mul(2).saturating_mul(self.cost.max(1));
        if small {
            return 0;
        }
        // Where tokens abound, lend for a whole life, as long as all members together take no
        // more than a quarter of the burst. Elsewhere for the horizon, and a hold that ran dry
        // doubles it up to a life.
        // What is lent and spent counts as lent until it is told, and a bucket that is thought to be
        // full does not refill: so a new acquaintance is lent little, and told of soon.
        let patience = Micros::from_millis(20).plus(self.known_for).plus(self.known_for);
        let life = self.demand * self.ttl.min(patience).as_secs_f64();
        let near = (self.demand * self.horizon.as_secs_f64() * self.boost).min(life);
        let part = self.burst / (4 * members);
        let tokens = if self.is_ample() { near.max(life.min(part as f64)) } else { near };
        // A float of any size casts to the nearest integer there is; a part of a token is none.
        let tokens = (tokens as u64).min(self.burst);
        if tokens < self.cost.max(1) { 0 } else { tokens - tokens % self.cost.max(1) }
    }

    /// Below this hold it is time to ask: what is spent until an answer can be here.
    pub(crate) fn low(&self, round_trip: Micros, cadence: Micros) -> u64 {
        (self.demand * round_trip.plus(cadence).as_secs_f64()) as u64
    }

    /// The time between two questions: the rule's, but short enough that a scarce bucket does not
    /// fill up in between, and no shorter than a round trip.
    pub(crate) fn cadence(&self, rule: Micros, round_trip: Micros) -> Micros {
        let fill = self.burst as f64 / self.rate.max(1e-9) * 1e6;
        let quarter = Micros((fill / 4.0) as u64);
        rule.min(quarter.max(round_trip).max(Micros::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Situation = Situation {
        burst: 1_000,
        rate: 10_000.0,
        demand: 5_000.0,
        cost: 1,
        members: 4,
        free: 0,
        horizon: Micros::from_millis(100),
        ttl: Micros::from_secs(10),
        known_for: Micros::from_secs(60),
        boost: 1.0,
    };

    #[test]
    fn a_scarce_bucket_is_lent_for_the_horizon_and_an_ample_one_for_a_life() {
        assert_eq!(CALM.target(), 500);
        assert_eq!(Situation { boost: 4.0, ..CALM }.target(), 1_000, "never above the burst");
        let slow = Situation { demand: 1.0, burst: 100, ..CALM };
        assert_eq!(slow.target(), 0, "a tenth of a token is not lent");
        assert_eq!(Situation { free: 60, ..slow }.target(), 6, "burst / (4 * members)");
        assert_eq!(Situation { free: 60, demand: 0.3, ..slow }.target(), 3);
    }

    #[test]
    fn a_bucket_too_small_for_its_members_is_not_lent_ahead() {
        assert_eq!(Situation { burst: 7, ..CALM }.target(), 0);
        assert_eq!(Situation { burst: 8, ..CALM }.target(), 8);
        assert_eq!(Situation { burst: 39, cost: 5, ..CALM }.target(), 0);
        assert_eq!(Situation { burst: 43, cost: 5, ..CALM }.target(), 40, "whole costs only");
    }

    #[test]
    fn a_new_acquaintance_is_lent_little() {
        let new = Situation { known_for: Micros::ZERO, ..CALM };
        assert_eq!(new.target(), 100, "20 ms of demand");
        assert_eq!(Situation { known_for: Micros::from_millis(20), ..new }.target(), 300);
        assert_eq!(Situation { known_for: Micros::from_secs(1), ..new }.target(), 500);
    }

    #[test]
    fn absurd_demand_saturates() {
        let mad = Situation { demand: f64::INFINITY, ..CALM };
        assert_eq!((mad.target(), mad.low(Micros(1), Micros(1))), (1_000, u64::MAX));
        assert_eq!(Situation { demand: f64::NAN, ..CALM }.target(), 0);
    }

    #[test]
    fn the_cadence_is_the_rules_but_short_for_a_bucket_that_fills_quickly() {
        let (rule, trip) = (Micros::from_millis(10), Micros(300));
        assert_eq!(CALM.cadence(rule, trip), rule);
        assert_eq!(Situation { burst: 100, ..CALM }.cadence(rule, trip), Micros(2_500));
        assert_eq!(Situation { burst: 1, ..CALM }.cadence(rule, trip), Micros(1_000));
        assert_eq!(Situation { burst: 1, ..CALM }.cadence(rule, Micros(4_000)), Micros(4_000));
    }
}
