//! `Limiter`: checks by key.

use super::{
    bound::Bound,
    key::KeyHandle,
    road::{Step, Taking},
    set::{Home, Present, Set},
    setup::{Setup, Way},
};
use crate::{
    decision::Decision,
    key::{KEY_BYTES_MAX, Key},
    rule::Seen,
};
use std::sync::Arc;

/// Limits requests by one rule of a gate, each key by itself.
///
/// Clones are cheap and share everything. A limiter may outlive the gate it came from; after the
/// gate's `shutdown` it refuses, with [`ErrorKind::ShutDown`](crate::ErrorKind::ShutDown) as the trouble, but for a `Local`
/// rule, which goes on.
///
/// It follows its rule: after [`replace_rules`](crate::Tollgate::replace_rules) each check that starts sees the rule's
/// new numbers. Where the rule is gone the limit is lifted: everything passes, with [`ErrorKind::UnknownRule`](crate::ErrorKind::UnknownRule) as the
/// trouble, until a rule of that name is there again. (A limiter that is fetched after the replacement saves a few
/// nanoseconds a check over one from before.)
///
/// A key is any bytes. An empty one is a key like any other; one above 1 KiB is hashed or refused, as the
/// gate's builder says.
///
/// | call | waits | for |
/// | --- | --- | --- |
/// | [`check`](Limiter::check) | only when the key has no tokens here: one round trip, at most the rule's deadline | async code |
/// | [`check_now`](Limiter::check_now) | never | hot paths |
/// | [`check_blocking`](Limiter::check_blocking) | as `check`, parking the thread | threads without a runtime |
/// | [`acquire`](Limiter::acquire) | until the limit says yes, at most its deadline | work that may be late |
#[derive(Clone, Debug)]
pub struct Limiter {
    /// The rule as it was when this limiter was made.
    pub(super) setup: Arc<Setup>,
    home: Arc<Home>,
    /// Where the gate's set keeps the rule.
    place: usize,
}

impl Limiter {
    pub(crate) fn new(setup: Arc<Setup>, home: Arc<Home>, place: usize) -> Limiter {
        Limiter { setup, home, place }
    }

    /// The rule as it is now, for a short look.
    #[inline]
    pub(super) fn with<T>(&self, look: impl FnOnce(&Arc<Setup>) -> T) -> T {
        if !self.setup.is_stale() {
            return look(&self.setup);
        }
        let set = self.home.set();
        // A place is never taken away.
        look(set.at(self.place).unwrap_or(&self.setup))
    }

