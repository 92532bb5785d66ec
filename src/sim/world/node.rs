//! One instance of a world: the local tier and the engine of a real one, without a task.

use super::{report::Place, traffic::Source};
use crate::{
    atomic::{AtomicBool, Mutex, Ordering::Relaxed},
    clock::Clock,
    error::ErrorKind,
    key::{Key, KeySpace},
    lease::InstanceId,
    local::{Bell, Cell, Governed, Local, Quota, Tier, Verdict},
    observe::Link,
    rule::{Cold, Mode, Outage, Terms},
    sync::{Answer, Effect, Engine, Input, Settings, Ticket, pair},
    time::Micros,
};
use std::{
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

/// Room for keys: no world fills it.
const KEYS_MAX: usize = 1_000_000;

/// Whether the engine was called.
#[derive(Default)]
pub(super) struct Doorbell(AtomicBool);

impl Bell for Doorbell {
    fn ring(&self) {
        // ordering: Relaxed, here and in `has_rung`. A world is one thread.
        self.0.store(true, Relaxed);
    }
}

impl Doorbell {
    #[inline]
    fn has_rung(&self) -> bool {
        self.0.load(Relaxed) && self.0.swap(false, Relaxed)
    }
}

/// The numbers of those who wait and were answered, in that order.
#[derive(Default)]
struct Answered(Mutex<Vec<usize>>);

impl Answered {
    fn take(&self) -> Vec<usize> {
        mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Puts one who waits on that list: crowds are not looked through for each answer.
struct Called {
    number: usize,
    answered: Arc<Answered>,
}

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.answered.0.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// What a check came to at once.
pub(super) enum First {
    /// Let in, after so long a wait.
    Admitted(Micros),
    /// Somebody waits, or nobody is let in.
    Not,
}

/// Who waits, for what, since when.
#[derive(Clone, Copy)]
struct Who {
    asked_at: Micros,
    rule: usize,
    key: u32,
    cost: u64,
}

struct Waiting {
    ticket: Ticket,
    who: Who,
    cell: Arc<Cell>,
}

/// An admission that somebody had waited for.
pub(super) struct Late {
    pub(super) rule: usize,
    pub(super) key: u32,
    pub(super) cost: u64,
    pub(super) by_authority: bool,
    /// How long it waits before it goes on.
    pub(super) delay: Micros,
}

/// What happens to an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    Frozen,
    Down,
}

/// See the head of this file.
pub(super) struct Node {
    /// How many were born before it: its letters are told apart by it.
    pub(super) born: u32,
    pub(super) engine: Engine,
    pub(super) tier: Arc<Tier>,
    bell: Arc<Doorbell>,
    governed: Governed,
    fallback: Governed,
    /// What the engine has to take in its next round.
    inbox: Vec<Input>,
    /// Who waits, by number, and the numbers that are free.
    waiting: Vec<Option<Waiting>>,
    vacant: Vec<usize>,
    answered: Arc<Answered>,
    /// When the engine runs next.
    pub(super) wake: Micros,
    pub(super) state: State,
    clock: Clock,
}

impl Node {
    pub(super) fn new(born: u32, instance: InstanceId, terms: &[Terms], clock: &Clock, members: Option<u32>) -> Node {
        let bell = Arc::new(Doorbell::default());
        // A world's thread knows no other tiers, so that numbers of its own will do, and a replay has the same.
        let tier = Tier::with_number(clock.clone(), KEYS_MAX, bell.clone(), born + 1);
        let settings = Settings {
            instance,
            keys: KeySpace::default(),
            rules: terms.to_vec(),
            instances: members,
            syncs_per_second_max: 20_000,
            response_timeout: super::RESPONSE_TIMEOUT,
        };
        let engine = Engine::new(settings, tier.clone(), clock.now());
        Node {
            born,
            engine,
            tier,
            bell,
            governed: Governed::new(clock.clone(), KEYS_MAX),
            fallback: Governed::new(clock.clone(), KEYS_MAX),
            inbox: Vec::new(),
            waiting: Vec::new(),
            vacant: Vec::new(),
            answered: Arc::default(),
            wake: Micros::MAX,
            state: State::Up,
            clock: clock.clone(),
        }
    }

    /// Whether the engine has something to take.
    #[inline]
    pub(super) fn is_called(&self) -> bool {
        self.bell.has_rung() || !self.inbox.is_empty()
    }

    pub(super) fn put(&mut self, input: Input) {
        self.inbox.push(input);
    }

    /// One request, as `Limiter::check` or, where it does not wait, `Limiter::check_now` takes it.
    #[inline]
    pub(super) fn check(&mut self, ask: &Ask<'_>, place: &mut Place) -> First {
        let Ask { terms, rule, key, cost, .. } = *ask;
        let number = rule as u32; // a world has few rules
        match terms.mode {
            Mode::Local => {
                let Ok(quota) = Quota::new(&terms.numbers) else { return First::Not };
                return match self.governed.check(number, key, cost, &quota) {
                    Verdict::Allowed { .. } => First::Admitted(Micros::ZERO),
                    Verdict::Queued { delay, .. } => First::Admitted(delay),
                    _ => {
                        place.denied += cost;
                        First::Not
                    }
                };
            }
            Mode::Exact => {
                match self.tier.cell(number, key) {
                    Ok(cell) => self.ask(ask, cell, place),
                    Err(_) => place.failed += cost,
                }
                return First::Not;
            }
            Mode::Leased | Mode::Buffered => {}
        }
        match self.tier.check(number, key, cost) {
            Local::Allowed { .. } => return First::Admitted(Micros::ZERO),
            Local::Denied { .. } => place.denied += cost,
            Local::Saturated => place.failed += cost,
            Local::Cold(cell)
                if terms.mode == Mode::Buffered
                    && cell.take_first(cost, terms.ahead(self.engine.members().unwrap_or(1))) =>
            {
                return First::Admitted(Micros::ZERO);
            }
            Local::Cold(cell) if ask.waits => self.ask(ask, cell, place),
            Local::Cold(cell) => {
                if self.engine.link() == Link::Down || cell.trouble().is_some() {
                    cell.refuse(cost);
                    self.tier.call(&cell);
                    self.without_authority(terms, rule, &cell, cost, place);
                    return First::Not;
                }
                if let Cold::Credit(tokens) = terms.cold
                    && cell.cold_credit(cost, tokens, terms.lease_ttl, self.clock.coarse())
                {
                    self.tier.call(&cell);
                    return First::Admitted(Micros::ZERO);
                }
                cell.refuse(cost);
                self.tier.call(&cell);
                place.denied += cost;
            }
        }
        First::Not
    }

    fn ask(&mut self, ask: &Ask<'_>, cell: Arc<Cell>, place: &mut Place) {
        let Ask { terms, rule, key_number, cost, .. } = *ask;
        if self.engine.link() == Link::Down {
            self.without_authority(terms, rule, &cell, cost, place);
            return;
        }
        let now = self.clock.now();
        self.wait(Who { rule, key: key_number, cost, asked_at: now }, cell, now.plus(terms.deadline));
    }

    /// Has somebody wait at this cell.
    fn wait(&mut self, who: Who, cell: Arc<Cell>, deadline: Micros) {
        let (mut ticket, waiter) = pair();
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        // Once now, so that the answer wakes.
        let waker = Waker::from(Arc::new(Called { number, answered: self.answered.clone() }));
        _ = pin!(&mut ticket).poll(&mut Context::from_waker(&waker));
        self.inbox.push(Input::Ask { cell: cell.clone(), cost: who.cost, deadline, waiter });
        self.waiting[number] = Some(Waiting { ticket, who, cell });
    }

    /// The outage policy, as the limiter applies it.
    fn without_authority(&mut self, terms: &Terms, rule: usize, cell: &Arc<Cell>, cost: u64, place: &mut Place) {
        let lets_in = match terms.outage {
            Outage::Deny => false,
            Outage::Allow => true,
            Outage::Share => self.engine.members().is_some_and(|members| {
                let key = Key::stored(cell.key_bytes(), cell.is_digest());
                Quota::share(&terms.numbers, members).is_ok_and(|quota| {
                    let verdict = self.fallback.check(rule as u32, &key, cost, &quota);
                    matches!(verdict, Verdict::Allowed { .. })
                })
            }),
        };
        if lets_in {
            place.outage += cost;
            cell.add_outage(cost);
            self.tier.call(cell);
        } else {
            place.failed += cost;
        }
    }

    /// One round of the driver: all that came in, and the flush that ends it.
    pub(super) fn round(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        for input in mem::take(&mut self.inbox) {
            self.engine.turn(input, now, effects);
        }
        while let Some(cell) = self.tier.next_call() {
            self.engine.turn(Input::Call(cell), now, effects);
        }
        self.engine.flush(now, effects);
        let next = self.engine.wake_at();
        // A timer of tokio's is late by up to a millisecond.
        self.wake = if next == Micros::MAX { next } else { Micros((next.max(now).0 / 1_000 + 1) * 1_000) };
    }

    /// Takes the answers that are there; who was at a cell that is closed waits on at its successor.
    pub(super) fn collect(&mut self, terms: &[Terms], places: &mut Place, admitted: &mut Vec<Late>) {
        let mut context = Context::from_waker(Waker::noop());
        for number in self.answered.take() {
            let Some(mut waiting) = self.waiting.get_mut(number).and_then(Option::take) else { continue };
            self.vacant.push(number);
            // Whoever is on the list was answered.
            let Poll::Ready(answer) = pin!(&mut waiting.ticket).poll(&mut context) else { continue };
            let (Who { rule, key, cost, asked_at }, cell) = (waiting.who, waiting.cell);
            match answer {
                Answer::Given { by_authority, delay, .. } => {
                    admitted.push(Late { rule, key, cost, by_authority, delay });
                }
                Answer::Denied { .. } => places.denied += cost,
                Answer::Failed(ErrorKind::ShutDown) | Answer::Seen { .. } | Answer::Done | Answer::Counted { .. } => {
                    places.failed += cost;
                }
                Answer::Failed(_) | Answer::Late => self.without_authority(&terms[rule], rule, &cell, cost, places),
                Answer::Closed => {
                    let name = Key::stored(cell.key_bytes(), cell.is_digest());
                    match self.tier.cell(rule as u32, &name) {
                        Ok(cell) => self.wait(waiting.who, cell, asked_at.plus(terms[rule].deadline)),
                        Err(_) => places.failed += cost,
                    }
                }
            }
        }
    }

    /// What it really holds of a key.
    pub(super) fn held(&self, rule: usize, key: &Key<'_>) -> u64 {
        self.tier.find(rule as u32, key).map_or(0, |cell| cell.look().hold)
    }
}

/// One request on its way into a node.
pub(super) struct Ask<'a> {
    pub(super) terms: &'a Terms,
    pub(super) rule: usize,
    pub(super) key_number: u32,
    pub(super) key: &'a Key<'a>,
    pub(super) cost: u64,
    pub(super) waits: bool,
}

/// A place for an instance, and what is asked there.
pub(super) struct Slot {
    pub(super) node: Node,
    pub(super) source: Source,
    pub(super) place: Place,
    /// Cut off from the authority until then.
    pub(super) cut_until: Micros,
    /// Back in life then, frozen or down.
    pub(super) until: Micros,
}
