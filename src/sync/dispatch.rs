//! What is to be asked, put into batches: queues by tag, the allowance, and the question of one bucket.
//!
//! Takes no answers; `answers` does.

use super::{
    message::Effect,
    turn::{Engine, Settings},
};
use crate::{
    key::BucketName,
    lease::{Act, EXACT_MAX, Need, Sync, Total},
    rule::{LEASE_MARGIN, Mode, Terms},
    store::Batch,
    time::Micros,
};
use std::collections::VecDeque;

/// Questions in one batch: enough to spread the cost of a script call thinly, few enough that the
/// authority is never busy for more than half a millisecond with one.
const BATCH_MAX: usize = if cfg!(test) { 3 } else { 100 };
/// Batches on their way at once.
const IN_FLIGHT_MAX: usize = 64;
/// Requests that one question speaks for.
const NEED_MAX: usize = 10_000;

/// Which question of a batch an answer belongs to.
#[derive(Debug)]
pub(super) enum Asked {
    Bucket { index: u32, epoch: u64, seq: u64 },
    Peek(u64),
    Order(u64),
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) sent_at: Micros,
    pub(super) asked: Vec<Asked>,
}

/// A batch that is being put together.
#[derive(Debug)]
pub(super) struct Load {
    tag: u16,
    asked: Vec<Asked>,
    questions: Vec<(BucketName, Sync)>,
}

/// What waits to be put into a batch of one tag: those whom somebody waits for go first.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) peeks: VecDeque<u64>,
    pub(super) orders: VecDeque<u64>,
    pub(super) needed: VecDeque<u32>,
    pub(super) ahead: VecDeque<u32>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.peeks.is_empty() && self.orders.is_empty() && self.needed.is_empty() && self.ahead.is_empty()
    }
}

impl Engine {
    /// Fills batches from the queues, as far as flights and the allowance go.
    pub(super) fn send(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        self.allow(now);
        self.send_hits(now, effects);
        while !self.is_full() && self.allowance >= 1.0 && !self.road.is_down() {
            let Some(load) = self.load(now) else { break };
            let Load { tag, asked, questions } = load;
            if let Some(queue) = self.queues.get(usize::from(tag))
                && !queue.is_empty()
            {
                self.turn_of.push_back(tag);
            }
            if questions.is_empty() {
                continue;
            }
            self.allowance -= questions.len() as f64;
            self.asked_lately += questions.len() as u64;
            self.tally.syncs += questions.len() as u64;
            self.tally.batches += 1;
            let id = self.new_id();
            self.window.left(asked.len());
            self.flights.insert(id, Flight { sent_at: now, asked });
            effects.push(Effect::Send { id, batch: Batch { tag, questions } });
        }
        self.cut_off |= self.allowance < 1.0 && !self.turn_of.is_empty();
    }

    /// Whether no further batch may leave before one has come back.
    pub(super) fn is_full(&self) -> bool {
        self.flights.len() >= IN_FLIGHT_MAX || self.window.room() == 0
    }

    /// Fills one batch, or goes on with one that a panic has interrupted. `None`: nothing is queued.
    fn load(&mut self, now: Micros) -> Option<Load> {
        if self.loading.is_none() {
            let tag = self.turn_of.pop_front()?;
            self.loading = Some(Load { tag, asked: Vec::new(), questions: Vec::new() });
        }
        let room = BATCH_MAX.min(self.allowance as usize).min(self.window.room());
        while let Some(load) = self.loading.as_ref().filter(|load| load.questions.len() < room) {
            let Some(queue) = self.queues.get_mut(usize::from(load.tag)) else { break };
            let composed = if let Some(id) = queue.peeks.pop_front() {
                self.compose_peek(id)
            } else if let Some(id) = queue.orders.pop_front() {
                self.compose_order(id)
            } else if let Some(index) = queue.needed.pop_front().or_else(|| queue.ahead.pop_front()) {
                self.compose(index, now)
            } else {
                break;
            };
            if let (Some((asked, name, sync)), Some(load)) = (composed, &mut self.loading) {
                load.asked.push(asked);
                load.questions.push((name, sync));
            }
        }
        self.loading.take()
    }

