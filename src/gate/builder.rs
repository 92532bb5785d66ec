//! The builder: collects settings, checks them all in `build`, and assembles the products.

use super::{
    assemble::{self, Parts, Roll},
    handle::Tollgate,
};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    hash,
    key::{KeySpace, LongKeys},
    lease::{EXACT_MAX, InstanceId},
    limiter::{Alarm, Common, Lines, Saturated, Tallies},
    local::Governed,
    observe::{Event, Observer},
    rule::{Rule, Rules},
    store::{MemoryStore, Store},
    sync::{Driver, Settings},
};
use std::{fmt, sync::Arc, time::Duration};

/// How long a gate waits for its last messages in `shutdown`.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Keys that a gate knows at once.
const KEYS_MAX: usize = 1_000_000;
/// After this a question is dead, where the store has no time-out of its own.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);
/// Questions that one instance asks a second.
const SYNCS_PER_SECOND_MAX: u32 = 20_000;

/// Collects the settings of a [`Tollgate`]. Setters never fail; `build` checks everything.
#[must_use = "nothing is limited until the gate is built"]
pub struct Builder {
    store: Option<Store>,
    rules: Rules,
    clock: Option<Clock>,
    observer: Arc<dyn Observer>,
    prefix: String,
    tags: u16,
    keys_max: usize,
    saturated: Saturated,
    long_keys: LongKeys,
    instances: Option<u32>,
    syncs_per_second_max: u32,
    shutdown: Duration,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            store: None,
            rules: Rules::new(),
            clock: None,
            observer: Arc::new(()),
            prefix: "tollgate".to_owned(),
            tags: 16,
            keys_max: KEYS_MAX,
            saturated: Saturated::default(),
            long_keys: LongKeys::default(),
            instances: None,
            syncs_per_second_max: SYNCS_PER_SECOND_MAX,
            shutdown: SHUTDOWN,
        }
    }
}

impl Builder {
    /// Who holds the shared truth: a `RedisStore`, or a [`MemoryStore`] that other gates of this process
    /// share. Left out: an embedded store of the gate's own.
    pub fn store(mut self, store: impl Into<Store>) -> Builder {
        self.store = Some(store.into());
        self
    }

    /// Adds a rule under a name: 1 to 128 bytes without control characters, each name once.
    pub fn rule(mut self, name: impl Into<String>, rule: Rule) -> Builder {
        self.rules = self.rules.rule(name, rule);
        self
    }

    /// Adds all of these rules.
    pub fn rules(mut self, rules: Rules) -> Builder {
        self.rules = self.rules.and(rules);
        self
    }

    /// The clock; the system's when not set. A [manual](Clock::manual) one is for tests.
    pub fn clock(mut self, clock: Clock) -> Builder {
        self.clock = Some(clock);
        self
    }

    /// Told of what an operator would want to know; nobody when not set.
    pub fn observer(mut self, observer: impl Observer) -> Builder {
        self.observer = Arc::new(observer);
        self
    }

