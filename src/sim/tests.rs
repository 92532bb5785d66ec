//! The engine in a small world: virtual time, several instances, one embedded store, no task.

use super::{Admission, Judge, Reference};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    key::{Key, KeySpace, LongKeys},
    lease::{InstanceId, Sync},
    local::{Bell, Cell, Local, Tier},
    rule::{Rule, Terms},
    store::{Answers, Batch, Beat, MemoryStore},
    sync::{Answer, Effect, Engine, Input, Settings, Ticket, pair},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

mod edges;
mod hostile;
mod modes;
mod orders;

const TICK: Micros = Micros(100);

struct Silent;
impl Bell for Silent {
    fn ring(&self) {}
}

struct Node {
    engine: Engine,
    tier: Arc<Tier>,
    /// Who waits: since when, and for how much.
    waiting: Vec<(Ticket, Micros, u64)>,
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
    /// Chances in a hundred that a message is lost or badly delayed; `None`: a perfect network.
    faults: Option<(u32, u32)>,
    rng: fastrand::Rng,
    /// A lie put into every question on its way: what the judge must find out.
    tamper: Lie,
    post: BinaryHeap<Post>,
    letters: std::collections::HashMap<u64, Letter>,
    next: u64,
    /// Requests of nodes that have crashed.
    orphans: HashSet<u64>,
    born: u64,
    /// Admitted by nodes that have crashed.
    dead: u64,
}

