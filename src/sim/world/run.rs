//! One pass of a world: the events, in the order of time, and what each does.

use super::{
    Builder, RESPONSE_TIMEOUT,
    audit::Audit,
    faults::{Fault, Planted},
    node::{Ask, First, Late, Node, Slot, State},
    report::{Report, Violation},
};
use crate::{
    algorithm::Algorithm,
    clock::Clock,
    error::{Error, ErrorKind},
    hash,
    key::{BucketName, Key, KeySpace, LongKeys},
    lease::{InstanceId, Numbers, Outcome, Reply},
    rule::{Cold, Mode, Terms},
    sim::{
        Admission,
        central::{Central, Moment},
    },
    store::{Answers, Batch, Beat, MemoryStore, Saved},
    sync::{Effect, Input},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    mem,
};

/// From a call to the engine's round: how long a woken thread takes to run, at most.
const LAG_MAX: u64 = 60;
/// The authority's clock starts so long after the epoch: a multiple of a day.
const DAY: u64 = 86_400_000_000;

/// What happens at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The engine of this place runs.
    Wake(usize),
    /// A message arrives.
    Letter(usize),
    /// A fault of the schedule begins.
    Fault(usize),
    /// The authority's state is set aside, for a fault that falls back to it.
    Save(usize),
    /// A frozen or dead instance goes on.
    Back(usize),
}

/// A message under way.
struct Letter {
    /// The place that it comes from or goes to, and who was there when it was sent.
    place: usize,
    born: u32,
    text: Text,
}

enum Text {
    /// `gone`: what each bucket of it had given to nobody by then, in all.
    Request {
        id: u64,
        batch: Batch,
        sent: Micros,
        echo: bool,
        gone: Vec<(u32, u64)>,
    },
    /// `batch`: what it answers.
    Answer {
        id: u64,
        result: Result<Answers, Error>,
        acted: Micros,
        batch: Option<Batch>,
    },
    Beat {
        instance: InstanceId,
        leave: bool,
        sent: Micros,
    },
    Beaten(Result<Beat, Error>),
}

/// One admission.
#[derive(Clone, Copy)]
struct Admitted {
    at: Micros,
    /// The rule's number times the number of keys, plus the key.
    key: u32,
    /// Which instance, by birth.
    who: u32,
    cost: u64,
    sort: Sort,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    /// Somebody was let in.
    Admitted,
    /// The authority gave it to somebody who had left.
    Gone,
    /// What was gone came back.
    Back,
}

/// From this time on so much more may be admitted.
struct Conceded {
    at: Micros,
    key: u32,
    tokens: u64,
}

/// What a planted fault remembers.
#[derive(Default)]
struct Lie {
    /// Grants of answers that came too late.
    late: HashMap<(usize, BucketName), u64>,
    /// The highest order of each sender.
    order: HashMap<(BucketName, InstanceId), (u64, u64)>,
}

/// See the head of this file.
pub(super) struct Run<'w> {
    plan: &'w Builder,
    terms: &'w [Terms],
    clock: Clock,
    store: MemoryStore,
    begin: Micros,
    slots: Vec<Slot>,
    events: BinaryHeap<Reverse<(Micros, u64, What)>>,
    arrivals: BinaryHeap<Reverse<(Micros, usize)>>,
    letters: Vec<Option<Letter>>,
    free: Vec<usize>,
    /// Letters that came to a frozen instance.
    held: Vec<usize>,
    next: u64,
    born: u32,
    road: fastrand::Rng,
    lots: fastrand::Rng,
    faults: Vec<(Micros, Fault)>,
    saved: HashMap<usize, Saved>,
    stalled_until: Micros,
    members: BucketName,
    keys: Vec<Vec<u8>>,
    by_name: HashMap<BucketName, u32>,
    names: Vec<BucketName>,
    trace: Vec<Admitted>,
    /// What the authority has let go, while a fault may forget it.
    lent: Option<Vec<(Micros, u32, u64)>>,
    conceded: Vec<Conceded>,
    /// What was given to nobody, by instance and key: in all, and as far as the authority has taken it back.
    gone: HashMap<(u32, u32), (u64, u64)>,
    /// What each instance has told of debt, by key and series.
    debts: HashMap<(u32, InstanceId, u64), u64>,
    /// When the authority's clock was set, and by how much it differs from the world's since then.
    steps: Vec<(Micros, i64)>,
    central: Vec<Central>,
    central_sum: u64,
    requests: u64,
    lie: Lie,
    audit: Option<Audit>,
    states_lost: u64,
    effects: Vec<Effect>,
    answered: Vec<Late>,
}

