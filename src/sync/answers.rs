//! What the engine does with answers, and with their absence; and how it closes.

use super::{
    bucket::{Bucket, Open},
    dispatch::Asked,
    message::Effect,
    turn::{DENIAL_MAX, Engine, Landed, TROUBLE_PAUSE, bucket_event},
    waiter::Answer,
};
use crate::{
    algorithm::Algorithm,
    error::{Error, ErrorKind},
    lease::{Outcome, Reply},
    observe::Event,
    rule::{Mode, Terms},
    store::{Answers, Beat},
    time::Micros,
};

/// A denial is believed longer than told by no more than this.
const SPREAD_MAX: Micros = Micros::from_millis(5);

/// Whether a message that failed so may have been applied: see `Connection::sync`.
pub(super) fn is_doubtful(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unanswered | ErrorKind::Protocol)
}

impl Engine {
    /// A batch came back, with an answer for each of its questions or without any.
    pub(super) fn answered(&mut self, id: u64, result: Result<Answers, Error>, now: Micros, effects: &mut Vec<Effect>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let was_down = self.road.is_down();
        self.window.came_back(flight.asked.len(), flight.sent_at, now, result.as_ref().err().map(Error::kind));
        match result {
            Ok(answers) => {
                let there = answers.iter().flatten().map(|reply| reply.now).max().unwrap_or_default();
                let event = self.road.answered(flight.sent_at, now, there);
                effects.extend(event.map(Effect::Report));
                let missing = std::iter::repeat_with(|| Err(Error::new(ErrorKind::Protocol, "no answer in the reply")));
                let answers = answers.into_iter().chain(missing).map(Landed::Answer);
                self.landed.extend(flight.asked.into_iter().zip(answers));
            }
            Err(error) => {
                let jitter = self.rng.f64();
                let event = self.road.failed(flight.sent_at, now, error.kind(), jitter);
                effects.extend(event.map(Effect::Report));
                if is_doubtful(error.kind()) {
                    self.tally.in_doubt += flight.asked.len() as u64;
                }
                let failed = |asked| (asked, Landed::Failed(error.kind()));
                self.landed.extend(flight.asked.into_iter().map(failed));
            }
        }
        self.link_turned(was_down);
        self.land(now, effects);
        self.visit_all(now);
    }

    /// Looks at the answers that came, from where the last look was interrupted.
    pub(super) fn land(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        while let Some((asked, landed)) = self.landed.pop_front() {
            match landed {
                Landed::Answer(answer) => self.one_answer(&asked, answer, now, effects),
                Landed::Failed(kind) => self.no_answer(&asked, kind, now),
            }
        }
    }

    /// A heartbeat came back.
    pub(super) fn beaten(&mut self, result: Result<Beat, Error>, now: Micros, effects: &mut Vec<Effect>) {
        let Some(sent) = self.beat_sent.take() else { return };
        let was_down = self.road.is_down();
        let event = match result {
            Ok(beat) => {
                self.members = Some(beat.members.max(1));
                self.miscounts = false;
                self.road.answered(sent, now, beat.now)
            }
            // What is wrong with this one key says nothing of the road.
            Err(error) if error.kind() == ErrorKind::WrongType => {
                if !std::mem::replace(&mut self.miscounts, true) {
                    let message = format!("instances are not counted, their key holds something else: {error}");
                    effects.push(Effect::Report(Event::Warning { message }));
                }
                self.road.answered(sent, now, Micros::ZERO)
            }
            Err(error) => {
                let jitter = self.rng.f64();
                self.road.failed(sent, now, error.kind(), jitter)
            }
        };
        effects.extend(event.map(Effect::Report));
        self.link_turned(was_down);
        self.visit_all(now);
    }

    /// When the link went down or came back, every bucket has to know: who waits is told, and what
    /// was put off is asked.
    pub(super) fn link_turned(&mut self, was_down: bool) {
        if was_down != self.road.is_down() {
            self.round = Some(0);
        }
    }

    fn one_answer(&mut self, asked: &Asked, answer: Result<Reply, Error>, now: Micros, effects: &mut Vec<Effect>) {
        match *asked {
            Asked::Peek(id) => {
                let Some(peek) = self.peeks.remove(&id) else { return };
                peek.waiter.answer(match answer {
                    Ok(reply) => Answer::Seen { free: reply.free, wait: reply.retry_after },
                    Err(error) => Answer::Failed(error.kind()),
                });
            }
            Asked::Order(id) => self.ordered(id, answer, now),
            Asked::Bucket { index, epoch, seq } => match answer {
                Ok(reply) => self.reply(index, epoch, seq, &reply, now, effects),
                Err(error) => self.refusal(index, (epoch, seq), &error, now, effects),
            },
        }
    }

