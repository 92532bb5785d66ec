//! The refill of a book, piece by piece: each piece fills up to the burst less what was out in it.
//!
//! It never hands anything back: what an ended lease had counts as spent, from its own end on.

use super::{Book, Fault, Header, LOOK_EVERY, Meter, NEVER, RECORD_KEPT, SUM_MAX};
use crate::{lease::message::Sync, time::Micros};

/// Where one piece ends and the next begins.
enum Cut {
    /// The lease of the record at this place ended.
    End(usize),
    /// The sender spent for the last time; what it reports is gone from here on.
    Spent,
}

impl Book {
    /// Refills up to `now`. Where the next end has come, reads all records and ends those that are over.
    ///
    /// Up to its end a lease counts as outstanding. Since it last spent, the `sender` counts with
    /// its record less what it now reports as used, and not with its hold: that leaves out what
    /// a lost reply granted, and settling is about to hand back.
    pub(super) fn refill(&mut self, head: &mut Header, sender: Option<&Sync>, now: Micros) {
        if let Meter::Window(_) = head.meter {
            return self.pass(head, now);
        }
        let look = head.earliest <= now;
        let mut cuts: Vec<(Micros, Cut)> = Vec::new(); // does not allocate while empty
        if look {
            let ended = |r: &super::Record| r.live() && r.end <= now;
            let ends = self.records.iter().enumerate().filter(|(_, r)| ended(r));
            cuts.extend(ends.map(|(i, r)| (r.end, Cut::End(i))));
        }
        let mine = sender.and_then(|s| {
            let place = self.place(s.instance).ok()?;
            let record = &self.records[place];
            let last_spent = now.minus(s.age);
            let counts = record.live() && record.epoch == s.epoch && record.end > last_spent;
            counts.then(|| (place, last_spent.max(head.at()), s.used - record.used))
        });
        let mine = match (mine, sender) {
            (Some((place, at, _)), Some(s)) if self.has(Fault::HoldCap) => {
                Some((place, at, self.records[place].out as i64 - s.hold as i64))
            }
            _ => mine,
        };

        if self.has(Fault::DropFirst) {
            for (_, cut) in cuts.drain(..) {
                if let Cut::End(i) = cut {
                    head.out -= self.records[i].out;
                    self.records[i].end();
                }
            }
        }

        let mut spent = 0;
        if cuts.is_empty() {
            // The usual case: nobody's lease ended.
            if let Some((_, last_spent, used)) = mine {
                self.piece(head, spent, last_spent);
                spent = used;
            }
        } else {
            if let Some((_, last_spent, _)) = mine {
                cuts.push((last_spent, Cut::Spent));
            }
            cuts.sort_by_key(|(at, _)| *at); // stable: at one time, ends come first
            for (at, cut) in cuts {
                self.piece(head, spent, at);
                match (cut, mine) {
                    (Cut::End(place), _) => {
                        head.out = head.out.saturating_sub(self.records[place].out);
                        self.records[place].end();
                        if mine.is_some_and(|(own, ..)| own == place) {
                            spent = 0;
                        }
                    }
                    (Cut::Spent, Some((place, _, used))) if self.records[place].live() => spent = used,
                    (Cut::Spent, _) => {}
                }
            }
        }
        self.piece(head, spent, now);
        if look {
            self.rebuild(head, now);
        }
    }

    /// One piece, in which what is out is out, less what of it is known to be spent.
    fn piece(&self, head: &mut Header, spent: i64, until: Micros) {
        let cap = if self.has(Fault::NoCap) { head.cap() } else { head.cap() - (head.out as i64 - spent) };
        if let Meter::Bucket(bucket) = &mut head.meter {
            bucket.refill(head.numbers.rate, cap, until);
        }
    }

    /// Forgets records that are long over, and sums up the others anew.
    pub(super) fn rebuild(&mut self, head: &mut Header, now: Micros) {
        self.records.retain(|r| r.live() || r.end.plus(RECORD_KEPT) >= now);
        (head.out, head.demand) = (0, 0);
        (head.earliest, head.latest) = (NEVER, Micros::ZERO);
        for record in self.records.iter().filter(|r| r.live()) {
            head.out = (head.out + record.out).min(SUM_MAX);
            head.demand = (head.demand + record.demand).min(SUM_MAX);
            head.earliest = head.earliest.min(record.end);
            head.latest = head.latest.max(record.end);
        }
        if head.earliest < NEVER {
            head.earliest = head.earliest.max(now.plus(LOOK_EVERY)).min(NEVER);
        }
    }
}
