//! The book of what counts in windows. Free is the limit less what is counted and what is lent.
//!
//! # Why the limits hold
//! Every token that is spent counts from its grant on: as lent, until its spender reports it or its lease ends; then as
//! counted, with a time that is not earlier than when it was spent. What counts at a later time is never less in
//! any of these machines, so the book never has more free than one central machine would that saw each token when
//! it was spent. A fixed window's leases end with it, so that no token of the old one is spent in the new.

use super::{Book, Fault, Header, Meter, NEVER, Record};
use crate::{algorithm::Window, lease::message::Sync, time::Micros};

impl Book {
    /// Goes on to `now`. Where a lease may have ended, and where a fixed window has, reads all records.
    pub(super) fn pass(&mut self, head: &mut Header, now: Micros) {
        let frame = head.frame();
        let Meter::Window(window) = &mut head.meter else { return };
        let begins = window.start(frame).is_some() && now >= frame.end(window.at());
        window.advance(frame, now);
        if head.earliest > now && !begins {
            return;
        }
        let over = |r: &Record| r.live() && r.end <= now;
        let mut ended: Vec<usize> = (0..self.records.len()).filter(|i| over(&self.records[*i])).collect();
        ended.sort_by_key(|i| self.records[*i].end);
        for place in ended {
            self.count_ended(head, &self.records[place], now);
            self.records[place].end();
        }
        self.rebuild(head, now);
    }

    /// What an ended lease had counts as spent, just before its end.
    pub(super) fn count_ended(&self, head: &mut Header, record: &Record, now: Micros) {
        let frame = head.frame();
        if let Meter::Window(window) = &mut head.meter
            && !self.has(Fault::ForgetEnded)
        {
            window.add(frame, record.end.minus(Micros(1)).min(now), record.out);
        }
    }

    /// When a lease of this message ends: with its fixed window at the latest.
    pub(super) fn lease_end(head: &Header, sync: &Sync, now: Micros) -> Micros {
        let end = now.plus(sync.span).min(NEVER);
        match &head.meter {
            Meter::Window(Window::Fixed(_)) => end.min(head.frame().end(now)),
            _ => end,
        }
    }

    /// Counts what was spent, and takes back what was refunded. `spent` is the one less the other.
    ///
    /// What the sender says is only their difference, and a refund may be of something older than what was spent. So
    /// where there were refunds, all that is `gone` of what was lent counts as spent now, and the rest of the
    /// difference as refunded. (What only got lost on the way is then counted and taken back at once.)
    pub(super) fn count(&self, head: &mut Header, sync: &Sync, spent: i64, gone: u64, since: Micros) {
        let frame = head.frame();
        let Meter::Window(window) = &mut head.meter else { return };
        let refunded = sync.fresh > Micros::ZERO;
        let gone = if refunded && !self.has(Fault::NetRefunds) { gone as i64 } else { 0 };
        let added = spent.max(gone).max(0);
        let when = if self.has(Fault::CountEarly) { since } else { window.at() };
        window.add(frame, when, added as u64);
        if refunded {
            let back = (added - spent) as u64;
            let fresh = if self.has(Fault::RefundStale) { window.at() } else { sync.fresh };
            if let Window::Log(log) = window
                && self.has(Fault::RefundNewest)
                && fresh.plus(frame.length()) > log.at
            {
                let mut left = back;
                for (_, weight) in log.entries.iter_mut().rev() {
                    let some = left.min(*weight);
                    (*weight, left, log.sum) = (*weight - some, left - some, log.sum - some);
                }
                log.entries.retain(|e| e.1 > 0);
                return;
            }
            window.take_back(frame, fresh, back);
        }
    }
}

impl Header {
    /// Whether what this message tells and holds belongs to a fixed window that is over. (One of a window to come is by
    /// a sender whose idea of our clock is a little ahead, and means the present one.)
    pub(super) fn is_of_old_window(&self, sync: &Sync) -> bool {
        match &self.meter {
            Meter::Window(window) if sync.window > Micros::ZERO => {
                window.start(self.frame()).is_some_and(|start| sync.window < start)
            }
            _ => false,
        }
    }

    /// Counts what is missing until nothing is free.
    pub(super) fn fill(&mut self) {
        let (frame, limit) = (self.frame(), self.numbers.burst.saturating_sub(self.out));
        if let Meter::Window(window) = &mut self.meter {
            window.fill(frame, limit);
        }
    }

    /// Counts what was spent without any grant: a debt in full, the use of an outage until nothing is free.
    pub(super) fn charge(&mut self, debt: u64, outage: u64) {
        self.give(debt);
        self.give(outage.min(self.free().max(0) as u64));
    }
}
