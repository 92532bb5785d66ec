//! One bucket looked after: what is over, who can be answered, and whether there is something to ask.
//!
//! Sends nothing: what is to be asked is queued for `dispatch`.

use super::{
    bucket::Bucket,
    turn::{Engine, QUIET, Timer},
    waiter::Answer,
};
use crate::{
    error::ErrorKind,
    local::{Look, Tier},
    rule::Mode,
    time::Micros,
};
use std::cmp::Reverse;

/// Demand, in tokens a second, from which threads take credit of a cell.
const HOT: f32 = 2_000.0;
/// A denied key is looked at again after this, to see how much it is asked for.
const WARMING: Micros = Micros::from_millis(100);

impl Engine {
    /// Looks after one bucket: what is over, who can be answered, and whether there is something to
    /// ask. Called whenever something may have changed; costs a look at the cell.
    pub(super) fn visit(&mut self, index: u32, now: Micros) {
        self.current = Some(index);
        let members = self.members().unwrap_or(1);
        let (down, cause, closing) = (self.road.is_down(), self.road.cause(), self.closing.is_some());
        let round_trip = self.road.round_trip();
        let Some(bucket) = self.buckets.get(index as usize).and_then(Option::as_deref) else { return };
        let Some(rule) = self.rules.get(bucket.cell.rule()) else { return };
        #[cfg(test)]
        bucket.trip("visit");
        if bucket.edition != rule.edition {
            self.revise(index, &rule, now);
        }
        let terms = rule.terms;
        self.keep_window(index, &terms, now);
        self.take_back_early(index, now);
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        if bucket.leaving {
            bucket.answer_all(if rule.live { Answer::Closed } else { Answer::Failed(ErrorKind::UnknownRule) });
        }
        if bucket.is_over(now) {
            self.epoch += 1;
            bucket.renew_epoch(self.epoch);
        }
        let mut look = bucket.look(now);
        if bucket.mode != Mode::Exact {
            let fresh = Engine::fresh(&self.road, bucket, now);
            look = serve(&self.tier, bucket, look, now, fresh);
        }
        bucket.taken.turn(if Engine::is_fixed(&terms) { Micros::ZERO } else { terms.numbers.window }, now);
        let mut next = bucket.expire(now).unwrap_or(Micros::MAX);
        // While nobody can be asked again, a no stands for as long as it was said to.
        if down && bucket.deny_until == Micros::ZERO && now < bucket.no.1 {
            bucket.cell.deny_until(bucket.no.0, bucket.no.1);
            bucket.deny_until = now; // asked about as soon as that can be done
        }
        if bucket.deny_until != Micros::ZERO && now >= bucket.deny_until && !down {
            bucket.deny_until = Micros::ZERO;
            bucket.cell.clear_denial();
        }
        if down || (bucket.trouble.is_some() && now < bucket.next_at) {
            bucket.fail_all(bucket.trouble.filter(|_| !down).unwrap_or(cause), now);
        }
        let hot = bucket.demand.per_second() > HOT;
        bucket.cell.set_hot(hot);
        if !hot && bucket.deny_until > now {
            // A no that is remembered calls nobody: look again soon whether a crowd asks for it.
            next = next.min(now.plus(WARMING));
        }

        let situation = bucket.situation(&terms, members, self.stretch, now);
        let lends = bucket.mode == Mode::Leased && !bucket.leaving;
        let buffers = bucket.mode == Mode::Buffered && !bucket.leaving;
        let target = if lends { situation.target() } else { 0 };
        let low = if target > 0 { situation.low(round_trip, terms.cadence).max(bucket.cost) } else { 0 };
        let low = if buffers { (terms.ahead(members) / 2).max(bucket.cost) } else { low };
        bucket.cell.set_low(low);
        let quarter = Micros(terms.lease_ttl.0 / 4);
        let idle = now.minus(bucket.active_at) >= quarter;
        let wants = lends
            && bucket.activity > 0
            && bucket.deny_until == Micros::ZERO
            && ((target > look.hold && (look.hold < low || look.hold < bucket.cost))
                || (bucket.turned_away > 0 && look.hold < bucket.cost));
        // The lease of a fixed window ends with it, however often it is renewed.
        let last = bucket.window_end != Micros::ZERO && bucket.lease_end == bucket.window_end;
        let renews = lends && look.hold > 0 && bucket.lease_end.minus(now) <= quarter && bucket.activity > 0 && !last;
        let ends = closing || bucket.leaving;
        let returns = (look.pool > 0 && idle && !buffers) || (ends && bucket.is_unreturned(&look)) || bucket.revised;
        let mut owes = bucket.is_owing(&look);
        let due;
        if buffers && !closing {
            let stretch = self.stretch;
            (owes, due) = if idle { bucket.cleans(now) } else { bucket.reports(&terms, low, stretch, &look, now) };
            owes |= bucket.outage() > bucket.outage_acked || bucket.refunded > bucket.refunded_acked;
            if idle {
                look = bucket.look(now);
            }
            // What is due by now is asked below, or waits for the answer to the question before it.
            let at = due.max(bucket.next_at);
            next = if at > now { next.min(at) } else { next };
        }
        // Who closes does not wait for a turn, but asks a bucket that answers with errors only once.
        let may = (closing && bucket.trouble.is_none()) || now >= bucket.next_at;
        // Spent before the next question may be asked, and next to nothing was free at the last (what
        // there was is for the others): until then no is the answer, for as little as any other no.
        let nothing = bucket.free < bucket.cost.max(terms.numbers.burst / 16);
        // With something wrong it would be no answer of the limit's.
        let well = !down && bucket.trouble.is_none();
        let dry = bucket.short && !may && look.hold < bucket.cost && nothing && well;
        if dry && (lends || buffers) && bucket.deny_until == Micros::ZERO && bucket.waiting.is_empty() {
            bucket.deny_until = bucket.next_at;
            bucket.cell.deny_until(bucket.cost, bucket.next_at);
        }
        let needs = !bucket.waiting.is_empty() && (!bucket.short || may);
        let asks = needs || (may && (wants || renews || returns || owes));
        let pending = !bucket.waiting.is_empty() || wants || renews || returns || owes;

        if bucket.hold != look.hold {
            self.tally.hold = self.tally.hold.saturating_sub(bucket.hold).saturating_add(look.hold);
            bucket.hold = look.hold;
        }
        if down || bucket.open.is_some() {
            // The answer, or the return of the link, brings the next visit.
        } else if asks {
            if !bucket.ready {
                bucket.ready = true;
                let (tag, needed) = (self.tag_of(index), needs);
                self.queue(
                    tag,
                    |queue| if needed { queue.needed.push_back(index) } else { queue.ahead.push_back(index) },
                );
            }
        } else if pending {
            next = next.min(bucket.next_at);
            if look.hold >= bucket.cost && (lends || buffers) {
                // Nothing to do before, unless the hold runs dry: be called for that alone.
                bucket.cell.set_low(bucket.cost);
                bucket.cell.uncall();
                if bucket.look(now).hold < bucket.cost && bucket.cell.mark_called() {
                    next = now.plus(Micros(1));
                }
            }
        } else {
            // Nothing to ask: from now on a check that finds too little calls.
            // The second look sees what was spent or refused before the flag was cleared.
            bucket.cell.uncall();
            let again = bucket.look(now);
            let missed =
                (again.hold < low && bucket.activity > 0) || (bucket.turned_away > 0 && again.hold < bucket.cost);
            if missed && (lends || buffers) && bucket.deny_until == Micros::ZERO && bucket.cell.mark_called() {
                next = next.min(bucket.next_at.max(now.plus(Micros(1))));
            }
            let untold = bucket.debt(look.hold) > bucket.debt_acked || bucket.outage() > bucket.outage_acked;
            // What was taken of a reserved key may yet come back.
            let kept = bucket.cell.is_reserved();
            // A no is remembered for a while, should the link go down: who was refused is not for the fallback.
            let refused = now < bucket.no.1 && now.minus(bucket.active_at) < terms.lease_ttl;
            let quiet = !missed && look.hold == 0 && idle && !untold && bucket.is_clean() && !kept && !refused;
            if bucket.waiting.is_empty() && (quiet || bucket.leaving) {
                self.hush(index, now);
                return;
            }
            // A window's refunds are known by when they were taken: looked at more often, while there are any.
            let window = terms.numbers.window;
            let often = window > Micros::ZERO && now.minus(bucket.active_at) < window;
            let soon = if often { Micros(window.0 / 4).max(Micros::from_millis(10)) } else { quarter };
            next = next.min(now.plus(quarter.min(soon)));
        }
        self.rest_of_visit(index, next, now);
    }

