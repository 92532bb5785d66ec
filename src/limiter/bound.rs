//! The most that can be admitted, as a formula with its numbers filled in.

use super::setup::{Setup, Way};
use crate::{
    rate::Rate,
    rule::{Cold, Constant, Mode, Terms},
    time::Micros,
};
use std::{fmt, time::Duration};

/// For whom a [`Bound`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// For each instance by itself: all together may admit that many times as much.
    EachInstance,
    /// For all instances together.
    AllInstances,
}

/// The most that a rule admits for one key in any span of time: `burst + rate * T`, and what the
/// rule's own choices add to it.
///
/// It holds while the authority is there and keeps its memory; what an outage, a failover or lost
/// memory can add is told in the guide's page on guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    burst: u64,
    rate: Rate,
    scope: Scope,
    credit: u64,
    ttl: Micros,
    /// The rule asks nobody.
    constant: Option<Constant>,
}

impl Setup {
    pub(crate) fn bound(&self) -> Bound {
        // Who refuses nobody has no bound, whatever the numbers are.
        let free = self.terms.shadow || matches!(self.way, Way::Lifted);
        let bound = Bound::of(&self.terms);
        Bound { constant: if free { Some(Constant::Unlimited) } else { bound.constant }, ..bound }
    }
}

impl Bound {
    pub(super) fn of(terms: &Terms) -> Bound {
        Bound {
            burst: terms.numbers.burst,
            rate: terms.numbers.rate,
            scope: if terms.mode == Mode::Local { Scope::EachInstance } else { Scope::AllInstances },
            credit: match terms.cold {
                Cold::Credit(tokens) => tokens,
                _ => 0,
            },
            ttl: terms.lease_ttl,
            constant: terms.constant,
        }
    }

    /// For whom it holds.
    #[must_use]
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The most that is admitted in any span of this length, where `instances` lived in it.
    ///
    /// Saturates: `u64::MAX` where there is no bound.
    #[must_use]
    pub fn over(&self, span: Duration, instances: u32) -> u64 {
        match self.constant {
            Some(Constant::DenyAll) => return 0,
            Some(Constant::Unlimited) => return u64::MAX,
            None => {}
        }
        let central = self.burst.saturating_add(self.rate.tokens_in(span.into()));
        // A credit may be taken anew with each lease life: once at least, and once more for the edge.
        let lives = Micros::from(span).0 / self.ttl.0.max(1) + 1;
        let credit = self.credit.saturating_mul(lives).saturating_mul(u64::from(instances));
        match self.scope {
            Scope::EachInstance => central.saturating_mul(u64::from(instances)),
            Scope::AllInstances => central.saturating_add(credit),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.constant {
            Some(Constant::DenyAll) => return f.write_str("0"),
            Some(Constant::Unlimited) => return f.write_str("no bound"),
            None => {}
        }
        write!(f, "{} + {} * T", self.burst, PerSecond(self.rate))?;
        if self.credit > 0 {
            write!(f, " + N * {} each {:?}", self.credit, Duration::from(self.ttl))?;
        }
        f.write_str(match self.scope {
            Scope::EachInstance => ", for each instance",
            Scope::AllInstances => ", for all instances together",
        })
    }
}

struct PerSecond(Rate);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, period) = (self.0.count(), self.0.period());
        if (count * 1_000_000).is_multiple_of(period) {
            write!(f, "{}/s", count * 1_000_000 / period)
        } else {
            write!(f, "{count} / {:?}", Duration::from_micros(period))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Rule;

    fn bound(rule: &Rule) -> Bound {
        Bound::of(&rule.check("r").expect("a fair rule"))
    }

    // case C-09: burst and refill add up, and the bound says so.
    #[test]
    fn a_bound_is_burst_and_refill_and_says_for_whom() {
        let minute = Duration::from_secs(60);
        let leased = bound(&Rule::token_bucket(1_200, minute));
        assert_eq!(leased.over(minute, 4), 2_400);
        assert_eq!(leased.to_string(), "1200 + 20/s * T, for all instances together");
        let local = bound(&Rule::token_bucket(5, minute).mode(Mode::Local));
        assert_eq!(local.over(minute, 4), 40);
        assert_eq!(local.to_string(), "5 + 1 / 12s * T, for each instance");
    }

    #[test]
    fn a_cold_credit_adds_itself_for_each_instance_and_lease_life() {
        let rule = Rule::token_bucket(100, Duration::from_secs(1)).cold(Cold::Credit(3));
        assert_eq!(bound(&rule).over(Duration::from_secs(1), 4), 200 + 3 * 4);
        assert_eq!(bound(&rule).over(Duration::from_secs(25), 1), 2_600 + 3 * 3);
        assert_eq!(bound(&rule).over(Duration::MAX, u32::MAX), u64::MAX);
    }
}