impl<'w> Run<'w> {
    pub(super) fn new(plan: &'w Builder, terms: &'w [Terms]) -> Run<'w> {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        let begin = clock.now();
        // A whole day of the authority's clock, and what the plan adds.
        let there = store.time().0;
        let wanted = there.div_ceil(DAY) * DAY + plan.start.0;
        let ahead = i64::try_from(wanted - there).unwrap_or(0);
        store.step_clock(ahead);
        let offset = i64::try_from(wanted).unwrap_or(i64::MAX) - i64::try_from(begin.0).unwrap_or(0);

        let mut seeds = fastrand::Rng::with_seed(plan.seed);
        let (road, lots, faults, traffic) = (seeds.fork(), seeds.fork(), seeds.u64(..), seeds.u64(..));
        let faults = plan.faults.draw(plan.instances, plan.span, faults);
        let space = KeySpace::default();
        let keys: Vec<Vec<u8>> = (0..plan.traffic.key_count()).map(|n| format!("key{n}").into_bytes()).collect();
        let names: Vec<BucketName> = terms
            .iter()
            .flat_map(|t| keys.iter().map(|key| space.bucket(t.kind(), t.name, key, false).1).collect::<Vec<_>>())
            .collect();
        let by_name = names.iter().cloned().zip(0..).collect();
        let falls_back = faults.iter().any(|(_, fault)| matches!(fault, Fault::Failover { .. }));
        let central = if plan.compares {
            terms.iter().flat_map(|t| keys.iter().map(|_| Central::new(&t.numbers))).collect()
        } else {
            Vec::new()
        };
        let audit = plan.audits.then(|| Audit::new(&terms[0].numbers)); // `build` has seen that there is a rule
        store.plant(plan.planted.and_then(Planted::of_the_book));
        let mut run = Run {
            plan,
            terms,
            store,
            begin,
            slots: Vec::new(),
            events: BinaryHeap::new(),
            arrivals: BinaryHeap::new(),
            letters: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            next: 0,
            born: 0,
            road,
            lots,
            saved: HashMap::new(),
            stalled_until: Micros::ZERO,
            members: space.members().1,
            keys,
            by_name,
            names,
            trace: Vec::new(),
            lent: falls_back.then(Vec::new),
            conceded: Vec::new(),
            gone: HashMap::new(),
            debts: HashMap::new(),
            steps: vec![(Micros::ZERO, offset)],
            central,
            central_sum: 0,
            requests: 0,
            lie: Lie::default(),
            audit,
            states_lost: 0,
            effects: Vec::new(),
            answered: Vec::new(),
            faults: Vec::new(),
            clock,
        };
        for place in 0..plan.instances {
            let source = plan.traffic.source(place, plan.instances, begin, traffic);
            let node = run.give_birth();
            run.arrivals.push(Reverse((source.next_at(), place)));
            let (cut_until, until) = (Micros::ZERO, Micros::ZERO);
            run.slots.push(Slot { node, source, place: super::Place::default(), cut_until, until });
            run.wake(place, begin);
        }
        for (n, (at, fault)) in faults.iter().enumerate() {
            run.event(begin.plus(*at), What::Fault(n));
            if let Fault::Failover { lag } = fault {
                run.event(begin.plus(at.minus((*lag).into())), What::Save(n));
            }
        }
        run.faults = faults;
        run
    }

    pub(super) fn go(mut self) -> Report {
        let (last, end) = (self.begin.plus(self.plan.span), self.begin.plus(self.plan.span).plus(self.plan.rest));
        loop {
            let event = self.events.peek().map_or(Micros::MAX, |Reverse((at, ..))| *at);
            let arrival = self.arrivals.peek().map_or(Micros::MAX, |Reverse((at, _))| *at);
            if arrival <= event && arrival < last {
                self.arrive(arrival);
            } else if event < end {
                self.set_clock(event);
                if let Some(Reverse((_, _, what))) = self.events.pop() {
                    self.happen(what);
                }
            } else {
                break;
            }
        }
        self.set_clock(end);
        self.judge()
    }

    fn set_clock(&self, at: Micros) {
        self.clock.advance(at.minus(self.clock.now()));
    }

    fn event(&mut self, at: Micros, what: What) {
        self.next += 1;
        self.events.push(Reverse((at, self.next, what)));
    }

    fn give_birth(&mut self) -> Node {
        self.born += 1;
        // A number of its own, from which the engine draws all that it draws.
        let seed = [self.plan.seed.to_le_bytes(), u64::from(self.born).to_le_bytes()];
        let instance = InstanceId(hash::stable(&[&seed[0], &seed[1]]) >> 11 | 1);
        let members = self.plan.told.then_some(self.plan.instances as u32); // at most 1,000
        let node = Node::new(self.born, instance, self.terms, &self.clock, members);
        self.concede_a_birth();
        node
    }

    /// The next request of the place that is first.
    fn arrive(&mut self, now: Micros) {
        self.set_clock(now);
        let Some(mut first) = self.arrivals.peek_mut() else { return };
        let place = first.0.1;
        let slot = &mut self.slots[place];
        let request = slot.source.take();
        first.0.0 = slot.source.next_at();
        drop(first);
        if slot.node.state != State::Up {
            return; // nobody is there to be asked
        }
        let rule = if self.terms.len() == 1 { 0 } else { self.lots.usize(0..self.terms.len()) };
        let number = rule as u32 * self.keys.len() as u32 + request.key;
        let terms = &self.terms[rule];
        let cost = request.cost;
        self.requests += 1;
        slot.place.offered += cost;
        if !self.central.is_empty() {
            let moment = self.moment(now);
            if self.central[number as usize].offer(moment, cost) {
                self.central_sum += cost;
            }
        }
        if cost > terms.numbers.burst {
            self.slots[place].place.denied += cost;
            return;
        }
        let Some(key) = Key::new(&self.keys[request.key as usize], LongKeys::Hash) else { return };
        let ask = Ask { terms, rule, key_number: request.key, key: &key, cost, waits: request.waits };
        let slot = &mut self.slots[place];
        if let First::Admitted = slot.node.check(&ask, &mut slot.place) {
            slot.place.admitted += cost;
            self.trace.push(Admitted { at: now, key: number, who: slot.node.born, cost, sort: Sort::Admitted });
        }
        if slot.node.is_called() {
            let lag = Micros(10 + self.lots.u64(0..LAG_MAX));
            self.wake(place, now.plus(lag));
        }
    }

    /// Has the engine run at this time, if it does not before.
    fn wake(&mut self, place: usize, at: Micros) {
        let node = &mut self.slots[place].node;
        if at < node.wake {
            node.wake = at;
            self.event(at, What::Wake(place));
        }
    }

    fn happen(&mut self, what: What) {
        let now = self.clock.now();
        match what {
            What::Wake(place) => {
                let node = &self.slots[place].node;
                if node.wake == now && node.state == State::Up {
                    self.round(place, now, Vec::new());
                }
            }
            What::Letter(n) => self.letter(n, now),
            What::Fault(n) => self.fault(n, now),
            What::Save(n) => _ = self.saved.insert(n, self.store.save()),
            What::Back(place) => self.back(place, now),
        }
    }

    /// One round of an engine. `acted`: when the authority gave what it gives now; `given`: how much, by key.
    fn round(&mut self, place: usize, acted: Micros, mut given: Vec<(u32, u64)>) {
        let now = self.clock.now();
        let slot = &mut self.slots[place];
        let mut effects = mem::take(&mut self.effects);
        slot.node.round(now, &mut effects);
        let next = slot.node.wake;
        slot.node.collect(self.terms, &mut slot.place, &mut self.answered);
        for late in self.answered.drain(..) {
            let at = if late.by_authority { acted } else { now }.plus(late.delay);
            let key = late.rule as u32 * self.keys.len() as u32 + late.key;
            slot.place.admitted += late.cost;
            self.trace.push(Admitted { at, key, who: slot.node.born, cost: late.cost, sort: Sort::Admitted });
            if let Some((_, left)) = given.iter_mut().find(|(of, _)| late.by_authority && *of == key) {
                *left = left.saturating_sub(late.cost);
            }
        }
        for (key, cost) in given.into_iter().filter(|(_, left)| *left > 0) {
            self.trace.push(Admitted { at: acted, key, who: slot.node.born, cost, sort: Sort::Gone });
            self.gone.entry((slot.node.born, key)).or_default().0 += cost;
        }
        let (born, instance) = (slot.node.born, slot.node.engine.instance());
        if next < Micros::MAX {
            self.event(next, What::Wake(place));
        }
        if self.slots[place].node.is_called() {
            self.wake(place, now.plus(Micros(10)));
        }
        for effect in effects.drain(..) {
            let text = match effect {
                Effect::Send { id, batch } => {
                    let gone = self.gone_of(&batch, born);
                    Text::Request { id, batch, sent: now, echo: false, gone }
                }
                Effect::Beat { leave } => Text::Beat { instance, leave, sent: now },
                Effect::Report(crate::observe::Event::StateLost { .. }) => {
                    self.states_lost += 1;
                    continue;
                }
                Effect::Report(_) | Effect::Done { .. } => continue,
            };
            self.send(Letter { place, born, text });
        }
        self.effects = effects;
    }

    /// What the buckets of a batch have given to nobody, in all.
    fn gone_of(&self, batch: &Batch, born: u32) -> Vec<(u32, u64)> {
        if self.gone.is_empty() {
            return Vec::new();
        }
        let keys = batch.questions.iter().filter_map(|(name, _)| self.by_name.get(name));
        keys.filter_map(|key| Some((*key, self.gone.get(&(born, *key))?.0))).collect()
    }

    /// How long a message takes; `None`: it is lost.
    fn way(&mut self, place: usize) -> Option<Micros> {
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
    fn send(&mut self, letter: Letter) {
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

    fn post(&mut self, at: Micros, letter: Letter) {
        let n = self.free.pop().unwrap_or_else(|| {
            self.letters.push(None);
            self.letters.len() - 1
        });
        self.letters[n] = Some(letter);
        self.event(at, What::Letter(n));
    }

    /// The sender's connection will wait in vain: it is told so at the time-out.
    fn give_up(&mut self, letter: &Letter) {
        let lost = || Error::new(ErrorKind::Unanswered, "no answer in time");
        let (text, sent) = match letter.text {
            Text::Request { id, sent, echo: false, .. } => {
                (Text::Answer { id, result: Err(lost()), acted: Micros::ZERO, batch: None }, sent)
            }
            Text::Beat { sent, .. } => (Text::Beaten(Err(lost())), sent),
            _ => return,
        };
        let at = sent.plus(RESPONSE_TIMEOUT).max(self.clock.now());
        self.post(at, Letter { place: letter.place, born: letter.born, text });
    }

    /// A message arrives.
    fn letter(&mut self, n: usize, now: Micros) {
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
                let answers = self.act(&batch, place, now);
                self.take_back(&batch, &answers, &gone, born, now);
                let result = Ok(answers);
                if !echo {
                    self.answer(place, born, sent, Text::Answer { id, result, acted: now, batch: Some(batch) });
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
                self.round(place, now, Vec::new());
            }
        }
        self.free.push(n);
    }

    /// Sends an answer on its way, if it can be back in time.
    fn answer(&mut self, place: usize, born: u32, sent: Micros, text: Text) {
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
                        Text::Answer { id, .. } => Text::Answer { id, result: Err(lost()), acted: now, batch: None },
                        _ => Text::Beaten(Err(lost())),
                    };
                    self.post(told, Letter { place, born, text });
                }
            }
        }
    }

    /// What an answer gives to those who wait, by key.
    fn given(&self, batch: Option<&Batch>, result: &Result<Answers, Error>) -> Vec<(u32, u64)> {
        let (Some(batch), Ok(answers)) = (batch, result) else { return Vec::new() };
        let pairs = batch.questions.iter().zip(answers);
        let given = pairs.filter_map(|((name, sync), answer)| {
            let reply = answer.as_ref().ok().filter(|reply| reply.outcome == Outcome::Applied && reply.given > 0)?;
            Some((*self.by_name.get(name)?, reply.given * sync.need.cost))
        });
        given.collect()
    }

    /// The authority was told that what it had given found nobody.
    fn take_back(&mut self, batch: &Batch, answers: &Answers, gone: &[(u32, u64)], born: u32, now: Micros) {
        for (key, sum) in gone {
            let place = batch.questions.iter().position(|(name, _)| self.by_name.get(name) == Some(key));
            let answer = place.and_then(|place| answers.get(place)?.as_ref().ok());
            if let Some((_, back)) = self.gone.get_mut(&(born, *key))
                && answer.is_some_and(|reply| reply.outcome == Outcome::Applied)
                && *sum > *back
            {
                self.trace.push(Admitted { at: now, key: *key, who: born, cost: *sum - *back, sort: Sort::Back });
                *back = *sum;
            }
        }
    }

    /// The authority takes a batch.
    fn act(&mut self, batch: &Batch, place: usize, now: Micros) -> Answers {
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
    fn tamper(&mut self, name: &BucketName, sync: &mut crate::lease::Sync) {
        match self.plan.planted {
            Some(Planted::SpendsDeadLeases) => sync.span = Micros::from_millis(20),
            Some(Planted::HidesHold) => sync.hold = 0,
            Some(Planted::HidesUse) => sync.used = 0,
            Some(Planted::ForgetsGeneration) => sync.generation = 0,
            Some(Planted::ForgetsOrder) => {
                let last = self.lie.order.entry((name.clone(), sync.instance)).or_default();
                *last = (sync.epoch.max(last.0), last.1.max(sync.seq) + 1);
                (sync.epoch, sync.seq) = *last;
            }
            _ => {}
        }
    }

    fn fault(&mut self, n: usize, now: Micros) {
        let (_, fault) = self.faults[n];
        match fault {
            Fault::Crash { instance, down } => {
                if let Some(slot) = self.slots.get_mut(instance).filter(|slot| slot.node.state != State::Down) {
                    slot.node.state = State::Down;
                    slot.until = now.plus(down.into());
                    let until = slot.until;
                    self.event(until, What::Back(instance));
                }
            }
            Fault::Freeze { instance, span } => {
                if let Some(slot) = self.slots.get_mut(instance).filter(|slot| slot.node.state == State::Up) {
                    slot.node.state = State::Frozen;
                    slot.until = now.plus(span.into());
                    let until = slot.until;
                    self.event(until, What::Back(instance));
                }
            }
            Fault::Cut { instance, span } => {
                let until = now.plus(span.into());
                let cut = |slot: &mut Slot| slot.cut_until = slot.cut_until.max(until);
                match instance {
                    Some(instance) => self.slots.get_mut(instance).into_iter().for_each(cut),
                    None => self.slots.iter_mut().for_each(cut),
                }
            }
            Fault::Stall { span } => self.stalled_until = self.stalled_until.max(now.plus(span.into())),
            Fault::Wipe => {
                self.concede_lost_memory(now);
                self.store.wipe();
            }
            Fault::Failover { lag } => {
                if let Some(saved) = self.saved.remove(&n) {
                    self.concede_failover(now, lag.into());
                    self.store.restore(&saved);
                }
            }
            Fault::Step { micros } => {
                self.concede_step(now, micros);
                self.store.step_clock(micros);
                let offset = self.steps.last().map_or(0, |(_, offset)| *offset);
                self.steps.push((now, offset.saturating_add(micros)));
            }
        }
    }

    /// A frozen or dead instance goes on.
    fn back(&mut self, place: usize, now: Micros) {
        let slot = &self.slots[place];
        if slot.until != now {
            return; // crashed while it was frozen
        }
        match slot.node.state {
            State::Up => {}
            State::Down => {
                self.slots[place].node = self.give_birth();
                self.wake(place, now);
            }
            State::Frozen => {
                self.slots[place].node.state = State::Up;
                for n in mem::take(&mut self.held) {
                    if self.letters[n].as_ref().is_some_and(|letter| letter.place == place) {
                        self.letter(n, now);
                    } else {
                        self.held.push(n);
                    }
                }
                self.slots[place].node.wake = Micros::MAX;
                self.wake(place, now);
            }
        }
    }

    /// A moment on the authority's clock.
    fn moment(&self, at: Micros) -> Moment {
        let known = self.steps.partition_point(|(since, _)| *since <= at).max(1);
        let forward = self.steps[..known].windows(2).map(|pair| (pair[1].1 - pair[0].1).max(0)).sum::<i64>();
        let there = (at.0 as i64).saturating_add(self.steps[known - 1].1);
        Moment {
            at,
            shown: Micros(at.0.saturating_add(forward.unsigned_abs())),
            there: Micros(u64::try_from(there).unwrap_or(0)),
            steps: known as u32,
        }
    }

    fn concede(&mut self, at: Micros, key: usize, tokens: u64) {
        if tokens > 0 {
            self.conceded.push(Conceded { at, key: key as u32, tokens });
        }
    }

    fn rule_of(&self, key: usize) -> &'w Terms {
        &self.terms[key / self.keys.len()]
    }

    /// A `Buffered` instance may be ahead of the authority; one with a credit may take it in each lease life.
    fn concede_a_birth(&mut self) {
        let now = self.clock.now();
        let span = self.plan.span.plus(self.plan.rest);
        for key in 0..self.names.len() {
            let terms = self.rule_of(key);
            if terms.mode == Mode::Buffered {
                self.concede(now, key, terms.ahead(1));
            }
            if let Cold::Credit(tokens) = terms.cold {
                let lives = span.0 / terms.lease_ttl.0.max(1) + 1;
                self.concede(now, key, tokens.saturating_mul(lives));
            }
        }
    }

    /// What may be spent twice when the authority forgets: what is out, and one burst where one who never knew the
    /// bucket asks first.
    fn concede_lost_memory(&mut self, now: Micros) {
        for key in 0..self.names.len() {
            let out = self.store.sums(&self.names[key]).map_or(0, |sums| sums.out);
            self.concede(now, key, out.saturating_add(most(&self.rule_of(key).numbers)));
        }
    }

    /// What was let go in the lost time.
    fn concede_failover(&mut self, now: Micros, lag: Micros) {
        let since = now.minus(lag);
        let mut lost: HashMap<u32, u64> = HashMap::new();
        for (at, key, tokens) in self.lent.iter().flatten().rev().take_while(|(at, ..)| *at >= since) {
            debug_assert!(*at <= now);
            *lost.entry(*key).or_default() += tokens;
        }
        let mut lost: Vec<_> = lost.into_iter().collect();
        lost.sort_unstable();
        lost.into_iter().for_each(|(key, tokens)| self.concede(now, key as usize, tokens));
    }

    /// A step forward ends leases early, and brings refill that no time has brought.
    fn concede_step(&mut self, now: Micros, micros: i64) {
        let Ok(step) = u64::try_from(micros) else { return };
        for key in 0..self.names.len() {
            let numbers = &self.rule_of(key).numbers;
            let out = self.store.sums(&self.names[key]).map_or(0, |sums| sums.out);
            // Windows are judged by the authority's clock, to which no time was added.
            let came = numbers.rate.tokens_in(Micros(step)).saturating_add(1);
            let refill = if numbers.algorithm.is_window() { 0 } else { came.min(most(numbers)) };
            self.concede(now, key, out.saturating_add(refill));
        }
    }

    /// Replays all admissions through one machine for each key.
    fn judge(mut self) -> Report {
        // Nearly in order: only what the authority gave is told later than it was given.
        self.trace.sort_by_key(|admitted| admitted.at);
        let begin = self.begin;
        let since = |at: Micros| at.minus(begin);
        let mut report = Report {
            seed: self.plan.seed,
            span: self.plan.span.plus(self.plan.rest),
            requests: self.requests,
            admissions: self.trace.iter().filter(|a| a.sort == Sort::Admitted).count() as u64,
            places: self.slots.iter().map(|slot| slot.place).collect(),
            central: self.central_sum,
            violations: 0,
            first: None,
            excess: 0.0,
            conceded: 0,
            bound: self.bound(),
            states_lost: self.states_lost,
            conserved: None,
            unbalanced: None,
            trace: Vec::new(),
        };
        let locals = self.terms.iter().any(|terms| terms.mode == Mode::Local);
        // (machine, parts conceded so far), for each key, or for each key and instance of a local rule.
        let mut machines: HashMap<(u32, u32), (Central, i128)> = HashMap::new();
        let mut row: Vec<Option<(Central, i128)>> = vec![None; self.names.len()];
        let mut exceptions = self.conceded.iter().peekable();
        let mut given: HashMap<u32, u64> = HashMap::new();
        let plain = self.steps.len() == 1;
        let machine_of = if plain { Central::new } else { Central::of_a_set_clock };
        let offset = self.steps[0].1;
        for admitted in &self.trace {
            while let Some(exception) = exceptions.next_if(|exception| exception.at <= admitted.at) {
                let terms = self.rule_of(exception.key as usize);
                let place = &mut row[exception.key as usize];
                let (machine, parts) = place.get_or_insert_with(|| (machine_of(&terms.numbers), 0));
                *parts += machine.parts(exception.tokens);
                let sum = given.entry(exception.key).or_default();
                *sum += exception.tokens;
                report.conceded = report.conceded.max(*sum);
            }
            let terms = self.rule_of(admitted.key as usize);
            let fresh = || (machine_of(&terms.numbers), 0);
            let (machine, parts) = if locals && terms.mode == Mode::Local {
                machines.entry((admitted.key, admitted.who)).or_insert_with(fresh)
            } else {
                row[admitted.key as usize].get_or_insert_with(fresh)
            };
            let moment = if plain {
                Moment {
                    at: admitted.at,
                    shown: admitted.at,
                    there: Micros((admitted.at.0 as i64 + offset) as u64),
                    steps: 1,
                }
            } else {
                self.moment(admitted.at)
            };
            if admitted.sort != Sort::Admitted {
                // In a window it is as if neither had been.
                match admitted.sort {
                    Sort::Back => machine.give_back(moment, admitted.cost),
                    _ if terms.numbers.algorithm.is_window() => {}
                    _ => _ = machine.take(moment, admitted.cost),
                }
                continue;
            }
            let over = machine.take(moment, admitted.cost);
            if over > 0 {
                report.excess = report.excess.max(machine.tokens(over));
                if over > *parts {
                    report.violations += 1;
                    report.first.get_or_insert_with(|| Violation {
                        rule: admitted.key as usize / self.keys.len(),
                        key: admitted.key % self.keys.len() as u32,
                        from: since(machine.since()),
                        to: since(admitted.at),
                        excess: machine.tokens(over - *parts),
                    });
                }
            }
        }
        if self.plan.traces {
            let first = self.trace.iter().filter(|a| (a.key as usize) < self.keys.len() && a.sort == Sort::Admitted);
            let as_seen = |a: &Admitted| Admission { before: since(a.at), after: since(a.at), cost: a.cost };
            report.trace = first.map(as_seen).collect();
        }
        if let Some(audit) = &self.audit {
            let key = Key::new(&self.keys[0], LongKeys::Hash);
            let held = key.map_or(0, |key| self.slots.iter().map(|slot| slot.node.held(0, &key)).sum());
            let admitted = self.trace.iter().filter(|a| a.key == 0 && a.sort == Sort::Admitted).map(|a| a.cost).sum();
            report.conserved = Some(audit.close(admitted, held, self.store.sums(&self.names[0])));
            report.unbalanced = audit.unbalanced().map(since);
        }
        report
    }

    /// The bound of the first rule, in words.
    fn bound(&self) -> String {
        let numbers = &self.terms[0].numbers;
        let mut words = if numbers.algorithm.is_window() {
            format!("{} in {:?}", numbers.burst, std::time::Duration::from(numbers.window))
        } else {
            format!("{} + {:.3}/s * T", numbers.burst, numbers.rate.per_second())
        };
        match self.terms[0].mode {
            Mode::Local => words.push_str(", each instance"),
            Mode::Buffered => words.push_str(" + N * ahead"),
            _ => {}
        }
        words
    }
}

/// The most that a full machine lets pass at once: from a queue one leaves, and so many wait.
fn most(numbers: &Numbers) -> u64 {
    numbers.burst + u64::from(numbers.algorithm == Algorithm::LeakyQueue)
}
