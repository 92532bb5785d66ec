//! `Buffered`: the tokens that an instance gives itself, and how far that goes.
//!
//! # The invariant
//! `granted - acked <= ahead`: `granted` is all that this instance has given itself since `born`, the first allowance
//! of a cold key included; `acked` is what the authority is known to have booked of its debt; `ahead` is the rule's
//! `delta_max`. The debt that is told is `granted - hold`, and `hold` is never too low, so what is booked was spent.
//!
//! # Why the bound holds
//! Let T be the authority's tokens, below zero where more was spent than was there, and let u be what an instance has
//! granted itself beyond what is booked: `u <= granted - acked <= ahead`. Let G be T less the sum of all u.
//!
//! - Booking debt lowers T and u alike: G stays. Refill only raises G, and T never goes above the burst.
//! - A top-up is at most what was free at the answer it goes with, so at that time T was at least as much: after it
//!   `G >= -(sum of all u)`. Giving, lending and outage use leave T at 0 or more, so the same holds after each.
//! - Only a first allowance asks nobody. An instance takes it while it is *clean*: all its grants are booked, and after
//!   that it heard of T above zero, so then G was no less than the others' u. So `G >= -ahead * (those not clean)`, and
//!   `G >= -N * ahead` for the N instances that lived.
//!
//! What is admitted in a span is what T fell by, the refill, and what the u that are spent grew by: at most
//! `burst + rate * span - G`, which is `burst + rate * span + N * ahead`. In a fixed window, where each instance begins
//! anew, `limit + N * ahead`.
//!
//! A bucket that is not clean is not forgotten: a key that is asked in bursts, with pauses in which its bucket goes, would
//! get a first allowance with each.

use super::{
    bucket::{Bucket, GRANTED_MAX, Open},
    turn::Engine,
};
use crate::{
    lease::Reply,
    local::Look,
    rule::{Mode, Terms},
    time::Micros,
};

/// A bucket that is idle and not clean asks again after this, and then after ever longer pauses.
const CLEANING: (Micros, Micros) = (Micros::from_secs(1), Micros::from_secs(64));

impl Bucket {
    /// Tokens that it may still give itself.
    fn room(&self, ahead: u64) -> u64 {
        let room = ahead.saturating_sub(self.granted.saturating_sub(self.debt_acked));
        if self.granted > GRANTED_MAX { 0 } else { room }
    }

    /// Gives itself up to so many tokens, no more than the invariant allows; how many.
    pub(super) fn top_up(&mut self, ahead: u64, most: u64, end: Micros) -> u64 {
        let tokens = self.room(ahead).min(most);
        self.cell.grant(tokens, end);
        self.granted = self.granted.saturating_add(tokens);
        self.clean &= tokens == 0;
        tokens
    }

    /// Whether it may be forgotten: see the head of this file.
    pub(super) fn is_clean(&self) -> bool {
        self.mode != Mode::Buffered || (self.granted == self.debt_acked && (self.granted == 0 || self.clean))
    }

    /// Takes back what is unspent, credit of threads included, which has no lease to end with. Spent by somebody at this
    /// very moment or not, it counts as spent.
    pub(super) fn let_go(&mut self, now: Micros) {
        self.give_back();
        if self.look(now).hold > 0 {
            self.cell.reborn();
        }
    }

    /// Whether it has something to tell or ask by now, and else when it will. `low`: half of what it may be ahead.
    pub(super) fn reports(
        &mut self,
        terms: &Terms,
        low: u64,
        stretch: f64,
        look: &Look,
        now: Micros,
    ) -> (bool, Micros) {
        let owed = self.debt(look.hold).saturating_sub(self.debt_acked);
        if owed == 0 {
            self.owing_since = None;
            return (self.activity > 0 && look.hold < low && self.deny_until == Micros::ZERO, Micros::MAX);
        }
        let since = *self.owing_since.get_or_insert(now);
        // Half of what it may be ahead is spent, or it is time that the others hear of it: later where that matters little.
        let patience = if self.free > terms.numbers.burst / 2 { 10.0 } else { 1.0 };
        let due = since.plus(Micros((terms.horizon.0 as f64 * patience * stretch) as u64));
        (owed >= low || look.hold < low || now >= due, due)
    }

    /// Takes an idle bucket's hands empty; whether it has to ask before it may be forgotten, and else when it will.
    pub(super) fn cleans(&mut self, now: Micros) -> (bool, Micros) {
        self.let_go(now);
        if self.is_clean() {
            return (false, Micros::MAX);
        }
        let told = self.granted == self.debt_acked;
        // It was told and the authority was not above zero: again when it has been idle for twice as long.
        let idle = self.told_at.minus(self.active_at);
        let pause = Micros(idle.0.clamp(CLEANING.0.0, CLEANING.1.0));
        let due = if told { self.next_at.max(self.told_at.plus(pause)) } else { self.next_at };
        (now >= due, due)
    }

    /// What an answer means for the allowance, once it is settled: the debt that it tells of is booked.
    fn hear(&mut self, open: &Open, reply: &Reply, epoch: u64) {
        self.clean = reply.free > 0 && self.granted == open.debt;
        if self.granted > GRANTED_MAX && self.granted == self.debt_acked {
            // All of it is booked: a new series, so that the totals stay exact in Lua.
            self.granted = 0;
            _ = self.begin_series(epoch);
        }
    }
}

impl Engine {
    /// Gives a new bucket what it needs to begin: a `Buffered` one the rest of its first allowance.
    pub(super) fn begin(&mut self, index: u32, terms: &Terms, now: Micros) {
        self.keep_window(index, terms, now);
        let ahead = terms.ahead(self.members().unwrap_or(1));
        let blind = self.road.there(now).is_none();
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        if bucket.mode == Mode::Buffered
            && let Some(end) = allowance_end(bucket, terms, blind)
        {
            bucket.top_up(ahead, u64::MAX, end);
        }
        bucket.cell.first_moved();
    }

    /// After an answer: as much again as the authority has booked, and had free. `holds`: it is of the present window, and
    /// else a new one has begun, with a first allowance of its own.
    pub(super) fn booked(&mut self, index: u32, open: &Open, reply: &Reply, holds: bool, now: Micros) {
        let ahead_of = self.members().unwrap_or(1);
        let (epoch, closing) = (self.new_epoch(), self.closing.is_some());
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Some(terms) = self.rules.terms(bucket.cell.rule()) else { return };
        let first = bucket.granted == 0 && Engine::is_fixed(&terms);
        if holds {
            bucket.hear(open, reply, epoch);
        }
        let idle = now.minus(bucket.active_at) >= Micros(terms.lease_ttl.0 / 4);
        if idle || closing || reply.blocked || bucket.leaving {
            return;
        }
        if let Some(end) = allowance_end(bucket, &terms, false) {
            bucket.top_up(terms.ahead(ahead_of), if first && !holds { u64::MAX } else { reply.free }, end);
        }
    }
}

/// Until when tokens that the bucket gives itself may be spent: to the end of a fixed window, and else for good. `None`
/// while it is between two windows. `blind`: nobody has told what time it is at the authority, so there are no windows.
fn allowance_end(bucket: &Bucket, terms: &Terms, blind: bool) -> Option<Micros> {
    if !Engine::is_fixed(terms) || blind {
        return Some(Micros::MAX);
    }
    Some(bucket.window_end).filter(|end| *end != Micros::ZERO)
}