    /// Renews the allowance, and stretches horizons while questions come faster than they should.
    fn allow(&mut self, now: Micros) {
        let (max, gap) = (f64::from(self.settings.syncs_per_second_max), now.minus(self.allowed_at));
        if gap < Micros::from_millis(1) {
            return; // too short a time to measure anything by
        }
        let seconds = gap.as_secs_f64();
        self.allowance = (self.allowance + max * seconds).min((max / 10.0).max(1.0));
        self.allowed_at = now;
        let pressure = self.asked_lately as f64 / seconds / (0.8 * max);
        // Where the allowance has cut off what was to be asked, more was wanted than can be measured.
        let aim = if self.cut_off { (self.stretch * 2.0).min(100.0) } else { pressure.max(1.0) };
        let weight = 1.0 - (-seconds / 0.2).exp();
        self.stretch = (self.stretch + (aim - self.stretch) * weight).max(1.0);
        self.asked_lately = 0;
        self.cut_off = false;
    }

    fn compose_peek(&mut self, id: u64) -> Option<(Asked, BucketName, Sync)> {
        let peek = self.peeks.get(&id)?;
        let terms = self.rules.terms(peek.rule)?;
        let (name, need) = (peek.name.clone(), Need { cost: peek.cost, count: 0 });
        let not_after = self.road.there(peek.deadline).unwrap_or(Micros::ZERO);
        let sync = Sync { need, not_after, act: Act::Peek, ..self.blank(&terms) };
        Some((Asked::Peek(id), name, sync))
    }

    /// The question of one bucket, with fresh numbers.
    fn compose(&mut self, index: u32, now: Micros) -> Option<(Asked, BucketName, Sync)> {
        self.current = Some(index);
        let closing = self.closing.is_some();
        let members = self.members().unwrap_or(1);
        let draw = self.draw();
        let bucket = self.buckets.get_mut(index as usize)?.as_deref_mut()?;
        bucket.ready = false;
        if bucket.open.is_some() {
            return None;
        }
        #[cfg(test)]
        bucket.trip("compose");
        let terms = self.rules.terms(bucket.cell.rule())?;
        if bucket.is_over(now) {
            self.epoch += 1;
            bucket.renew_epoch(self.epoch);
        }
        let idle = now.minus(bucket.active_at) >= Micros(terms.lease_ttl.0 / 4) && bucket.waiting.is_empty();
        let lends = bucket.mode == Mode::Leased && !bucket.leaving;
        let (need, waiting) = bucket.take_prefix(NEED_MAX);
        let pool = bucket.look(now).pool;
        // Pieces too small for what waits would lie about in every instance: back they go.
        let pieces = lends && (pool < need.cost || (bucket.turned_away > 0 && pool < bucket.cost));
        if closing || idle || bucket.leaving || pieces {
            bucket.give_back();
        }
        let look = bucket.look(now);
        let situation = bucket.situation(&terms, members, self.stretch, now);
        let mut target = if lends && !closing && !idle { situation.target() } else { 0 };
        if lends && bucket.turned_away > 0 && !closing {
            target = target.max(bucket.cost); // somebody who could not wait will be back
        }
        let want = target.saturating_sub(look.hold);
        let cadence = situation.cadence(terms.cadence, self.road.round_trip());
        let cadence = Micros((cadence.0 as f64 * self.stretch * (1.0 + 0.1 * self.rng.f64())) as u64);
        bucket.next_at = now.plus(cadence);
        bucket.told_at = now;
        bucket.revised = false;
        bucket.seq += 1;
        bucket.activity = 0;
        bucket.turned_away = 0;
        let (debt, outage, used) = (bucket.debt(look.hold), bucket.outage(), bucket.used(look.hold, now));
        let told = bucket.told_refunds(now);
        // What an instance gives itself is debt, and nothing of the authority's.
        let hold = if bucket.mode == Mode::Buffered { 0 } else { look.hold };
        // A message that tells nothing belongs to whichever window it meets.
        let tells = used != 0 || hold > 0 || debt > bucket.debt_acked || outage > bucket.outage_acked;
        let window = if tells { bucket.window } else { Micros::ZERO };
        // Until the last of the waiters gives up, or until we would ask again anyway.
        let last = waiting.iter().map(|w| w.deadline).max().unwrap_or(Micros::MAX);
        let dead = last.min(now.plus(self.settings.response_timeout));
        let hint = Need { cost: if need.count > 0 { need.cost } else { bucket.cost }, count: need.count };
        let sync = Sync {
            generation: if now < bucket.generation_until { bucket.generation } else { 0 },
            draw,
            epoch: bucket.epoch,
            seq: bucket.seq,
            born: bucket.born,
            not_after: self.road.there(dead).unwrap_or(Micros::ZERO),
            used,
            hold,
            age: bucket.age(now),
            need: hint,
            want,
            // In thousandths; a float of any size casts to the nearest integer there is.
            // Who leaves has none, so that its share is not kept for it until its record ends.
            demand: if closing || idle { 1 } else { ((bucket.demand.per_second() * 1_000.0) as u64).clamp(1, 1 << 40) },
            debt: Total { sum: debt, acked: bucket.debt_acked },
            outage: Total { sum: outage, acked: bucket.outage_acked },
            window,
            // Only while something is given back: a log then takes for spent what it has no word of.
            fresh: if bucket.refunded > bucket.refunded_acked { bucket.fresh } else { Micros::ZERO },
            ..Engine::blank_of(&self.settings, &terms)
        };
        let asked = Asked::Bucket { index, epoch: bucket.epoch, seq: bucket.seq };
        let open = super::bucket::Open {
            epoch: bucket.epoch,
            seq: bucket.seq,
            born: bucket.born,
            sent_at: now,
            window,
            dated: false,
            need,
            want,
            hold,
            debt,
            outage,
            refunded: told,
            refunded_before: bucket.refunded_told,
            waiting,
        };
        let (_, name) =
            self.settings.keys.bucket(terms.kind(), terms.label, bucket.cell.key_bytes(), bucket.cell.is_digest());
        bucket.open = Some(Box::new(open));
        bucket.refunded_told = bucket.refunded_told.max(told);
        Some((asked, name, sync))
    }

