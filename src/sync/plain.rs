//! Hits on plain counters: one question each, whose answer is the whole truth of that moment.
//!
//! There is no lease here, no record of this instance and no question that is dead after a time. So a hit that came too
//! late, or whose asker has left, is given back when its answer comes; one without an answer may have been counted.
//! Which window a key means is guessed by the authority's clock as far as it is known, and the authority says when the
//! guess is wrong.

use super::{
    answers::is_doubtful,
    message::Effect,
    turn::{Engine, TROUBLE_PAUSE, Timer, bucket_event},
    waiter::{Answer, Waiter},
};
use crate::{
    algorithm::Frame,
    error::{Error, ErrorKind},
    key::BucketName,
    rule::Template,
    store::{Counted, Hit},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

#[cfg(all(test, not(tollgate_loom)))]
mod tests;

/// So often a hit is told that it is another window by now, until it gives up: enough for windows of some round trips.
const GUESSES_MAX: u32 = 8;
/// Counters of which it is remembered what was taken here, so that it can be given back.
const TAKEN_MAX: usize = if cfg!(test) { 4 } else { 65_536 };
/// Of those, looked at for their end with each new one: above 1, so that forgetting keeps up.
const SWEPT_PER_NOTE: usize = 8;

/// What somebody wants of a plain counter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The rule's name, for events.
    pub(crate) rule: &'static str,
    /// How its keys are called.
    pub(crate) template: Template,
    /// Where its windows lie.
    pub(crate) frame: Frame,
    /// The most that may be counted in one of them.
    pub(crate) limit: u64,
    /// Whose counter.
    pub(crate) key: Box<[u8]>,
    /// How much to count; zero only looks. Below zero: this much is taken away, and nobody needs to have taken it here.
    pub(crate) cost: i64,
    /// When it was asked for, on our clock.
    pub(crate) at: Micros,
}

impl Ask {
    /// The counter, and the beginning of the window that its name means, when the authority has this time; zero: none.
    fn counter(&self, there: Micros) -> (BucketName, Micros) {
        // Zero would say that the name means no window.
        let start = if self.template.is_dated() { self.frame.start(there).max(Micros(1)) } else { Micros::ZERO };
        (BucketName::from_bytes(self.template.name(&self.key, self.frame, start)), start)
    }
}

/// A hit on its way.
#[derive(Debug)]
struct Pending {
    ask: Arc<Ask>,
    /// What it counts: the ask's cost, or less than nothing where that is given back.
    cost: i64,
    deadline: Micros,
    /// Nobody waits for what is given back, or for a debt.
    waiter: Option<Waiter>,
    /// Where it is counted, once that is known.
    counter: Option<(BucketName, Micros)>,
    /// It belongs to this counter and to no later one.
    bound: bool,
    sent_at: Micros,
    guesses: u32,
}

impl Pending {
    /// Whether it still makes sense to ask.
    fn is_wanted(&self, now: Micros) -> bool {
        now < self.deadline && self.waiter.as_ref().is_none_or(Waiter::is_waited_for)
    }

    fn answer(&self, answer: Answer) -> bool {
        self.waiter.as_ref().is_none_or(|waiter| waiter.answer(answer))
    }
}

/// All hits, and what was taken here.
#[derive(Debug, Default)]
pub(super) struct Plain {
    /// By id: those that wait to be sent, and those under way.
    pending: HashMap<u64, Pending>,
    queue: VecDeque<u64>,
    taken: Taken,
    /// One trouble of a key is told, and the next after a pause.
    quiet_until: Micros,
}

impl Plain {
    /// Whether a hit waits to be sent.
    pub(super) fn is_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether nothing waits or is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Answers all who wait. What nobody waits for goes on.
    pub(super) fn refuse_all(&mut self, kind: ErrorKind) {
        let queue = &self.queue;
        let gone: Vec<u64> = queue.iter().copied().filter(|id| self.is_waited_for(*id)).collect();
        for pending in self.pending.values() {
            pending.answer(Answer::Failed(kind));
        }
        for id in gone {
            self.pending.remove(&id);
        }
        self.queue.retain(|id| self.pending.contains_key(id));
    }

    fn is_waited_for(&self, id: u64) -> bool {
        self.pending.get(&id).is_some_and(|pending| pending.waiter.is_some())
    }
}

