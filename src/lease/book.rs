//! The authority's book of one bucket: what is free, who has borrowed what, and until when.
//!
//! A pure machine: it never reads a clock, never waits, and never trusts a message. The embedded
//! store runs it as it is; `store/redis/lua/sync_buckets-n.lua` is its twin, number for number.
//!
//! # Why the bound holds
//! Let F be the free tokens and all that instances really hold. Only the refill raises F, at the
//! rate and never above the burst, because in every piece of it at least what was really held
//! counts as outstanding. Every admission lowers F by its cost. So in any span T at most
//! burst + rate * T pass, however many instances, losses and crashes there are.

use super::message::{Act, EXACT_MAX, InstanceId, Lost, Numbers, Outcome, Reply, Sync, Total};
use crate::{algorithm::TokenBucket, time::Micros};

mod refill;

/// No count of tokens goes above this, in either direction. A sum of eight of them is still exact in
/// a double, so that the Lua twin may add in any order.
pub(crate) const TOKENS_MAX: u64 = 1 << 50;
/// No sum over all instances goes above this.
pub(crate) const SUM_MAX: u64 = 1 << 52;
/// Later than any lease ends; as the next end to come: there is none.
pub(crate) const NEVER: Micros = Micros(EXACT_MAX);
/// A clock that is less than this behind is taken for jitter and waited for; more is a step.
pub(crate) const JITTER_MAX: Micros = Micros::from_secs(1);
/// So long after its lease ended a record still tells late messages from new ones.
pub(crate) const RECORD_KEPT: Micros = Micros::from_secs(60);
/// The whole book is read at most once in this time. Dropping a lease late is safe.
pub(crate) const LOOK_EVERY: Micros = Micros::from_millis(250);

/// What is known about the bucket as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// What nobody has.
    pub(crate) bucket: TokenBucket,
    /// What is lent, over all records.
    pub(crate) out: u64,
    /// Demand over all live records.
    pub(crate) demand: u64,
    /// When to look for ended leases next; [`NEVER`] when there are none to end.
    pub(crate) earliest: Micros,
    /// No live lease ends after this.
    pub(crate) latest: Micros,
    /// Drawn when the bucket was created; another one in a message tells that state was lost.
    pub(crate) generation: u64,
    /// The policy for lost state has been applied in this generation.
    pub(crate) policy_done: bool,
    /// The numbers in force.
    pub(crate) numbers: Numbers,
}

/// What is known about one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) instance: InstanceId,
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
    /// As last reported.
    pub(crate) used: i64,
    /// Lent to it, and not reported as used or given back.
    pub(crate) out: u64,
    /// When its lease ends.
    pub(crate) end: Micros,
    /// Its part of the demand; 0 once its lease has ended.
    pub(crate) demand: u64,
    /// How much of its debt has been charged.
    pub(crate) debt: u64,
    /// How much of its outage use has been charged.
    pub(crate) outage: u64,
    /// The epoch in which those two totals began.
    pub(crate) born: u64,
}

impl Record {
    /// Its lease has not been ended yet (which may be some time after its end).
    pub(crate) fn live(&self) -> bool {
        self.demand > 0 // a message tells at least 1
    }

    /// Ends the lease: what it had counts as spent, and is never handed back.
    fn end(&mut self) {
        (self.out, self.demand) = (0, 0);
    }
}

/// The state of one bucket. By default there is none: the bucket is full when it is first asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    header: Option<Header>,
    /// By instance, rising.
    records: Vec<Record>,
    expires_at: Micros,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

/// Mistakes that a book could make; tests plant them to see that they are noticed.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refills to the burst, whatever is lent.
    NoCap,
    /// Drops all ended leases before it refills.
    DropFirst,
    /// After the sender last spent, counts it with its hold: less than a lost reply granted.
    HoldCap,
}

