//! The authority's book of one bucket: what is free, who has borrowed what, and until when.
//!
//! A pure machine: it never reads a clock, never waits, and never trusts a message. The embedded
//! store runs it as it is; `store/redis/lua/sync_buckets-n` is its twin, number for number.
//!
//! # Why the bound holds
//! For buckets: let F be the free tokens and all that instances really hold. Only the refill raises F, at the
//! rate and never above the burst, because in every piece of it at least what was really held
//! counts as outstanding. Every admission lowers F by its cost. So in any span T at most
//! burst + rate * T pass, however many instances, losses and crashes there are.
//!
//! For windows: what is counted and what is lent never exceed the limit by a grant, and what is lent is counted
//! no earlier than it was spent: at the report, or at the end of its lease. (See `windows`.)

use super::message::{Act, EXACT_MAX, InstanceId, Lost, Outcome, Reply, Sync};
use crate::{algorithm::COUNT_MAX, time::Micros};
use answer::{answer, unanswered};

mod answer;
mod bounds;
mod fault;
mod header;
mod orders;
mod refill;
mod settle;
mod windows;

pub(crate) use bounds::bounded;
pub(crate) use fault::Fault;
pub(crate) use header::{Header, Meter};

/// No count of tokens goes above this, in either direction. A sum of eight of them is still exact in
/// a double, so that the Lua twin may add in any order.
pub(crate) const TOKENS_MAX: u64 = COUNT_MAX;
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
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fault: Option<Fault>,
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
        if sync.act != Act::Sync {
            return self.order(sync, raw);
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
        head.policy_done |= lost;
        let starts_empty = lost && sync.lost == Lost::Empty;
        if starts_empty {
            head.drain();
        }
        self.refill(&mut head, Some(sync).filter(|_| !foreign), now);

        // The refill may have ended the sender's lease, or deleted its record.
        let place = self.place(sync.instance);
        let mut record = place.ok().map(|i| self.records[i]);
        if let Some(r) = record.as_mut().filter(|r| r.live() && (r.end <= now || r.epoch < sync.epoch)) {
            // Over, though nobody looked; or a new life of the cell: the old lease was dead before it began.
            head.out = head.out.saturating_sub(r.out);
            head.demand = head.demand.saturating_sub(r.demand);
            self.count_ended(&mut head, r, now);
            r.end();
        }

        let hold = self.settle(&mut head, sync, record, foreign, starts_empty, now);
        let delay = head.delay();
        let want = if head.lends_to(sync) { sync.want } else { 0 };
        let demand_before = record.map_or(0, |r| r.demand);
        let (given, grant) = self.lend(&mut head, sync, hold, want, demand_before, now);
        let end = Book::lease_end(&head, sync, now);
        head.earliest = head.earliest.min(end.max(now.plus(LOOK_EVERY)));
        head.latest = head.latest.max(end);
        let next = Record { out: hold + grant, end, ..blank(sync) };
        match place {
            Ok(i) => self.records[i] = next,
            Err(i) => self.records.insert(i, next),
        }
        let key_ttl = head.key_ttl(now);
        let mut reply = answer(&head, sync, now);
        if self.has(Fault::LeaseOutlivesWindow) {
            reply.ends_in = sync.span;
        }
        self.header = Some(head);
        self.expires_at = raw.plus(key_ttl);
        Reply { given, grant, lost, key_ttl, delay: if given > 0 { delay } else { Micros::ZERO }, ..reply }
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
        head.clip();
        let reply = answer(&head, sync, now);
        // Of a queue: how long who came now would have to wait.
        Reply { generation: if absent { 0 } else { head.generation }, delay: head.delay(), ..reply }
    }

    fn place(&self, instance: InstanceId) -> Result<usize, usize> {
        self.records.binary_search_by_key(&instance, |r| r.instance)
    }

    /// The time of this message: never before the last one, unless the clock stepped back.
    fn time(&self, raw: Micros) -> Micros {
        match &self.header {
            Some(head) if head.at().minus(raw) <= JITTER_MAX => raw.max(head.at()),
            _ => raw,
        }
    }

    /// As [`time`](Self::time). After a step back (a new master with a slower clock) everything
    /// that is dated moves along, so that the refill goes on.
    fn set_clock(&mut self, raw: Micros) -> Micros {
        let now = self.time(raw);
        if let Some(head) = self.header.as_mut().filter(|h| h.at() > now) {
            let shift = head.at().minus(now);
            head.shift_back(shift);
            for record in &mut self.records {
                record.end = record.end.minus(shift);
            }
        }
        now
    }

    /// Takes out the header as this message is to see it: created where there is none, with the numbers that count.
    fn head(&mut self, sync: &Sync, now: Micros) -> Header {
        match self.header.take() {
            Some(mut head) => {
                head.agree(sync.numbers);
                head.blocked = if head.blocked > now { head.blocked } else { Micros::ZERO };
                head
            }
            None => Header::new(sync, now),
        }
    }

    /// Whether this mistake is planted. Outside of tests and the simulator none ever is.
    fn has(&self, fault: Fault) -> bool {
        #[cfg(any(test, feature = "sim"))]
        return self.fault == Some(fault);
        #[cfg(not(any(test, feature = "sim")))]
        {
            let _ = fault;
            false
        }
    }
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

#[cfg(test)]
mod tests;
