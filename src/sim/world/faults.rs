//! What goes wrong: on the road, with the instances, with the authority.

use crate::{lease, time::Micros};
use std::time::Duration;

/// The road between instances and authority.
///
/// A message that is lost, or whose answer is not back within the response time-out, is unanswered for its sender,
/// though the authority may have acted on it. That time-out is 200 ms, as a gate's is. By default a message takes 100 to
/// 300 µs each way, and nothing is lost.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Network {
    pub(super) delay: (Micros, Micros),
    pub(super) loss: f64,
    pub(super) repeat: f64,
    pub(super) slow: (f64, Micros),
}

impl Network {
    /// A road on which each message takes between these two times, and nothing is lost. Where they differ, messages
    /// overtake each other.
    pub fn delay(least: Duration, most: Duration) -> Network {
        let least = Micros::from(least);
        Network { delay: (least, least.max(most.into())), loss: 0.0, repeat: 0.0, slow: (0.0, Micros::ZERO) }
    }

    /// The part of all messages that gets lost, one way or the other. Parts are cut to 0 to 1, here and below.
    pub fn loss(mut self, part: f64) -> Network {
        self.loss = part.clamp(0.0, 1.0);
        self
    }

    /// The part of all questions that arrives twice, the second time at any time within the response time-out.
    pub fn repeat(mut self, part: f64) -> Network {
        self.repeat = part.clamp(0.0, 1.0);
        self
    }

    /// The part of all messages that takes any time up to `most` instead, however late that is.
    pub fn slow(mut self, part: f64, most: Duration) -> Network {
        self.slow = (part.clamp(0.0, 1.0), most.into());
        self
    }
}

impl Default for Network {
    /// 100 to 300 µs each way, and nothing is lost.
    fn default() -> Network {
        Network::delay(Duration::from_micros(100), Duration::from_micros(300))
    }
}

/// One thing that goes wrong.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The instance dies with all it held; another takes its place after `down`.
    Crash {
        /// Which one, from 0.
        instance: usize,
        /// How long its place is empty.
        down: Duration,
    },
    /// The instance is stopped by its operating system (SIGSTOP) and goes on afterwards, with all that came meanwhile.
    Freeze {
        /// Which one, from 0.
        instance: usize,
        /// For how long.
        span: Duration,
    },
    /// Nothing that one instance sends, or all of them where none is named, arrives, nor any answer.
    Cut {
        /// Which one, from 0.
        instance: Option<usize>,
        /// For how long.
        span: Duration,
    },
    /// The authority does nothing, and then all that has come meanwhile.
    Stall {
        /// For how long.
        span: Duration,
    },
    /// The authority forgets everything.
    Wipe,
    /// The authority goes on from the state that it had this long ago.
    Failover {
        /// How long ago; what came since is lost.
        lag: Duration,
    },
    /// The authority's clock is set forward by so many microseconds, or (below zero) back.
    Step {
        /// By how much.
        micros: i64,
    },
}

/// What goes wrong, at given times and by lot.
///
/// ```
/// use std::time::Duration;
/// use tollgate::sim::{Fault, Faults};
///
/// let second = Duration::from_secs(1);
/// let faults = Faults::none().crashes(10 * second, second).at(3 * second, Fault::Wipe);
/// # assert_ne!(faults, Faults::none());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Faults {
    at: Vec<(Micros, Fault)>,
    lots: Vec<Lot>,
}

/// A fault that comes about once in a time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lot {
    every: Micros,
    kind: Kind,
    /// The longest, the lag, or the largest step.
    most: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Crash,
    Freeze,
    Cut,
    Stall,
    Wipe,
    Failover,
    Forward,
    Back,
}

impl Faults {
    /// Nothing goes wrong.
    pub fn none() -> Faults {
        Faults::default()
    }

    /// This fault at this time after the start; left out where that is after the last request.
    pub fn at(mut self, time: Duration, fault: Fault) -> Faults {
        self.at.push((time.into(), fault));
        self
    }

    /// About once in `every` some instance crashes, and its place is empty for up to `down`.
    pub fn crashes(self, every: Duration, down: Duration) -> Faults {
        self.lot(every, Kind::Crash, down)
    }

    /// About once in `every` some instance stands still for up to `longest`.
    pub fn freezes(self, every: Duration, longest: Duration) -> Faults {
        self.lot(every, Kind::Freeze, longest)
    }

    /// About once in `every` some instance, or all of them, is cut off for up to `longest`.
    pub fn cuts(self, every: Duration, longest: Duration) -> Faults {
        self.lot(every, Kind::Cut, longest)
    }

    /// About once in `every` the authority stalls for up to `longest`.
    pub fn stalls(self, every: Duration, longest: Duration) -> Faults {
        self.lot(every, Kind::Stall, longest)
    }

    /// About once in `every` the authority loses its memory.
    pub fn wipes(self, every: Duration) -> Faults {
        self.lot(every, Kind::Wipe, Duration::ZERO)
    }

    /// About once in `every` the authority falls back by up to `lag`.
    pub fn failovers(self, every: Duration, lag: Duration) -> Faults {
        self.lot(every, Kind::Failover, lag)
    }

