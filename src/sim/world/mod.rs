//! Whole instances in virtual time: what a server runs, minus sockets.

mod audit;
mod faults;
mod node;
mod report;
mod run;
mod traffic;

#[cfg(test)]
mod tests;

pub use faults::{Fault, Faults, Network, Planted};
pub use report::{Conserved, Place, Report, Violation};
pub use traffic::Traffic;

use crate::{
    algorithm::Algorithm,
    error::{Error, ErrorKind},
    hash,
    rule::{Rule, Terms},
    time::Micros,
};
use std::{thread, time::Duration};

/// What a driver's connection waits for an answer.
const RESPONSE_TIMEOUT: Micros = Micros::from_millis(200);

/// Instances, the road, an authority, and what is asked of them: a world that passes in its own time, and is
/// judged. Nothing in it waits for real time, and everything follows from its seed: the same world is the same
/// run, message for message.
///
/// Each instance is the engine and the local tier of a real one; the authority is a
/// [`MemoryStore`](crate::MemoryStore). The judge knows when each request was admitted, on the world's clock and on the
/// authority's, and replays them all through one plain machine of the same algorithm.
///
/// # Cost
/// About a microsecond of real time for each admission, and 24 bytes for it.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Rule, sim::{Faults, Network, Traffic, World}};
///
/// let second = Duration::from_secs(1);
/// let world = World::builder()
///     .instances(3)
///     .rule(Rule::token_bucket(1_000, second).burst(100))
///     .traffic(Traffic::poisson(2_000.0))
///     .network(Network::default().loss(0.01))
///     .faults(Faults::none().crashes(second, second / 10))
///     .span(3 * second)
///     .seed(7)
///     .build()?;
/// let report = world.run();
/// assert!(report.holds(), "{report}");
/// assert!(report.admitted() > 1_000); // of some 3,100: a question whose answer is lost is asked again after 200 ms
/// assert_eq!(report, world.run());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct World {
    plan: Builder,
    terms: Vec<Terms>,
}

/// All that can be said about a [`World`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    instances: usize,
    told: bool,
    rules: Vec<Rule>,
    network: Network,
    faults: Faults,
    traffic: Traffic,
    seed: u64,
    span: Micros,
    rest: Micros,
    start: Micros,
    traces: bool,
    compares: bool,
    audits: bool,
    planted: Option<Planted>,
}

impl World {
    /// A world of one instance that nobody asks, for one second.
    pub fn builder() -> Builder {
        Builder {
            instances: 1,
            told: false,
            rules: Vec::new(),
            network: Network::default(),
            faults: Faults::none(),
            traffic: Traffic::poisson(0.0),
            seed: 0,
            span: Micros::from_secs(1),
            rest: Micros::ZERO,
            start: Micros::ZERO,
            traces: false,
            compares: false,
            audits: false,
            planted: None,
        }
    }

    /// Lets it pass, in a thread of its own, and judges it.
    ///
    /// # Panics
    /// When the code under test does, or when the system gives no thread.
    #[must_use]
    pub fn run(&self) -> Report {
        // Hashes decide which hot keys share a place in a thread's table: the same in each run.
        hash::settle();
        // A thread's tables outlive a world; a new thread has new ones, so that no world feels the one before.
        let body = || run::Run::new(&self.plan, &self.terms).go();
        thread::scope(|scope| scope.spawn(body).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Builder {
    /// How many instances there are at a time; 1 when not set. Allowed: 1 to 1,000.
    pub fn instances(mut self, instances: usize) -> Builder {
        self.instances = instances;
        self
    }

    /// Tells each instance how many there are, as the gate's builder can; else they learn it from heartbeats.
    pub fn told(mut self) -> Builder {
        self.told = true;
        self
    }

    /// One more rule; at least one is needed. Of several, each request is for one by lot.
    pub fn rule(mut self, rule: Rule) -> Builder {
        self.rules.push(rule);
        self
    }

    /// The road to the authority; 100 to 300 µs each way and nothing lost when not set.
    pub fn network(mut self, network: Network) -> Builder {
        self.network = network;
        self
    }

    /// What goes wrong; nothing when not set.
    pub fn faults(mut self, faults: Faults) -> Builder {
        self.faults = faults;
        self
    }

    /// What is asked; nothing when not set.
    pub fn traffic(mut self, traffic: Traffic) -> Builder {
        self.traffic = traffic;
        self
    }

    /// What everything follows from; 0 when not set.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = seed;
        self
    }

    /// How long requests come, in the world's time; a second when not set.
    pub fn span(mut self, span: Duration) -> Builder {
        self.span = span.into();
        self
    }

    /// How long the world goes on after the last request; not at all when not set.
    pub fn rest(mut self, span: Duration) -> Builder {
        self.rest = span.into();
        self
    }

    /// How far after a whole day of the authority's clock the world begins: where its windows lie. At its start when not set.
    pub fn start(mut self, after: Duration) -> Builder {
        self.start = after.into();
        self
    }

    /// Keeps the trace of the first rule's admissions.
    pub fn trace(mut self) -> Builder {
        self.traces = true;
        self
    }

    /// Counts what one central machine would have admitted of the same requests.
    pub fn compare(mut self) -> Builder {
        self.compares = true;
        self
    }

    /// Follows the authority's books of the first rule's first key, message by message: for token buckets, in worlds
    /// in which nothing is lost.
    pub fn audit(mut self) -> Builder {
        self.audits = true;
        self
    }

    /// Skips one rule of the protocol, to see that the judge notices.
    pub fn planted(mut self, fault: Planted) -> Builder {
        self.planted = Some(fault);
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when a rule is out of range, or there is none, or no instance, or more than 1,000; when a
    /// fault is for an instance that is not there; when a rule that is no bucket is to be audited.
    pub fn build(self) -> Result<World, Error> {
        if !(1..=1_000).contains(&self.instances) {
            return Err(Error::new(ErrorKind::Config, format!("instances: 1 to 1000, not {}", self.instances)));
        }
        if self.rules.is_empty() {
            return Err(Error::new(ErrorKind::Config, "rule: a world has at least one"));
        }
        if let Some(instance) = self.faults.strays(self.instances) {
            let what = format!("faults: instance {instance} is not there: 0 to {}", self.instances - 1);
            return Err(Error::new(ErrorKind::Config, what));
        }
        let names = (0..).map(|n: usize| format!("rule{n}"));
        let terms: Result<Vec<Terms>, Error> =
            self.rules.iter().zip(names).map(|(rule, name)| rule.check(&name)).collect();
        let terms = terms?;
        let bucket = |terms: &Terms| matches!(terms.numbers.algorithm, Algorithm::TokenBucket | Algorithm::LeakyMeter);
        if self.audits && !terms.first().is_some_and(bucket) {
            return Err(Error::new(ErrorKind::Config, "audit: the first rule is no token bucket"));
        }
        Ok(World { terms, plan: self })
    }
}
