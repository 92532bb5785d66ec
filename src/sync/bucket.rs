//! What the engine knows about one cell: its lease, its open question, who waits, and the books.
//!
//! Decides nothing and sends nothing; `turn` does. `spent = granted - hold` always, so that a token is in
//! exactly one of the three whatever other threads do meanwhile. What is spent is told as `used` where the
//! authority has granted it, and as debt where this instance has: see [`ahead`](super::ahead).

use super::{
    rules::Rule,
    waiter::{Answer, Waiter},
};
use crate::{
    algorithm::Algorithm,
    error::ErrorKind,
    ewma::Ewma,
    lease::{Need, Reply, Situation},
    local::{Cell, Look, Taken},
    rule::{Mode, Terms},
    time::Micros,
};
use std::{collections::VecDeque, sync::Arc};

/// An epoch in which so much was granted ends, so that its totals stay exact in Lua. What is held then is
/// lost; at ten million tokens a second that is once in a year.
pub(super) const GRANTED_MAX: u64 = 1 << 48;

/// A log is lent for this part of its window at most, so that what is spent is told soon.
const LOG_TELLS: u64 = 50;

/// Somebody who waits for tokens.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) cost: u64,
    pub(super) deadline: Micros,
    pub(super) waiter: Waiter,
}

/// The one question that may be open.
#[derive(Debug)]
pub(super) struct Open {
    /// Not that of the bucket any more where its window ended meanwhile.
    pub(super) epoch: u64,
    pub(super) seq: u64,
    /// The series that its totals are of: not the bucket's any more where a window ended meanwhile.
    pub(super) born: u64,
    pub(super) sent_at: Micros,
    pub(super) window: Micros,
    /// Asked of other numbers, or before the key was blocked or cleared: its denial says nothing any more.
    pub(super) dated: bool,
    pub(super) need: Need,
    pub(super) want: u64,
    pub(super) hold: u64,
    pub(super) debt: u64,
    pub(super) outage: u64,
    pub(super) refunded: u64,
    /// What had been told of refunds before it.
    pub(super) refunded_before: u64,
    /// The `need.count` who wait for just this answer, in order.
    pub(super) waiting: Vec<Waiting>,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) cell: Arc<Cell>,
    /// The rule's when the bucket was made. A rule that changes it gets new buckets.
    pub(super) mode: Mode,
    /// The edition of the rule that it has heard of, and whether the authority has not.
    pub(super) edition: u32,
    /// Where its windows lie: their length and offset.
    pub(super) frame: (Micros, Micros),
    pub(super) revised: bool,
    /// Its cell is closed; only what it has to tell keeps it here.
    pub(super) leaving: bool,
    pub(super) epoch: u64,
    pub(super) born: u64,
    pub(super) seq: u64,
    /// What the authority counts as lent to us in this epoch, as of its last answer; it may be spent by now.
    pub(super) lent: u64,
    /// Granted in this epoch, less what was taken out of the pool to be given back. `Buffered`: by this instance to
    /// itself, since `born`.
    pub(super) granted: u64,
    /// Refunded in this epoch, and the part the authority has booked.
    pub(super) refunded: u64,
    pub(super) refunded_acked: u64,
    /// The part that was told in questions of this epoch of which it is not known that they had no effect.
    pub(super) refunded_told: u64,
    pub(super) taken: Taken,
    /// Given back before the authority had told its time: how many, and since when they were taken.
    pub(super) early: Option<(u64, Micros)>,
    /// What was refunded and is not booked was taken at this time or later, on the authority's clock; zero: not known.
    pub(super) fresh: Micros,
    pub(super) lease_end: Micros,
    /// Until then the authority surely has a record of this epoch.
    pub(super) known_until: Micros,
    pub(super) generation: u64,
    pub(super) generation_until: Micros,
    /// The present window's start on the authority's clock, and the end up to which its tokens may be spent, on ours;
    /// zero: not known. For fixed windows alone.
    pub(super) window: Micros,
    pub(super) window_end: Micros,
    /// When it was entered here.
    pub(super) window_since: Micros,
    /// What the cell's totals were when this series began, at `born`.
    pub(super) debt_base: u64,
    pub(super) outage_base: u64,
    /// The most debt that was found: a look may find less than the one before it.
    pub(super) debt_seen: u64,
    /// `Buffered`: all that was granted is booked, and the authority was above zero after that.
    pub(super) clean: bool,
    /// `Buffered`: since when something is spent and not told.
    pub(super) owing_since: Option<Micros>,
    pub(super) debt_acked: u64,
    pub(super) outage_acked: u64,
    pub(super) open: Option<Box<Open>>,
    pub(super) waiting: VecDeque<Waiting>,
    /// Spent from grants as of the last look, and since when it is known to be so.
    pub(super) spent: u64,
    spent_since: Option<Micros>,
    refused: u64,
    pub(super) demand: Ewma,
    pub(super) boost: f32,
    /// Tokens that nobody had at the last answer.
    pub(super) free: u64,
    /// The largest cost that was asked lately.
    pub(super) cost: u64,
    /// Tokens asked for here since the last question was made; and of those, how many were refused
    /// by somebody who could not wait.
    pub(super) activity: u64,
    pub(super) turned_away: u64,
    pub(super) active_at: Micros,
    pub(super) next_at: Micros,
    /// When the last question was made.
    pub(super) told_at: Micros,
    made_at: Micros,
    /// When a cached denial is asked about again.
    pub(super) deny_until: Micros,
    /// The last no of the limit: for which cost, and until when it holds if nobody can be asked again.
    pub(super) no: (u64, Micros),
    /// The key is blocked until then, as far as is known here.
    pub(super) blocked_until: Micros,
    pub(super) short: bool,
    pub(super) trouble: Option<ErrorKind>,
    /// A question failed that gave something back, or that may have been granted something: the
    /// authority thinks that it is here until the next one tells.
    pub(super) untold: bool,
    pub(super) ready: bool,
    pub(super) timer: Micros,
    /// The hold as of the last look, for the sum over all buckets.
    pub(super) hold: u64,
}

