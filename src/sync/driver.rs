//! The thread that carries the engine's messages: inputs from the gate's callers, answers from the
//! store. Holds no logic.
//!
//! It is a thread with a small runtime of its own, so that callers may block, starve or end their
//! runtimes without the leases running dry. It never dies before it is told to close: a panic in a
//! turn is caught, reported, and costs the one bucket it was about.

use super::{
    message::{Effect, Input},
    orders::Order,
    plain::Ask,
    turn::{Engine, Settings, Tally},
    waiter::{self, Answer, Given, Restore, Ticket, Waiter},
};
use crate::{
    atomic::{
        AtomicBool, AtomicU32, AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
    },
    clock::{COARSE_TICK, Clock},
    error::{Error, ErrorKind},
    local::{Bell, Cell, Tier},
    observe::{Event, Link, Observer},
    rule::Terms,
    store::Store,
    time::Micros,
};
use crossbeam::{queue::SegQueue, utils::CachePadded};
use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::{self, JoinSet},
};

#[cfg(test)]
mod panics;

/// Inputs that one round takes before it sends and looks at the clock again.
const ROUND: usize = 1_024;
/// The last heartbeat, which says that this instance leaves, may take this long.
const LEAVE: Duration = Duration::from_millis(200);

/// Rings the driver out of its sleep.
#[derive(Debug, Default)]
struct Doorbell(Notify);

impl Bell for Doorbell {
    fn ring(&self) {
        self.0.notify_one();
    }
}

/// What the callers' side and the driver share.
struct Shared {
    inputs: SegQueue<Input>,
    bell: Arc<Doorbell>,
    tier: Arc<Tier>,
    clock: Clock,
    /// A `Link` as a number.
    link: AtomicU32,
    /// 0: nobody has told.
    members: AtomicU32,
    round_trip: AtomicU32,
    /// The authority's clock less ours, in µs, as two's complement; 0: nobody has told. Checks read it, so it has a line of
    /// its own, which is written seldom.
    ahead: CachePadded<AtomicU64>,
    tally: Mutex<Tally>,
    /// Who waits for the end; `None` once it has come.
    closers: Mutex<Option<Vec<Waiter>>>,
    /// An `ErrorKind`, why the link is not up.
    cause: Mutex<ErrorKind>,
    /// Somebody has asked for the end.
    closing: AtomicBool,
    /// Everything was given back before the end.
    clean: AtomicBool,
}

/// A running engine. Dropping the last clone closes it in the background.
#[derive(Clone)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    _last: Arc<CloseOnDrop>,
}

/// Closes the engine when the last [`Driver`] is gone.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let deadline = self.0.clock.now().plus(Micros::from_secs(1));
        self.0.push(Input::Close(deadline));
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("link", &self.link()).finish_non_exhaustive()
    }
}

impl Shared {
    fn push(&self, input: Input) {
        self.inputs.push(input);
        self.bell.ring();
    }
}

impl Restore for Shared {
    fn restore(&self, given: Given, by: Answer) {
        self.push(match given {
            Given::Tokens(cell, tokens, since) => Input::Refund { cell, tokens, since },
            Given::Hit(ask) => {
                let ends_in = if let Answer::Counted { ends_in, .. } = by { ends_in } else { Micros::ZERO };
                let until = ask.at.plus(ends_in);
                Input::GiveBack { ask, until }
            }
        });
    }
}

