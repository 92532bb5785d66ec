//! Plain counters of the embedded store: a number for each key, until its window ends.
//!
//! Twin: src/store/redis/lua/count_plain-1.lua.

use crate::{
    key::BucketName,
    store::op::{Counted, Hit},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

/// Counters looked at for their end with each hit: above 1, so that forgetting keeps up.
const SWEPT_PER_HIT: usize = 2;

/// All counters, and when each ends.
#[derive(Debug, Default)]
pub(super) struct Counters {
    counts: HashMap<BucketName, (i64, Micros), crate::hash::RandomState>,
    ends: BinaryHeap<Reverse<(Micros, BucketName)>>,
}

impl Counters {
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Counts a hit at `now`, all of it or nothing.
    pub(super) fn count(&mut self, name: &BucketName, hit: &Hit, now: Micros) -> Counted {
        self.forget(now);
        if hit.start != Micros::ZERO && hit.frame.start(now) != hit.start {
            return Counted::OtherWindow { now };
        }
        let known = self.counts.get(name).copied().filter(|(_, end)| *end > now);
        let end = match known {
            Some((_, end)) if hit.start == Micros::ZERO => end,
            _ if hit.start == Micros::ZERO => now.plus(hit.frame.length()),
            _ => hit.frame.end(now),
        };
        let (count, ends_in) = (known.map_or(0, |(count, _)| count), end.minus(now));
        let next = count.saturating_add(hit.cost);
        if hit.cost > 0 && next > i64::try_from(hit.limit).unwrap_or(i64::MAX) {
            return Counted::Refused { count, ends_in, now };
        }
        let next = if hit.cost < 0 { next.max(0).min(count) } else { next };
        if hit.cost > 0 || known.is_some() {
            // Never pushed back: what is there keeps its end.
            let end = known.map_or(end, |(_, end)| end);
            self.counts.insert(name.clone(), (next, end));
            if known.is_none() {
                self.ends.push(Reverse((end, name.clone())));
            }
        }
        Counted::Taken { count: next, ends_in, now }
    }

    /// Drops some of those whose window is over.
    fn forget(&mut self, now: Micros) {
        for _ in 0..SWEPT_PER_HIT {
            if self.ends.peek().is_none_or(|Reverse((end, _))| *end > now) {
                return;
            }
            if let Some(Reverse((_, name))) = self.ends.pop()
                && self.counts.get(&name).is_some_and(|(_, end)| *end <= now)
            {
                self.counts.remove(&name);
            }
        }
    }
}
