//! What a message tells is booked, and what it asks for is given and lent.

use super::{Book, Fault, Header, Meter, Record, SUM_MAX, TOKENS_MAX};
use crate::{
    algorithm::Algorithm,
    lease::message::{Sync, Total},
    time::Micros,
};

impl Book {
    /// Settles with the sender: what was lent and is neither used nor held goes back. How much it holds.
    pub(super) fn settle(
        &self,
        head: &mut Header,
        sync: &Sync,
        record: Option<Record>,
        foreign: bool,
        starts_empty: bool,
        now: Micros,
    ) -> u64 {
        let (used_before, out_before) = match record {
            _ if foreign => (sync.used, sync.hold), // booked as it is told
            Some(r) if r.live() => (r.used, r.out),
            Some(r) if r.epoch < sync.epoch => (0, 0),
            // Its lease is over, or not known (any more). What it says to hold must be counted, or
            // `used` would rise later by what no record shows as lent; and counted is paid for.
            _ => (sync.used, 0),
        };
        let hold = if head.is_of_old_window(sync) { 0 } else { sync.hold };
        head.out = (head.out.saturating_sub(record.map_or(0, |r| r.out)) + hold).min(SUM_MAX);
        let series = record.filter(|r| r.born == sync.born);
        let debt = charge(sync.debt, series.map(|r| r.debt), foreign);
        let outage = charge(sync.outage, series.map(|r| r.outage), foreign);
        let spent = match head.numbers.algorithm {
            // A time to leave that is given back perishes: those behind it have theirs already.
            Algorithm::LeakyQueue => (sync.used - used_before).max(0),
            _ => sync.used - used_before,
        };
        let owes = head.owes();
        match &mut head.meter {
            Meter::Bucket(bucket) => {
                let tokens = &mut bucket.tokens;
                *tokens += out_before as i64 - spent - hold as i64;
                *tokens -= debt as i64;
                *tokens -= (outage as i64).min((*tokens + owes).max(0));
                *tokens = (*tokens).max(-(TOKENS_MAX as i64));
            }
            Meter::Window(_) => {
                let gone = if foreign { 0 } else { out_before.saturating_sub(hold) };
                let since = record.filter(|r| r.live()).map_or(now, |r| r.end.minus(sync.span));
                if starts_empty {
                    head.fill();
                }
                if !head.is_of_old_window(sync) {
                    self.count(head, sync, spent, gone, since);
                    head.charge(debt, outage);
                }
            }
        }
        head.clip();
        hold
    }

    /// Gives the need its tokens, then lends ahead; how many were given, and how many tokens lent.
    pub(super) fn lend(
        &self,
        head: &mut Header,
        sync: &Sync,
        hold: u64,
        want: u64,
        demand_before: u64,
        now: Micros,
    ) -> (u64, u64) {
        let free = |head: &Header| {
            let all = if self.has(Fault::ForgetOutstanding) { head.free() + head.out as i64 } else { head.free() };
            all.max(0) as u64
        };
        head.demand = (head.demand.saturating_sub(demand_before) + sync.demand).min(SUM_MAX);
        if head.blocked > now {
            return (0, 0);
        }
        let given = free(head).checked_div(sync.need.cost).map_or(0, |fit| fit.min(sync.need.count));
        head.give(given * sync.need.cost);
        if want == 0 || given < sync.need.count {
            return (given, 0);
        }
        // In doubles, in the order in which the twin does it.
        let all = (head.free() + head.out as i64) as f64;
        let share = (all * sync.demand as f64 / head.demand as f64).floor() as i64 - hold as i64;
        let cost = sync.need.cost.max(1);
        // A share below one request's cost would never serve one: so much may be had by whoever asks.
        let fair = if hold + want <= cost { want } else { share.max(0) as u64 };
        let most = want.min(free(head)).min(fair);
        // Whole requests only: pieces too small for one would lie about in every instance.
        let grant = most.saturating_sub((hold + most) % cost);
        head.lend(grant);
        (given, grant)
    }
}

impl Header {
    /// Whether anything may be lent for what this message wants: a queue lends nothing, and no window does that is over.
    pub(super) fn lends_to(&self, sync: &Sync) -> bool {
        self.numbers.algorithm != Algorithm::LeakyQueue && !self.is_of_old_window(sync)
    }
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