impl Book {
    /// Takes one message at `now` (the authority's clock) and answers it.
    ///
    /// # Promise
    /// Free tokens and what is lent never exceed the burst after it, whatever the message says. A
    /// message that is repeated, overtaken or late has no effect at all, and neither has a peek.
    ///
    /// # Cost
    /// Flat, but for a search among the records; all of them are read when a lease has ended, at
    /// most once in 250 ms.
    pub(crate) fn apply(&mut self, sync: &Sync, now: Micros) -> Reply {
        let (sync, raw) = (&bounded(sync), now.min(NEVER));
        if sync.act == Act::Peek {
            return self.clone().look(sync, raw);
        }
        if sync.not_after != Micros::ZERO && raw > sync.not_after {
            return unanswered(sync, Outcome::Late, raw);
        }
        let place = self.place(sync.instance);
        let record = place.ok().map(|i| self.records[i]);
        if record.is_some_and(|r| (sync.epoch, sync.seq) <= (r.epoch, r.seq)) {
            return unanswered(sync, Outcome::Stale, self.time(raw));
        }

        let now = self.set_clock(raw);
        let mut head = self.head(sync, now);
        let foreign = sync.generation != 0 && sync.generation != head.generation;
        let lost = foreign && !head.policy_done;
        if lost {
            head.policy_done = true;
            if sync.lost == Lost::Empty {
                head.bucket.tokens = head.bucket.tokens.min(0);
                head.bucket.rem = 0;
            }
        }
        self.refill(&mut head, Some(sync).filter(|_| !foreign), now);

        // The refill may have ended the sender's lease, or deleted its record.
        let place = self.place(sync.instance);
        let mut record = place.ok().map(|i| self.records[i]);
        if let Some(r) = record.as_mut().filter(|r| r.live() && (r.end <= now || r.epoch < sync.epoch)) {
            // Over, though nobody looked; or a new life of the cell: the old lease was dead before it began.
            head.out = head.out.saturating_sub(r.out);
            head.demand = head.demand.saturating_sub(r.demand);
            r.end();
        }

        // Settle: what was lent and is neither used nor held goes back.
        let (used_before, out_before, hold) = match record {
            _ if foreign => (sync.used, sync.hold, sync.hold), // booked as it is told
            Some(r) if r.live() => (r.used, r.out, sync.hold),
            Some(r) if r.epoch < sync.epoch => (0, 0, sync.hold),
            // Its lease is over, or not known (any more). What it says to hold must be counted, or
            // `used` would rise later by what no record shows as lent; and counted is paid for.
            _ => (sync.used, 0, sync.hold),
        };
        let (lent, demand_before) = record.map_or((0, 0), |r| (r.out, r.demand));
        let tokens = &mut head.bucket.tokens;
        *tokens += out_before as i64 - (sync.used - used_before) - hold as i64;
        head.out = (head.out.saturating_sub(lent) + hold).min(SUM_MAX);
        let series = record.filter(|r| r.born == sync.born);
        *tokens -= charge(sync.debt, series.map(|r| r.debt), foreign) as i64;
        *tokens -= (charge(sync.outage, series.map(|r| r.outage), foreign) as i64).min((*tokens).max(0));
        *tokens = (*tokens).max(-(TOKENS_MAX as i64));
        head.bucket.clip(room(&head));

        let (given, grant) = lend(&mut head, sync, hold, demand_before);
        let end = now.plus(sync.span).min(NEVER);
        head.earliest = head.earliest.min(end.max(now.plus(LOOK_EVERY)));
        head.latest = head.latest.max(end);
        let next = Record { out: hold + grant, end, ..blank(sync) };
        match place {
            Ok(i) => self.records[i] = next,
            Err(i) => self.records.insert(i, next),
        }
        let key_ttl = key_ttl(&head, now);
        self.header = Some(head);
        self.expires_at = raw.plus(key_ttl);

        let answered = given == sync.need.count && (sync.want == 0 || grant > 0);
        Reply { given, grant, lost, key_ttl, ..answer(&head, sync, now, answered) }
    }

    /// When this state may be forgotten: by then the bucket is full, no lease is out, and no late
    /// message can come. Zero when there is nothing to forget.
    #[must_use]
    pub(crate) fn expires_at(&self) -> Micros {
        self.expires_at
    }

