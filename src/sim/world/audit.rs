//! Follows the authority's book of one token bucket from outside, message by message: nothing is made and nothing
//! vanishes.

use super::report::Conserved;
use crate::{
    lease::{Numbers, Outcome, Reply, Sync},
    store::Sums,
    time::Micros,
};
use std::collections::HashMap;

/// What is known of one bucket.
pub(super) struct Audit {
    burst: i128,
    count: i128,
    period: i128,
    /// The first message that the authority took, and the last.
    first: Option<Micros>,
    last: Micros,
    /// What each sender had told of use, in which of its epochs, and what it was lent then.
    told: HashMap<u64, (u64, i64, u64)>,
    /// Spent as far as the authority was told.
    spent: i128,
    unbalanced: Option<Micros>,
}

impl Audit {
    pub(super) fn new(numbers: &Numbers) -> Audit {
        Audit {
            burst: i128::from(numbers.burst),
            count: i128::from(numbers.rate.count()),
            period: i128::from(numbers.rate.period()),
            first: None,
            last: Micros::ZERO,
            told: HashMap::new(),
            spent: 0,
            unbalanced: None,
        }
    }

    /// The book took a message; what it said before and after. What is free and what is lent, together, may have
    /// grown by the refill at most, and shrunk by what was told to be spent and what overflowed.
    pub(super) fn message(
        &mut self,
        sync: &Sync,
        reply: &Reply,
        before: Option<Sums>,
        after: Option<Sums>,
        now: Micros,
    ) {
        let Some(after) = after.filter(|_| reply.outcome == Outcome::Applied) else { return };
        let given = i128::from(reply.given) * i128::from(sync.need.cost);
        let told = self.told.entry(sync.instance.0).or_insert((sync.epoch, 0, 0));
        // A sender that begins anew has spent, or given up, what it was lent before.
        let used = if told.0 == sync.epoch { sync.used - told.1 } else { sync.used + told.2 as i64 };
        *told = (sync.epoch, sync.used, sync.hold + reply.grant);
        let spent = given + i128::from(used);
        self.spent += spent;
        let start = *self.first.get_or_insert(now);
        let came = i128::from(now.minus(start).0) * self.count - i128::from(self.last.minus(start).0) * self.count;
        let came = if self.last == Micros::ZERO { 0 } else { came };
        self.last = now;
        let parts = |sums: Sums| (i128::from(sums.free) + i128::from(sums.out)) * self.period + i128::from(sums.part);
        let before = before.map_or(self.burst * self.period, parts);
        let overflow = before + came - spent * self.period - parts(after);
        // Refunds are clipped when they are settled, refill before what was used is taken away.
        let was_full = i128::from(after.free) + i128::from(after.out) + given + i128::from(used.max(0)) >= self.burst;
        // Too much is never right; too little only where the bucket was full meanwhile.
        if overflow < 0 || (overflow > 0 && !was_full) {
            self.unbalanced.get_or_insert(now);
        }
    }

    pub(super) fn unbalanced(&self) -> Option<Micros> {
        self.unbalanced
    }

    /// Where all tokens are in the end.
    pub(super) fn close(&self, admitted: u64, held: u64, sums: Option<Sums>) -> Conserved {
        let span = self.first.map_or(0, |first| self.last.minus(first).0);
        let (free, out) = sums.map_or((self.burst, 0), |sums| (i128::from(sums.free), i128::from(sums.out)));
        let came = self.burst + i128::from(span) * self.count / self.period;
        // What is lent and neither held nor told to be spent was spent since.
        let told = self.spent + free + out;
        Conserved { came, admitted: i128::from(admitted), held: i128::from(held), free, overflowed: came - told }
    }
}