    /// The first part of every key in the store; `tollgate` when not set. Gates with different prefixes share
    /// nothing. 1 to 128 bytes without braces, white space or control characters.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Builder {
        self.prefix = prefix.into();
        self
    }

    /// Over how many hash tags the keys are spread; 16 when not set, 1 to 16,384. Part of every key, so
    /// gates that share limits must agree on it.
    pub fn tags(mut self, tags: u16) -> Builder {
        self.tags = tags;
        self
    }

    /// How many keys this gate knows at once; 1,000,000 when not set, at least 1. Idle keys go by
    /// themselves after a while; at the cap new ones get the [saturated](Builder::saturated) policy.
    pub fn keys_max(mut self, keys: usize) -> Builder {
        self.keys_max = keys;
        self
    }

    /// What a new key gets at the cap; [`Saturated::Deny`] when not set.
    pub fn saturated(mut self, policy: Saturated) -> Builder {
        self.saturated = policy;
        self
    }

    /// What is done with keys above 1 KiB; [`LongKeys::Hash`] when not set.
    pub fn long_keys(mut self, policy: LongKeys) -> Builder {
        self.long_keys = policy;
        self
    }

    /// How many instances share the limits, until the heartbeat has counted them: what
    /// [`Outage::Share`](crate::Outage::Share) divides by when the store was never reached. At least 1.
    pub fn instances(mut self, instances: u32) -> Builder {
        self.instances = Some(instances);
        self
    }

    /// The most questions about buckets that this instance asks a second; 20,000 when not set, at least 10.
    /// Near it, leases grow longer; it is never exceeded for long.
    pub fn syncs_per_second_max(mut self, syncs: u32) -> Builder {
        self.syncs_per_second_max = syncs;
        self
    }

    /// How long [`shutdown`](Tollgate::shutdown) waits for its last messages; 5 s when not set, at most a
    /// minute.
    pub fn shutdown_timeout(mut self, span: Duration) -> Builder {
        self.shutdown = span;
        self
    }

    /// Checks everything and starts the gate.
    ///
    /// The engine runs on a thread of its own; the caller's runtime may block, starve or end. A store
    /// that is away is no error here: outage policies decide until it comes.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], naming the rule and the field or the setting, for the first thing that is out
    /// of range.
    pub async fn build(self) -> Result<Tollgate, Error> {
        let store = self.store.clone().unwrap_or_else(|| MemoryStore::default().into());
        self.assemble(Some(store))
    }

    /// Checks everything and makes a gate whose rules are all [`Local`](crate::Mode::Local). Starts no thread but the
    /// clock's and needs no runtime.
    ///
    /// # Errors
    /// As [`build`](Builder::build), and where a rule is not `Local` or a store is set.
    pub fn build_local(self) -> Result<Tollgate, Error> {
        if self.store.is_some() {
            return Err(config("store: a gate that is built with build_local has none"));
        }
        self.assemble(None)
    }

    fn assemble(self, store: Option<Store>) -> Result<Tollgate, Error> {
        let keys = KeySpace::new(&self.prefix, self.tags)?;
        if self.keys_max == 0 {
            return Err(config("keys_max: at least 1"));
        }
        if self.instances == Some(0) {
            return Err(config("instances: at least 1"));
        }
        if self.syncs_per_second_max < 10 {
            return Err(config("syncs_per_second_max: at least 10"));
        }
        if self.shutdown > Duration::from_secs(60) {
            return Err(config("shutdown_timeout: at most 60 s"));
        }
        let plans = self.rules.plans()?;
        let shared = plans.iter().find(|plan| assemble::is_shared(plan));
        if let (None, Some(plan)) = (&store, shared) {
            let message = format!("rule {:?}: mode: build_local takes `Local` rules only", plan.terms.name);
            return Err(config(&message));
        }
        let clock = self.clock.unwrap_or_else(Clock::system);
        let mut roll = Roll::default();
        let driver = match store {
            Some(store) if shared.is_some() => {
                if let Some(message) = store.warning() {
                    self.observer.event(&Event::Warning { message: message.to_owned() });
                }
                let settings = Settings {
                    instance: InstanceId(hash::random().map_err(|e| config(&e))? % (EXACT_MAX - 1) + 1),
                    keys,
                    rules: roll.enter(&plans)?.into_iter().flatten().collect(),
                    instances: self.instances,
                    syncs_per_second_max: self.syncs_per_second_max,
                    response_timeout: store.response_timeout().unwrap_or(RESPONSE_TIMEOUT).into(),
                };
                let observer = self.observer.clone();
                Some(Driver::start(settings, store, clock.clone(), self.keys_max, observer)?)
            }
            _ => None,
        };
        let parts = Parts {
            common: Common {
                long: self.long_keys,
                saturated: self.saturated,
                clock: clock.clone(),
                tallies: Arc::new(Tallies::default()),
                alarm: Arc::new(Alarm::new(self.observer, self.keys_max)),
                lines: Lines::new(self.keys_max),
            },
            driver,
            governed: Arc::new(Governed::new(clock.clone(), self.keys_max)),
            fallback: Arc::new(Governed::new(clock, self.keys_max)),
        };
        Tollgate::new(parts, roll, &self.rules, &plans, self.shutdown.into())
    }
}

fn config(message: &str) -> Error {
    Error::new(ErrorKind::Config, message)
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("store", &self.store).field("rules", &self.rules).finish_non_exhaustive()
    }
}
