//! The engine in a small world: virtual time, several instances, one embedded store, no task.

use super::{Admission, Judge, Reference};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::{Key, KeySpace, LongKeys},
    lease::InstanceId,
    local::{Bell, Cell, Local, Tier},
    rule::{Rule, Terms},
    store::{Answers, Batch, Beat, MemoryStore},
    sync::{Answer, Effect, Engine, Input, Settings, Ticket, pair},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

const TICK: Micros = Micros(100);

struct Silent;
impl Bell for Silent {
    fn ring(&self) {}
}

struct Node {
    engine: Engine,
    tier: Arc<Tier>,
    waiting: Vec<(Ticket, u64)>,
    admitted: u64,
    denied: u64,
    failed: u64,
    late: u64,
}

/// A message under way: when, a number that keeps the order, to whom, what.
type Post = (Reverse<(Micros, u64)>, usize);

struct World {
    clock: Clock,
    store: MemoryStore,
    nodes: Vec<Node>,
    terms: Vec<Terms>,
    half_trip: Micros,
    trace: Vec<Admission>,
    post: BinaryHeap<Post>,
    letters: std::collections::HashMap<u64, Letter>,
    next: u64,
}

enum Letter {
    Request { id: u64, batch: Batch },
    Answer { id: u64, result: Result<Answers, Error> },
    Beat,
    Beaten(Result<Beat, Error>),
}

impl World {
    fn new(instances: usize, rules: &[Rule]) -> World {
        let clock = Clock::manual();
        let terms: Vec<Terms> = rules.iter().map(|rule| rule.check("r").expect("a fair rule")).collect();
        let mut world = World {
            store: MemoryStore::with_clock(clock.clone()),
            nodes: Vec::new(),
            half_trip: Micros(300),
            trace: Vec::new(),
            post: BinaryHeap::new(),
            letters: std::collections::HashMap::new(),
            next: 0,
            clock,
            terms,
        };
        for _ in 0..instances {
            world.join();
        }
        world
    }

    fn join(&mut self) {
        let tier = Tier::new(self.clock.clone(), 100_000, Arc::new(Silent));
        let settings = Settings {
            instance: InstanceId(self.nodes.len() as u64 + 1),
            keys: KeySpace::default(),
            rules: self.terms.clone(),
            instances: None,
            syncs_per_second_max: 20_000,
            response_timeout: Micros::from_millis(200),
        };
        let engine = Engine::new(settings, tier.clone(), self.clock.now());
        self.nodes.push(Node { engine, tier, waiting: Vec::new(), admitted: 0, denied: 0, failed: 0, late: 0 });
    }

    /// One check that may wait, as `Limiter::check` makes it.
    fn check(&mut self, node: usize, key: &str, cost: u64) {
        let key = Key::new(key.as_bytes(), LongKeys::Hash).expect("a short key");
        let now = self.clock.now();
        match self.nodes[node].tier.check(0, &key, cost) {
            Local::Allowed { .. } => self.admit(node, cost),
            Local::Denied { .. } => self.nodes[node].denied += 1,
            Local::Saturated => self.nodes[node].failed += 1,
            Local::Cold(cell) => self.ask(node, cell, cost, now.plus(Micros::from_millis(50))),
        }
    }

    /// One check that does not wait, as `Limiter::check_now` makes it.
    fn check_now(&mut self, node: usize, key: &str, cost: u64) -> bool {
        let key = Key::new(key.as_bytes(), LongKeys::Hash).expect("a short key");
        match self.nodes[node].tier.check(0, &key, cost) {
            Local::Allowed { .. } => {
                self.admit(node, cost);
                return true;
            }
            Local::Denied { .. } => {}
            Local::Saturated => self.nodes[node].failed += 1,
            Local::Cold(cell) => {
                cell.refuse(cost);
                self.nodes[node].tier.call(&cell);
            }
        }
        self.nodes[node].denied += 1;
        false
    }