    /// Who answers for this key now: the rule, or what its lists say. To keep while a check waits.
    pub(super) fn answers(&self, key: &[u8]) -> Present<'_> {
        if self.setup.is_stale() {
            return Present::Newer(self.with(|setup| setup.for_key(key).clone()));
        }
        Present::Own(self.setup.for_key(key))
    }

    /// Who keeps the states that `was` kept, with the numbers of now; `None` where the rule is gone, or asks nobody.
    pub(super) fn successor(&self, was: &Setup) -> Option<Arc<Setup>> {
        self.with(|rule| rule.all().find(|setup| setup.rule == was.rule).cloned())
    }

    /// All rules of its gate as they are now, for a short look.
    pub(super) fn set(&self) -> Seen<Set> {
        self.home.set()
    }

    /// [`answers`](Limiter::answers) by this set of another limiter's gate, so that several limits are of one edition. A
    /// limiter of another gate goes by its own.
    pub(super) fn answers_by(&self, set: &Set, of: &Limiter, key: &[u8]) -> Arc<Setup> {
        match set.at(self.place) {
            Some(setup) if Arc::ptr_eq(&self.home, &of.home) => setup.for_key(key).clone(),
            _ => Arc::clone(&self.answers(key)),
        }
    }

    /// Asks for one token; see [`check_n`](Limiter::check_n).
    pub async fn check(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_n(key, 1).await
    }

    /// Asks for `cost` tokens, all or none.
    ///
    /// Ready at once when tokens of the key are here, or when it is known that there are none. Otherwise
    /// one round trip to the authority, shared by all who ask for the key meanwhile, and at most the
    /// rule's deadline; when that passes or the store fails, the rule's outage policy decides and
    /// [`trouble`](Decision::trouble) says so. A cost of 0 is a [`peek`](Limiter::peek); one above the burst is
    /// refused as "never".
    ///
    /// # Cancel safety
    /// A dropped call admits nothing, and costs nothing: what was asked for in its name goes back with the next sync.
    pub async fn check_n(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let bytes = key.as_ref();
        self.answers(bytes).asked(bytes, cost).await
    }

    /// Asks for one token and never waits; see [`check_now_n`](Limiter::check_now_n).
    #[inline]
    pub fn check_now(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_now_n(key, 1)
    }

    /// Asks for `cost` tokens, all or none, and never waits.
    ///
    /// A key without tokens here is answered by the rule's [`Cold`](crate::Cold) policy: by default no, with the
    /// expected round trip as [`retry_after`](Decision::retry_after), and tokens are asked for in the
    /// background. An `Exact` rule, whose keys never have tokens here, always answers so; use
    /// [`check`](Limiter::check) for it. A cost of 0 says what this process knows and changes nothing.
    ///
    /// # Cost
    /// No allocation, no lock that other keys share, no system clock; tens of nanoseconds.
    #[inline]
    pub fn check_now_n(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let (setup, bytes) = (&*self.setup, key.as_ref());
        // The road that nearly all checks take, laid straight; everything else is out of line.
        if let Way::Shared { driver, .. } = &setup.way
            && setup.is_straight()
            && (1..=setup.terms.numbers.burst).contains(&cost)
            && bytes.len() <= KEY_BYTES_MAX
        {
            return setup.at_once(driver.tier().check(setup.rule, &Key::Raw(bytes), cost), cost);
        }
        self.check_now_otherwise(bytes, cost)
    }

    /// [`check_now_n`](Limiter::check_now_n) for what does not take its straight road.
    #[inline(never)]
    fn check_now_otherwise(&self, bytes: &[u8], cost: u64) -> Decision {
        self.with(|setup| {
            let setup = setup.for_key(bytes);
            let decision = setup.check_now(bytes, cost);
            // A look is counted nowhere.
            if cost == 0 { setup.shown(decision) } else { setup.spoken(decision) }
        })
    }

    /// Asks for one token, parking this thread while the key is cold; see [`check_n`](Limiter::check_n).
    pub fn check_blocking(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_blocking_n(key, 1)
    }

    /// [`check_n`](Limiter::check_n) for threads without a runtime.
    pub fn check_blocking_n(&self, key: impl AsRef<[u8]>, cost: u64) -> Decision {
        let bytes = key.as_ref();
        let setup = self.answers(bytes);
        let Some(key) = setup.key(bytes) else { return setup.spoken(setup.bad_key()) };
        if cost == 0 {
            return setup.shown(setup.peek_blocking(&key));
        }
        let decision = if setup.is_plain(cost) {
            setup.count_blocking(&key, cost)
        } else {
            match setup.first(&key, cost) {
                Step::Done(decision) => decision,
                Step::Ask(cell) => setup.ask_blocking(cell, cost),
            }
        };
        setup.spoken(decision)
    }

    /// Says whether one token could be had and how many there are, and changes nothing.
    ///
    /// Asks the authority: one round trip, at most the rule's deadline. `Local` rules answer at once.
    pub async fn peek(&self, key: impl AsRef<[u8]>) -> Decision {
        let bytes = key.as_ref();
        self.answers(bytes).asked(bytes, 0).await
    }

    /// Gives back `tokens` that were taken for this key here, for a request that was not served.
    ///
    /// What was never taken in this process, or longer ago than it remembers, is not given back, and no
    /// refund raises a bucket above its burst. The tokens go through the authority: they can be had
    /// again after the next sync, here or elsewhere. Those of a `Local` rule can be had at once. Nothing comes back to a
    /// [leaky queue](crate::Rule::leaky_queue), whose turns perish.
    pub fn refund(&self, key: impl AsRef<[u8]>, tokens: u64) {
        let bytes = key.as_ref();
        self.with(|setup| {
            let setup = setup.for_key(bytes);
            if let Some(key) = setup.key(bytes) {
                setup.give_back(&key, tokens, Taking::last(&setup.clock));
            }
        });
    }

    /// A handle to one key, which skips the look-up: for connections, sessions and hot paths.
    ///
    /// While a handle lives its key keeps a place in the registry.
    #[must_use]
    pub fn key(&self, key: impl AsRef<[u8]>) -> KeyHandle {
        KeyHandle::new(self.clone(), key.as_ref())
    }

    /// The rule's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.setup.terms.name
    }

    /// The most that this rule admits for one key that is on none of its lists. Nothing bounds a rule that shadows.
    #[must_use]
    pub fn bound(&self) -> Bound {
        self.with(|setup| setup.bound())
    }
}