impl Engine {
    /// Somebody wants something of a plain counter.
    pub(super) fn hit(&mut self, ask: Arc<Ask>, deadline: Micros, waiter: Option<Waiter>) {
        if self.closing.is_some() || self.road.is_down() {
            let kind = if self.closing.is_some() { ErrorKind::ShutDown } else { self.road.cause() };
            if let Some(waiter) = waiter {
                waiter.answer(Answer::Failed(kind));
            }
            return;
        }
        let cost = ask.cost;
        let (counter, bound, sent_at, guesses) = (None, false, Micros::ZERO, 0);
        self.line_up(Pending { ask, cost, deadline, waiter, counter, bound, sent_at, guesses });
    }

    /// What was taken here goes back: as much of it as was, and only while its window lasts, which is over at `until`.
    pub(super) fn give_back_hit(&mut self, ask: Arc<Ask>, until: Micros, now: Micros) {
        // Nothing was taken before the first answer, which told the time.
        let Some(there) = self.road.there(now) else { return };
        // What was taken in a window that is over would come out of what others have taken since.
        if now < until {
            let (name, _) = ask.counter(there);
            self.untake(ask, name, now);
        }
    }

    fn untake(&mut self, ask: Arc<Ask>, name: BucketName, now: Micros) {
        let most = u64::try_from(ask.cost).unwrap_or(0);
        let Some((tokens, start, end)) = self.plain.taken.take(&name, most, now) else { return };
        // A name that means no window cannot tell the next one from this: not so near its end.
        let margin = if start == Micros::ZERO { self.settings.response_timeout } else { Micros::ZERO };
        let deadline = end.minus(margin);
        if deadline <= now {
            return;
        }
        let cost = i64::try_from(tokens).map_or(i64::MIN, |tokens| -tokens);
        let (counter, waiter) = (Some((name, start)), None);
        let (bound, sent_at, guesses) = (true, Micros::ZERO, 0);
        self.line_up(Pending { ask, cost, deadline, waiter, counter, bound, sent_at, guesses });
    }

    fn line_up(&mut self, pending: Pending) {
        let id = self.new_id();
        self.timers.push(Reverse((pending.deadline, Timer::Hit(id))));
        self.plain.pending.insert(id, pending);
        self.plain.queue.push_back(id);
    }

    /// Nobody waits any longer. One that is under way is given back should its answer say that it was counted.
    pub(super) fn hit_is_late(&mut self, id: u64) {
        let Some(pending) = self.plain.pending.get(&id) else { return };
        pending.answer(Answer::Late);
        if pending.sent_at == Micros::ZERO {
            self.plain.pending.remove(&id); // its place in the queue finds nothing
        }
    }

    /// Sends hits, as far as the window and the allowance go.
    pub(super) fn send_hits(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        if self.road.is_down() {
            self.plain.refuse_all(self.road.cause());
            return;
        }
        let room = self.window.room().min(self.allowance as usize);
        // Where batches wait, too, each has a half.
        let mut room = if self.turn_of.is_empty() { room } else { room.div_ceil(2) };
        while room > 0 {
            let Some(id) = self.plain.queue.pop_front() else { break };
            let Some(pending) = self.plain.pending.get_mut(&id) else { continue };
            if !pending.is_wanted(now) {
                pending.answer(Answer::Late);
                self.plain.pending.remove(&id);
                continue;
            }
            let counter = pending.counter.take().filter(|_| pending.bound);
            // Before the authority has told its time any guess is as good.
            let there = self.road.there(now).unwrap_or(now);
            let (name, start) = counter.unwrap_or_else(|| pending.ask.counter(there));
            pending.counter = Some((name.clone(), start));
            pending.sent_at = now.max(Micros(1));
            let Ask { limit, frame, .. } = *pending.ask;
            effects.push(Effect::Count { id, name, hit: Hit { limit, cost: pending.cost, frame, start } });
            room -= 1;
            self.allowance -= 1.0;
            self.asked_lately += 1;
            self.tally.syncs += 1;
            self.tally.batches += 1;
            self.window.left(1);
        }
        self.cut_off |= self.allowance < 1.0 && self.plain.is_queued();
    }

