//! The road: messages on their way, and what the authority answers.

use super::{Admitted, Letter, Point, Run, Sort, Text, What};
use crate::{
    error::{Error, ErrorKind},
    key::BucketName,
    lease::{Outcome, Reply, Sync},
    sim::world::{RESPONSE_TIMEOUT, faults::Planted, node::State},
    store::{Answers, Batch},
    sync::Input,
    time::Micros,
};

impl<'w> Run<'w> {
    /// What those buckets of a batch have given to nobody, in all, that now give it back.
    pub(super) fn gone_of(&self, place: usize, id: u64, batch: &Batch) -> Vec<(u32, u64)> {
        if self.gone.is_empty() {
            return Vec::new();
        }
        let node = &self.slots[place].node;
        let told = batch.questions.iter().enumerate().filter(|(nth, _)| node.engine.gives_back(id, *nth));
        let keys = told.filter_map(|(_, (name, _))| self.by_name.get(name));
        keys.filter_map(|key| Some((*key, self.gone.get(&(node.born, *key))?.0))).collect()
    }

    /// How long a message takes; `None`: it is lost.
    pub(super) fn way(&mut self, place: usize) -> Option<Micros> {
        let network = &self.plan.network;
        if self.slots[place].cut_until > self.clock.now() || (network.loss > 0.0 && self.road.f64() < network.loss) {
            return None;
        }
        let (part, most) = network.slow;
        if part > 0.0 && self.road.f64() < part {
            return Some(Micros(self.road.u64(0..=most.0)));
        }
        let (least, most) = network.delay;
        Some(Micros(if least < most { self.road.u64(least.0..=most.0) } else { least.0 }))
    }

    /// Sends a question on its way, or tells its sender in time that nothing came of it.
    pub(super) fn send(&mut self, letter: Letter) {
        let now = self.clock.now();
        let place = letter.place;
        let Some(way) = self.way(place) else { return self.give_up(&letter) };
        if way > RESPONSE_TIMEOUT {
            self.give_up(&letter);
        }
        if self.plan.network.repeat > 0.0
            && self.road.f64() < self.plan.network.repeat
            && let Text::Request { id, ref batch, sent, ref gone, .. } = letter.text
        {
            let again = Micros(self.road.u64(0..RESPONSE_TIMEOUT.0));
            let text = Text::Request { id, batch: batch.clone(), sent, echo: true, gone: gone.clone() };
            self.post(now.plus(again), Letter { place, born: letter.born, text });
        }
        self.post(now.plus(way), letter);
    }

    pub(super) fn post(&mut self, at: Micros, letter: Letter) {
        let n = self.free.pop().unwrap_or_else(|| {
            self.letters.push(None);
            self.letters.len() - 1
        });
        self.letters[n] = Some(letter);
        self.event(at, What::Letter(n));
    }

    /// The sender's connection will wait in vain: it is told so at the time-out.
    pub(super) fn give_up(&mut self, letter: &Letter) {
        let lost = || Error::new(ErrorKind::Unanswered, "no answer in time");
        let (text, sent) = match letter.text {
            Text::Request { id, sent, echo: false, .. } => {
                (Text::Answer { id, result: Err(lost()), acted: self.point(Micros::ZERO), batch: None }, sent)
            }
            Text::Beat { sent, .. } => (Text::Beaten(Err(lost())), sent),
            _ => return,
        };
        let at = sent.plus(RESPONSE_TIMEOUT).max(self.clock.now());
        self.post(at, Letter { place: letter.place, born: letter.born, text });
    }

    /// A message arrives.
    pub(super) fn letter(&mut self, n: usize, now: Micros) {
        let Some(letter) = self.letters[n].take() else { return };
        let (place, born) = (letter.place, letter.born);
        match letter.text {
            Text::Request { .. } | Text::Beat { .. } if now < self.stalled_until => {
                let sent = match letter.text {
                    Text::Request { sent, .. } | Text::Beat { sent, .. } => sent,
                    _ => now,
                };
                // What was sent long ago its sender has given up already.
                let (told, until) = (sent.plus(RESPONSE_TIMEOUT), self.stalled_until);
                if now <= told && until > told {
                    self.give_up(&letter);
                }
                self.letters[n] = Some(letter);
                self.event(until, What::Letter(n));
                return;
            }
            Text::Request { id, batch, sent, echo, gone } => {
                self.acts += 1;
                let answers = self.act(&batch, place, now);
                self.take_back(&batch, &answers, &gone, born, now);
                let result = Ok(answers);
                if !echo {
                    self.answer(
                        place,
                        born,
                        sent,
                        Text::Answer { id, result, acted: self.point(now), batch: Some(batch) },
                    );
                }
            }
            Text::Beat { instance, leave, sent } => {
                let result = self.store.beat(&self.members, instance, leave);
                self.answer(place, born, sent, Text::Beaten(result));
            }
            Text::Answer { .. } | Text::Beaten(_) if self.slots[place].node.born != born => {}
            Text::Answer { .. } | Text::Beaten(_) if self.slots[place].node.state == State::Frozen => {
                self.letters[n] = Some(letter);
                self.held.push(n);
                return;
            }
            Text::Answer { id, result, acted, batch } => {
                let given = self.given(batch.as_ref(), &result);
                self.slots[place].node.put(Input::Answered { id, result });
                self.round(place, acted, given);
            }
            Text::Beaten(result) => {
                self.slots[place].node.put(Input::Beaten(result));
                self.round(place, self.point(now), Vec::new());
            }
        }
        self.free.push(n);
    }