    fn ask(&mut self, node: usize, cell: Arc<Cell>, cost: u64, deadline: Micros) {
        let (ticket, waiter) = pair();
        self.input(node, Input::Ask { cell, cost, deadline, waiter });
        self.nodes[node].waiting.push((ticket, cost));
    }

    fn admit(&mut self, node: usize, cost: u64) {
        let now = self.clock.now();
        self.nodes[node].admitted += cost;
        self.trace.push(Admission { before: now, after: now, cost });
    }

    fn input(&mut self, node: usize, input: Input) {
        let mut effects = Vec::new();
        self.nodes[node].engine.turn(input, self.clock.now(), &mut effects);
        self.carry(node, effects);
    }

    fn carry(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { id, batch } => self.mail(node, Letter::Request { id, batch }),
                Effect::Beat { leave: false } => self.mail(node, Letter::Beat),
                Effect::Beat { leave: true } | Effect::Report(_) | Effect::Done { .. } => {}
            }
        }
    }

    fn mail(&mut self, node: usize, letter: Letter) {
        self.next += 1;
        self.letters.insert(self.next, letter);
        self.post.push((Reverse((self.clock.now().plus(self.half_trip), self.next)), node));
    }

    /// Lets one tick pass: carries what has arrived, runs every engine, answers who waited.
    fn tick(&mut self) {
        self.clock.advance(TICK);
        let now = self.clock.now();
        while let Some((Reverse((at, id)), node)) = self.post.peek().copied() {
            if at > now {
                break;
            }
            self.post.pop();
            match self.letters.remove(&id) {
                Some(Letter::Request { id, batch }) => {
                    let result = self.store.sync(&batch);
                    self.mail(node, Letter::Answer { id, result });
                }
                Some(Letter::Beat) => {
                    let engine = &self.nodes[node].engine;
                    let result = self.store.beat(&engine.members_key().1, engine.instance(), false);
                    self.mail(node, Letter::Beaten(result));
                }
                Some(Letter::Answer { id, result }) => self.input(node, Input::Answered { id, result }),
                Some(Letter::Beaten(result)) => self.input(node, Input::Beaten(result)),
                None => {}
            }
        }
        for node in 0..self.nodes.len() {
            while let Some(cell) = self.nodes[node].tier.next_call() {
                self.input(node, Input::Call(cell));
            }
            let mut effects = Vec::new();
            self.nodes[node].engine.flush(now, &mut effects);
            self.carry(node, effects);
            self.collect(node);
        }
    }

    fn collect(&mut self, node: usize) {
        let mut context = Context::from_waker(Waker::noop());
        let waiting = std::mem::take(&mut self.nodes[node].waiting);
        for (mut ticket, cost) in waiting {
            match pin!(&mut ticket).poll(&mut context) {
                Poll::Pending => self.nodes[node].waiting.push((ticket, cost)),
                Poll::Ready(Answer::Given { .. }) => self.admit(node, cost),
                Poll::Ready(Answer::Denied { .. }) => self.nodes[node].denied += 1,
                Poll::Ready(Answer::Late) => self.nodes[node].late += 1,
                Poll::Ready(_) => self.nodes[node].failed += 1,
            }
        }
    }

    fn run(&mut self, span: Micros) {
        let end = self.clock.now().plus(span);
        while self.clock.now() < end {
            self.tick();
        }
    }

    fn admitted(&self) -> u64 {
        self.nodes.iter().map(|node| node.admitted).sum()
    }

    fn syncs(&self) -> u64 {
        self.nodes.iter().map(|node| node.engine.tally().syncs).sum()
    }

    /// How far the trace exceeds one reference bucket.
    fn violations(&self) -> u64 {
        let numbers = self.terms[0].numbers;
        Judge::new(numbers.rate, numbers.burst).violations(&self.trace).violations
    }
}

