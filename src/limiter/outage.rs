//! What a check gets when the authority could not be asked: the rule's policy, counted and booked.
//!
//! Asked only after a failure, never after the limit itself has said no.

use super::setup::{Setup, Way, count};
use crate::{
    decision::{Decision, Source},
    error::ErrorKind,
    key::Key,
    local::{Cell, Governed, Quota, Verdict},
    rule::Outage,
    time::Micros,
};
use std::sync::Arc;

/// What a new key gets when the gate knows as many keys as it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Saturated {
    /// No, with [`ErrorKind::Saturated`] as the trouble. The default.
    #[default]
    Deny,
    /// Yes, with the same trouble. No bound holds for such keys.
    Allow,
}

/// Whether the authority is there, and refuses to serve.
fn is_overload(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Overloaded | ErrorKind::OutOfMemory | ErrorKind::ReadOnly)
}

impl Setup {
    /// The authority failed in this way when it was asked for `cost` tokens of this cell.
    #[cold]
    pub(super) fn without_authority(&self, cell: &Arc<Cell>, cost: u64, kind: ErrorKind) -> Decision {
        let decision = self.policy(&Key::stored(cell.key_bytes(), cell.is_digest()), cost, kind);
        if let Way::Shared { driver, .. } = &self.way
            && decision.is_allowed()
        {
            cell.add_outage(cost);
            driver.tier().call(cell);
        }
        decision
    }

    /// What the rule says to this key when the authority has failed so. Booked nowhere.
    #[cold]
    pub(super) fn policy(&self, key: &Key<'_>, cost: u64, kind: ErrorKind) -> Decision {
        let Way::Shared { driver, fallback } = &self.way else { return self.troubled(kind, Source::Outage) };
        if kind == ErrorKind::ShutDown {
            count(&self.tallies.outage_denied);
            return self.troubled(kind, Source::Outage);
        }
        let policy = if is_overload(kind) {
            count(&self.tallies.overload);
            self.terms.overload
        } else {
            self.terms.outage
        };
        let decision = match policy {
            Outage::Deny => self.troubled(kind, Source::Outage),
            Outage::Allow => self.allowed(0, Source::Outage),
            Outage::Share => match driver.members() {
                Some(members) => self.by_share(fallback, key, cost, members),
                None => self.troubled(kind, Source::Outage),
            },
        };
        if decision.is_allowed() {
            count(&self.tallies.outage_allowed);
        } else {
            count(&self.tallies.outage_denied);
        }
        Decision { trouble: Some(kind), ..decision }
    }

    fn by_share(&self, fallback: &Governed, key: &Key<'_>, cost: u64, members: u32) -> Decision {
        let numbers = &self.terms.numbers;
        let Ok(quota) = Quota::share(numbers, members) else {
            return self.troubled(ErrorKind::Config, Source::Outage);
        };
        match fallback.check(self.rule, key, cost, &quota) {
            Verdict::Allowed { remaining } => self.allowed(remaining, Source::Outage),
            Verdict::Queued { remaining, delay } => Decision { delay, ..self.allowed(remaining, Source::Outage) },
            Verdict::Denied { wait, remaining } => self.denied(wait, remaining, Source::Outage),
            // More than this instance's share can ever be: the authority, once back, may have it.
            Verdict::Never | Verdict::Saturated => self.denied(Micros::MAX, 0, Source::Outage),
        }
    }

    /// The registry is full and the key is new.
    #[cold]
    pub(super) fn saturated(&self) -> Decision {
        self.alarm.saturated(self.clock.coarse());
        let decision = match self.saturated {
            Saturated::Deny => self.troubled(ErrorKind::Saturated, Source::Local),
            Saturated::Allow => self.allowed(0, Source::Local),
        };
        Decision { trouble: Some(ErrorKind::Saturated), ..decision }
    }
}