impl Driver {
    /// Starts an engine over this store.
    ///
    /// # Errors
    /// When the operating system gives no thread or the runtime cannot be built.
    pub(crate) fn start(
        settings: Settings,
        store: Store,
        clock: Clock,
        keys_max: usize,
        observer: Arc<dyn Observer>,
    ) -> Result<Driver, Error> {
        let cannot = |error: std::io::Error| Error::new(ErrorKind::Config, format!("the engine's thread: {error}"));
        let bell = Arc::new(Doorbell::default());
        let tier = Tier::new(clock.clone(), keys_max, bell.clone());
        let shared = Arc::new(Shared {
            inputs: SegQueue::new(),
            bell,
            tier: tier.clone(),
            clock: clock.clone(),
            link: AtomicU32::new(0),
            members: AtomicU32::new(settings.instances.unwrap_or(0)),
            round_trip: AtomicU32::new(1_000),
            ahead: CachePadded::new(AtomicU64::new(0)),
            tally: Mutex::new(Tally::default()),
            closers: Mutex::new(Some(Vec::new())),
            cause: Mutex::new(ErrorKind::Unreachable),
            closing: AtomicBool::new(false),
            clean: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
        let engine = Engine::new(settings, tier, clock.now());
        let mut round = Round { shared: shared.clone(), engine, observer, effects: Vec::new() };
        let body = move || {
            runtime.block_on(round.run(&store));
            let closers = round.shared.closers.lock().unwrap_or_else(PoisonError::into_inner).take();
            closers.into_iter().flatten().for_each(|w| _ = w.answer(Answer::Failed(ErrorKind::ShutDown)));
            round.drain();
        };
        thread::Builder::new().name("tollgate-engine".into()).spawn(body).map_err(cannot)?;
        Ok(Driver { _last: Arc::new(CloseOnDrop(shared.clone())), shared })
    }

    pub(crate) fn tier(&self) -> &Arc<Tier> {
        &self.shared.tier
    }

    /// Asks for tokens; the ticket is answered by `deadline`.
    pub(crate) fn ask(&self, cell: &Arc<Cell>, cost: u64, deadline: Micros) -> Ticket {
        let since = self.shared.clock.coarse();
        let (ticket, waiter) = waiter::pair();
        self.offer(Input::Ask { cell: cell.clone(), cost, deadline, waiter });
        ticket.restoring(self.shared.clone(), Given::Tokens(cell.clone(), cost, since))
    }

    /// Asks how much there is; the ticket is answered by `deadline`.
    pub(crate) fn peek(&self, rule: u32, key: (Box<[u8]>, bool), cost: u64, deadline: Micros) -> Ticket {
        let (ticket, waiter) = waiter::pair();
        self.offer(Input::Peek { rule, key, cost, deadline, waiter });
        ticket
    }

    /// Has something done with a key; the ticket is answered by `deadline`.
    pub(crate) fn order(&self, rule: u32, key: (Box<[u8]>, bool), order: Order, deadline: Micros) -> Ticket {
        let (ticket, waiter) = waiter::pair();
        self.offer(Input::Order { rule, key, order, deadline, waiter });
        ticket
    }

    /// Has something counted on a plain counter, or only looks; the ticket is answered by `deadline`.
    pub(crate) fn hit(&self, ask: Ask, deadline: Micros) -> Ticket {
        let (ticket, waiter) = waiter::pair();
        let ask = Arc::new(ask);
        self.offer(Input::Hit { ask: ask.clone(), deadline, waiter: Some(waiter) });
        if ask.cost > 0 { ticket.restoring(self.shared.clone(), Given::Hit(ask)) } else { ticket }
    }

    /// Has something counted that was used already, if that can be done by `deadline`.
    pub(crate) fn charge_hit(&self, ask: Ask, deadline: Micros) {
        self.offer(Input::Hit { ask: Arc::new(ask), deadline, waiter: None });
    }

    /// Gives back what was counted here on a plain counter, in a window that is over at `until`.
    pub(crate) fn give_back_hit(&self, ask: Ask, until: Micros) {
        self.offer(Input::GiveBack { ask: Arc::new(ask), until });
    }

    /// Gives tokens back that were taken at `since` or later.
    pub(crate) fn refund(&self, cell: &Arc<Cell>, tokens: u64, since: Micros) {
        self.offer(Input::Refund { cell: cell.clone(), tokens, since });
    }

    /// Goes by these rules from now on, by number; `None`: no such rule (any more). A number never changes its
    /// name or algorithm, and new rules come after all that there ever were. A rule that is removed answers who
    /// waits with [`ErrorKind::UnknownRule`] and gives back what it holds.
    ///
    /// The engine changes over between two turns, as a whole; what checks read is the caller's to replace.
    pub(crate) fn replace_rules(&self, rules: Vec<Option<Terms>>) {
        self.offer(Input::Rules(rules));
    }

    /// How well the store answers.
    pub(crate) fn link(&self) -> Link {
        // ordering: Acquire: see `publish`.
        match self.shared.link.load(Acquire) {
            0 => Link::Up,
            1 => Link::Shaky,
            _ => Link::Down,
        }
    }

    /// Why the link is not up.
    pub(crate) fn cause(&self) -> ErrorKind {
        *self.shared.cause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was told to close: nobody is to be let in any more, by whatever policy.
    pub(crate) fn is_closing(&self) -> bool {
        // ordering: Relaxed, here and below, unless said otherwise. Each is one value that stands for itself.
        self.shared.closing.load(Relaxed)
    }

    /// Whether the engine has ended with everything given back.
    pub(crate) fn closed_clean(&self) -> bool {
        self.shared.clean.load(Relaxed)
    }

    /// How many instances share the limits, as far as anybody has told.
    pub(crate) fn members(&self) -> Option<u32> {
        Some(self.shared.members.load(Relaxed)).filter(|members| *members > 0)
    }

    /// What the authority's clock shows at our time `at`, to a round trip or a millisecond; `None` when nobody has told.
    #[inline]
    pub(crate) fn there(&self, at: Micros) -> Option<Micros> {
        let ahead = self.shared.ahead.load(Relaxed);
        (ahead != 0).then(|| Micros(at.0.wrapping_add(ahead)))
    }

    /// The time that one question takes.
    pub(crate) fn round_trip(&self) -> Micros {
        Micros(u64::from(self.shared.round_trip.load(Relaxed)))
    }

    pub(crate) fn tally(&self) -> Tally {
        *self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives everything back and stops, by `deadline` at the latest. The ticket is answered then.
    pub(crate) fn close(&self, deadline: Micros) -> Ticket {
        // ordering: Relaxed. Who comes at the same moment may still be served.
        self.shared.closing.store(true, Relaxed);
        let (ticket, waiter) = waiter::pair();
        let mut closers = self.shared.closers.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *closers {
            Some(closers) => closers.push(waiter),
            None => _ = waiter.answer(Answer::Failed(ErrorKind::ShutDown)),
        }
        drop(closers);
        self.shared.push(Input::Close(deadline));
        ticket
    }

    /// Puts an input in the queue, or answers it at once when the engine has ended.
    fn offer(&self, input: Input) {
        self.shared.push(input);
        // The engine may have ended before or just now: then nobody else empties the queue.
        if self.shared.closers.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            drain(&self.shared);
        }
    }
}

/// Answers everything in the queue of an engine that has ended.
fn drain(shared: &Shared) {
    while let Some(input) = shared.inputs.pop() {
        if let Input::Ask { waiter, .. }
        | Input::Peek { waiter, .. }
        | Input::Order { waiter, .. }
        | Input::Hit { waiter: Some(waiter), .. } = input
        {
            waiter.answer(Answer::Failed(ErrorKind::ShutDown));
        }
    }
    while shared.tier.next_call().is_some() {}
}

/// What a task brings an answer for, should it end without a word.
#[derive(Clone, Copy, Debug)]
enum Carried {
    Batch(u64),
    Hit(u64),
}

/// What the thread owns.
struct Round {
    shared: Arc<Shared>,
    engine: Engine,
    observer: Arc<dyn Observer>,
    effects: Vec<Effect>,
}

impl Round {
    async fn run(&mut self, store: &Store) {
        let connection = store.open();
        let instance = self.engine.instance();
        let (_, members) = self.engine.members_key();
        let mut under_way: JoinSet<Input> = JoinSet::new();
        let mut carried: HashMap<task::Id, Carried> = HashMap::new();
        loop {
            self.take_inputs();
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Send { id, batch } => {
                        let connection = connection.clone();
                        let carry = async move { Input::Answered { id, result: connection.sync(&batch).await } };
                        carried.insert(under_way.spawn(carry).id(), Carried::Batch(id));
                    }
                    Effect::Count { id, name, hit } => {
                        let connection = connection.clone();
                        let carry =
                            async move { Input::Counted { id, result: connection.count_plain(&name, &hit).await } };
                        carried.insert(under_way.spawn(carry).id(), Carried::Hit(id));
                    }
                    Effect::Beat { leave: false } => {
                        let (connection, members) = (connection.clone(), members.clone());
                        under_way.spawn(async move { Input::Beaten(connection.beat(&members, instance, false).await) });
                    }
                    Effect::Beat { leave: true } => {
                        let leave = connection.beat(&members, instance, true);
                        _ = tokio::time::timeout(LEAVE, leave).await;
                    }
                    Effect::Report(event) => self.report(&event),
                    Effect::Done { clean } => {
                        self.shared.clean.store(clean, Relaxed);
                        self.publish();
                        return;
                    }
                }
            }
            self.publish();
            self.sleep(&mut under_way, &mut carried).await;
        }
    }

    /// One round of turns, and the flush that ends it.
    fn take_inputs(&mut self) {
        let now = self.shared.clock.now();
        for _ in 0..ROUND {
            let Some(input) = self.shared.inputs.pop() else { break };
            self.guarded(|engine, effects| engine.turn(input, now, effects));
        }
        for _ in 0..ROUND {
            let Some(cell) = self.shared.tier.next_call() else { break };
            self.guarded(|engine, effects| engine.turn(Input::Call(cell), now, effects));
        }
        self.guarded(|engine, effects| engine.flush(now, effects));
    }

    /// Runs one step of the engine; a panic is reported and costs one bucket.
    fn guarded(&mut self, step: impl FnOnce(&mut Engine, &mut Vec<Effect>)) {
        let Round { engine, effects, .. } = self;
        // The engine is used again after a panic: `bury` throws away the one bucket whose state may
        // be half changed.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| step(engine, effects))) {
            // Told first: who is answered by the burial may look for the reason.
            self.report(&Event::EnginePanic { message: words(panic.as_ref()) });
            self.engine.bury();
        }
    }

