//! Checks of rules that count on plain keys: each is a hit that the engine carries, and no cell is involved.

use super::setup::{Setup, Way, count};
use crate::{
    algorithm::Frame,
    decision::{Decision, Reset, Source},
    error::{Error, ErrorKind},
    key::Key,
    observe::Link,
    rule::Template,
    sync::{Answer, Ask, Driver, Order, Ticket},
    time::Micros,
};

/// More than any counter of ours holds, and exact in Lua.
const ALL: u64 = 1 << 53;

impl Setup {
    /// Whether a check of this cost is a hit on a plain key; a cost that never fits is not.
    #[inline]
    pub(super) fn is_plain(&self, cost: u64) -> bool {
        self.plain().is_some() && cost <= self.terms.numbers.burst
    }

    /// The engine and the layout, where the rule counts on plain keys.
    fn plain(&self) -> Option<(&Driver, Template)> {
        match (&self.way, self.terms.plain) {
            (Way::Shared { driver, .. }, Some(template)) => Some((driver, template)),
            _ => None,
        }
    }

    fn hit(&self, template: Template, key: &[u8], cost: i64) -> Ask {
        let numbers = &self.terms.numbers;
        let (frame, at) = (Frame::new(numbers.window, numbers.offset), self.clock.now());
        Ask { rule: self.terms.name, template, frame, limit: numbers.burst, key: key.into(), cost, at }
    }

    /// A check of such a rule. `cost` is at least 1, and no more than the limit.
    pub(super) async fn count(&self, key: &Key<'_>, cost: u64) -> Decision {
        let deadline = self.clock.now().plus(self.terms.deadline);
        match self.hit_ticket(key, cost, deadline) {
            Ok(ticket) => self.counted(ticket.await, key, cost),
            Err(decision) => decision,
        }
    }

    pub(super) fn count_blocking(&self, key: &Key<'_>, cost: u64) -> Decision {
        let deadline = self.clock.now().plus(self.terms.deadline);
        match self.hit_ticket(key, cost, deadline) {
            Ok(ticket) => self.counted(ticket.wait(&self.clock, deadline), key, cost),
            Err(decision) => decision,
        }
    }

    /// What a check gets that cannot wait.
    pub(super) fn count_now(&self, driver: &Driver, key: &Key<'_>, cost: u64) -> Decision {
        if driver.is_closing() {
            return self.troubled(ErrorKind::ShutDown, Source::Outage);
        }
        if driver.link() == Link::Down {
            return self.policy(key, cost, driver.cause());
        }
        count(&self.tallies.cold_denied);
        self.denied(driver.round_trip(), 0, Source::Lease)
    }

    fn hit_ticket(&self, key: &Key<'_>, cost: u64, deadline: Micros) -> Result<Ticket, Decision> {
        let Some((driver, template)) = self.plain() else { return Err(self.never(Source::Local)) };
        if driver.is_closing() {
            return Err(self.policy(key, cost, ErrorKind::ShutDown));
        }
        if driver.link() == Link::Down {
            return Err(self.policy(key, cost, driver.cause()));
        }
        Ok(driver.hit(self.hit(template, key.bytes(), signed(cost)), deadline))
    }

    fn counted(&self, answer: Answer, key: &Key<'_>, cost: u64) -> Decision {
        match answer {
            Answer::Counted { taken, count: counted, ends_in } => {
                count(if taken { &self.tallies.authority_allowed } else { &self.tallies.authority_denied });
                self.by_count(taken, counted, ends_in)
            }
            Answer::Failed(kind) => self.policy(key, cost, kind),
            Answer::Late => {
                count(&self.tallies.late);
                self.policy(key, cost, ErrorKind::Deadline)
            }
            // No hit is answered otherwise.
            _ => self.policy(key, cost, ErrorKind::Protocol),
        }
    }

    /// What a counter says, as a decision.
    fn by_count(&self, taken: bool, counted: i64, ends_in: Micros) -> Decision {
        // Others may have counted above the limit, or below nothing.
        let left = self.terms.numbers.burst.saturating_sub(u64::try_from(counted).unwrap_or(0));
        let decision =
            if taken { self.allowed(left, Source::Authority) } else { self.denied(ends_in, left, Source::Authority) };
        Decision { reset: Reset::Span(ends_in), ..decision }
    }

    /// A look, which nothing here keeps anything for.
    pub(super) fn look_ticket(&self, driver: &Driver, template: Template, key: &Key<'_>) -> Ticket {
        let deadline = self.clock.now().plus(self.terms.deadline);
        driver.hit(self.hit(template, key.bytes(), 0), deadline)
    }

    /// What a look saw.
    pub(super) fn looked(&self, counted: i64, ends_in: Micros) -> Decision {
        let free = u64::try_from(counted).unwrap_or(0) < self.terms.numbers.burst;
        self.by_count(free, counted, ends_in)
    }

    /// Gives back what was taken here in the present window, if that is not over at `until`.
    pub(super) fn uncount(&self, driver: &Driver, template: Template, key: &Key<'_>, tokens: u64, until: Micros) {
        if tokens > 0 {
            driver.give_back_hit(self.hit(template, key.bytes(), signed(tokens)), until);
        }
    }

    /// Counts what was used already, whatever the limit says.
    pub(super) fn charge_count(&self, driver: &Driver, template: Template, key: &Key<'_>, tokens: u64) {
        let hit = Ask { limit: ALL, ..self.hit(template, key.bytes(), signed(tokens)) };
        driver.charge_hit(hit, self.clock.now().plus(self.terms.deadline));
    }

    /// An order about such a key. Its counter has no place for a block, and other programs would not go by it.
    pub(super) async fn order_count(
        &self,
        driver: &Driver,
        template: Template,
        key: &Key<'_>,
        order: Order,
    ) -> Result<(), Error> {
        let name = self.terms.name;
        match order {
            Order::Block(Micros::ZERO) => return Ok(()), // there never is one
            Order::Block(_) => {
                let what = "a plain key cannot be blocked: other programs count on it, and would not go by a block";
                return Err(Error::new(ErrorKind::Config, format!("rule {name:?}: block: {what}")));
            }
            Order::Clear => {}
        }
        let deadline = self.clock.now().plus(self.terms.deadline);
        let (kind, what) = match driver.hit(self.hit(template, key.bytes(), -signed(ALL)), deadline).await {
            Answer::Counted { .. } => return Ok(()),
            Answer::Failed(kind) => (kind, format!("the store did not take it: {kind:?}")),
            _ => (ErrorKind::Deadline, "the store did not answer in time".to_owned()),
        };
        Err(Error::new(kind, format!("rule {name:?}: {order}: {what}")))
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