    /// The authority's word on a hit, or none.
    pub(super) fn counted(&mut self, id: u64, result: Result<Counted, Error>, now: Micros, effects: &mut Vec<Effect>) {
        let Some(pending) = self.plain.pending.remove(&id) else { return };
        let (sent, was_down) = (pending.sent_at, self.road.is_down());
        // What is wrong with this one key says nothing of the road.
        let kind = result.as_ref().err().map(Error::kind);
        let own = matches!(kind, Some(ErrorKind::WrongType | ErrorKind::NoPermission));
        self.window.came_back(1, sent, now, kind.filter(|_| !own));
        let event = match (&result, kind) {
            (Ok(Counted::Taken { now: there, .. } | Counted::Refused { now: there, .. }), _)
            | (Ok(Counted::OtherWindow { now: there }), _) => self.road.answered(sent, now, *there),
            (Err(_), Some(kind)) if !own => {
                let jitter = self.rng.f64();
                self.tally.in_doubt += u64::from(is_doubtful(kind));
                self.road.failed(sent, now, kind, jitter)
            }
            _ => self.road.answered(sent, now, Micros::ZERO),
        };
        effects.extend(event.map(Effect::Report));
        match result {
            Ok(Counted::Taken { count, ends_in, .. }) => self.was_taken(pending, count, ends_in, now),
            Ok(Counted::Refused { count, ends_in, .. }) => {
                pending.answer(Answer::Counted { taken: false, count, ends_in });
            }
            Ok(Counted::OtherWindow { .. }) => self.guess_again(id, pending, now),
            Err(error) => {
                pending.answer(Answer::Failed(error.kind()));
                if own {
                    self.tally.bucket_errors += 1;
                    if now >= self.plain.quiet_until {
                        self.plain.quiet_until = now.plus(TROUBLE_PAUSE);
                        let event = bucket_event(pending.ask.rule, error.kind(), error.to_string());
                        effects.push(Effect::Report(event));
                    }
                }
            }
        }
        self.link_turned(was_down);
        self.visit_all(now);
    }

    fn was_taken(&mut self, pending: Pending, count: i64, ends_in: Micros, now: Micros) {
        let heard = pending.answer(Answer::Counted { taken: true, count, ends_in });
        let Pending { ask, cost, waiter, counter: Some((name, start)), .. } = pending else { return };
        match u64::try_from(cost) {
            Ok(0) => {}
            Ok(cost) => {
                self.plain.taken.note(&name, cost, start, now.plus(ends_in), now);
                if !heard {
                    self.untake(ask, name, now);
                }
            }
            // Cleared for somebody: what was taken before is there no more.
            Err(_) if waiter.is_some() => self.plain.taken.forget(&name),
            Err(_) => {}
        }
    }

    /// Another window has begun, or our clock was wrong: the answer told the time.
    fn guess_again(&mut self, id: u64, mut pending: Pending, now: Micros) {
        pending.guesses += 1;
        if pending.bound || pending.guesses >= GUESSES_MAX || !pending.is_wanted(now) {
            pending.answer(Answer::Late);
            return;
        }
        pending.sent_at = Micros::ZERO;
        self.plain.pending.insert(id, pending);
        self.plain.queue.push_front(id);
    }
}

/// What was taken here from which counter, while its window lasts. Keeps [`TAKEN_MAX`] at most; what finds no place cannot
/// be given back.
#[derive(Debug, Default)]
struct Taken {
    sums: HashMap<BucketName, Sum>,
    ends: BinaryHeap<Reverse<(Micros, BucketName)>>,
}

#[derive(Debug)]
struct Sum {
    tokens: u64,
    start: Micros,
    /// On our clock, and never too early by more than the authority's clock runs ahead of ours meanwhile.
    end: Micros,
}

impl Taken {
    fn note(&mut self, name: &BucketName, tokens: u64, start: Micros, end: Micros, now: Micros) {
        for _ in 0..SWEPT_PER_NOTE {
            if self.ends.peek().is_none_or(|Reverse((end, _))| *end > now) {
                break;
            }
            let Some(Reverse((_, name))) = self.ends.pop() else { break };
            if self.sums.get(&name).is_some_and(|sum| sum.end <= now) {
                self.sums.remove(&name);
            }
        }
        if let Some(sum) = self.sums.get_mut(name).filter(|sum| sum.end > now) {
            sum.tokens = sum.tokens.saturating_add(tokens);
        } else if self.sums.len() < TAKEN_MAX {
            self.sums.insert(name.clone(), Sum { tokens, start, end });
            self.ends.push(Reverse((end, name.clone())));
        }
    }

    /// Takes up to so much away, of what was taken: how much, of which window, and when that ends.
    fn take(&mut self, name: &BucketName, most: u64, now: Micros) -> Option<(u64, Micros, Micros)> {
        let sum = self.sums.get_mut(name).filter(|sum| sum.end > now)?;
        let tokens = sum.tokens.min(most);
        sum.tokens -= tokens;
        (tokens > 0).then_some((tokens, sum.start, sum.end))
    }

    fn forget(&mut self, name: &BucketName) {
        if let Some(sum) = self.sums.get_mut(name) {
            sum.tokens = 0;
        }
    }
}