impl Bucket {
    /// Takes charge of a cell, in a new epoch and with empty hands.
    pub(super) fn new(cell: Arc<Cell>, rule: &Rule, epoch: u64, now: Micros) -> Bucket {
        cell.reborn();
        // What was spent from the first allowance; from here on nothing is.
        let first = cell.close_first();
        let mode = rule.terms.mode;
        if mode != Mode::Buffered && first > 0 {
            cell.add_debt(first); // it was `Buffered` when that was spent
        }
        cell.set_sharp(rule.terms.numbers.algorithm == Algorithm::FixedWindow);
        let refused = cell.look().refused;
        Bucket {
            mode,
            edition: rule.edition,
            frame: (rule.terms.numbers.window, rule.terms.numbers.offset),
            revised: false,
            leaving: false,
            epoch,
            born: epoch,
            seq: 0,
            lent: 0,
            granted: if mode == Mode::Buffered { first } else { 0 },
            refunded: 0,
            refunded_acked: 0,
            refunded_told: 0,
            taken: Taken::new(now),
            early: None,
            fresh: Micros::ZERO,
            lease_end: Micros::ZERO,
            known_until: Micros::ZERO,
            generation: 0,
            generation_until: Micros::ZERO,
            window: Micros::ZERO,
            window_end: Micros::ZERO,
            window_since: Micros::ZERO,
            debt_base: 0,
            outage_base: 0,
            debt_seen: 0,
            clean: false,
            owing_since: None,
            debt_acked: 0,
            outage_acked: 0,
            open: None,
            waiting: VecDeque::new(),
            spent: 0,
            spent_since: None,
            // What was refused before anybody counted is one refusal, enough to ask for a token.
            refused: refused.saturating_sub(1),
            demand: Ewma::default(),
            boost: 1.0,
            free: 0,
            cost: 1,
            activity: 0,
            turned_away: 0,
            active_at: now,
            made_at: now,
            next_at: Micros::ZERO,
            told_at: now,
            deny_until: Micros::ZERO,
            no: (0, Micros::ZERO),
            blocked_until: Micros::ZERO,
            short: false,
            trouble: None,
            untold: false,
            ready: false,
            timer: Micros::MAX,
            hold: 0,
            cell,
        }
    }

    /// A planted panic: tests name the place in the key.
    #[cfg(test)]
    pub(super) fn trip(&self, place: &str) {
        let planted = self.cell.key_bytes().strip_prefix(b"panic in ");
        assert!(planted != Some(place.as_bytes()), "planted in {place}");
    }