    /// Sends an answer on its way, if it can be back in time.
    pub(super) fn answer(&mut self, place: usize, born: u32, sent: Micros, text: Text) {
        let now = self.clock.now();
        let told = sent.plus(RESPONSE_TIMEOUT);
        let back = self.way(place).map(|way| now.plus(way));
        match back {
            Some(at) if at <= told => self.post(at, Letter { place, born, text }),
            _ => {
                if self.plan.planted == Some(Planted::TakesLateAnswers)
                    && let Text::Answer { result: Ok(answers), batch: Some(batch), .. } = &text
                {
                    for ((name, _), reply) in batch.questions.iter().zip(answers.iter().flatten()) {
                        *self.lie.late.entry((place, name.clone())).or_default() += reply.grant;
                    }
                }
                // Given up already where the question itself was late, or the authority stalled.
                if now < told {
                    let lost = || Error::new(ErrorKind::Unanswered, "no answer in time");
                    let text = match text {
                        Text::Answer { id, .. } => {
                            Text::Answer { id, result: Err(lost()), acted: self.point(now), batch: None }
                        }
                        _ => Text::Beaten(Err(lost())),
                    };
                    self.post(told, Letter { place, born, text });
                }
            }
        }
    }

    /// What an answer gives to those who wait, by key.
    pub(super) fn given(&self, batch: Option<&Batch>, result: &Result<Answers, Error>) -> Vec<(u32, u64)> {
        let (Some(batch), Ok(answers)) = (batch, result) else { return Vec::new() };
        let pairs = batch.questions.iter().zip(answers);
        let given = pairs.filter_map(|((name, sync), answer)| {
            let reply = answer.as_ref().ok().filter(|reply| reply.outcome == Outcome::Applied && reply.given > 0)?;
            Some((*self.by_name.get(name)?, reply.given * sync.need.cost))
        });
        given.collect()
    }

    /// The authority was told that what it had given found nobody.
    pub(super) fn take_back(&mut self, batch: &Batch, answers: &Answers, gone: &[(u32, u64)], born: u32, now: Micros) {
        for (key, sum) in gone {
            let place = batch.questions.iter().position(|(name, _)| self.by_name.get(name) == Some(key));
            let answer = place.and_then(|place| answers.get(place)?.as_ref().ok());
            if let Some((_, back)) = self.gone.get_mut(&(born, *key))
                && answer.is_some_and(|reply| reply.outcome == Outcome::Applied)
                && *sum > *back
            {
                let when = Point { at: now, nth: self.acts };
                self.trace.push(Admitted { when, key: *key, who: born, cost: *sum - *back, sort: Sort::Back });
                *back = *sum;
            }
        }
    }

    /// The authority takes a batch.
    pub(super) fn act(&mut self, batch: &Batch, place: usize, now: Micros) -> Answers {
        let mut answers = Vec::with_capacity(batch.questions.len());
        if self.plan.planted.is_some() || self.audit.is_some() {
            for (name, sync) in &batch.questions {
                let mut told = *sync;
                self.tamper(name, &mut told);
                let before = self.audit.as_ref().map(|_| self.store.sums(name));
                let one = Batch { tag: batch.tag, questions: vec![(name.clone(), told)] };
                let answer = self.store.sync(&one).map(|mut answers| answers.remove(0));
                let answer =
                    answer.and_then(|answer| answer).map(|reply| Reply { epoch: sync.epoch, seq: sync.seq, ..reply });
                if let (Some(audit), Some(before), Ok(reply)) = (&mut self.audit, before, &answer)
                    && *name == self.names[0]
                {
                    audit.message(sync, reply, before, self.store.sums(name), now);
                }
                answers.push(answer);
            }
        } else {
            answers = self.store.sync(batch).unwrap_or_default();
        }
        for ((name, sync), answer) in batch.questions.iter().zip(&mut answers) {
            let Ok(reply) = answer else { continue };
            self.slots[place].place.syncs += 1;
            if let (Some(lent), Some(key)) = (&mut self.lent, self.by_name.get(name))
                && reply.outcome == Outcome::Applied
            {
                let told = self.debts.entry((*key, sync.instance, sync.born)).or_default();
                let debt = sync.debt.sum.saturating_sub(*told);
                *told = sync.debt.sum.max(*told);
                lent.push((now, *key, reply.grant + reply.given * sync.need.cost + debt));
            }
            if self.plan.planted == Some(Planted::TakesLateAnswers)
                && let Some(late) = self.lie.late.remove(&(place, name.clone()))
            {
                reply.grant += late;
            }
        }
        answers
    }

    /// Changes a question as the planted fault would have it.
    pub(super) fn tamper(&mut self, name: &BucketName, sync: &mut Sync) {
        match self.plan.planted {
            Some(Planted::SpendsDeadLeases) => sync.span = Micros::from_millis(20),
            Some(Planted::HidesHold) => sync.hold = 0,
            Some(Planted::HidesUse) => sync.used = 0,
            Some(Planted::HidesDebt) => sync.debt.sum = sync.debt.acked,
            Some(Planted::ForgetsGeneration) => sync.generation = 0,
            Some(Planted::ForgetsOrder) => {
                let last = self.lie.order.entry((name.clone(), sync.instance)).or_default();
                *last = (sync.epoch.max(last.0), last.1.max(sync.seq) + 1);
                (sync.epoch, sync.seq) = *last;
            }
            _ => {}
        }
    }
}
