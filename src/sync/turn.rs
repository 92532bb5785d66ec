//! The engine: one turn takes something that happened and says what is to be done.
//!
//! No clock, no socket, no task: the tokio driver and a simulator run this same code. It reads and
//! writes the cells of its gate's local tier, which are shared memory.

use super::{
    bucket::{Bucket, Waiting},
    dispatch::{Asked, Flight, Load, Queue},
    link::Road,
    message::{Effect, Input},
    orders::Ordered,
    plain::Plain,
    rules::Rules,
    waiter::{Answer, Waiter},
    window::Window,
};
use crate::{
    error::{Error, ErrorKind},
    key::{BucketName, KeySpace},
    lease::{InstanceId, Reply},
    local::{Cell, Tier},
    observe::{Event, Link},
    rule::Terms,
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

/// A denial is believed for this long, then asked about again: a refund elsewhere may have ended it.
pub(super) const DENIAL_MAX: Micros = Micros::from_secs(1);
/// Between two heartbeats.
const BEAT: Micros = Micros::from_secs(1);
/// A bucket that answered with an error, or that was refused, is left alone for this long.
pub(super) const TROUBLE_PAUSE: Micros = Micros::from_millis(100);
/// A cell that nobody asks for this long after its bucket is gone goes too.
pub(super) const QUIET: Micros = Micros::from_secs(10);

/// What the engine is told once.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) instance: InstanceId,
    pub(crate) keys: KeySpace,
    pub(crate) rules: Vec<Terms>,
    /// Members until the heartbeat has told: the builder's `instances(n)`.
    pub(crate) instances: Option<u32>,
    pub(crate) syncs_per_second_max: u32,
    /// After this a question is dead, if its waiters do not give up sooner.
    pub(crate) response_timeout: Micros,
}

/// What the engine has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) syncs: u64,
    pub(crate) batches: u64,
    /// Questions whose batch failed; whether they had an effect is not known.
    pub(crate) in_doubt: u64,
    /// Questions answered "too late" or "overtaken", and answers that came too late to be used.
    pub(crate) wasted: u64,
    pub(crate) bucket_errors: u64,
    pub(crate) states_lost: u64,
    /// Tokens spent without a grant in a fixed window that ended before the authority could be told.
    pub(crate) expired: u64,
    pub(crate) hold: u64,
}

/// What came back for one question: the authority's word, or why its whole batch has none.
#[derive(Debug)]
pub(super) enum Landed {
    Answer(Result<Reply, Error>),
    Failed(ErrorKind),
}

#[derive(Debug)]
pub(super) struct Peek {
    pub(super) rule: u32,
    pub(super) name: BucketName,
    pub(super) cost: u64,
    pub(super) deadline: Micros,
    pub(super) waiter: Waiter,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Bucket(u32),
    Peek(u64),
    Order(u64),
    Hit(u64),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) settings: Settings,
    pub(super) rules: Rules,
    pub(super) tier: Arc<Tier>,
    pub(super) buckets: Vec<Option<Box<Bucket>>>,
    pub(super) vacant: Vec<u32>,
    /// Cells that nobody has asked for a while and that have no bucket any more, oldest first.
    pub(super) quiet: VecDeque<(Micros, Arc<Cell>)>,
    pub(super) peeks: HashMap<u64, Peek>,
    pub(super) orders: HashMap<u64, Ordered>,
    pub(super) plain: Plain,
    pub(super) timers: BinaryHeap<Reverse<(Micros, Timer)>>,
    pub(super) queues: Vec<Queue>,
    /// Tags that have something queued, in the order in which they got it.
    pub(super) turn_of: VecDeque<u16>,
    pub(super) flights: HashMap<u64, Flight>,
    pub(super) window: Window,
    pub(super) next_id: u64,
    pub(super) epoch: u64,
    pub(super) road: Road,
    pub(super) members: Option<u32>,
    pub(super) beat_at: Micros,
    pub(super) beat_sent: Option<Micros>,
    /// The last heartbeat found something else in its key.
    pub(super) miscounts: bool,
    /// Questions that may still be asked now, and since when that is known.
    pub(super) allowance: f64,
    pub(super) allowed_at: Micros,
    /// How far horizons and cadences are stretched; at least 1.
    pub(super) stretch: f64,
    pub(super) asked_lately: u64,
    /// The allowance ran out before the queues did.
    pub(super) cut_off: bool,
    pub(super) closing: Option<Micros>,
    pub(super) rng: fastrand::Rng,
    pub(super) tally: Tally,
    /// The bucket that this turn is about, so that a panic is one bucket's trouble.
    pub(super) current: Option<u32>,
    // What a turn does for many buckets lies here meanwhile, so that a panic over one of them leaves
    // the rest for the next flush.
    /// Answers that came and were not looked at yet.
    pub(super) landed: VecDeque<(Asked, Landed)>,
    /// The next of all buckets that has to be visited.
    pub(super) round: Option<u32>,
    pub(super) loading: Option<Load>,
}

