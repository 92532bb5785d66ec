//! `Limiter`: checks by key.

use super::{
    bound::Bound,
    key::KeyHandle,
    set::{Home, Present, Set},
    setup::{Setup, Way, count},
};
use crate::{
    decision::{Decision, Source},
    error::ErrorKind,
    key::{KEY_BYTES_MAX, Key},
    local::{Cell, Local, Verdict},
    observe::Link,
    rule::{Cold, Mode, Seen},
    sync::{Answer, Driver, Ticket},
    time::Micros,
};
use std::sync::Arc;

/// Limits requests by one rule of a gate, each key by itself.
///
/// Clones are cheap and share everything. A limiter may outlive the gate it came from; after the
/// gate's `shutdown` it refuses, with [`ErrorKind::ShutDown`] as the trouble.
///
/// It follows its rule: after [`replace_rules`](crate::Tollgate::replace_rules) each check that starts sees the rule's
/// new numbers. Where the rule is gone the limit is lifted: everything passes, with [`ErrorKind::UnknownRule`] as the
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

/// Added to a told wait: so far the coarse hand, by which a remembered no ends, may be behind, and a client that
/// comes back just then shall be let in.
pub(super) const LAG: Micros = Micros::from_millis(2);

/// Where a check stands after the process has done what it can by itself.
pub(super) enum Step {
    Done(Decision),
    /// The authority has to be asked about this cell.
    Ask(Arc<Cell>),
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
        if cost == 0 {
            return self.peek(bytes).await;
        }
        let setup = self.answers(bytes);
        let Some(key) = setup.key(bytes) else { return setup.spoken(setup.bad_key()) };
        let decision = if setup.is_plain(cost) {
            setup.count(&key, cost).await
        } else {
            match setup.first(&key, cost) {
                Step::Done(decision) => decision,
                Step::Ask(cell) => setup.ask(cell, cost).await,
            }
        };
        setup.spoken(decision)
    }

    /// Asks for one token and never waits; see [`check_now_n`](Limiter::check_now_n).
    #[inline]
    pub fn check_now(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_now_n(key, 1)
    }

    /// Asks for `cost` tokens, all or none, and never waits.
    ///
    /// A key without tokens here is answered by the rule's [`Cold`] policy: by default no, with the
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
            return match driver.tier().check(setup.rule, &Key::Raw(bytes), cost) {
                Local::Allowed { remaining } => setup.allowed(remaining, Source::Lease),
                Local::Denied { wait, remaining } => setup.denied(wait.plus(LAG), remaining, Source::Lease),
                other => setup.without_tokens(other, cost),
            };
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
        let setup = self.answers(bytes);
        let Some(key) = setup.key(bytes) else { return setup.spoken(setup.bad_key()) };
        setup.shown(match setup.peek_ticket(&key) {
            Ok((ticket, hold)) => setup.seen(ticket.await, hold),
            Err(decision) => decision,
        })
    }

    /// Gives back `tokens` that were taken for this key here, for a request that was not served.
    ///
    /// What was never taken in this process, or longer ago than it remembers, is not given back, and no
    /// refund raises a bucket above its burst. The tokens go through the authority: they can be had
    /// again after the next sync, here or elsewhere. Those of a `Local` rule can be had at once.
    pub fn refund(&self, key: impl AsRef<[u8]>, tokens: u64) {
        let bytes = key.as_ref();
        self.with(|setup| {
            let setup = setup.for_key(bytes);
            if let Some(key) = setup.key(bytes) {
                setup.give_back(&key, tokens);
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

impl Setup {
    #[inline]
    pub(super) fn key<'k>(&self, bytes: &'k [u8]) -> Option<Key<'k>> {
        Key::new(bytes, self.long)
    }

    /// Gives back tokens of this key that were taken here.
    pub(super) fn give_back(&self, key: &Key<'_>, tokens: u64) {
        match &self.way {
            Way::Local { governed, quota } => governed.refund(self.rule, key, tokens, quota),
            Way::Shared { driver, .. } => {
                if let Some(template) = self.terms.plain {
                    self.uncount(driver, template, key, tokens);
                } else if let Some(cell) = driver.tier().find(self.rule, key) {
                    driver.refund(&cell, tokens);
                }
            }
            Way::Constant(_) | Way::Lifted => {} // nothing was taken
        }
    }

    /// Whether it keeps the same states: the same rule of the same gate.
    pub(super) fn is_same(&self, other: &Setup) -> bool {
        self.rule == other.rule && self.terms.name == other.terms.name && Arc::ptr_eq(&self.lines, &other.lines)
    }

    #[cold]
    pub(super) fn bad_key(&self) -> Decision {
        count(&self.tallies.bad_keys);
        self.troubled(ErrorKind::BadKey, Source::Local)
    }

    /// What the process can answer by itself. `cost` is at least 1.
    #[inline]
    fn first(&self, key: &Key<'_>, cost: u64) -> Step {
        match &self.way {
            Way::Shared { driver, .. } if cost <= self.terms.cost_max() => match self.terms.mode {
                Mode::Exact => match driver.tier().cell(self.rule, key) {
                    Ok(cell) => Step::Ask(cell),
                    Err(_) => Step::Done(self.uncounted_saturated()),
                },
                _ => self.step(driver.tier().check(self.rule, key, cost), cost),
            },
            Way::Shared { .. } => {
                count(&self.tallies.never);
                Step::Done(self.never(Source::Lease))
            }
            Way::Local { governed, quota } => Step::Done(self.governed(governed.check(self.rule, key, cost, quota))),
            Way::Constant(constant) => Step::Done(self.by_rule(*constant, true)),
            Way::Lifted => Step::Done(self.lifted(true)),
        }
    }

    /// What a check that cannot wait gets.
    fn check_now(&self, bytes: &[u8], cost: u64) -> Decision {
        let Some(key) = self.key(bytes) else { return self.bad_key() };
        if cost == 0 {
            return self.known(&key);
        }
        if let (Way::Shared { .. }, Mode::Exact) = (&self.way, self.terms.mode) {
            return self.exact_now(&key, cost);
        }
        match self.first(&key, cost) {
            Step::Done(decision) => decision,
            Step::Ask(cell) => self.cold(&cell, cost),
        }
    }

    /// What the local tier has said, where it had no tokens and knew no better, for somebody who cannot wait.
    #[inline(never)]
    fn without_tokens(&self, local: Local, cost: u64) -> Decision {
        match self.step(local, cost) {
            Step::Done(decision) => decision,
            Step::Ask(cell) => self.cold(&cell, cost),
        }
    }

    /// What the local tier has said.
    #[inline]
    pub(super) fn step(&self, local: Local, cost: u64) -> Step {
        match local {
            Local::Allowed { remaining } => Step::Done(self.allowed(remaining, Source::Lease)),
            Local::Denied { wait, remaining } => Step::Done(self.denied(wait.plus(LAG), remaining, Source::Lease)),
            Local::Cold(cell) => self.first_of(cell, cost),
            Local::Saturated => Step::Done(self.saturated()),
        }
    }

    /// A key without tokens here: a `Buffered` one that no engine has taken charge of yet has an allowance.
    #[cold]
    pub(super) fn first_of(&self, cell: Arc<Cell>, cost: u64) -> Step {
        if let (Way::Shared { driver, .. }, Mode::Buffered) = (&self.way, self.terms.mode)
            && !driver.is_closing()
        {
            if cell.take_first(cost, self.terms.ahead(driver.members().unwrap_or(1))) {
                count(&self.tallies.cold_allowed);
                // Whoever came here without a check of the tier has told nobody yet.
                driver.tier().call(&cell);
                return Step::Done(self.allowed(0, Source::Lease));
            }
            // An engine has taken charge meanwhile: what is left of the allowance lies in the pool now.
            match driver.tier().check_cell(&cell, cost) {
                Local::Cold(cell) => return Step::Ask(cell),
                local => return self.step(local, cost),
            }
        }
        Step::Ask(cell)
    }

    pub(super) fn governed(&self, verdict: Verdict) -> Decision {
        match verdict {
            Verdict::Allowed { remaining } => self.allowed(remaining, Source::Local),
            Verdict::Queued { remaining, delay } => Decision { delay, ..self.allowed(remaining, Source::Local) },
            Verdict::Denied { wait, remaining } => self.denied(wait, remaining, Source::Local),
            Verdict::Never => {
                count(&self.tallies.never);
                self.never(Source::Local)
            }
            Verdict::Saturated => self.saturated(),
        }
    }

    /// The registry had no place when it was asked for a cell, which is no check that the tier counts.
    pub(super) fn uncounted_saturated(&self) -> Decision {
        count(&self.tallies.saturated);
        self.saturated()
    }

    /// An `Exact` rule has no tokens here, ever. A key that nobody waits for gets no cell, since the engine would
    /// never hear of it; but where the store is away its use has to be booked.
    #[cold]
    pub(super) fn exact_now(&self, key: &Key<'_>, cost: u64) -> Decision {
        let Way::Shared { driver, .. } = &self.way else { return self.never(Source::Local) };
        if cost > self.terms.cost_max() {
            count(&self.tallies.never);
            return self.never(Source::Lease);
        }
        if self.terms.plain.is_some() {
            return self.count_now(driver, key, cost);
        }
        let cell = match driver.link() {
            Link::Down => match driver.tier().cell(self.rule, key) {
                Ok(cell) => Some(cell),
                Err(_) => return self.uncounted_saturated(),
            },
            Link::Up | Link::Shaky => driver.tier().find(self.rule, key),
        };
        if let Some(cell) = cell {
            return self.cold(&cell, cost);
        }
        if driver.is_closing() {
            return self.troubled(ErrorKind::ShutDown, Source::Outage);
        }
        count(&self.tallies.cold_denied);
        self.denied(driver.round_trip(), 0, Source::Lease)
    }

    /// No tokens here, and no time to ask: the rule's policy for cold keys.
    #[cold]
    pub(super) fn cold(&self, cell: &Arc<Cell>, cost: u64) -> Decision {
        let Way::Shared { driver, .. } = &self.way else { return self.never(Source::Local) };
        if driver.is_closing() {
            return self.without_authority(cell, cost, ErrorKind::ShutDown); // nobody would hear a call
        }
        if let Some(kind) = self.known_trouble(driver, cell) {
            cell.refuse(cost);
            driver.tier().call(cell);
            return self.without_authority(cell, cost, kind);
        }
        if let Cold::Credit(tokens) = self.terms.cold
            && cell.cold_credit(cost, tokens, self.terms.lease_ttl, self.clock.coarse())
        {
            count(&self.tallies.cold_allowed);
            driver.tier().call(cell);
            return self.allowed(0, Source::Lease);
        }
        count(&self.tallies.cold_denied);
        // Noted before the call: the engine that answers it must see that somebody was turned away.
        cell.refuse(cost);
        if self.terms.mode != Mode::Exact {
            driver.tier().call(cell);
        }
        self.denied(driver.round_trip(), 0, Source::Lease)
    }

    /// What is known to be wrong before anything is asked.
    fn known_trouble(&self, driver: &Driver, cell: &Cell) -> Option<ErrorKind> {
        if driver.is_closing() {
            return Some(ErrorKind::ShutDown);
        }
        cell.trouble().or_else(|| (driver.link() == Link::Down).then(|| driver.cause()))
    }

    /// Asks the authority, and asks again where the cell was closed meanwhile.
    pub(super) async fn ask(&self, mut cell: Arc<Cell>, cost: u64) -> Decision {
        let deadline = self.clock.now().plus(self.terms.deadline);
        loop {
            let ticket = match self.ticket(&cell, cost, deadline) {
                Ok(ticket) => ticket,
                Err(decision) => return decision,
            };
            match self.told(ticket.await, &cell, cost) {
                Ok(decision) => return decision,
                Err(successor) => cell = successor,
            }
        }
    }

    pub(super) fn ask_blocking(&self, mut cell: Arc<Cell>, cost: u64) -> Decision {
        let deadline = self.clock.now().plus(self.terms.deadline);
        loop {
            let ticket = match self.ticket(&cell, cost, deadline) {
                Ok(ticket) => ticket,
                Err(decision) => return decision,
            };
            match self.told(ticket.wait(&self.clock, deadline), &cell, cost) {
                Ok(decision) => return decision,
                Err(successor) => cell = successor,
            }
        }
    }

    fn ticket(&self, cell: &Arc<Cell>, cost: u64, deadline: Micros) -> Result<Ticket, Decision> {
        let Way::Shared { driver, .. } = &self.way else { return Err(self.never(Source::Local)) };
        match self.known_trouble(driver, cell) {
            Some(kind) if kind == ErrorKind::ShutDown || driver.link() == Link::Down => {
                Err(self.without_authority(cell, cost, kind))
            }
            _ => Ok(driver.ask(cell, cost, deadline)),
        }
    }

    /// The engine's answer as a decision; where the cell was closed, the cell that took its place.
    fn told(&self, answer: Answer, cell: &Arc<Cell>, cost: u64) -> Result<Decision, Arc<Cell>> {
        let source = |by_authority| if by_authority { Source::Authority } else { Source::Lease };
        Ok(match answer {
            Answer::Given { remaining, by_authority, delay } => {
                count(&self.tallies.authority_allowed);
                Decision { delay, ..self.allowed(remaining, source(by_authority)) }
            }
            Answer::Denied { wait, remaining, by_authority } => {
                // An `Exact` no is not remembered here, so nothing can be late.
                let lag = if self.terms.mode == Mode::Exact { Micros::ZERO } else { LAG };
                let wait = wait.plus(lag);
                count(&self.tallies.authority_denied);
                self.denied(wait, remaining, source(by_authority))
            }
            Answer::Failed(kind) => self.without_authority(cell, cost, kind),
            Answer::Late => {
                count(&self.tallies.late);
                self.without_authority(cell, cost, ErrorKind::Deadline)
            }
            // Only peeks, orders and hits are answered so.
            Answer::Seen { .. } | Answer::Done | Answer::Counted { .. } => {
                self.without_authority(cell, cost, ErrorKind::Protocol)
            }
            Answer::Closed => {
                let Way::Shared { driver, .. } = &self.way else { return Ok(self.never(Source::Local)) };
                let key = Key::stored(cell.key_bytes(), cell.is_digest());
                return match driver.tier().cell(self.rule, &key) {
                    Ok(successor) => Err(successor),
                    Err(_) => Ok(self.uncounted_saturated()),
                };
            }
        })
    }

    /// What this process knows of the key, without asking anybody.
    pub(super) fn known(&self, key: &Key<'_>) -> Decision {
        match &self.way {
            Way::Local { governed, quota } => self.governed(governed.peek(self.rule, key, quota)),
            Way::Constant(constant) => self.by_rule(*constant, false),
            Way::Lifted => self.lifted(false),
            Way::Shared { driver, .. } => match driver.tier().check(self.rule, key, 0) {
                Local::Denied { wait, remaining } => self.denied(wait, remaining, Source::Lease),
                Local::Allowed { remaining } => self.allowed(remaining, Source::Lease),
                Local::Cold(_) | Local::Saturated => self.allowed(self.terms.numbers.burst, Source::Lease),
            },
        }
    }

    /// Asks the authority for a look; `Err` is the answer where nobody has to be asked.
    fn peek_ticket(&self, key: &Key<'_>) -> Result<(Ticket, u64), Decision> {
        let Way::Shared { driver, .. } = &self.way else { return Err(self.known(key)) };
        if let Some(template) = self.terms.plain {
            return Ok((self.look_ticket(driver, template, key), 0));
        }
        // What a `Buffered` instance gave itself was never taken from the authority, so it is free there as well.
        let lent = self.terms.mode != Mode::Buffered;
        let hold = driver.tier().find(self.rule, key).filter(|_| lent).map_or(0, |cell| cell.look().hold);
        let deadline = self.clock.now().plus(self.terms.deadline);
        Ok((driver.peek(self.rule, (key.bytes().into(), key.is_digest()), 1, deadline), hold))
    }

    fn peek_blocking(&self, key: &Key<'_>) -> Decision {
        match self.peek_ticket(key) {
            Ok((ticket, hold)) => {
                let deadline = self.clock.now().plus(self.terms.deadline);
                self.seen(ticket.wait(&self.clock, deadline), hold)
            }
            Err(decision) => decision,
        }
    }

    /// What a peek saw, with what lies here.
    fn seen(&self, answer: Answer, hold: u64) -> Decision {
        let kind = match answer {
            Answer::Seen { free, wait } => {
                let all = free.saturating_add(hold);
                return if all > 0 {
                    self.allowed(all, Source::Authority)
                } else {
                    self.denied(wait, 0, Source::Authority)
                };
            }
            Answer::Counted { count, ends_in, .. } => return self.looked(count, ends_in),
            Answer::Failed(kind) => kind,
            _ => ErrorKind::Deadline,
        };
        // A look admits nobody, so no policy is asked.
        self.troubled(kind, Source::Outage)
    }
}