    /// Looks at the cell, measures demand, and returns what is there. `now` is the start of this turn,
    /// and every look of an earlier turn ended before it.
    pub(super) fn look(&mut self, now: Micros) -> Look {
        let look = self.cell.look();
        let spent = self.granted.saturating_sub(look.hold);
        if spent == self.spent {
            // The first later turn that still reads the same: nothing was spent since it began.
            self.spent_since.get_or_insert(now);
        } else {
            self.spent_since = None;
        }
        let events = spent.saturating_sub(self.spent);
        let turned_away = look.refused.saturating_sub(self.refused);
        self.taken.add(events);
        self.spent = spent;
        self.refused = look.refused;
        if turned_away > 0 {
            self.turned_away = self.turned_away.saturating_add(turned_away);
            let costly = self.cell.take_costly();
            self.cost = if costly > 0 { costly } else { self.cost };
        }
        self.note(now, events.saturating_add(turned_away));
        look
    }

    /// Counts tokens that were asked for.
    pub(super) fn note(&mut self, now: Micros, tokens: u64) {
        self.demand.look(now, tokens);
        if tokens > 0 {
            self.activity = self.activity.saturating_add(tokens);
            self.active_at = now;
        }
    }

    /// Time since the last spending here, rounded down: see `look`. Less a clock tick and 0.1 %.
    pub(super) fn age(&self, now: Micros) -> Micros {
        let since = self.spent_since.map_or(Micros::ZERO, |at| now.minus(at));
        since.minus(Micros(since.0 / 1_000)).minus(Micros::from_millis(1))
    }

    /// Takes the pool back, so that the authority gets it with the next question.
    pub(super) fn give_back(&mut self) {
        let pool = self.cell.empty_pool();
        self.granted = self.granted.saturating_sub(pool);
    }

    /// Whether the epoch has to end: its lease has, or its totals grow too large for Lua.
    pub(super) fn is_over(&self, now: Micros) -> bool {
        let grown = self.granted > GRANTED_MAX && self.mode != Mode::Buffered;
        (self.lease_end != Micros::ZERO && now >= self.lease_end) || grown
    }

    /// Begins a new epoch with empty hands: the lease is over, or was never there.
    pub(super) fn renew_epoch(&mut self, epoch: u64) {
        let buffers = self.mode == Mode::Buffered;
        if buffers {
            self.give_back(); // what it gave itself is no lease: the rest of it counts as spent, and as not booked yet
        }
        self.cell.reborn();
        self.epoch = epoch;
        self.seq = 0;
        self.lent = 0;
        self.granted = if buffers { self.granted } else { 0 };
        self.spent = self.granted;
        self.spent_since = None;
        // Refunds that the authority surely has not booked go on in the new epoch. What it may have booked would come back
        // twice, since it begins to count anew as well: like a lease whose end nobody heard of, that counts as spent.
        self.refunded = self.refunded.saturating_sub(self.refunded_told.max(self.refunded_acked));
        (self.refunded_acked, self.refunded_told) = (0, 0);
        self.lease_end = Micros::ZERO;
        self.known_until = Micros::ZERO;
        self.untold = false; // the old lease counts as spent, whatever is told
        self.reopen();
    }

    /// Forgets the open question; who waited for it waits on, in front.
    pub(super) fn reopen(&mut self) {
        if let Some(open) = self.open.take() {
            self.put_back(*open);
        }
    }

    /// The same for one that surely had no effect: what it told is still to be told.
    pub(super) fn reopen_untold(&mut self) {
        if let Some(open) = self.open.as_ref().filter(|open| open.epoch == self.epoch) {
            self.refunded_told = open.refunded_before;
        }
        self.reopen();
    }

    /// Has those who waited for this question wait on, in front.
    pub(super) fn put_back(&mut self, open: Open) {
        for waiting in open.waiting.into_iter().rev() {
            self.waiting.push_front(waiting);
        }
    }

    /// The answer to somebody whose question failed: that, unless the limit has said no until later.
    /// Whom it has refused is not for the fallback.
    fn failed(&self, waiting: &Waiting, now: Micros, answer: Answer) -> Answer {
        let (cost, until) = self.no;
        if now < until && waiting.cost >= cost {
            return Answer::Denied { wait: until.minus(now), remaining: self.free, by_authority: false };
        }
        answer
    }

    /// Answers everybody who waits here that the store cannot be asked.
    pub(super) fn fail_all(&mut self, kind: ErrorKind, now: Micros) {
        let asked = self.open.iter().flat_map(|open| &open.waiting);
        for w in self.waiting.iter().chain(asked) {
            w.waiter.answer(self.failed(w, now, Answer::Failed(kind)));
        }
        self.waiting.clear();
    }