/// What is changed in a question on its way.
type Lie = fn(&mut Sync);

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
            faults: None,
            rng: fastrand::Rng::with_seed(1),
            tamper: |_| {},
            post: BinaryHeap::new(),
            letters: std::collections::HashMap::new(),
            next: 0,
            orphans: HashSet::new(),
            born: 0,
            dead: 0,
            clock,
            terms,
        };
        for _ in 0..instances {
            world.join();
        }
        world
    }

    fn join(&mut self) {
        self.born += 1;
        let tier = Tier::new(self.clock.clone(), 100_000, Arc::new(Silent));
        let settings = Settings {
            instance: InstanceId(self.born),
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
            Local::Allowed { .. } => self.admit(node, self.clock.now(), cost),
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
                self.admit(node, self.clock.now(), cost);
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
        self.nodes[node].waiting.push((ticket, self.clock.now(), cost));
    }

    fn admit(&mut self, node: usize, before: Micros, cost: u64) {
        self.nodes[node].admitted += cost;
        self.trace.push(Admission { before, after: self.clock.now(), cost });
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
                // No rule here counts on plain keys.
                Effect::Count { .. } | Effect::Beat { leave: true } | Effect::Report(_) | Effect::Done { .. } => {}
            }
        }
    }

    fn mail(&mut self, node: usize, letter: Letter) {
        let mut delay = self.half_trip;
        if let Some((lost, slow)) = self.faults {
            let chance = self.rng.u32(0..100);
            // The driver's time-out: a message that is lost, or whose answer comes too late for it, is
            // answered "unanswered" by the connection, though it may have been applied.
            if chance < lost {
                if let Letter::Request { id, .. } | Letter::Answer { id, .. } = letter {
                    let result = Err(Error::new(ErrorKind::Unanswered, "lost"));
                    self.post(node, Letter::Answer { id, result }, Micros::from_millis(200));
                } else {
                    let result = Err(Error::new(ErrorKind::Unanswered, "lost"));
                    self.post(node, Letter::Beaten(result), Micros::from_millis(200));
                }
                return;
            }
            if chance < lost + slow {
                delay = Micros(self.rng.u64(0..3_000_000));
            }
        }
        self.post(node, letter, delay);
    }

    fn post(&mut self, node: usize, letter: Letter, delay: Micros) {
        self.next += 1;
        self.letters.insert(self.next, letter);
        self.post.push((Reverse((self.clock.now().plus(delay), self.next)), node));
    }

    /// The process of this node dies with all it held, and another takes its place.
    fn crash(&mut self, node: usize) {
        self.join();
        let fresh = self.nodes.len() - 1;
        self.nodes.swap(node, fresh);
        self.dead += self.nodes.pop().map_or(0, |dead| dead.admitted);
        // Its letters may still arrive at the store; nobody is there for the answers.
        let mine: Vec<u64> = self.post.iter().filter(|(_, to)| *to == node).map(|(Reverse((_, id)), _)| *id).collect();
        for id in mine {
            match self.letters.get(&id) {
                Some(Letter::Request { .. }) => _ = self.orphans.insert(id),
                _ => _ = self.letters.remove(&id),
            }
        }
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
                Some(Letter::Request { id: flight, mut batch }) => {
                    batch.questions.iter_mut().for_each(|(_, sync)| (self.tamper)(sync));
                    let result = self.store.sync(&batch);
                    if !self.orphans.remove(&id) {
                        self.mail(node, Letter::Answer { id: flight, result });
                    }
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
        for (mut ticket, since, cost) in waiting {
            match pin!(&mut ticket).poll(&mut context) {
                Poll::Pending => self.nodes[node].waiting.push((ticket, since, cost)),
                // The authority gave it at some time since it was asked for.
                Poll::Ready(Answer::Given { .. }) => self.admit(node, since, cost),
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
        self.dead + self.nodes.iter().map(|node| node.admitted).sum::<u64>()
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

/// A world with losses, delays past the lease, crashes and restarts; several keys and costs.
fn hostile(seed: u64, tamper: Lie) -> (u64, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let rate = rng.choice([20, 100, 2_000]).unwrap_or(20);
    let burst = rng.choice([1, 5, 50, 500]).unwrap_or(5);
    let instances = rng.usize(1..6);
    let rule = Rule::token_bucket(rate, Duration::from_secs(1))
        .burst(burst)
        .lease_ttl(Duration::from_millis(500))
        .horizon(Duration::from_millis(50));
    let mut world = World::new(instances, &[rule]);
    world.rng = rng.fork();
    world.tamper = tamper;
    world.faults = Some((rng.u32(0..30), rng.u32(0..10)));
    let mut per_tick = 0.0;
    let costs: &[u64] = if burst >= 5 { &[1, 1, 1, 3, 5] } else { &[1] };
    for tick in 0..30_000 {
        if tick % 4_000 == 0 {
            // Silence lets the bucket fill up, and what was lent elsewhere come into question.
            let factor = rng.choice([0.0, 0.2, 1.5, 10.0]).unwrap_or(1.5);
            per_tick = rate as f64 * factor * TICK.as_secs_f64() / instances as f64;
        }
        for node in 0..instances {
            if rng.f64() < per_tick {
                let cost = rng.choice(costs).copied().unwrap_or(1);
                if rng.bool() { world.check(node, "k", cost) } else { _ = world.check_now(node, "k", cost) }
            }
            if rng.u32(0..20_000) == 0 {
                world.crash(node);
            }
        }
        world.tick();
    }
    (world.violations(), world.admitted())
}

// The tier, the engine and the book together, against losses, delays, crashes: the bound of one bucket.
#[test]
fn no_fault_of_the_network_and_no_crash_breaks_the_bound() {
    let mut admitted = 0;
    for seed in 0..150 {
        let (violations, tokens) = hostile(seed, |_| {});
        assert_eq!(violations, 0, "seed {seed}");
        admitted += tokens;
    }
    assert!(admitted > 40_000, "only {admitted} tokens were admitted in all: nothing was tried");
}

#[test]
fn an_instance_that_lies_is_found_out() {
    let lies: [(&str, Lie); 3] = [
        ("spends longer than it said", |sync| sync.span = Micros::from_millis(20)),
        ("hides what it holds", |sync| sync.hold = 0),
        ("hides what it used", |sync| sync.used = 0),
    ];
    for (lie, tamper) in lies {
        assert!((0..40).any(|seed| hostile(seed, tamper).0 > 0), "{lie}: not found out in 40 worlds");
    }
}

/// A world in which node 0 has taken a large lease of the one key, and what it holds.
fn one_rich_node() -> (World, u64) {
    let mut world = World::new(2, &[Rule::token_bucket(100, Duration::from_secs(1)).burst(1_000)]);
    for _ in 0..60 {
        world.check(0, "k", 1);
        world.run(Micros::from_millis(20));
    }
    let hold = world.nodes[0].engine.tally().hold;
    assert!(hold > 20, "only {hold} tokens were lent");
    (world, hold)
}

/// How many tokens node 1 gets at once.
fn all_for_the_other(world: &mut World) -> u64 {
    let before = world.nodes[1].admitted;
    for _ in 0..2_000 {
        world.check(1, "k", 1);
    }
    world.run(Micros::from_millis(100));
    world.nodes[1].admitted - before
}

#[test]
fn an_idle_lease_goes_back_long_before_it_ends() {
    let (mut world, _) = one_rich_node();
    world.run(Micros::from_secs(9)); // its lease was renewed less than a second ago, and lives ten
    assert_eq!(world.nodes[0].engine.tally().hold, 0);
    let got = all_for_the_other(&mut world);
    assert!(got >= 990, "{got}");
    assert_eq!(world.violations(), 0);
}

#[test]
fn what_a_crashed_instance_held_comes_back_when_its_lease_ends() {
    let (mut world, hold) = one_rich_node();
    world.crash(0);
    let got = all_for_the_other(&mut world);
    assert!(got <= 1_010 - hold, "{got} although {hold} may still be spent");
    world.run(Micros::from_secs(25));
    let got = all_for_the_other(&mut world);
    assert!(got >= 990, "{got}");
    assert_eq!(world.violations(), 0);
}

#[test]
fn a_closing_instance_gives_back_what_it_holds() {
    let (mut world, _) = one_rich_node();
    let deadline = world.clock.now().plus(Micros::from_secs(1));
    world.input(0, Input::Close(deadline));
    world.run(Micros::from_millis(20));
    assert_eq!(world.nodes[0].engine.tally().hold, 0);
    let got = all_for_the_other(&mut world);
    assert!(got >= 970, "{got}: a few were spent just now");
    world.check(0, "k", 1);
    world.tick();
    assert_eq!(world.nodes[0].failed, 1, "nobody is served any more");
    assert_eq!(world.violations(), 0);
}

#[test]
fn an_instance_that_was_stopped_finds_its_lease_over() {
    let (mut world, _) = one_rich_node();
    // Only time passes: no engine runs, no message moves.
    world.clock.advance(Micros::from_secs(30));
    assert!(!world.check_now(0, "k", 1), "the lease is over, whatever lies here");
    world.run(Micros::from_millis(20));
    assert!(world.check_now(0, "k", 1), "and a new one is asked for at once");
    assert_eq!(world.violations(), 0);
}

#[test]
fn a_store_that_lost_its_memory_starts_empty_and_says_so_once() {
    let (mut world, hold) = one_rich_node();
    world.store.wipe();
    for _ in 0..400 {
        world.check(0, "k", 1);
        world.run(Micros(500));
    }
    let got = all_for_the_other(&mut world);
    assert!(got <= 100, "{got} of a bucket that should have started empty, {hold} held");
    let lost: u64 = world.nodes.iter().map(|node| node.engine.tally().states_lost).sum();
    assert_eq!(lost, 1);
}

#[test]
fn a_key_that_only_a_handle_made_goes_with_the_handle() {
    let mut world = World::new(1, &[Rule::token_bucket(100, Duration::from_secs(1))]);
    let key = Key::new(b"k", LongKeys::Hash).expect("a short key");
    let cell = world.nodes[0].tier.cell(0, &key).expect("room");
    assert!(cell.pin());
    world.nodes[0].tier.call(&cell);
    world.run(Micros::from_secs(30));
    assert_eq!(world.nodes[0].tier.counts().keys, 1, "it is held");
    cell.unpin();
    world.run(Micros::from_secs(30));
    assert_eq!(world.nodes[0].tier.counts().keys, 0);
    assert_eq!(world.syncs(), 0);
}
