//! The engine: one turn takes something that happened and says what is to be done.
//!
//! No clock, no socket, no task: the tokio driver and a simulator run this same code. It reads and
//! writes the cells of its gate's local tier, which are shared memory.

use super::{
    bucket::{Bucket, Waiting},
    link::Road,
    message::{Effect, Input},
    waiter::{Answer, Waiter},
    window::Window,
};
use crate::{
    error::{Error, ErrorKind},
    key::{BucketName, KeySpace},
    lease::{EXACT_MAX, InstanceId, Need, Reply, Sync, Total},
    local::{Cell, Tier},
    observe::{Event, Link},
    rule::{LEASE_MARGIN, Mode, Terms},
    store::Batch,
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

/// Questions in one batch: enough to spread the cost of a script call thinly, few enough that the
/// authority is never busy for more than half a millisecond with one.
const BATCH_MAX: usize = if cfg!(test) { 3 } else { 100 };
/// Batches on their way at once.
const IN_FLIGHT_MAX: usize = 64;
/// Requests that one question speaks for.
const NEED_MAX: usize = 10_000;
/// Demand, in tokens a second, from which threads take credit of a cell.
const HOT: f32 = 2_000.0;
/// A denial is believed for this long, then asked about again: a refund elsewhere may have ended it.
pub(super) const DENIAL_MAX: Micros = Micros::from_secs(1);
/// Between two heartbeats.
const BEAT: Micros = Micros::from_secs(1);
/// A bucket that answered with an error, or that was refused, is left alone for this long.
pub(super) const TROUBLE_PAUSE: Micros = Micros::from_millis(100);
/// A cell that nobody asks for this long after its bucket is gone goes too.
const QUIET: Micros = Micros::from_secs(10);

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
    pub(crate) hold: u64,
}

/// Which question of a batch an answer belongs to.
#[derive(Debug)]
pub(super) enum Asked {
    Bucket { index: u32, epoch: u64, seq: u64 },
    Peek(u64),
}

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) sent_at: Micros,
    pub(super) asked: Vec<Asked>,
}

/// A batch that is being put together.
#[derive(Debug)]
struct Load {
    tag: u16,
    asked: Vec<Asked>,
    questions: Vec<(BucketName, Sync)>,
}

/// What came back for one question: the authority's word, or why its whole batch has none.
#[derive(Debug)]
pub(super) enum Landed {
    Answer(Result<Reply, Error>),
    Failed(ErrorKind),
}

#[derive(Debug)]
pub(super) struct Peek {
    rule: u32,
    name: BucketName,
    cost: u64,
    deadline: Micros,
    pub(super) waiter: Waiter,
}

/// What waits to be put into a batch of one tag: those whom somebody waits for go first.
#[derive(Debug, Default)]
struct Queue {
    peeks: VecDeque<u64>,
    needed: VecDeque<u32>,
    ahead: VecDeque<u32>,
}

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Bucket(u32),
    Peek(u64),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(super) settings: Settings,
    pub(super) tier: Arc<Tier>,
    pub(super) buckets: Vec<Option<Box<Bucket>>>,
    vacant: Vec<u32>,
    /// Cells that nobody has asked for a while and that have no bucket any more, oldest first.
    quiet: VecDeque<(Micros, Arc<Cell>)>,
    pub(super) peeks: HashMap<u64, Peek>,
    timers: BinaryHeap<Reverse<(Micros, Timer)>>,
    queues: Vec<Queue>,
    /// Tags that have something queued, in the order in which they got it.
    turn_of: VecDeque<u16>,
    pub(super) flights: HashMap<u64, Flight>,
    pub(super) window: Window,
    next_id: u64,
    epoch: u64,
    pub(super) road: Road,
    pub(super) members: Option<u32>,
    beat_at: Micros,
    pub(super) beat_sent: Option<Micros>,
    /// Questions that may still be asked now, and since when that is known.
    allowance: f64,
    allowed_at: Micros,
    /// How far horizons and cadences are stretched; at least 1.
    stretch: f64,
    asked_lately: u64,
    /// The allowance ran out before the queues did.
    cut_off: bool,
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
    loading: Option<Load>,
}