    /// Sets the timers that the state of a bucket calls for.
    pub(super) fn rest_of_visit(&mut self, index: u32, mut next: Micros, now: Micros) {
        let edge = self.edge_of(index, now);
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        for at in [bucket.lease_end, bucket.deny_until, edge] {
            if at > now {
                next = next.min(at);
            }
        }
        if next < bucket.timer {
            bucket.timer = next;
            self.timers.push(Reverse((next, Timer::Bucket(index))));
        }
    }

    /// Visits every bucket, from where the last such round was interrupted.
    pub(super) fn visit_all(&mut self, now: Micros) {
        while let Some(index) = self.round {
            self.round = (index as usize + 1 < self.buckets.len()).then_some(index + 1);
            self.current = Some(index);
            if self.closing.is_some()
                && let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut)
            {
                bucket.answer_all(Answer::Failed(ErrorKind::ShutDown));
                bucket.next_at = Micros::ZERO;
            }
            self.visit(index, now);
        }
    }

    /// A bucket without hold, debt or anybody who asks: only its cell stays, for a while.
    pub(super) fn hush(&mut self, index: u32, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::take) else { return };
        bucket.cell.set_engine_slot(None);
        self.vacant.push(index);
        if bucket.leaving {
            return;
        }
        // A bucket of its own begins with totals of its own: what is booked is not told again.
        bucket.cell.forget_totals(
            // What a `Buffered` one owes is counted in its grants.
            if bucket.mode == Mode::Buffered { 0 } else { bucket.debt_base.saturating_add(bucket.debt_acked) },
            bucket.outage_base.saturating_add(bucket.outage_acked),
        );
        bucket.cell.open_first();
        self.quiet.push_back((now.plus(QUIET), bucket.cell));
    }
}

/// Gives waiters tokens of the hold, in order, as long as there are enough.
fn serve(tier: &Tier, bucket: &mut Bucket, mut look: Look, now: Micros, fresh: Micros) -> Look {
    let (mut served, mut gone) = (false, 0_u64);
    while let Some(first) = bucket.waiting.front() {
        if first.waiter.is_waited_for() {
            if look.pool < first.cost || !tier.take(&bucket.cell, first.cost) {
                break;
            }
            look.pool = look.pool.saturating_sub(first.cost);
            let remaining = bucket.free.saturating_add(look.pool);
            let (cost, given) = (first.cost, Answer::Given { remaining, by_authority: false, delay: Micros::ZERO });
            if !first.waiter.answer(given) {
                gone = gone.saturating_add(cost); // left at this very moment
            }
            served = true;
        }
        bucket.waiting.pop_front();
    }
    if served {
        look = bucket.look(now);
    }
    bucket.undo(gone, fresh);
    look
}