    /// The authority's word on one bucket.
    fn reply(&mut self, index: u32, epoch: u64, seq: u64, reply: &Reply, now: Micros, effects: &mut Vec<Effect>) {
        let jitter = self.rng.f64();
        let new_epoch = self.new_epoch();
        self.current = Some(index);
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Some(terms) = self.rules.terms(bucket.cell.rule()) else { return };
        #[cfg(test)]
        bucket.trip("reply");
        let fits = (reply.epoch, reply.seq) == (epoch, seq);
        let Some(open) = bucket.open.take_if(|open| fits && (open.epoch, open.seq) == (epoch, seq)) else {
            self.tally.wasted += 1;
            return;
        };
        // The window that it belonged to may be over: then it is of use to those who waited for it, and to nobody else.
        let mut holds = open.epoch == bucket.epoch;
        let lease_end = open.sent_at.plus(terms.lease_ttl);
        if reply.outcome != Outcome::Applied || now >= lease_end {
            self.tally.wasted += 1;
            bucket.put_back(*open);
            // What it gave back the authority still counts as lent.
            bucket.untold |= holds && bucket.mode == Mode::Leased && bucket.lease_end != Micros::ZERO;
            if holds && (reply.outcome == Outcome::Stale || now >= lease_end) {
                bucket.renew_epoch(new_epoch);
            }
            self.visit(index, now);
            return;
        }
        if Engine::is_fixed(&terms) {
            let (meets, expired) = Engine::meet_window(bucket, &open, reply, new_epoch, now);
            holds &= meets;
            self.tally.expired += expired;
        }
        bucket.learn(&open, reply);
        if holds {
            let ran_dry = bucket.look(now).hold == 0 && bucket.activity > 0 && open.want > 0;
            bucket.boost = if ran_dry { (bucket.boost * 2.0).min(128.0) } else { (bucket.boost * 0.9).max(1.0) };
            let window_end = Some(bucket.window_end).filter(|end| *end != Micros::ZERO).unwrap_or(Micros::MAX);
            bucket.settle(&open, reply, lease_end.min(window_end));
        }
        let caches = bucket.mode != Mode::Exact && !open.dated;
        Engine::tell(bucket, &open, reply, now, jitter, caches, &terms);
        if bucket.mode == Mode::Exact {
            bucket.short = false; // its next question is somebody else's turn, and nothing is lent
        }
        if reply.blocked && !open.dated {
            bucket.block(now, now.plus(reply.retry_after));
        } else if now < bucket.blocked_until && open.dated {
            bucket.block(now, bucket.blocked_until); // it was asked, and lent, before the key was blocked
        } else {
            bucket.blocked_until = Micros::ZERO;
        }
        if bucket.mode == Mode::Buffered {
            self.booked(index, &open, reply, holds, now);
        }
        if reply.lost {
            self.tally.states_lost += 1;
            effects.push(Effect::Report(Event::StateLost { rule: terms.name.to_owned() }));
        }
        self.visit(index, now);
    }

    /// Answers those who waited in this question, and remembers a denial.
    fn tell(bucket: &mut Bucket, open: &Open, reply: &Reply, now: Micros, jitter: f64, caches: bool, terms: &Terms) {
        let given = usize::try_from(reply.given).unwrap_or(usize::MAX);
        let remaining = reply.free.saturating_add(bucket.lent);
        let mut gone: u64 = 0;
        let queued = terms.numbers.algorithm == Algorithm::LeakyQueue;
        for (nth, w) in (0_u64..).zip(open.waiting.iter().take(given)) {
            // One leaves a queue after the other, each as many intervals later as the one before it costs.
            let turn =
                if queued { terms.numbers.rate.time_for(open.need.cost.saturating_mul(nth)) } else { Micros::ZERO };
            let yes = Answer::Given { remaining, by_authority: true, delay: reply.delay.plus(turn) };
            if !w.waiter.answer(yes) {
                gone = gone.saturating_add(open.need.cost);
            }
        }
        // Who left has no use for it: it goes back with the next question. But a turn perishes: those behind have theirs
        // already, and a place that came free in front would be given at the end, where somebody is.
        if !queued {
            bucket.undo(gone, reply.now);
        }
        let needy = reply.given < open.need.count;
        let empty = reply.given == 0 && reply.grant == 0 && open.want > 0;
        if !(needy || empty) {
            bucket.cell.clear_denial();
            bucket.deny_until = Micros::ZERO;
            // These were the last that could be had: remembered, should the link go down before anybody is told no.
            let last = caches && reply.retry_after > Micros::ZERO;
            let cost = if open.need.count > 0 { open.need.cost } else { bucket.cost };
            bucket.no = if last { (cost, now.plus(reply.retry_after)) } else { (0, Micros::ZERO) };
            return;
        }
        let cost = if needy { open.need.cost } else { bucket.cost };
        // A little longer than the authority says, at random, so that instances do not ask in step; and never
        // by so much that a client would notice. Who waits here is told the same: the no holds until then.
        let wait = Micros(reply.retry_after.0.max(1));
        let spread = Micros((wait.0 as f64 * 0.1 * jitter) as u64).min(SPREAD_MAX);
        let wait = if caches { wait.plus(spread) } else { wait };
        let no = Answer::Denied { wait, remaining: reply.free, by_authority: true };
        open.waiting.iter().skip(given).for_each(|w| _ = w.waiter.answer(no));
        // Who came while the question was under way and asks for as much is answered by it, too. Not where it was asked
        // before something that they may have waited for, such as a clear.
        bucket.waiting.retain(|w| open.dated || w.cost < cost || !w.waiter.answer(no));
        if !caches {
            return;
        }
        let until = now.plus(wait);
        bucket.cell.deny_until(cost, until);
        bucket.deny_until = until.min(now.plus(DENIAL_MAX));
        bucket.no = (cost, until);
    }