impl Engine {
    pub(crate) fn new(settings: Settings, tier: Arc<Tier>, now: Micros) -> Engine {
        Engine {
            tier,
            buckets: Vec::new(),
            vacant: Vec::new(),
            quiet: VecDeque::new(),
            peeks: HashMap::new(),
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
            Input::Refund { cell, tokens } => self.refund(&cell, tokens, now),
            Input::Answered { id, result } => self.answered(id, result, now, effects),
            Input::Beaten(result) => self.beaten(result, now, effects),
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
        let blocked = !self.is_anything_queued() || self.is_full() || self.road.is_down();
        let send = if blocked { Micros::MAX } else { self.allowed_at.plus(Micros::from_millis(1)) };
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
            waiting.waiter.answer(Answer::Closed);
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
        let Some(terms) = self.settings.rules.get(rule as usize) else { return };
        let (tag, name) = self.settings.keys.bucket(terms.kind(), terms.name, key, digest);
        peek.name = name;
        let id = self.new_id();
        self.timers.push(Reverse((peek.deadline, Timer::Peek(id))));
        self.peeks.insert(id, peek);
        self.queue(tag, |queue| queue.peeks.push_back(id));
    }

    fn refund(&mut self, cell: &Arc<Cell>, tokens: u64, now: Micros) {
        let Some(index) = self.bucket_of(cell, now) else { return };
        if let Some(bucket) = self.buckets[index as usize].as_deref_mut() {
            bucket.look(now);
            // What was never taken here cannot come back.
            let tokens = tokens.min(bucket.taken);
            bucket.taken -= tokens;
            bucket.refunded = bucket.refunded.saturating_add(tokens);
        }
        self.visit(index, now);
    }

    /// The bucket of a cell, made if there is none; `None` when the cell is closed.
    fn bucket_of(&mut self, cell: &Arc<Cell>, now: Micros) -> Option<u32> {
        if let Some(index) = cell.engine_slot() {
            self.current = Some(index);
            return self.buckets.get(index as usize).is_some_and(Option::is_some).then_some(index);
        }
        if cell.is_closed() || self.settings.rules.get(cell.rule() as usize).is_none() {
            return None;
        }
        let bucket = Box::new(Bucket::new(cell.clone(), self.new_epoch(), now));
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
        Some(index)
    }

    /// Looks after one bucket: what is over, who can be answered, and whether there is something to
    /// ask. Called whenever something may have changed; costs a look at the cell.
    pub(super) fn visit(&mut self, index: u32, now: Micros) {
        self.current = Some(index);
        let members = self.members().unwrap_or(1);
        let (down, cause, closing) = (self.road.is_down(), self.road.cause(), self.closing.is_some());
        let round_trip = self.road.round_trip();
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        let Some(terms) = self.settings.rules.get(bucket.cell.rule() as usize).copied() else { return };
        #[cfg(test)]
        bucket.trip("visit");

        if bucket.is_over(now) {
            self.epoch += 1;
            bucket.renew_epoch(self.epoch);
        }
        let mut look = bucket.look(now);
        if terms.mode != Mode::Exact {
            look = serve(bucket, look, now);
        }
        let mut next = bucket.expire(now).unwrap_or(Micros::MAX);
        // While nobody can be asked again, a no stands for as long as it was said to.
        if down && bucket.deny_until == Micros::ZERO && now < bucket.no.1 {
            bucket.cell.deny_until(bucket.no.0, bucket.no.1);
            bucket.deny_until = now; // asked about as soon as that can be done
        }
        if bucket.deny_until != Micros::ZERO && now >= bucket.deny_until && !down {
            bucket.deny_until = Micros::ZERO;
            bucket.cell.clear_denial();
        }
        if down || (bucket.trouble.is_some() && now < bucket.next_at) {
            bucket.fail_all(bucket.trouble.filter(|_| !down).unwrap_or(cause), now);
        }
        bucket.cell.set_hot(bucket.demand.per_second() > HOT);

        let situation = bucket.situation(&terms, members, self.stretch, now);
        let target = if terms.mode == Mode::Leased { situation.target() } else { 0 };
        let low = if target > 0 { situation.low(round_trip, terms.cadence).max(bucket.cost) } else { 0 };
        bucket.cell.set_low(low);
        let quarter = Micros(terms.lease_ttl.0 / 4);
        let idle = now.minus(bucket.active_at) >= quarter;
        let wants = terms.mode == Mode::Leased
            && bucket.activity > 0
            && bucket.deny_until == Micros::ZERO
            && ((target > look.hold && (look.hold < low || look.hold < bucket.cost))
                || (bucket.turned_away > 0 && look.hold < bucket.cost));
        let renews = look.hold > 0 && bucket.lease_end.minus(now) <= quarter && bucket.activity > 0;
        let returns = look.pool > 0 && (idle || closing);
        let may = closing || now >= bucket.next_at;
        // Spent before the next question may be asked, and next to nothing was free at the last (what
        // there was is for the others): until then no is the answer, for as little as any other no.
        let nothing = bucket.free < bucket.cost.max(terms.numbers.burst / 16);
        // With something wrong it would be no answer of the limit's.
        let well = !down && bucket.trouble.is_none();
        let dry = bucket.short && !may && look.hold < bucket.cost && nothing && well;
        if dry && terms.mode == Mode::Leased && bucket.deny_until == Micros::ZERO && bucket.waiting.is_empty() {
            bucket.deny_until = bucket.next_at;
            bucket.cell.deny_until(bucket.cost, bucket.next_at);
        }
        let needs = !bucket.waiting.is_empty() && (!bucket.short || may);
        let asks = needs || (may && (wants || renews || returns || bucket.is_owing()));
        let pending = !bucket.waiting.is_empty() || wants || renews || returns || bucket.is_owing();

        if bucket.hold != look.hold {
            self.tally.hold = self.tally.hold.saturating_sub(bucket.hold).saturating_add(look.hold);
            bucket.hold = look.hold;
        }
        if down || bucket.open.is_some() {
            // The answer, or the return of the link, brings the next visit.
        } else if asks {
            if !bucket.ready {
                bucket.ready = true;
                let (tag, needed) = (self.tag_of(index), needs);
                self.queue(
                    tag,
                    |queue| if needed { queue.needed.push_back(index) } else { queue.ahead.push_back(index) },
                );
            }
        } else if pending {
            next = next.min(bucket.next_at);
            if look.hold >= bucket.cost && terms.mode == Mode::Leased {
                // Nothing to do before, unless the hold runs dry: be called for that alone.
                bucket.cell.set_low(bucket.cost);
                bucket.cell.uncall();
                if bucket.look(now).hold < bucket.cost && bucket.cell.mark_called() {
                    next = now.plus(Micros(1));
                }
            }
        } else {
            // Nothing to ask: from now on a check that finds too little calls.
            // The second look sees what was spent or refused before the flag was cleared.
            bucket.cell.uncall();
            let again = bucket.look(now);
            let missed =
                (again.hold < low && bucket.activity > 0) || (bucket.turned_away > 0 && again.hold < bucket.cost);
            if missed && terms.mode == Mode::Leased && bucket.deny_until == Micros::ZERO && bucket.cell.mark_called() {
                next = next.min(bucket.next_at.max(now.plus(Micros(1))));
            }
            let quiet = !missed && look.hold == 0 && idle && bucket.cell.debt() == 0 && bucket.cell.outage() == 0;
            if quiet && bucket.waiting.is_empty() {
                self.hush(index, now);
                return;
            }
            next = next.min(now.plus(quarter));
        }
        self.rest_of_visit(index, next, now);
    }

    /// Sets the timers that the state of a bucket calls for.
    fn rest_of_visit(&mut self, index: u32, mut next: Micros, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        for at in [bucket.lease_end, bucket.deny_until] {
            if at > now {
                next = next.min(at);
            }
        }
        if next < bucket.timer {
            bucket.timer = next;
            self.timers.push(Reverse((next, Timer::Bucket(index))));
        }
    }

    /// Visits every bucket, from where the last such round was interrupted.
    pub(super) fn visit_all(&mut self, now: Micros) {
        while let Some(index) = self.round {
            self.round = (index as usize + 1 < self.buckets.len()).then_some(index + 1);
            self.current = Some(index);
            if self.closing.is_some()
                && let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut)
            {
                bucket.answer_all(Answer::Failed(ErrorKind::ShutDown));
                bucket.next_at = Micros::ZERO;
            }
            self.visit(index, now);
        }
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
                Timer::Peek(id) => {
                    if let Some(peek) = self.peeks.remove(&id) {
                        peek.waiter.answer(Answer::Late);
                    }
                }
            }
        }
    }

    /// A bucket without hold, debt or anybody who asks: only its cell stays, for a while.
    fn hush(&mut self, index: u32, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::take) else { return };
        bucket.cell.set_engine_slot(None);
        self.vacant.push(index);
        self.quiet.push_back((now.plus(QUIET), bucket.cell));
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

    /// Fills batches from the queues, as far as flights and the allowance go.
    fn send(&mut self, now: Micros, effects: &mut Vec<Effect>) {
        self.allow(now);
        while !self.is_full() && self.allowance >= 1.0 && !self.road.is_down() {
            let Some(load) = self.load(now) else { break };
            let Load { tag, asked, questions } = load;
            if let Some(queue) = self.queues.get(usize::from(tag))
                && (!queue.peeks.is_empty() || !queue.needed.is_empty() || !queue.ahead.is_empty())
            {
                self.turn_of.push_back(tag);
            }
            if questions.is_empty() {
                continue;
            }
            self.allowance -= questions.len() as f64;
            self.asked_lately += questions.len() as u64;
            self.tally.syncs += questions.len() as u64;
            self.tally.batches += 1;
            let id = self.new_id();
            self.window.left(asked.len());
            self.flights.insert(id, Flight { sent_at: now, asked });
            effects.push(Effect::Send { id, batch: Batch { tag, questions } });
        }
        self.cut_off |= self.allowance < 1.0 && !self.turn_of.is_empty();
    }

    /// Whether no further batch may leave before one has come back.
    fn is_full(&self) -> bool {
        self.flights.len() >= IN_FLIGHT_MAX || self.window.room() == 0
    }

    /// Fills one batch, or goes on with one that a panic has interrupted. `None`: nothing is queued.
    fn load(&mut self, now: Micros) -> Option<Load> {
        if self.loading.is_none() {
            let tag = self.turn_of.pop_front()?;
            self.loading = Some(Load { tag, asked: Vec::new(), questions: Vec::new() });
        }
        let room = BATCH_MAX.min(self.allowance as usize).min(self.window.room());
        while let Some(load) = self.loading.as_ref().filter(|load| load.questions.len() < room) {
            let Some(queue) = self.queues.get_mut(usize::from(load.tag)) else { break };
            let composed = if let Some(id) = queue.peeks.pop_front() {
                self.compose_peek(id)
            } else if let Some(index) = queue.needed.pop_front().or_else(|| queue.ahead.pop_front()) {
                self.compose(index, now)
            } else {
                break;
            };
            if let (Some((asked, name, sync)), Some(load)) = (composed, &mut self.loading) {
                load.asked.push(asked);
                load.questions.push((name, sync));
            }
        }
        self.loading.take()
    }

    /// Renews the allowance, and stretches horizons while questions come faster than they should.
    fn allow(&mut self, now: Micros) {
        let (max, gap) = (f64::from(self.settings.syncs_per_second_max), now.minus(self.allowed_at));
        if gap < Micros::from_millis(1) {
            return; // too short a time to measure anything by
        }
        let seconds = gap.as_secs_f64();
        self.allowance = (self.allowance + max * seconds).min((max / 10.0).max(1.0));
        self.allowed_at = now;
        let pressure = self.asked_lately as f64 / seconds / (0.8 * max);
        // Where the allowance has cut off what was to be asked, more was wanted than can be measured.
        let aim = if self.cut_off { (self.stretch * 2.0).min(100.0) } else { pressure.max(1.0) };
        let weight = 1.0 - (-seconds / 0.2).exp();
        self.stretch = (self.stretch + (aim - self.stretch) * weight).max(1.0);
        self.asked_lately = 0;
        self.cut_off = false;
    }

    fn compose_peek(&mut self, id: u64) -> Option<(Asked, BucketName, Sync)> {
        let peek = self.peeks.get(&id)?;
        let terms = self.settings.rules.get(peek.rule as usize).copied()?;
        let (name, need) = (peek.name.clone(), Need { cost: peek.cost, count: 0 });
        let not_after = self.road.there(peek.deadline).unwrap_or(Micros::ZERO);
        let sync = Sync { need, not_after, peek: true, ..self.blank(&terms) };
        Some((Asked::Peek(id), name, sync))
    }

    /// The question of one bucket, with fresh numbers.
    fn compose(&mut self, index: u32, now: Micros) -> Option<(Asked, BucketName, Sync)> {
        self.current = Some(index);
        let closing = self.closing.is_some();
        let members = self.members().unwrap_or(1);
        let draw = self.rng.u64(1..EXACT_MAX);
        let bucket = self.buckets.get_mut(index as usize)?.as_deref_mut()?;
        bucket.ready = false;
        if bucket.open.is_some() {
            return None;
        }
        #[cfg(test)]
        bucket.trip("compose");
        let terms = self.settings.rules.get(bucket.cell.rule() as usize).copied()?;
        if bucket.is_over(now) {
            self.epoch += 1;
            bucket.renew_epoch(self.epoch);
        }
        let idle = now.minus(bucket.active_at) >= Micros(terms.lease_ttl.0 / 4) && bucket.waiting.is_empty();
        let (need, waiting) = bucket.take_prefix(NEED_MAX);
        let pool = bucket.look(now).pool;
        // Pieces too small for what waits would lie about in every instance: back they go.
        if closing || idle || pool < need.cost || (bucket.turned_away > 0 && pool < bucket.cost) {
            bucket.give_back();
        }
        let look = bucket.look(now);
        let situation = bucket.situation(&terms, members, self.stretch, now);
        let mut target = match terms.mode {
            Mode::Leased if !closing && !idle => situation.target(),
            _ => 0,
        };
        if terms.mode == Mode::Leased && bucket.turned_away > 0 && !closing {
            target = target.max(bucket.cost); // somebody who could not wait will be back
        }
        let want = target.saturating_sub(look.hold);
        let cadence = situation.cadence(terms.cadence, self.road.round_trip());
        let cadence = Micros((cadence.0 as f64 * self.stretch * (1.0 + 0.1 * self.rng.f64())) as u64);
        bucket.next_at = now.plus(cadence);
        bucket.seq += 1;
        bucket.activity = 0;
        bucket.turned_away = 0;
        let (debt, outage) = (bucket.cell.debt(), bucket.cell.outage());
        // Until the last of the waiters gives up, or until we would ask again anyway.
        let last = waiting.iter().map(|w| w.deadline).max().unwrap_or(Micros::MAX);
        let dead = last.min(now.plus(self.settings.response_timeout));
        let hint = Need { cost: if need.count > 0 { need.cost } else { bucket.cost }, count: need.count };
        let sync = Sync {
            generation: if now < bucket.generation_until { bucket.generation } else { 0 },
            draw,
            epoch: bucket.epoch,
            seq: bucket.seq,
            born: bucket.born,
            not_after: self.road.there(dead).unwrap_or(Micros::ZERO),
            used: bucket.used(look.hold),
            hold: look.hold,
            age: bucket.age(now),
            need: hint,
            want,
            // In thousandths; a float of any size casts to the nearest integer there is.
            // Who leaves has none, so that its share is not kept for it until its record ends.
            demand: if closing || idle { 1 } else { ((bucket.demand.per_second() * 1_000.0) as u64).clamp(1, 1 << 40) },
            debt: Total { sum: debt, acked: bucket.debt_acked },
            outage: Total { sum: outage, acked: bucket.outage_acked },
            ..Engine::blank_of(&self.settings, &terms)
        };
        let asked = Asked::Bucket { index, epoch: bucket.epoch, seq: bucket.seq };
        let open = super::bucket::Open {
            seq: bucket.seq,
            sent_at: now,
            need,
            want,
            debt,
            outage,
            refunded: bucket.refunded,
            waiting,
        };
        let (_, name) =
            self.settings.keys.bucket(terms.kind(), terms.name, bucket.cell.key_bytes(), bucket.cell.is_digest());
        bucket.open = Some(Box::new(open));
        Some((asked, name, sync))
    }

    /// A question that asks and tells nothing.
    fn blank(&self, terms: &Terms) -> Sync {
        Engine::blank_of(&self.settings, terms)
    }

    fn blank_of(settings: &Settings, terms: &Terms) -> Sync {
        Sync {
            generation: 0,
            draw: 1,
            numbers: terms.numbers,
            instance: settings.instance,
            epoch: 0,
            seq: 0,
            born: 0,
            not_after: Micros::ZERO,
            used: 0,
            hold: 0,
            age: Micros::ZERO,
            need: Need::default(),
            want: 0,
            demand: 1,
            span: terms.lease_ttl.plus(LEASE_MARGIN),
            debt: Total::default(),
            outage: Total::default(),
            lost: terms.lost,
            peek: false,
        }
    }

    /// Whether a bucket or a peek waits for its place in a batch.
    pub(super) fn is_anything_queued(&self) -> bool {
        !self.turn_of.is_empty() || self.loading.is_some()
    }

    fn tag_of(&self, index: u32) -> u16 {
        let Some(bucket) = self.buckets.get(index as usize).and_then(Option::as_deref) else { return 0 };
        let Some(terms) = self.settings.rules.get(bucket.cell.rule() as usize) else { return 0 };
        self.settings.keys.tag(terms.kind(), terms.name, bucket.cell.key_bytes())
    }

    fn queue(&mut self, tag: u16, put: impl FnOnce(&mut Queue)) {
        let at = usize::from(tag);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, Queue::default);
        }
        let queue = &mut self.queues[at];
        if queue.peeks.is_empty() && queue.needed.is_empty() && queue.ahead.is_empty() {
            self.turn_of.push_back(tag);
        }
        put(queue);
    }

    pub(super) fn new_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Gives waiters tokens of the hold, in order, as long as there are enough.
fn serve(bucket: &mut Bucket, mut look: crate::local::Look, now: Micros) -> crate::local::Look {
    let mut served = false;
    while let Some(first) = bucket.waiting.front() {
        if first.waiter.is_waited_for() {
            if look.pool < first.cost || !bucket.cell.take(first.cost, now) {
                break;
            }
            look.pool = look.pool.saturating_sub(first.cost);
            let remaining = bucket.free.saturating_add(look.pool);
            first.waiter.answer(Answer::Given { remaining, by_authority: false });
            served = true;
        }
        bucket.waiting.pop_front();
    }
    if served { bucket.look(now) } else { look }
}

/// One bucket's trouble, in the words of the event.
pub(super) fn bucket_event(rule: &'static str, kind: ErrorKind, message: String) -> Event {
    Event::Bucket { rule: rule.to_owned(), kind, message }
}