    fn report(&self, event: &Event) {
        // Somebody else's code: its panic is its own, and must not end the engine.
        _ = catch_unwind(AssertUnwindSafe(|| self.observer.event(event)));
    }

    /// Waits for an input, an answer, or the time for something that is due.
    async fn sleep(&mut self, under_way: &mut JoinSet<Input>, carried: &mut HashMap<task::Id, Carried>) {
        if !self.shared.inputs.is_empty() {
            task::yield_now().await; // let the connection breathe, too
            return;
        }
        let now = self.shared.clock.now();
        let mut pause = Duration::from(self.engine.wake_at().minus(now)).min(Duration::from_secs(3_600));
        if self.shared.clock.is_manual() {
            pause = pause.min(COARSE_TICK); // it may be moved at any time
        }
        let ended = tokio::select! {
            Some(ended) = under_way.join_next_with_id(), if !under_way.is_empty() => Some(ended),
            () = self.shared.bell.0.notified() => None,
            () = tokio::time::sleep(pause) => None,
        };
        let mut next = ended;
        while let Some(ended) = next {
            let input = match ended {
                Ok((id, input)) => {
                    carried.remove(&id);
                    Some(input)
                }
                Err(failed) => {
                    let error = Error::new(ErrorKind::Protocol, "the task that carried this message failed");
                    self.report(&Event::EnginePanic { message: failed.to_string() });
                    Some(match carried.remove(&failed.id()) {
                        Some(Carried::Batch(id)) => Input::Answered { id, result: Err(error) },
                        Some(Carried::Hit(id)) => Input::Counted { id, result: Err(error) },
                        None => Input::Beaten(Err(error)),
                    })
                }
            };
            if let Some(input) = input {
                let now = self.shared.clock.now();
                self.guarded(|engine, effects| engine.turn(input, now, effects));
            }
            next = under_way.try_join_next_with_id();
        }
    }

    /// Shows the callers' side how things are.
    fn publish(&self) {
        let link = match self.engine.link() {
            Link::Up => 0,
            Link::Shaky => 1,
            Link::Down => 2,
        };
        *self.shared.cause.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.cause();
        // ordering: Release, with the Acquire in `link`: who sees that the link is down finds why.
        self.shared.link.store(link, Release);
        self.shared.members.store(self.engine.members().unwrap_or(0), Relaxed);
        self.shared.round_trip.store(u32::try_from(self.engine.round_trip().0).unwrap_or(u32::MAX), Relaxed);
        *self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.tally();
        // Checks read this one: it is not written for nothing.
        let (told, ahead) = (self.shared.ahead.load(Relaxed), self.engine.ahead().map_or(0, i64::cast_unsigned));
        if told.wrapping_sub(ahead).min(ahead.wrapping_sub(told)) >= 1_000 {
            self.shared.ahead.store(ahead, Relaxed);
        }
    }

    fn drain(&self) {
        drain(&self.shared);
    }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no words".to_owned())
}
