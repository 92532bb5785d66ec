//! What a bucket has to tell: what was used, owed and refunded; and what it is told in return: that a denial is void, or
//! that the key is blocked.

use super::{bucket::Bucket, turn::DENIAL_MAX};
use crate::{local::Look, rule::Mode, time::Micros};

impl Bucket {
    /// The refunds that a message tells: none that is new unless the last answer of this epoch is younger than a lease. The
    /// authority may have no record of this instance any more; then the message makes one, what it calls used is what that
    /// begins with, and the next message tells the rest.
    pub(super) fn told_refunds(&self, now: Micros) -> u64 {
        if now < self.known_until { self.refunded } else { self.refunded_acked }
    }

    /// Spent from grants in this epoch less the refunds that are told, with this much in hand.
    pub(super) fn used(&self, hold: u64, now: Micros) -> i64 {
        let spent = if self.mode == Mode::Buffered { 0 } else { self.granted.saturating_sub(hold) };
        let spent = i64::try_from(spent).unwrap_or(i64::MAX);
        spent.saturating_sub(i64::try_from(self.told_refunds(now)).unwrap_or(i64::MAX))
    }

    /// Forgets what the limit has said: it was said of other numbers, or is over.
    pub(super) fn forget_denial(&mut self) {
        self.cell.clear_denial();
        self.cell.set_free(self.free);
        self.deny_until = Micros::ZERO;
        self.no = (0, Micros::ZERO);
        self.blocked_until = Micros::ZERO;
        self.short = false;
    }

    /// The key is blocked until then: what is here goes back, and no is the answer to everything.
    pub(super) fn block(&mut self, now: Micros, until: Micros) {
        self.give_back();
        if self.look(now).hold > 0 {
            // Credit of threads is beyond our reach but by its generation; it counts as spent.
            self.cell.reborn();
        }
        self.cell.set_free(0); // what is free there cannot be had
        self.cell.deny_until(1, until);
        self.deny_until = until.min(now.plus(DENIAL_MAX));
        self.no = (1, until);
        self.blocked_until = until;
    }

    /// Has the open question's answer deny nothing beyond those who wait for it.
    pub(super) fn doubt_open(&mut self) {
        if let Some(open) = &mut self.open {
            open.dated = true;
        }
    }

    /// Spent without a grant of the authority's since `born`, with this much in hand. Never too high, and never falling.
    pub(super) fn debt(&mut self, hold: u64) -> u64 {
        let sum = if self.mode == Mode::Buffered {
            self.granted.saturating_sub(hold)
        } else {
            self.cell.debt().saturating_sub(self.debt_base)
        };
        self.debt_seen = self.debt_seen.max(sum);
        self.debt_seen
    }

    /// Let through in outages since `born`.
    pub(super) fn outage(&self) -> u64 {
        self.cell.outage().saturating_sub(self.outage_base)
    }

    /// Begins new totals, of this number, and tells how much of the old ones nobody will be told.
    pub(super) fn begin_series(&mut self, born: u64) -> u64 {
        let asked = self.open.as_ref().map_or((0, 0), |open| (open.debt, open.outage));
        let untold = self.debt_seen.saturating_sub(self.debt_acked.max(asked.0));
        let outage = self.outage();
        let untold = untold.saturating_add(outage.saturating_sub(self.outage_acked.max(asked.1)));
        self.born = born;
        // By what was seen: more may have come in since.
        self.debt_base = self.debt_base.saturating_add(self.debt_seen);
        self.outage_base = self.outage_base.saturating_add(outage);
        (self.debt_acked, self.outage_acked, self.debt_seen) = (0, 0, 0);
        self.owing_since = None;
        untold
    }

    /// Gives back what was given to somebody who had left.
    pub(super) fn undo(&mut self, cost: u64, there: Micros) {
        let (tokens, _) = self.taken.refund(cost);
        self.give_in(tokens, there);
    }

    /// Notes a refund of tokens that were taken at `there` or later, on the authority's clock.
    pub(super) fn give_in(&mut self, tokens: u64, there: Micros) {
        if tokens > 0 {
            let first = self.refunded == self.refunded_acked;
            self.fresh = if first { there } else { self.fresh.min(there) };
            self.refunded = self.refunded.saturating_add(tokens);
        }
    }

    /// Debt, outage use, refunds or returned tokens that the authority may not have booked, or a grant
    /// that it may have booked and that never came.
    pub(super) fn is_owing(&mut self, look: &Look) -> bool {
        self.untold
            || self.debt(look.hold) > self.debt_acked
            || self.outage() > self.outage_acked
            || self.refunded > self.refunded_acked
    }

    /// Whether the authority would gain by hearing from us a last time: tokens that could go back, some that
    /// are spent and keep it from refilling, or something owed. Credit of threads can only end with its lease.
    pub(super) fn is_unreturned(&mut self, look: &Look) -> bool {
        look.pool > 0 || self.lent > look.hold || self.is_owing(look)
    }
}
