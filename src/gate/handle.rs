//! `Tollgate`: the handle to one gate.

use super::{
    assemble::{Parts, Roll},
    builder::Builder,
    replace::Desk,
    snapshot::{RuleSnapshot, Snapshot},
};
use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    limiter::{self, Home, Limiter, Set},
    rule::{Plan, Rules},
    time::Micros,
};
use std::{
    fmt,
    sync::{Arc, Mutex},
};

/// A set of limiters that share a store, an engine and a registry of keys: one instance.
///
/// Clones are cheap and are the same gate. When the last clone and the last limiter are gone, the
/// engine gives its leases back in the background; [`shutdown`](Tollgate::shutdown) does so and waits.
#[derive(Clone)]
pub struct Tollgate {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) parts: Parts,
    /// The rules as they are now.
    pub(super) home: Arc<Home>,
    /// What whoever replaces them has to know; one at a time.
    pub(super) desk: Mutex<Desk>,
    pub(super) shutdown: Micros,
}

impl Tollgate {
    /// Settings to begin with.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(super) fn new(
        parts: Parts,
        mut roll: Roll,
        rules: &Rules,
        plans: &[Plan],
        shutdown: Micros,
    ) -> Result<Tollgate, Error> {
        let mut set = Set::default();
        for plan in plans {
            set.put(parts.setup(plan, &mut roll)?);
        }
        let inner = Inner { parts, home: Home::new(set), desk: Mutex::new(Desk::new(roll, rules)), shutdown };
        Ok(Tollgate { inner: Arc::new(inner) })
    }

    /// The limiter of this rule.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownRule`] where no rule has the name; the message lists those there are.
    pub fn limiter(&self, name: &str) -> Result<Limiter, Error> {
        let set = self.inner.home.set();
        let place = set.live.get(name).copied();
        if let Some((place, setup)) = place.and_then(|place| Some((place, set.at(place)?))) {
            return Ok(Limiter::new(setup.clone(), self.inner.home.clone(), place));
        }
        let known: Vec<_> = set.rules().map(|(_, setup)| setup.terms.name).collect();
        let message = format!("no rule is called {name:?}; there are: {}", known.join(", "));
        Err(Error::new(ErrorKind::UnknownRule, message))
    }

    /// Asks several limits for tokens: all of them give, or none does. Each entry is a limiter, a key and a cost.
    ///
    /// Whatever the rules' algorithms and modes are; parent and child, tenant and user, a short and a long window. The
    /// entries of one key of one rule count as one, with the sum of their costs; the same key in two rules is two
    /// keys, as ever. Keys that are cold here, and `Exact` rules, are asked for at the same time, after all others have said yes: one
    /// round trip, at most the longest of their deadlines.
    ///
    /// A refusal names in [`refused_by`](Decision::refused_by) the first in the given order that refuses, with its limit, and
    /// in [`retry_after`](Decision::retry_after) the longest wait of all that are known to. A yes shows the limit that is nearest to
    /// being exhausted, by remaining / limit, and the longest [`delay`](Decision::delay).
    ///
    /// Limiters of other gates may be among them. An entry of cost 0 takes nothing and refuses nothing. No entries: allowed, with the largest limit that a number can
    /// say. More than 64: never, with [`ErrorKind::Config`] as the trouble and no rule's name.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::{Rule, Tollgate}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let minute = Duration::from_secs(60);
    /// let gate = Tollgate::builder()
    ///     .rule("org", Rule::token_bucket(10, minute))
    ///     .rule("member", Rule::token_bucket(5, minute))
    ///     .build()
    ///     .await?;
    /// let (org, member) = (gate.limiter("org")?, gate.limiter("member")?);
    ///
    /// for _ in 0..5 {
    ///     assert!(gate.check_all(&[(&org, "acme", 1), (&member, "ann", 1)]).await.is_allowed());
    /// }
    /// let d = gate.check_all(&[(&org, "acme", 1), (&member, "ann", 1)]).await;
    /// assert_eq!(d.refused_by(), Some("member"));
    /// // The organization is not charged for what its member was refused: what it had given goes back with the next sync.
    /// assert!(org.peek("acme").await.remaining() >= 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Promise
    /// Tokens of a refused call can be had by others again: at once, or after the next sync where the authority had
    /// given them. While such a call is under way another may be refused for its sake, and nobody is let in
    /// for it. What an outage policy or a [cold credit](crate::Cold::Credit) let through for one entry stays booked when another
    /// refuses.
    ///
    /// # Cancel safety
    /// A dropped call admits nothing, and what it had taken goes back.
    pub async fn check_all<K: AsRef<[u8]>>(&self, limits: &[(&Limiter, K, u64)]) -> Decision {
        let limits: Vec<_> = limits.iter().map(|(limiter, key, cost)| (*limiter, key.as_ref(), *cost)).collect();
        limiter::check_all(&limits).await
    }

    /// [`check_all`](Tollgate::check_all) that never waits: keys without tokens here are answered as by
    /// [`check_now`](Limiter::check_now), so an `Exact` rule among them refuses.
    pub fn check_all_now<K: AsRef<[u8]>>(&self, limits: &[(&Limiter, K, u64)]) -> Decision {
        let limits: Vec<_> = limits.iter().map(|(limiter, key, cost)| (*limiter, key.as_ref(), *cost)).collect();
        limiter::check_all_now(&limits)
    }

    /// How things are: counts, holds, link, bounds. Costs some loads; call it as often as you like.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let set = self.inner.home.set();
        let rules = set.rules().map(|(_, s)| RuleSnapshot { name: s.terms.name, bound: s.bound() }).collect();
        let Parts { common, driver, governed, .. } = &self.inner.parts;
        Snapshot::of(driver.as_ref(), governed, &common.tallies, rules)
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
        let Some(driver) = &self.inner.parts.driver else { return Ok(()) };
        let deadline = self.inner.parts.common.clock.now().plus(self.inner.shutdown);
        driver.close(deadline).await;
        if driver.closed_clean() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Deadline, "shutdown: not all leases could be given back in time"))
    }
}

impl fmt::Debug for Tollgate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.inner.home.set();
        let rules: Vec<_> = set.rules().map(|(_, setup)| setup.terms.name).collect();
        f.debug_struct("Tollgate")
            .field("rules", &rules)
            .field("driver", &self.inner.parts.driver)
            .finish_non_exhaustive()
    }
}