/// A steady offer of so many tokens a second, spread over ticks without losing a fraction.
struct Pacer {
    per_tick: f64,
    due: f64,
}

impl Pacer {
    fn new(per_second: f64, due: f64) -> Pacer {
        Pacer { per_tick: per_second * TICK.as_secs_f64(), due }
    }

    fn next(&mut self) -> u64 {
        self.due += self.per_tick;
        let whole = self.due as u64;
        self.due -= whole as f64;
        whole
    }
}

/// Runs one rule under demand and returns (used share of the limit, syncs per second and instance).
fn load(instances: usize, rate: u64, burst: u64, cost: u64, factor: f64, waits: bool) -> (f64, f64) {
    let rule = Rule::token_bucket(rate, Duration::from_secs(1)).burst(burst);
    let mut world = World::new(instances, &[rule]);
    let mut pacers: Vec<_> = (0..instances)
        .map(|node| Pacer::new(rate as f64 * factor / (instances as u64 * cost) as f64, node as f64 / instances as f64))
        .collect();
    let span = Micros::from_secs(4);
    let end = world.clock.now().plus(span);
    let mut central = Reference::new(world.terms[0].numbers.rate, burst);
    let mut room = 0;
    while world.clock.now() < end {
        for (node, pacer) in pacers.iter_mut().enumerate() {
            for _ in 0..pacer.next() {
                room += if central.offer(world.clock.now(), cost) { cost } else { 0 };
                if waits {
                    world.check(node, "hot", cost);
                } else {
                    world.check_now(node, "hot", cost);
                }
            }
        }
        world.tick();
    }
    assert_eq!(world.violations(), 0, "{instances} x {rate}/s burst {burst} cost {cost}");
    (world.admitted() as f64 / room as f64, world.syncs() as f64 / 4.0 / instances as f64)
}

#[test]
fn all_instances_together_use_the_limit_and_never_more() {
    let mut bad = Vec::new();
    for instances in [1, 4, 16] {
        for (rate, burst) in [(10_000, 1_000), (10_000, 10_000), (100, 10), (100, 100), (100, 1_000)] {
            for cost in [1, 5] {
                for (factor, waits) in [(1.5, true), (1.5, false), (10.0, true), (10.0, false), (0.8, true)] {
                    let (used, syncs) = load(instances, rate, burst, cost, factor, waits);
                    let line = format!(
                        "{instances:2} x {rate:5}/s burst {burst:5} cost {cost} x{factor} waits {waits}: used {used:.3} syncs {syncs:.0}/s"
                    );
                    eprintln!("{line}");
                    if (used < 0.97 && waits) || syncs > 100.0 {
                        bad.push(line);
                    }
                }
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn a_key_that_is_asked_once_costs_one_sync() {
    let mut world = World::new(1, &[Rule::token_bucket(100, Duration::from_secs(1))]);
    world.run(Micros::from_millis(5));
    world.check(0, "once", 1);
    world.run(Micros::from_secs(30));
    assert_eq!((world.admitted(), world.syncs()), (1, 1));
    assert_eq!(world.nodes[0].tier.counts().keys, 0, "the idle cell has gone");
}

#[test]
fn an_error_kind_reaches_those_who_wait() {
    let mut world = World::new(1, &[Rule::token_bucket(100, Duration::from_secs(1))]);
    world.store.set_reachable(false);
    for _ in 0..50 {
        world.check(0, "k", 1);
        world.run(Micros::from_millis(5));
    }
    assert_eq!(world.nodes[0].engine.link(), crate::observe::Link::Down);
    assert_eq!(world.nodes[0].engine.cause(), ErrorKind::Unreachable);
    assert!(world.nodes[0].failed > 40, "{}", world.nodes[0].failed);
    world.store.set_reachable(true);
    world.run(Micros::from_secs(3));
    world.check(0, "k", 1);
    world.run(Micros::from_millis(5));
    assert_eq!(world.admitted(), 1, "back on the shared state by itself");
}
