//! The road of one check: what the process answers by itself, and what becomes of it where the authority is asked.

use super::setup::{Setup, Way, count};
use crate::{
    clock::Clock,
    decision::{Decision, Reset, Source},
    error::ErrorKind,
    key::Key,
    local::{Cell, Local, Verdict},
    observe::Link,
    rule::{Cold, Mode},
    sync::{Answer, Driver, Ticket},
    time::Micros,
};
use std::sync::Arc;

/// Added to a told wait: so far the coarse hand, by which a remembered no ends, may be behind, and a client that
/// comes back just then shall be let in.
pub(super) const LAG: Micros = Micros::from_millis(2);

/// Where a check stands after the process has done what it can by itself.
pub(super) enum Step {
    Done(Decision),
    /// The authority has to be asked about this cell.
    Ask(Arc<Cell>),
}

/// When tokens were taken, on the gate's clock: what is given back must not come out of a later window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taking {
    /// They were asked for then.
    pub(super) since: Micros,
    /// Where the answer has told it: their window is over then.
    until: Micros,
}

impl Taking {
    /// Asked for at this time, and had by this answer.
    pub(super) fn new(since: Micros, said: &Decision) -> Taking {
        let until = if let Reset::Span(span) = said.reset { since.plus(span) } else { Micros::MAX };
        Taking { since, until }
    }

    /// Nobody knows when: what was taken last.
    pub(super) fn last(clock: &Clock) -> Taking {
        Taking { since: clock.now(), until: Micros::MAX }
    }
}

impl Setup {
    #[inline]
    pub(super) fn key<'k>(&self, bytes: &'k [u8]) -> Option<Key<'k>> {
        Key::new(bytes, self.long)
    }

    /// Gives back tokens of this key that were taken here.
    pub(super) fn give_back(&self, key: &Key<'_>, tokens: u64, Taking { since, until }: Taking) {
        match &self.way {
            Way::Local { governed, quota } => governed.refund(self.rule, key, tokens, since, quota),
            Way::Shared { driver, .. } => {
                if let Some(template) = self.terms.plain {
                    self.uncount(driver, template, key, tokens, until);
                } else if let Some(cell) = driver.tier().find(self.rule, key) {
                    driver.refund(&cell, tokens, since);
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

    /// The answer to a check of this key; to a look where `cost` is 0.
    pub(super) async fn asked(&self, bytes: &[u8], cost: u64) -> Decision {
        let Some(key) = self.key(bytes) else { return self.spoken(self.bad_key()) };
        if cost == 0 {
            return self.shown(match self.peek_ticket(&key) {
                Ok((ticket, hold)) => self.seen(ticket.await, hold),
                Err(decision) => decision,
            });
        }
        let decision = if self.is_plain(cost) {
            self.count(&key, cost).await
        } else {
            match self.first(&key, cost) {
                Step::Done(decision) => decision,
                Step::Ask(cell) => self.ask(cell, cost).await,
            }
        };
        self.spoken(decision)
    }

    /// What the process can answer by itself. `cost` is at least 1.
    #[inline]
    pub(super) fn first(&self, key: &Key<'_>, cost: u64) -> Step {
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
    pub(super) fn check_now(&self, bytes: &[u8], cost: u64) -> Decision {
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

    /// What the local tier has said, as a decision for somebody who cannot wait. Builds the usual ones in place: a `Step`
    /// that is taken apart again costs as much as the check.
    #[inline]
    pub(super) fn at_once(&self, local: Local, cost: u64) -> Decision {
        match local {
            Local::Allowed { remaining } => self.allowed(remaining, Source::Lease),
            Local::Denied { wait, remaining } => self.denied(wait.plus(LAG), remaining, Source::Lease),
            other => self.without_tokens(other, cost),
        }
    }

    /// [`at_once`](Setup::at_once) where the tier had no tokens and knew no better.
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
    pub(super) fn peek_ticket(&self, key: &Key<'_>) -> Result<(Ticket, u64), Decision> {
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

    pub(super) fn peek_blocking(&self, key: &Key<'_>) -> Decision {
        match self.peek_ticket(key) {
            Ok((ticket, hold)) => {
                let deadline = self.clock.now().plus(self.terms.deadline);
                self.seen(ticket.wait(&self.clock, deadline), hold)
            }
            Err(decision) => decision,
        }
    }

    /// What a peek saw, with what lies here.
    pub(super) fn seen(&self, answer: Answer, hold: u64) -> Decision {
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