impl Engine {
    pub(crate) fn new(mut settings: Settings, tier: Arc<Tier>, now: Micros) -> Engine {
        let rules = Rules::new(std::mem::take(&mut settings.rules));
        Engine {
            rules,
            tier,
            buckets: Vec::new(),
            vacant: Vec::new(),
            quiet: VecDeque::new(),
            peeks: HashMap::new(),
            orders: HashMap::new(),
            plain: Plain::default(),
            timers: BinaryHeap::new(),
            queues: Vec::new(),
            turn_of: VecDeque::new(),
            flights: HashMap::new(),
            window: Window::new(settings.response_timeout),
            next_id: 1,
            epoch: 0,
            road: Road::default(),
            members: None,
            beat_at: Micros::ZERO,
            beat_sent: None,
            miscounts: false,
            allowance: f64::from(settings.syncs_per_second_max) / 10.0,
            allowed_at: now,
            stretch: 1.0,
            asked_lately: 0,
            cut_off: false,
            closing: None,
            rng: fastrand::Rng::with_seed(settings.instance.0),
            tally: Tally::default(),
            current: None,
            landed: VecDeque::new(),
            round: None,
            loading: None,
            settings,
        }
    }

    /// Takes one input at time `now`; what is to be done is added to `effects`.
    pub(crate) fn turn(&mut self, input: Input, now: Micros, effects: &mut Vec<Effect>) {
        match input {
            Input::Call(cell) => {
                if let Some(index) = self.bucket_of(&cell, now) {
                    self.visit(index, now);
                }
            }
            Input::Ask { cell, cost, deadline, waiter } => self.ask(&cell, Waiting { cost, deadline, waiter }, now),
            Input::Peek { rule, key, cost, deadline, waiter } => {
                self.peek(rule, &key.0, key.1, Peek { rule, name: BucketName::from_bytes([]), cost, deadline, waiter });
            }
            Input::Order { rule, key, order, deadline, waiter } => self.order(rule, key, order, deadline, waiter),
            Input::Refund { cell, tokens, since } => self.refund(&cell, tokens, since, now),
            Input::Hit { ask, deadline, waiter } => self.hit(ask, deadline, waiter),
            Input::GiveBack { ask, until } => self.give_back_hit(ask, until, now),
            Input::Counted { id, result } => self.counted(id, result, now, effects),
            Input::Answered { id, result } => self.answered(id, result, now, effects),
            Input::Beaten(result) => self.beaten(result, now, effects),
            Input::Rules(rules) => self.replace_rules(rules, now),
            Input::Close(deadline) => self.close(deadline, now),
        }
        self.current = None;
    }

    /// Ends a round of turns: runs what is due and sends what is ready.
    pub(crate) fn flush(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        self.land(now, effects);
        self.visit_all(now);
        self.run_timers(now);
        self.retire(now);
        self.beat(now, effects);
        self.send(now, effects);
        self.finish(now, effects);
        self.current = None;
    }