    /// About once in `every` the authority's clock is set forward by up to `most`.
    pub fn steps_forward(self, every: Duration, most: Duration) -> Faults {
        self.lot(every, Kind::Forward, most)
    }

    /// About once in `every` the authority's clock is set back by up to `most`.
    pub fn steps_back(self, every: Duration, most: Duration) -> Faults {
        self.lot(every, Kind::Back, most)
    }

    fn lot(mut self, every: Duration, kind: Kind, most: Duration) -> Faults {
        self.lots.push(Lot { every: Micros::from(every).max(Micros(1)), kind, most: most.into() });
        self
    }

    /// An instance that a fault names and that is not among so many.
    pub(super) fn strays(&self, instances: usize) -> Option<usize> {
        let mut named = self.at.iter().filter_map(|(_, fault)| match *fault {
            Fault::Crash { instance, .. } | Fault::Freeze { instance, .. } => Some(instance),
            Fault::Cut { instance, .. } => instance,
            _ => None,
        });
        named.find(|instance| *instance >= instances)
    }

    /// All that goes wrong within `span`, in the order of time.
    pub(super) fn draw(&self, instances: usize, span: Micros, seed: u64) -> Vec<(Micros, Fault)> {
        let mut all = self.at.clone();
        let mut rng = fastrand::Rng::with_seed(seed);
        for lot in &self.lots {
            let mut rng = rng.fork();
            let mut at = Micros::ZERO;
            loop {
                let gap = -(1.0 - rng.f64()).ln() * lot.every.0 as f64;
                at = at.plus(Micros(gap as u64 + 1));
                if at >= span {
                    break;
                }
                let part = Micros(rng.u64(0..=lot.most.0));
                let instance = rng.usize(0..instances.max(1));
                let micros = i64::try_from(part.0).unwrap_or(i64::MAX);
                let fault = match lot.kind {
                    Kind::Crash => Fault::Crash { instance, down: part.into() },
                    Kind::Freeze => Fault::Freeze { instance, span: part.into() },
                    Kind::Cut => Fault::Cut { instance: rng.bool().then_some(instance), span: part.into() },
                    Kind::Stall => Fault::Stall { span: part.into() },
                    Kind::Wipe => Fault::Wipe,
                    Kind::Failover => Fault::Failover { lag: part.into() },
                    Kind::Forward => Fault::Step { micros },
                    Kind::Back => Fault::Step { micros: -micros },
                };
                all.push((at, fault));
            }
        }
        all.retain(|(at, _)| *at < span);
        all.sort_by_key(|(at, _)| *at);
        all
    }
}

/// A rule of the protocol that is skipped, to see that the judge notices: tests of the judge.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Instances spend their leases far longer than the authority is told.
    SpendsDeadLeases,
    /// Instances tell that they hold nothing.
    HidesHold,
    /// Instances tell that they used nothing.
    HidesUse,
    /// Instances tell that they spent nothing of what they gave themselves.
    HidesDebt,
    /// Instances do not tell which life of a bucket they know, so that lost state is never noticed.
    ForgetsGeneration,
    /// An answer that comes after its question was given up is taken for the answer to the next.
    TakesLateAnswers,
    /// The authority takes messages that are repeated or overtaken for new ones.
    ForgetsOrder,
    /// The authority refills to the burst, whatever is lent.
    NoCap,
    /// Windows: what is lent does not count as gone.
    ForgetOutstanding,
    /// Windows: what an ended lease had counts as never spent.
    ForgetEnded,
    /// Fixed windows: a lease may end after its window, so that old tokens are spent in the new one.
    LeaseOutlivesWindow,
}

impl Planted {
    /// What the authority's book does wrong, where it is that.
    pub(super) fn of_the_book(self) -> Option<lease::Fault> {
        Some(match self {
            Planted::NoCap => lease::Fault::NoCap,
            Planted::ForgetOutstanding => lease::Fault::ForgetOutstanding,
            Planted::ForgetEnded => lease::Fault::ForgetEnded,
            Planted::LeaseOutlivesWindow => lease::Fault::LeaseOutlivesWindow,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_schedule_and_each_lot_comes_about_as_often_as_it_says() {
        let second = Duration::from_secs(1);
        let faults = Faults::none().crashes(second, second).steps_back(2 * second, second).at(5 * second, Fault::Wipe);
        let all = faults.draw(3, Micros::from_secs(1_000), 9);
        assert_eq!(all, faults.draw(3, Micros::from_secs(1_000), 9));
        assert_ne!(all, faults.draw(3, Micros::from_secs(1_000), 10));
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        let crashes = all.iter().filter(|(_, fault)| matches!(fault, Fault::Crash { .. })).count();
        let steps = all.iter().filter(|(_, fault)| matches!(fault, Fault::Step { micros } if *micros <= 0)).count();
        assert!((850..1_150).contains(&crashes) && (400..600).contains(&steps), "{crashes} {steps}");
        assert!(all.contains(&(Micros::from_secs(5), Fault::Wipe)));
    }
}
