//! One pass of a world: the events, in the order of time, and what each does.

mod mishaps;
mod post;
mod verdict;

use super::{
    Builder,
    audit::Audit,
    faults::{Fault, Planted},
    node::{Ask, First, Late, Node, Slot, State},
    report::Report,
};
use crate::{
    clock::Clock,
    error::Error,
    hash,
    key::{BucketName, Key, KeySpace, LongKeys},
    lease::InstanceId,
    observe::Event,
    rule::Terms,
    sim::central::Central,
    store::{Answers, Batch, Beat, MemoryStore, Saved},
    sync::Effect,
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
    /// `gone`: of each bucket that it gives something back for, what had been given to nobody by then, in all.
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
        acted: Point,
        batch: Option<Batch>,
    },
    Beat {
        instance: InstanceId,
        leave: bool,
        sent: Micros,
    },
    Beaten(Result<Beat, Error>),
}

/// A time on the world's clock, and how many messages the authority had taken by then: in one microsecond there may be
/// some.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    at: Micros,
    nth: u64,
}

/// One admission.
#[derive(Clone, Copy)]
struct Admitted {
    when: Point,
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
    /// How many messages the authority has taken.
    acts: u64,
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
            acts: 0,
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
        if let First::Admitted(delay) = slot.node.check(&ask, &mut slot.place) {
            slot.place.admitted += cost;
            self.trace.push(Admitted {
                when: Point { at: now.plus(delay), nth: self.acts },
                key: number,
                who: slot.node.born,
                cost,
                sort: Sort::Admitted,
            });
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
                    self.round(place, self.point(now), Vec::new());
                }
            }
            What::Letter(n) => self.letter(n, now),
            What::Fault(n) => self.fault(n, now),
            What::Save(n) => _ = self.saved.insert(n, self.store.save()),
            What::Back(place) => self.back(place, now),
        }
    }

    /// This time, and what the authority has done by now.
    fn point(&self, at: Micros) -> Point {
        Point { at, nth: self.acts }
    }

    /// One round of an engine. `acted`: when the authority gave what it gives now; `given`: how much, by key.
    fn round(&mut self, place: usize, acted: Point, mut given: Vec<(u32, u64)>) {
        let now = self.clock.now();
        let here = self.point(now);
        let slot = &mut self.slots[place];
        let mut effects = mem::take(&mut self.effects);
        slot.node.round(now, &mut effects);
        let next = slot.node.wake;
        slot.node.collect(self.terms, &mut slot.place, &mut self.answered);
        for late in self.answered.drain(..) {
            let done = if late.by_authority { acted } else { here };
            let when = Point { at: done.at.plus(late.delay), ..done };
            let key = late.rule as u32 * self.keys.len() as u32 + late.key;
            slot.place.admitted += late.cost;
            self.trace.push(Admitted { when, key, who: slot.node.born, cost: late.cost, sort: Sort::Admitted });
            if let Some((_, left)) = given.iter_mut().find(|(of, _)| late.by_authority && *of == key) {
                *left = left.saturating_sub(late.cost);
            }
        }
        for (key, cost) in given.into_iter().filter(|(_, left)| *left > 0) {
            self.trace.push(Admitted { when: acted, key, who: slot.node.born, cost, sort: Sort::Gone });
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
                    let gone = self.gone_of(place, id, &batch);
                    Text::Request { id, batch, sent: now, echo: false, gone }
                }
                Effect::Beat { leave } => Text::Beat { instance, leave, sent: now },
                Effect::Report(Event::StateLost { .. }) => {
                    self.states_lost += 1;
                    continue;
                }
                // No rule of a world counts on plain keys.
                Effect::Count { .. } | Effect::Report(_) | Effect::Done { .. } => continue,
            };
            self.send(Letter { place, born, text });
        }
        self.effects = effects;
    }
}