    /// When [`flush`](Engine::flush) has something to do again, if nothing comes in before.
    pub(crate) fn wake_at(&self) -> Micros {
        let timer = self.timers.peek().map_or(Micros::MAX, |Reverse((at, _))| *at);
        let quiet = self.quiet.front().map_or(Micros::MAX, |(at, _)| *at);
        let beat = if self.beat_sent.is_some() { Micros::MAX } else { self.next_beat() };
        let batches = self.is_anything_queued() && !self.is_full();
        let hits = self.plain.is_queued() && self.window.room() > 0;
        let ready = (batches || hits) && !self.road.is_down();
        let send = if ready { self.allowed_at.plus(Micros::from_millis(1)) } else { Micros::MAX };
        timer.min(quiet).min(beat).min(send).min(self.closing.unwrap_or(Micros::MAX))
    }

    pub(crate) fn instance(&self) -> InstanceId {
        self.settings.instance
    }

    /// The key in which the gate's members are counted.
    pub(crate) fn members_key(&self) -> (u16, BucketName) {
        self.settings.keys.members()
    }

    pub(crate) fn link(&self) -> Link {
        self.road.state()
    }

    pub(crate) fn cause(&self) -> ErrorKind {
        self.road.cause()
    }

    /// The authority's clock less ours, in µs.
    pub(crate) fn ahead(&self) -> Option<i64> {
        self.road.ahead()
    }

    pub(crate) fn round_trip(&self) -> Micros {
        self.road.round_trip()
    }