    /// What is known about the bucket; `None` when it is absent.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// What is known about each instance, in the order of their ids.
    #[cfg(test)]
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Answers on a copy that is thrown away.
    fn look(mut self, sync: &Sync, raw: Micros) -> Reply {
        let absent = self.header.is_none();
        let now = self.set_clock(raw);
        let mut head = self.head(sync, now);
        self.refill(&mut head, None, now);
        head.bucket.clip(room(&head));
        let reply = answer(&head, sync, now, false);
        Reply { generation: if absent { 0 } else { head.generation }, ..reply }
    }

    fn place(&self, instance: InstanceId) -> Result<usize, usize> {
        self.records.binary_search_by_key(&instance, |r| r.instance)
    }

    /// The time of this message: never before the last one, unless the clock stepped back.
    fn time(&self, raw: Micros) -> Micros {
        match &self.header {
            Some(head) if head.bucket.at.minus(raw) <= JITTER_MAX => raw.max(head.bucket.at),
            _ => raw,
        }
    }

    /// As [`time`](Self::time). After a step back (a new master with a slower clock) everything
    /// that is dated moves along, so that the refill goes on.
    fn set_clock(&mut self, raw: Micros) -> Micros {
        let now = self.time(raw);
        if let Some(head) = self.header.as_mut().filter(|h| h.bucket.at > now) {
            let shift = head.bucket.at.minus(now);
            head.bucket.at = now;
            head.latest = head.latest.minus(shift);
            if head.earliest < NEVER {
                head.earliest = head.earliest.minus(shift);
            }
            for record in &mut self.records {
                record.end = record.end.minus(shift);
            }
        }
        now
    }

    /// The header as this message is to see it: created where there is none, with the numbers that count.
    fn head(&self, sync: &Sync, now: Micros) -> Header {
        let theirs = sync.numbers;
        let Some(mut head) = self.header else {
            return Header {
                bucket: TokenBucket::full(theirs.burst, now),
                out: 0,
                demand: 0,
                earliest: NEVER,
                latest: Micros::ZERO,
                generation: sync.draw,
                policy_done: false,
                numbers: theirs,
            };
        };
        if theirs.revision >= head.numbers.revision {
            head.bucket.convert(head.numbers.rate, theirs.rate);
            head.numbers = theirs;
        }
        head
    }

    #[cfg(test)]
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}

/// Gives the need its tokens, then lends ahead; how many were given, and how many tokens lent.
fn lend(head: &mut Header, sync: &Sync, hold: u64, demand_before: u64) -> (u64, u64) {
    let free = |head: &Header| head.bucket.tokens.max(0) as u64;
    let given = free(head).checked_div(sync.need.cost).map_or(0, |fit| fit.min(sync.need.count));
    head.bucket.tokens -= (given * sync.need.cost) as i64;
    head.demand = (head.demand.saturating_sub(demand_before) + sync.demand).min(SUM_MAX);
    if sync.want == 0 || given < sync.need.count {
        return (given, 0);
    }
    // In doubles, in the order in which the twin does it.
    let all = (head.bucket.tokens + head.out as i64) as f64;
    let share = (all * sync.demand as f64 / head.demand as f64).floor() as i64 - hold as i64;
    let cost = sync.need.cost.max(1);
    // A share below one request's cost would never serve one: so much may be had by whoever asks.
    let fair = if hold + sync.want <= cost { sync.want } else { share.max(0) as u64 };
    let most = sync.want.min(free(head)).min(fair);
    // Whole requests only: pieces too small for one would lie about in every instance.
    let grant = most.saturating_sub((hold + most) % cost);
    head.bucket.tokens -= grant as i64;
    head.out = (head.out + grant).min(SUM_MAX);
    (given, grant)
}

/// The part of a total that is still to be charged.
fn charge(total: Total, booked: Option<u64>, foreign: bool) -> u64 {
    let known = match booked {
        // State that came back from an old copy knows less than the sender, and one that was asked
        // twice since it was lost knows more.
        Some(booked) if foreign => booked.max(total.acked),
        Some(booked) => booked,
        None => total.acked,
    };
    total.sum.saturating_sub(known)
}

