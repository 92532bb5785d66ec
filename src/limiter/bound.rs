//! The most that can be admitted, as a formula with its numbers filled in.

use super::setup::{Setup, Way};
use crate::{
    algorithm::Algorithm,
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

/// The most that a rule admits for one key in any span of time, and what the rule's own choices add to it.
///
/// | rule | in any span `T` |
/// | --- | --- |
/// | token bucket, leaky bucket | `burst + rate * T` |
/// | leaky queue | `burst + 1 + rate * T` |
/// | fixed window | the limit for each window that `T` touches |
/// | sliding log | the limit in any span of the window's length |
/// | sliding counter | less than twice the limit in any span of the window's length |
///
/// `Buffered` adds `N * ahead`, `N` the instances that lived in `T` and `ahead` the rule's
/// [`delta_max`](crate::Rule::delta_max): to a bucket once, to a window each time. [`Cold::Credit(n)`](crate::Cold::Credit)
/// adds `n` for each instance and each [`lease_ttl`](crate::Rule::lease_ttl).
///
/// As text it is the formula with its numbers:
///
/// ```
/// # use {std::time::Duration, tollgate::{Mode, Rule, Tollgate}};
/// let second = Duration::from_secs(1);
/// let rule = Rule::token_bucket(1_000, second).burst(100).mode(Mode::Local);
/// let gate = Tollgate::builder().rule("api", rule).build_local()?;
/// let bound = gate.limiter("api")?.bound();
/// assert_eq!(bound.to_string(), "100 + 1000/s * T, for each instance");
/// assert_eq!(bound.over(10 * second, 3), 3 * (100 + 10_000));
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// It holds while the authority is there and keeps its memory; what an outage, a failover or lost
/// memory can add is told in the guide's page on guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    algorithm: Algorithm,
    burst: u64,
    rate: Rate,
    window: Micros,
    scope: Scope,
    credit: u64,
    ttl: Micros,
    /// How far a `Buffered` instance goes ahead at most, whoever it knows of.
    ahead: u64,
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
            algorithm: terms.numbers.algorithm,
            burst: terms.numbers.burst,
            rate: terms.numbers.rate,
            window: terms.numbers.window,
            scope: if terms.mode == Mode::Local { Scope::EachInstance } else { Scope::AllInstances },
            credit: match terms.cold {
                Cold::Credit(tokens) => tokens,
                _ => 0,
            },
            ttl: terms.lease_ttl,
            // An instance that has not heard of the others takes itself for the only one.
            ahead: if terms.mode == Mode::Buffered { terms.ahead(1) } else { 0 },
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
        let span = Micros::from(span);
        let (each, times) = self.each(span);
        let instances = u64::from(instances);
        let ahead = self.ahead.saturating_mul(instances).saturating_mul(times);
        let central = each.saturating_mul(times).saturating_add(self.refill(span)).saturating_add(ahead);
        // A credit may be taken anew with each lease life: once at least, and once more for the edge.
        let lives = span.0 / self.ttl.0.max(1) + 1;
        let credit = self.credit.saturating_mul(lives).saturating_mul(instances);
        match self.scope {
            Scope::EachInstance => central.saturating_mul(instances),
            Scope::AllInstances => central.saturating_add(credit),
        }
    }

    /// What is admitted at once, and how often in this span: once by a bucket, by a window each time.
    fn each(&self, span: Micros) -> (u64, u64) {
        let length = self.window.0.max(1);
        let spans = (span.0 / length).saturating_add(1);
        match self.algorithm {
            // A span longer than nothing may begin at the end of one window.
            Algorithm::FixedWindow if span.0 > 0 => (self.burst, ((span.0 - 1) / length).saturating_add(2)),
            Algorithm::FixedWindow => (self.burst, 1),
            Algorithm::SlidingLog => (self.burst, spans),
            Algorithm::SlidingCounter => (self.burst.saturating_mul(2).saturating_sub(1), spans),
            Algorithm::LeakyQueue => (self.burst.saturating_add(1), 1),
            Algorithm::TokenBucket | Algorithm::LeakyMeter => (self.burst, 1),
        }
    }

    /// What comes in beside that.
    fn refill(&self, span: Micros) -> u64 {
        if self.algorithm.is_window() { 0 } else { self.rate.tokens_in(span) }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.constant {
            Some(Constant::DenyAll) => return f.write_str("0"),
            Some(Constant::Unlimited) => return f.write_str("no bound"),
            None => {}
        }
        let (burst, window) = (self.burst, Duration::from(self.window));
        match self.algorithm {
            Algorithm::FixedWindow => write!(f, "{burst} in each window of {window:?}")?,
            Algorithm::SlidingLog => write!(f, "{burst} in any {window:?}")?,
            Algorithm::SlidingCounter => write!(f, "less than {} in any {window:?}", burst.saturating_mul(2))?,
            Algorithm::LeakyQueue => write!(f, "{burst} + 1 + {} * T", PerSecond(self.rate))?,
            Algorithm::TokenBucket | Algorithm::LeakyMeter => write!(f, "{burst} + {} * T", PerSecond(self.rate))?,
        }
        if self.ahead > 0 {
            write!(f, " + N * {}", self.ahead)?;
        }
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
    fn a_window_s_bound_is_its_limit_for_each_window_or_span() {
        let second = Duration::from_secs(1);
        let fixed = bound(&Rule::fixed_window(10, second));
        assert_eq!((fixed.over(Duration::ZERO, 4), fixed.over(second, 4), fixed.over(2 * second, 4)), (10, 20, 30));
        assert_eq!(fixed.to_string(), "10 in each window of 1s, for all instances together");
        let log = bound(&Rule::sliding_log(10, second));
        assert_eq!((log.over(second / 2, 4), log.over(second * 5 / 2, 4)), (10, 30));
        assert_eq!(log.to_string(), "10 in any 1s, for all instances together");
        let counter = bound(&Rule::sliding_counter(10, second).mode(Mode::Local));
        assert_eq!(counter.over(second / 2, 2), 38);
        assert_eq!(counter.to_string(), "less than 20 in any 1s, for each instance");
        let queue = bound(&Rule::leaky_queue(10, second).burst(5));
        assert_eq!(queue.over(second, 3), 5 + 1 + 10);
        assert_eq!(queue.to_string(), "5 + 1 + 10/s * T, for all instances together");
    }

    #[test]
    fn who_reports_afterwards_adds_what_each_instance_may_be_ahead() {
        let second = Duration::from_secs(1);
        let bucket = bound(&Rule::token_bucket(100, second).mode(Mode::Buffered).delta_max(7));
        assert_eq!(bucket.over(second, 4), 200 + 4 * 7);
        assert_eq!(bucket.to_string(), "100 + 100/s * T + N * 7, for all instances together");
        let window = bound(&Rule::fixed_window(100, second).mode(Mode::Buffered));
        assert_eq!(window.over(second, 4), 2 * (100 + 4 * 10), "a tenth of the limit, in each window");
    }

    #[test]
    fn a_cold_credit_adds_itself_for_each_instance_and_lease_life() {
        let rule = Rule::token_bucket(100, Duration::from_secs(1)).cold(Cold::Credit(3));
        assert_eq!(bound(&rule).over(Duration::from_secs(1), 4), 200 + 3 * 4);
        assert_eq!(bound(&rule).over(Duration::from_secs(25), 1), 2_600 + 3 * 3);
        assert_eq!(bound(&rule).over(Duration::MAX, u32::MAX), u64::MAX);
    }
}