    pub(crate) fn members(&self) -> Option<u32> {
        self.members.or(self.settings.instances)
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// After a panic in a turn: the bucket it was about is given up, so that it cannot panic again.
    pub(crate) fn bury(&mut self) {
        let Some(index) = self.current.take() else { return };
        if let Some(mut bucket) = self.buckets.get_mut(index as usize).and_then(Option::take) {
            bucket.cell.close();
            self.tier.remove(&bucket.cell);
            bucket.answer_all(Answer::Failed(ErrorKind::Protocol));
            self.tally.hold = self.tally.hold.saturating_sub(bucket.hold);
            // Its place is not used again: queues and timers may still name it, and find nothing.
        }
    }

    fn ask(&mut self, cell: &Arc<Cell>, waiting: Waiting, now: Micros) {
        if self.closing.is_some() {
            waiting.waiter.answer(Answer::Failed(ErrorKind::ShutDown));
            return;
        }
        let Some(index) = self.bucket_of(cell, now) else {
            // Where nobody serves its rule any more, another cell would find nobody either.
            let served = self.rules.serves(cell.rule());
            waiting.waiter.answer(if served { Answer::Closed } else { Answer::Failed(ErrorKind::UnknownRule) });
            return;
        };
        if let Some(bucket) = self.buckets[index as usize].as_deref_mut() {
            bucket.note(now, waiting.cost);
            bucket.cost = waiting.cost;
            let deadline = waiting.deadline;
            bucket.waiting.push_back(waiting);
            // Where the next visit is settled, one more who waits changes nothing but the deadline:
            // a crowd must not cost a look each.
            let settled = bucket.open.is_some() || bucket.ready || (bucket.short && now < bucket.next_at);
            if settled && bucket.waiting.len() > 1 && !self.road.is_down() && bucket.trouble.is_none() {
                self.rest_of_visit(index, deadline, now);
                return;
            }
        }
        self.visit(index, now);
    }

    fn peek(&mut self, rule: u32, key: &[u8], digest: bool, mut peek: Peek) {
        if self.closing.is_some() || self.road.is_down() {
            let kind = if self.closing.is_some() { ErrorKind::ShutDown } else { self.road.cause() };
            peek.waiter.answer(Answer::Failed(kind));
            return;
        }
        let Some(terms) = self.rules.terms(rule) else { return };
        let (tag, name) = self.settings.keys.bucket(terms.kind(), terms.label, key, digest);
        peek.name = name;
        let id = self.new_id();
        self.timers.push(Reverse((peek.deadline, Timer::Peek(id))));
        self.peeks.insert(id, peek);
        self.queue(tag, |queue| queue.peeks.push_back(id));
    }

    fn refund(&mut self, cell: &Arc<Cell>, tokens: u64, since: Micros, now: Micros) {
        let Some(index) = self.bucket_of(cell, now) else { return };
        self.take_back(index, tokens, since, now);
        self.visit(index, now);
    }

    pub(super) fn take_back(&mut self, index: u32, tokens: u64, since: Micros, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let numbers = self.rules.terms(bucket.cell.rule()).map(|terms| terms.numbers);
        let is_window = numbers.is_some_and(|numbers| numbers.algorithm.is_window());
        if is_window && self.road.there(now).is_none() {
            // In which window that was is known when the authority has told its time.
            let (sum, oldest) = bucket.early.unwrap_or((0, since));
            bucket.early = Some((sum.saturating_add(tokens), oldest.min(since)));
            return;
        }
        if numbers.is_some_and(|of| !Engine::has_still(&self.road, bucket, &of, since, now)) {
            return;
        }
        bucket.look(now);
        // What was never taken here cannot come back.
        let (tokens, oldest) = bucket.taken.refund(tokens);
        let there = Engine::fresh(&self.road, bucket, oldest.min(since));
        // What was taken at nobody knows what time may have left its window already.
        if there != Micros::ZERO || !is_window {
            bucket.give_in(tokens, there);
        }
    }

    /// The bucket of a cell, made if there is none; `None` when the cell is closed, as one is whose rule is gone.
    pub(super) fn bucket_of(&mut self, cell: &Arc<Cell>, now: Micros) -> Option<u32> {
        if let Some(index) = cell.engine_slot() {
            self.current = Some(index);
            return self.buckets.get(index as usize).is_some_and(Option::is_some).then_some(index);
        }
        if cell.is_closed() {
            return None;
        }
        if !self.rules.serves(cell.rule()) {
            // Made by a check that had begun before the rule went: nobody else would ever let it go.
            cell.close();
            self.tier.remove(cell);
            return None;
        }
        let rule = self.rules.get(cell.rule())?;
        let bucket = Box::new(Bucket::new(cell.clone(), &rule, self.new_epoch(), now));
        let index = match self.vacant.pop() {
            Some(index) => {
                self.buckets[index as usize] = Some(bucket);
                index
            }
            None => {
                self.buckets.push(Some(bucket));
                u32::try_from(self.buckets.len() - 1).unwrap_or(u32::MAX)
            }
        };
        cell.set_engine_slot(Some(index));
        self.current = Some(index);
        self.begin(index, &rule.terms, now);
        Some(index)
    }

    fn run_timers(&mut self, now: Micros) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            match timer {
                Timer::Bucket(index) => {
                    if let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) {
                        if bucket.timer <= now {
                            bucket.timer = Micros::MAX;
                        }
                        self.visit(index, now);
                    }
                }
                Timer::Order(id) => self.order_is_late(id),
                Timer::Hit(id) => self.hit_is_late(id),
                Timer::Peek(id) => {
                    if let Some(peek) = self.peeks.remove(&id) {
                        peek.waiter.answer(Answer::Late);
                    }
                }
            }
        }
    }

    /// Closes cells that stayed quiet.
    fn retire(&mut self, now: Micros) {
        while let Some((at, _)) = self.quiet.front() {
            if *at > now {
                break;
            }
            let Some((_, cell)) = self.quiet.pop_front() else { break };
            if cell.engine_slot().is_some() || cell.is_closed() {
                continue; // asked again meanwhile
            }
            if cell.close_idle() {
                self.tier.remove(&cell);
            } else {
                self.quiet.push_back((now.plus(QUIET), cell)); // a handle holds it
            }
        }
    }

    fn next_beat(&self) -> Micros {
        if self.road.is_down() { self.road.retry_at() } else { self.beat_at }
    }

    fn beat(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        if self.beat_sent.is_some() || self.closing.is_some() || now < self.next_beat() {
            return;
        }
        self.beat_sent = Some(now);
        // Instances that started together do not beat together.
        self.beat_at = now.plus(Micros((BEAT.0 as f64 * (0.9 + 0.2 * self.rng.f64())) as u64));
        effects.push(Effect::Beat { leave: false });
    }

    pub(super) fn new_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// One bucket's trouble, in the words of the event.
pub(super) fn bucket_event(rule: &'static str, kind: ErrorKind, message: String) -> Event {
    Event::Bucket { rule: rule.to_owned(), kind, message }
}
