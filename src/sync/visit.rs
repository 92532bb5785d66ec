//! One bucket looked after: what is over, who can be answered, and whether there is something to ask.
//!
//! Sends nothing: what is to be asked is queued for `dispatch`.

use super::{
    bucket::Bucket,
    turn::{Engine, QUIET, Timer},
    waiter::Answer,
};
use crate::{error::ErrorKind, local::Look, rule::Mode, time::Micros};
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
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Some(terms) = self.settings.rules.get(bucket.cell.rule() as usize).copied() else { return };
        #[cfg(test)]
        bucket.trip("visit");

        if bucket.is_over(now) {
            self.epoch += 1;
            bucket.renew_epoch(self.epoch);
        }
        let mut look = bucket.look(now);
        if terms.mode != Mode::Exact {
            look = serve(bucket, look, now);
        }
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
        let target = if terms.mode == Mode::Leased { situation.target() } else { 0 };
        let low = if target > 0 { situation.low(round_trip, terms.cadence).max(bucket.cost) } else { 0 };
        bucket.cell.set_low(low);
        let quarter = Micros(terms.lease_ttl.0 / 4);
        let idle = now.minus(bucket.active_at) >= quarter;
        let wants = terms.mode == Mode::Leased
            && bucket.activity > 0
            && bucket.deny_until == Micros::ZERO
            && ((target > look.hold && (look.hold < low || look.hold < bucket.cost))
                || (bucket.turned_away > 0 && look.hold < bucket.cost));
        let renews = look.hold > 0 && bucket.lease_end.minus(now) <= quarter && bucket.activity > 0;
        let returns = (look.pool > 0 && idle) || (closing && bucket.is_unreturned(&look));
        // Who closes does not wait for a turn, but asks a bucket that answers with errors only once.
        let may = (closing && bucket.trouble.is_none()) || now >= bucket.next_at;
        // Spent before the next question may be asked, and next to nothing was free at the last (what
        // there was is for the others): until then no is the answer, for as little as any other no.
        let nothing = bucket.free < bucket.cost.max(terms.numbers.burst / 16);
        // With something wrong it would be no answer of the limit's.
        let well = !down && bucket.trouble.is_none();
        let dry = bucket.short && !may && look.hold < bucket.cost && nothing && well;
        if dry && terms.mode == Mode::Leased && bucket.deny_until == Micros::ZERO && bucket.waiting.is_empty() {
            bucket.deny_until = bucket.next_at;
            bucket.cell.deny_until(bucket.cost, bucket.next_at);
        }
        let needs = !bucket.waiting.is_empty() && (!bucket.short || may);
        let asks = needs || (may && (wants || renews || returns || bucket.is_owing()));
        let pending = !bucket.waiting.is_empty() || wants || renews || returns || bucket.is_owing();

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
            if look.hold >= bucket.cost && terms.mode == Mode::Leased {
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
            if missed && terms.mode == Mode::Leased && bucket.deny_until == Micros::ZERO && bucket.cell.mark_called() {
                next = next.min(bucket.next_at.max(now.plus(Micros(1))));
            }
            let quiet = !missed && look.hold == 0 && idle && bucket.cell.debt() == 0 && bucket.cell.outage() == 0;
            // What was taken of a reserved key may yet come back.
            if quiet && bucket.waiting.is_empty() && !bucket.cell.is_reserved() {
                self.hush(index, now);
                return;
            }
            next = next.min(now.plus(quarter));
        }
        self.rest_of_visit(index, next, now);
    }

    /// Sets the timers that the state of a bucket calls for.
    pub(super) fn rest_of_visit(&mut self, index: u32, mut next: Micros, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        for at in [bucket.lease_end, bucket.deny_until] {
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
        self.quiet.push_back((now.plus(QUIET), bucket.cell));
    }
}

/// Gives waiters tokens of the hold, in order, as long as there are enough.
fn serve(bucket: &mut Bucket, mut look: Look, now: Micros) -> Look {
    let mut served = false;
    while let Some(first) = bucket.waiting.front() {
        if first.waiter.is_waited_for() {
            if look.pool < first.cost || !bucket.cell.take(first.cost, now) {
                break;
            }
            look.pool = look.pool.saturating_sub(first.cost);
            let remaining = bucket.free.saturating_add(look.pool);
            first.waiter.answer(Answer::Given { remaining, by_authority: false });
            served = true;
        }
        bucket.waiting.pop_front();
    }
    if served { bucket.look(now) } else { look }
}