    /// Answers everybody who waits here, in whatever question.
    pub(super) fn answer_all(&mut self, answer: Answer) {
        if let Some(open) = &mut self.open {
            open.waiting.iter().for_each(|w| _ = w.waiter.answer(answer));
        }
        self.waiting.drain(..).for_each(|w| _ = w.waiter.answer(answer));
    }

    /// Answers those whose deadline has come and tells the next deadline.
    pub(super) fn expire(&mut self, now: Micros) -> Option<Micros> {
        // Who waits in the open question keeps the place: its tokens were asked for, and must add up.
        let asked = self.open.iter().flat_map(|open| &open.waiting);
        for w in self.waiting.iter().chain(asked.clone()).filter(|w| w.deadline <= now) {
            w.waiter.answer(self.failed(w, now, Answer::Late));
        }
        let next = self.waiting.iter().chain(asked).map(|w| w.deadline).filter(|at| *at > now).min();
        self.waiting.retain(|w| w.deadline > now);
        next
    }

    /// The prefix of equal costs that waits: what the next question needs. Those who left are dropped.
    pub(super) fn take_prefix(&mut self, count_max: usize) -> (Need, Vec<Waiting>) {
        let mut prefix: Vec<Waiting> = Vec::new();
        while let Some(next) = self.waiting.pop_front() {
            if !next.waiter.is_waited_for() {
                continue;
            }
            let fits = prefix.len() < count_max && prefix.first().is_none_or(|first| first.cost == next.cost);
            if !fits {
                self.waiting.push_front(next);
                break;
            }
            prefix.push(next);
        }
        let cost = prefix.first().map_or(0, |first| first.cost);
        (Need { cost, count: prefix.len() as u64 }, prefix)
    }

    /// What the sizing has to know. `stretch` is at least 1 and grows with the load on the authority.
    pub(super) fn situation(&self, terms: &Terms, members: u32, stretch: f64, now: Micros) -> Situation {
        // What is not spent by the end of its window is spent by nobody.
        let left = if self.window_end > now { self.window_end.minus(now) } else { Micros::MAX };
        // A log counts from the report on: told late, it leaves the window late.
        let log = terms.numbers.algorithm == Algorithm::SlidingLog;
        let left = if log { Micros(terms.numbers.window.0 / LOG_TELLS) } else { left };
        Situation {
            burst: terms.numbers.burst,
            rate: terms.numbers.rate.per_second(),
            demand: f64::from(self.demand.per_second()),
            cost: self.cost,
            members,
            free: self.free,
            horizon: Micros((terms.horizon.0 as f64 * stretch) as u64).min(left),
            ttl: terms.lease_ttl.min(left),
            known_for: now.minus(self.made_at),
            boost: f64::from(self.boost),
        }
    }

    /// Takes from an answer what holds whatever became of the lease meanwhile.
    pub(super) fn learn(&mut self, open: &Open, reply: &Reply) {
        self.generation = reply.generation;
        self.generation_until = open.sent_at.plus(reply.key_ttl);
        self.free = reply.free;
        self.cell.set_free(reply.free);
        if self.trouble.take().is_some() {
            self.cell.set_trouble(None);
        }
        // Of a window that is over by now nothing comes back.
        if self.window == reply.window {
            self.taken.add(reply.given.saturating_mul(open.need.cost));
        }
        self.short = reply.given < open.need.count || reply.grant < open.want;
    }

    /// Books an answer to the open question, which the caller has matched and which came in time.
    pub(super) fn settle(&mut self, open: &Open, reply: &Reply, lease_end: Micros) {
        // A new series may have begun since it was asked, of which nothing is booked yet.
        if open.born == self.born {
            self.debt_acked = self.debt_acked.max(open.debt);
            self.outage_acked = self.outage_acked.max(open.outage);
        }
        self.refunded_acked = self.refunded_acked.max(open.refunded);
        self.untold = false;
        self.known_until = lease_end;
        if self.mode == Mode::Buffered {
            return; // nothing is granted, and what it spends has no lease
        }
        self.granted = self.granted.saturating_add(reply.grant);
        self.lent = open.hold.saturating_add(reply.grant);
        self.lease_end = lease_end;
        // The end first: a token of the pool is spendable as soon as it is there.
        self.cell.grant(reply.grant, lease_end);
    }
}