    /// Whether this question of a batch that has just left tells of all that is to be given back: what the judge of a
    /// simulated world goes by.
    #[cfg(feature = "sim")]
    pub(crate) fn gives_back(&self, id: u64, nth: usize) -> bool {
        let Some(Asked::Bucket { index, .. }) = self.flights.get(&id).and_then(|flight| flight.asked.get(nth)) else {
            return false;
        };
        let bucket = self.buckets.get(*index as usize).and_then(Option::as_deref);
        bucket.is_some_and(|bucket| {
            let told = bucket.open.as_ref().map_or(0, |open| open.refunded);
            told == bucket.refunded && told > bucket.refunded_acked
        })
    }

    /// The generation of a bucket that is created by the next message.
    pub(super) fn draw(&mut self) -> u64 {
        self.rng.u64(1..EXACT_MAX)
    }

    /// A question that asks and tells nothing.
    pub(super) fn blank(&self, terms: &Terms) -> Sync {
        Engine::blank_of(&self.settings, terms)
    }

    fn blank_of(settings: &Settings, terms: &Terms) -> Sync {
        Sync {
            generation: 0,
            draw: 1,
            numbers: terms.numbers,
            instance: settings.instance,
            epoch: 0,
            seq: 0,
            born: 0,
            not_after: Micros::ZERO,
            used: 0,
            hold: 0,
            age: Micros::ZERO,
            need: Need::default(),
            want: 0,
            demand: 1,
            span: terms.lease_ttl.plus(LEASE_MARGIN),
            debt: Total::default(),
            outage: Total::default(),
            lost: terms.lost,
            window: Micros::ZERO,
            fresh: Micros::ZERO,
            act: Act::Sync,
        }
    }

    /// Whether a bucket or a peek waits for its place in a batch.
    pub(super) fn is_anything_queued(&self) -> bool {
        !self.turn_of.is_empty() || self.loading.is_some()
    }

    pub(super) fn tag_of(&self, index: u32) -> u16 {
        let Some(bucket) = self.buckets.get(index as usize).and_then(Option::as_deref) else { return 0 };
        let Some(terms) = self.rules.terms(bucket.cell.rule()) else { return 0 };
        self.settings.keys.tag(terms.kind(), terms.label, bucket.cell.key_bytes())
    }

    pub(super) fn queue(&mut self, tag: u16, put: impl FnOnce(&mut Queue)) {
        let at = usize::from(tag);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let queue = &mut self.queues[at];
        if queue.is_empty() {
            self.turn_of.push_back(tag);
        }
        put(queue);
    }
}