/// How many tokens may be free: the burst less what is lent, never below zero.
fn room(head: &Header) -> i64 {
    head.numbers.burst.saturating_sub(head.out) as i64
}

/// The record that a message leaves behind, nothing lent.
fn blank(sync: &Sync) -> Record {
    Record {
        instance: sync.instance,
        epoch: sync.epoch,
        seq: sync.seq,
        used: sync.used,
        out: 0,
        end: Micros::ZERO,
        demand: sync.demand,
        debt: sync.debt.sum,
        outage: sync.outage.sum,
        born: sync.born,
    }
}

/// How long the bucket's state must live, in whole milliseconds: until it is full, and until no
/// message of a lease can come any more.
fn key_ttl(head: &Header, now: Micros) -> Micros {
    let full = head.bucket.time_until(head.numbers.burst as i64, head.numbers.rate);
    let over = head.latest.minus(now).plus(RECORD_KEPT);
    Micros::from_millis(full.max(over).min(NEVER).0.div_ceil(1_000))
}

fn answer(head: &Header, sync: &Sync, now: Micros, answered: bool) -> Reply {
    let wait = || head.bucket.time_until(sync.need.cost.max(1) as i64, head.numbers.rate).min(NEVER);
    Reply {
        outcome: Outcome::Applied,
        epoch: sync.epoch,
        seq: sync.seq,
        generation: head.generation,
        numbers: Some(head.numbers).filter(|n| n.revision > sync.numbers.revision),
        given: 0,
        grant: 0,
        free: head.bucket.tokens.max(0) as u64,
        retry_after: if answered { Micros::ZERO } else { wait() },
        now,
        key_ttl: Micros::ZERO,
        lost: false,
        blocked: false,
        window: Micros::ZERO,
        ends_in: Micros::ZERO,
        delay: Micros::ZERO,
    }
}

fn unanswered(sync: &Sync, outcome: Outcome, now: Micros) -> Reply {
    Reply {
        outcome,
        epoch: sync.epoch,
        seq: sync.seq,
        generation: 0,
        numbers: None,
        given: 0,
        grant: 0,
        free: 0,
        retry_after: Micros::ZERO,
        now,
        key_ttl: Micros::ZERO,
        lost: false,
        blocked: false,
        window: Micros::ZERO,
        ends_in: Micros::ZERO,
        delay: Micros::ZERO,
    }
}

/// The message with every field within its bounds, so that nothing behind this overflows, and the
/// twin's doubles are exact.
pub(crate) fn bounded(sync: &Sync) -> Sync {
    let tokens = |n: u64| n.min(TOKENS_MAX);
    let exact = |n: u64| n.min(EXACT_MAX);
    let total = |t: Total| Total { sum: tokens(t.sum), acked: tokens(t.acked) };
    let mut sync = *sync;
    sync.generation = exact(sync.generation);
    sync.draw = sync.draw.clamp(1, EXACT_MAX);
    sync.numbers.burst = sync.numbers.burst.clamp(1, TOKENS_MAX);
    (sync.epoch, sync.seq, sync.born) = (exact(sync.epoch), exact(sync.seq), exact(sync.born));
    sync.not_after = sync.not_after.min(NEVER);
    sync.used = sync.used.clamp(-(TOKENS_MAX as i64), TOKENS_MAX as i64);
    (sync.hold, sync.want) = (tokens(sync.hold), tokens(sync.want));
    sync.age = sync.age.min(NEVER);
    sync.need.cost = tokens(sync.need.cost);
    // Nobody waits for nothing.
    sync.need.count = if sync.need.cost == 0 { 0 } else { tokens(sync.need.count) };
    sync.demand = sync.demand.clamp(1, TOKENS_MAX);
    sync.span = sync.span.min(NEVER);
    (sync.debt, sync.outage) = (total(sync.debt), total(sync.outage));
    sync
}

#[cfg(test)]
mod tests;