    /// The store answered this one bucket with an error: it alone is in trouble.
    fn refusal(&mut self, index: u32, (epoch, seq): (u64, u64), error: &Error, now: Micros, effects: &mut Vec<Effect>) {
        self.tally.bucket_errors += 1;
        self.current = Some(index);
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        if bucket.open.as_ref().is_none_or(|open| (open.epoch, open.seq) != (epoch, seq)) {
            return;
        }
        bucket.reopen_untold();
        bucket.trouble = Some(error.kind());
        bucket.cell.set_trouble(Some(error.kind()));
        // What the limit last said was said of a bucket that is not there any more.
        bucket.forget_denial();
        bucket.next_at = now.plus(TROUBLE_PAUSE);
        if let Some(terms) = self.rules.terms(bucket.cell.rule()) {
            effects.push(Effect::Report(bucket_event(terms.name, error.kind(), error.to_string())));
        }
        self.visit(index, now);
    }

    /// The batch of this question failed as a whole.
    fn no_answer(&mut self, asked: &Asked, kind: ErrorKind, now: Micros) {
        match *asked {
            Asked::Peek(id) => {
                if let Some(peek) = self.peeks.remove(&id) {
                    peek.waiter.answer(Answer::Failed(kind));
                }
            }
            Asked::Order(id) => self.order_failed(id, kind),
            Asked::Bucket { index, epoch, seq } => {
                self.current = Some(index);
                let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
                let Some(want) =
                    bucket.open.as_ref().filter(|open| (open.epoch, open.seq) == (epoch, seq)).map(|open| open.want)
                else {
                    return;
                };
                if is_doubtful(kind) {
                    bucket.reopen();
                } else {
                    bucket.reopen_untold();
                }
                let has_lease = bucket.mode == Mode::Leased && bucket.lease_end != Micros::ZERO;
                bucket.untold |= has_lease || (want > 0 && is_doubtful(kind));
                // A store that is there and refuses will refuse again; one that did not answer may yet.
                if !matches!(kind, ErrorKind::Unanswered | ErrorKind::Unreachable) {
                    bucket.fail_all(kind, now);
                    bucket.next_at = now.plus(TROUBLE_PAUSE);
                }
                self.visit(index, now);
            }
        }
    }

    /// Begins to close: nobody is served any more, and what is held goes back.
    pub(super) fn close(&mut self, deadline: Micros, now: Micros) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(deadline);
        for (_, peek) in self.peeks.drain() {
            peek.waiter.answer(Answer::Failed(ErrorKind::ShutDown));
        }
        for (_, ordered) in self.orders.drain() {
            ordered.refuse(ErrorKind::ShutDown);
        }
        self.plain.refuse_all(ErrorKind::ShutDown);
        self.round = Some(0);
        self.visit_all(now);
    }

    /// Whether closing is over: all is given back, the deadline has come, or nobody is there to give it to.
    pub(super) fn finish(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        let Some(deadline) = self.closing else { return };
        let busy = !self.flights.is_empty() || self.is_anything_queued() || !self.plain.is_idle();
        if busy && now < deadline && !self.road.is_down() {
            return;
        }
        let mut clean = !busy;
        for (index, bucket) in (0..).zip(&mut self.buckets) {
            let Some(bucket) = bucket else { continue };
            self.current = Some(index);
            let look = bucket.look(now);
            clean &= !bucket.is_unreturned(&look);
            bucket.cell.close();
            self.tier.remove(&bucket.cell);
            bucket.answer_all(Answer::Failed(ErrorKind::ShutDown));
        }
        effects.push(Effect::Beat { leave: true });
        self.tally.hold = 0;
        effects.push(Effect::Done { clean });
    }
}
