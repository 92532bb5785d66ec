//! What a book knows about its bucket as a whole, and what follows from it alone.
//!
//! Says how much is free and for how long there will be too little; who borrowed what is not its business.

use super::{NEVER, RECORD_KEPT, SUM_MAX};
use crate::{
    algorithm::{Algorithm, Frame, TokenBucket, Window, leaky_queue},
    lease::message::{Numbers, Sync},
    time::Micros,
};

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meter {
    /// Tokens that nobody has.
    Bucket(TokenBucket),
    /// What was spent.
    Window(Window),
}

/// What is known about the bucket as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) meter: Meter,
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
    /// Until then nothing is given and nothing lent; zero: it is not blocked.
    pub(crate) blocked: Micros,
    /// The numbers in force.
    pub(crate) numbers: Numbers,
}

impl Header {
    /// A bucket of which nothing is gone.
    pub(super) fn new(sync: &Sync, now: Micros) -> Header {
        let numbers = sync.numbers;
        let meter = match Window::new(numbers.algorithm, now) {
            Some(window) => Meter::Window(window),
            None => Meter::Bucket(TokenBucket::full(cap(&numbers).unsigned_abs(), now)),
        };
        Header {
            meter,
            out: 0,
            demand: 0,
            earliest: NEVER,
            latest: Micros::ZERO,
            generation: sync.draw,
            policy_done: false,
            blocked: Micros::ZERO,
            numbers,
        }
    }

    /// Goes over to these numbers, unless those in force are of a higher revision. What was counted stays counted.
    pub(super) fn agree(&mut self, theirs: Numbers) {
        if theirs.revision >= self.numbers.revision {
            if let Meter::Bucket(bucket) = &mut self.meter {
                bucket.convert(self.numbers.rate, theirs.rate);
            }
            // The algorithm is part of the bucket's name, and never another.
            self.numbers = Numbers { algorithm: self.numbers.algorithm, ..theirs };
        }
    }

    /// The time of the last message.
    pub(super) fn at(&self) -> Micros {
        match &self.meter {
            Meter::Bucket(bucket) => bucket.at,
            Meter::Window(window) => window.at(),
        }
    }

    /// The clock stepped back: everything that is dated moves along.
    pub(super) fn shift_back(&mut self, by: Micros) {
        match &mut self.meter {
            Meter::Bucket(bucket) => bucket.at = bucket.at.minus(by),
            Meter::Window(window) => window.shift_back(by),
        }
        self.latest = self.latest.minus(by);
        self.blocked = self.blocked.minus(by);
        if self.earliest < NEVER {
            self.earliest = self.earliest.minus(by);
        }
    }

    /// Where its windows lie.
    pub(super) fn frame(&self) -> Frame {
        Frame::new(self.numbers.window, self.numbers.offset)
    }

    /// What a bucket is filled up to when nothing is lent.
    pub(super) fn cap(&self) -> i64 {
        cap(&self.numbers)
    }

    /// How far below zero a bucket may be taken by those who ask: only a queue may owe.
    pub(super) fn owes(&self) -> i64 {
        if self.numbers.algorithm == Algorithm::LeakyQueue { self.numbers.burst as i64 } else { 0 }
    }

    /// What can be given or lent; below zero when more is gone than there was. Exact in a double.
    pub(crate) fn free(&self) -> i64 {
        match &self.meter {
            Meter::Bucket(bucket) => bucket.tokens.saturating_add(self.owes()),
            Meter::Window(window) => {
                let gone = window.counted(self.frame()).saturating_add(self.out);
                self.numbers.burst as i64 - i64::try_from(gone).unwrap_or(i64::MAX)
            }
        }
    }

    /// Nothing is free any more: what a bucket begins with whose state was lost. Windows count it when they settle.
    pub(super) fn drain(&mut self) {
        let owes = self.owes();
        if let Meter::Bucket(bucket) = &mut self.meter {
            (bucket.tokens, bucket.rem) = (bucket.tokens.min(-owes), 0);
        }
    }

    /// Takes away what is above the burst less what is lent.
    pub(super) fn clip(&mut self) {
        let room = self.cap().saturating_sub_unsigned(self.out).max(0);
        if let Meter::Bucket(bucket) = &mut self.meter {
            bucket.clip(room);
        }
    }

    /// All that is not lent is free again.
    pub(super) fn clear(&mut self) {
        let room = self.cap().saturating_sub_unsigned(self.out).max(0);
        match &mut self.meter {
            Meter::Bucket(bucket) => (bucket.tokens, bucket.rem) = (room, 0),
            Meter::Window(window) => window.clear(),
        }
        self.blocked = Micros::ZERO;
    }

    /// Spends so many at this moment.
    pub(super) fn give(&mut self, tokens: u64) {
        let frame = self.frame();
        match &mut self.meter {
            Meter::Bucket(bucket) => bucket.tokens = bucket.tokens.saturating_sub_unsigned(tokens),
            Meter::Window(window) => window.add(frame, window.at(), tokens),
        }
    }

    /// Sets so many aside.
    pub(super) fn lend(&mut self, tokens: u64) {
        if let Meter::Bucket(bucket) = &mut self.meter {
            bucket.tokens = bucket.tokens.saturating_sub_unsigned(tokens);
        }
        self.out = self.out.saturating_add(tokens).min(SUM_MAX);
    }

    /// Of a queue: how long the next one has to wait before it may leave.
    pub(super) fn delay(&self) -> Micros {
        match &self.meter {
            Meter::Bucket(bucket) if self.numbers.algorithm == Algorithm::LeakyQueue => {
                leaky_queue::delay(bucket, self.numbers.rate).min(NEVER)
            }
            _ => Micros::ZERO,
        }
    }

    /// The time until `cost` could be had, if nothing were added and nothing that is lent were told about. Where it
    /// cannot be while so much is lent: the time until nothing is counted, and not before a lease has ended.
    pub(super) fn wait(&self, cost: u64, now: Micros) -> Micros {
        let numbers = &self.numbers;
        let wait = match &self.meter {
            Meter::Bucket(bucket) => bucket.time_until(cost as i64 - self.owes(), numbers.rate),
            Meter::Window(window) => {
                let frame = self.frame();
                match numbers.burst.checked_sub(self.out.saturating_add(cost)) {
                    Some(room) => window.time_until(frame, room),
                    None if window.start(frame).is_some() => frame.ends_in(now),
                    None => {
                        let lease = if self.earliest < NEVER { self.earliest.minus(now) } else { Micros::ZERO };
                        window.time_until(frame, 0).max(lease).max(Micros(1))
                    }
                }
            }
        };
        wait.min(NEVER)
    }

    /// How long the bucket's state must live, in whole milliseconds: until it is as good as new, until no message of a
    /// lease can come any more, and until a block is over.
    pub(super) fn key_ttl(&self, now: Micros) -> Micros {
        let new = match &self.meter {
            Meter::Bucket(bucket) => bucket.time_until(self.cap(), self.numbers.rate),
            Meter::Window(window) => window.time_until(self.frame(), 0),
        };
        let over = self.latest.minus(now).plus(RECORD_KEPT).max(self.blocked.minus(now));
        Micros::from_millis(new.max(over).min(NEVER).0.div_ceil(1_000))
    }
}

fn cap(numbers: &Numbers) -> i64 {
    if numbers.algorithm == Algorithm::LeakyQueue { leaky_queue::QUEUE_CAP } else { numbers.burst as i64 }
}
