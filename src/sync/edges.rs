//! Fixed windows in the process: when one ends here, and what ends with it.
//!
//! Each window is a bucket of its own. What is held of it is worth nothing after it, and what was spent without a grant and
//! not told by its end is told to nobody: it would be booked in a window that it does not belong to (case A-01). A window
//! ends here no later than at the authority: its end is counted from before a question left, or by the latest that the
//! authority's clock can show. One that nobody has told of yet begins here no earlier than there.
//!
//! Nothing is lent for a window before it begins. The first question of it costs one round trip, as that of any key
//! does; a grant ahead of time would have to be kept apart from the present one in the cell, in the book and in every
//! message, for the sake of a millisecond in each window.

use super::{
    bucket::{Bucket, Open},
    link::Road,
    turn::Engine,
};
use crate::{
    algorithm::{Algorithm, Frame},
    lease::{Numbers, Reply},
    local::Taken,
    rule::{Mode, Terms},
    time::Micros,
};

/// How far the two clocks may have drifted apart since they were last compared, generously.
const DOUBT: Micros = Micros::from_millis(10);

impl Bucket {
    /// The window is over: empty hands, new totals, a new epoch. How much of what was spent nobody will be told.
    ///
    /// A question under way stays, under its old epoch: whom its answer gives something may go on, in whichever
    /// window the authority was.
    pub(super) fn end_window(&mut self, epoch: u64, now: Micros) -> u64 {
        let hold = self.look(now).hold;
        self.debt(hold);
        let open = self.open.take();
        self.renew_epoch(epoch);
        self.open = open;
        self.granted = 0;
        self.spent = 0;
        let untold = self.begin_series(epoch);
        self.taken = Taken::new(now);
        (self.refunded, self.refunded_acked, self.refunded_told) = (0, 0, 0);
        (self.window, self.window_end) = (Micros::ZERO, Micros::ZERO);
        self.forget_denial();
        self.next_at = Micros::ZERO;
        untold
    }

    fn enter_window(&mut self, start: Micros, end: Micros, now: Micros) {
        if self.window != start {
            self.window_since = now;
        }
        (self.window, self.window_end) = (start, end);
    }
}

impl Engine {
    pub(super) fn is_fixed(terms: &Terms) -> bool {
        terms.numbers.algorithm == Algorithm::FixedWindow
    }

    /// Ends a window that is over, and begins one where it is certain which it is.
    pub(super) fn keep_window(&mut self, index: u32, terms: &Terms, now: Micros) {
        if !Engine::is_fixed(terms) {
            return;
        }
        let frame = frame(&terms.numbers);
        let there = self.road.there(now).zip(self.road.there_at_least(now));
        let ahead = terms.ahead(self.members().unwrap_or(1));
        let closing = self.closing.is_some();
        self.epoch += 1;
        let epoch = self.epoch;
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        if bucket.window_end != Micros::ZERO && now >= bucket.window_end {
            self.tally.expired += bucket.end_window(epoch, now);
        }
        let Some((latest, least)) = there else { return };
        let lately = now.minus(bucket.active_at) < Micros(terms.lease_ttl.0 / 4);
        if bucket.window != Micros::ZERO || frame.start(latest) != frame.start(least) {
            return;
        }
        // Before this it was another window, or nobody knew. What was let through then is not told in this one.
        let began = now.minus(latest.minus(frame.start(latest)));
        bucket.look(now);
        if bucket.active_at < began {
            self.tally.expired += bucket.end_window(epoch, now);
        }
        if !lately {
            return; // who asks next is told
        }
        bucket.enter_window(frame.start(latest), now.plus(frame.ends_in(latest)), now);
        if bucket.mode == Mode::Buffered && !bucket.leaving && !closing {
            let end = bucket.window_end;
            bucket.top_up(ahead, u64::MAX, end);
        }
    }

