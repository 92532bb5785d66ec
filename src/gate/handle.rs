//! `Tollgate`: the handle to one gate.

use super::{
    builder::Builder,
    snapshot::{RuleSnapshot, Snapshot},
};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    limiter::{Limiter, Tallies},
    local::Governed,
    sync::Driver,
    time::Micros,
};
use std::{collections::HashMap, fmt, sync::Arc};

/// A set of limiters that share a store, an engine and a registry of keys: one instance.
///
/// Clones are cheap and are the same gate. When the last clone and the last limiter are gone, the
/// engine gives its leases back in the background; [`shutdown`](Tollgate::shutdown) does so and waits.
#[derive(Clone)]
pub struct Tollgate {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) limiters: Vec<Limiter>,
    pub(super) names: HashMap<&'static str, usize>,
    /// `None` where all rules are `Local`.
    pub(super) driver: Option<Driver>,
    pub(super) governed: Arc<Governed>,
    pub(super) tallies: Arc<Tallies>,
    pub(super) clock: Clock,
    pub(super) shutdown: Micros,
}

impl Tollgate {
    /// Settings to begin with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn new(inner: Inner) -> Tollgate {
        Tollgate { inner: Arc::new(inner) }
    }

    /// The limiter of this rule.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownRule`] where no rule has the name; the message lists those there are.
    pub fn limiter(&self, name: &str) -> Result<Limiter, Error> {
        let index = self.inner.names.get(name);
        if let Some(limiter) = index.and_then(|index| self.inner.limiters.get(*index)) {
            return Ok(limiter.clone());
        }
        let known: Vec<_> = self.inner.limiters.iter().map(Limiter::name).collect();
        let message = format!("no rule is called {name:?}; there are: {}", known.join(", "));
        Err(Error::new(ErrorKind::UnknownRule, message))
    }

    /// How things are: counts, holds, link, bounds. Costs some loads; call it as often as you like.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let rules = self.inner.limiters.iter().map(|l| RuleSnapshot { name: l.name(), bound: l.bound() }).collect();
        Snapshot::of(self.inner.driver.as_ref(), &self.inner.governed, &self.inner.tallies, rules)
    }

    /// Gives the leases back, waits for messages under way, and stops the engine.
    ///
    /// From now on every check that would need the store is refused with [`ErrorKind::ShutDown`] as its
    /// trouble; `Local` rules go on. Waits at most the builder's
    /// [`shutdown_timeout`](Builder::shutdown_timeout). A second call waits for the same end.
    ///
    /// # Errors
    /// [`ErrorKind::Deadline`] when the time-out passed before everything was given back, and at once
    /// where the store is known to be away; what was not given back ends with its lease.
    /// So do the few tokens of hot keys that threads have taken for themselves.
    ///
    /// # Cancel safety
    /// The shutdown goes on when the call is dropped.
    pub async fn shutdown(&self) -> Result<(), Error> {
        let Some(driver) = &self.inner.driver else { return Ok(()) };
        let deadline = self.inner.clock.now().plus(self.inner.shutdown);
        driver.close(deadline).await;
        if driver.closed_clean() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Deadline, "shutdown: not all leases could be given back in time"))
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<_> = self.inner.limiters.iter().map(Limiter::name).collect();
        f.debug_struct("Tollgate").field("rules", &rules).field("driver", &self.inner.driver).finish_non_exhaustive()
    }
}