    /// When to look at a bucket again for the sake of its window: at its end, or when it is certain that the next one
    /// has begun.
    pub(super) fn edge_of(&self, index: u32, now: Micros) -> Micros {
        let Some(bucket) = self.buckets.get(index as usize).and_then(Option::as_deref) else { return Micros::MAX };
        let Some(terms) = self.rules.terms(bucket.cell.rule()).filter(Engine::is_fixed) else { return Micros::MAX };
        if bucket.window_end > now {
            return bucket.window_end;
        }
        let lately = now.minus(bucket.active_at) < Micros(terms.lease_ttl.0 / 4);
        let Some(least) = self.road.there_at_least(now).filter(|_| lately) else { return Micros::MAX };
        now.plus(frame(&terms.numbers).ends_in(least))
    }

    /// What an answer tells of the window. `false`: its grant is of one that is over, or not the one that is kept here.
    pub(super) fn meet_window(bucket: &mut Bucket, open: &Open, reply: &Reply, epoch: u64, now: Micros) -> (bool, u64) {
        let end = open.sent_at.plus(reply.ends_in);
        let mut expired = 0;
        let mut fits = true;
        if reply.window < bucket.window && open.sent_at < bucket.window_since {
            return (false, 0); // an answer of the old window, that took its time
        }
        if bucket.window != Micros::ZERO && bucket.window < reply.window {
            if open.window == Micros::ZERO && bucket.mode != Mode::Buffered {
                // It told nothing of the old window, so what it was lent is of the new one.
                expired = bucket.begin_series(epoch);
            } else {
                expired = bucket.end_window(epoch, now);
                fits = false;
            }
        }
        // Of one window, both ends are early, so the later one is the better; but one that is later than this answer allows
        // was told before the authority's clock was set. Of an older window, though it was asked in the present: what
        // began that here was ahead of the authority's clock.
        let known = bucket.window_end;
        let is_known = bucket.window == reply.window && known <= now.plus(reply.ends_in);
        let end = if is_known { end.max(known) } else { end };
        if now < end {
            bucket.enter_window(reply.window, end, now);
        } else {
            expired += bucket.end_window(epoch, now);
            fits = false;
        }
        (fits, expired)
    }
}

impl Engine {
    /// Whether what was taken at `since` (on the gate's clock) or later can be given back: of a window, whether it is in
    /// the present one for certain. Else it would come out of what others have taken since.
    pub(super) fn has_still(road: &Road, bucket: &Bucket, numbers: &Numbers, since: Micros, now: Micros) -> bool {
        let begun = || {
            let (then, there) = (road.there_at_least(since).unwrap_or_default(), road.there(now).unwrap_or_default());
            then.minus(DOUBT) >= frame(numbers).start(there)
        };
        match numbers.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyMeter => true,
            Algorithm::LeakyQueue => false,
            Algorithm::SlidingLog => since.plus(numbers.window) > now,
            // All that it remembers was taken in the present window.
            Algorithm::FixedWindow => since >= bucket.taken.since() || begun(),
            Algorithm::SlidingCounter => begun(),
        }
    }

    /// No admission at `since` (on the gate's clock) or later was before this on the authority's clock; zero: not known.
    pub(super) fn fresh(road: &Road, bucket: &Bucket, since: Micros) -> Micros {
        if bucket.window != Micros::ZERO {
            return bucket.window; // all that is remembered was taken in it
        }
        road.there_at_least(since).map_or(Micros::ZERO, |there| there.minus(DOUBT))
    }

    /// Looks again at what was given back before the authority had told its time.
    pub(super) fn take_back_early(&mut self, index: u32, now: Micros) {
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        if self.road.there(now).is_some()
            && let Some((tokens, since)) = bucket.early.take()
        {
            self.take_back(index, tokens, since, now);
        }
    }
}

/// Where its windows lie.
fn frame(numbers: &Numbers) -> Frame {
    Frame::new(numbers.window, numbers.offset)
}
