//! Orders about one key that somebody waits for: to block it for a time, to lift a block, to clear what was counted.
//!
//! An order is a message of its own, like a look. When it is done, this instance goes by it before it says so; the
//! others hear of it with their next question.

use super::{
    dispatch::Asked,
    turn::{Engine, Timer},
    waiter::{Answer, Waiter},
};
use crate::{
    error::{Error, ErrorKind},
    key::{BucketName, Key},
    lease::{Act, Outcome, Reply, Sync},
    rule::Mode,
    time::Micros,
};
use std::{cmp::Reverse, fmt};

/// What is to be done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Refuse it for so long; zero lifts a block.
    Block(Micros),
    /// Forget what was counted, and any block.
    Clear,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Block(Micros::ZERO) => "unblock",
            Order::Block(_) => "block",
            Order::Clear => "clear",
        })
    }
}

/// An order on its way.
#[derive(Debug)]
pub(super) struct Ordered {
    rule: u32,
    key: (Box<[u8]>, bool),
    name: BucketName,
    order: Order,
    deadline: Micros,
    waiter: Waiter,
}

impl Ordered {
    pub(super) fn refuse(&self, kind: ErrorKind) {
        self.waiter.answer(Answer::Failed(kind));
    }
}

impl Engine {
    pub(super) fn order(&mut self, rule: u32, key: (Box<[u8]>, bool), order: Order, deadline: Micros, waiter: Waiter) {
        if self.closing.is_some() || self.road.is_down() {
            let kind = if self.closing.is_some() { ErrorKind::ShutDown } else { self.road.cause() };
            waiter.answer(Answer::Failed(kind));
            return;
        }
        let Some(terms) = self.rules.terms(rule).filter(|_| self.rules.serves(rule)) else {
            waiter.answer(Answer::Failed(ErrorKind::UnknownRule));
            return;
        };
        let (tag, name) = self.settings.keys.bucket(terms.kind(), terms.name, &key.0, key.1);
        let id = self.new_id();
        self.timers.push(Reverse((deadline, Timer::Order(id))));
        self.orders.insert(id, Ordered { rule, key, name, order, deadline, waiter });
        self.queue(tag, |queue| queue.orders.push_back(id));
    }

    pub(super) fn compose_order(&mut self, id: u64) -> Option<(Asked, BucketName, Sync)> {
        let draw = self.draw();
        let ordered = self.orders.get(&id)?;
        let terms = self.rules.terms(ordered.rule)?;
        let act = match ordered.order {
            Order::Block(span) => Act::Block(span),
            Order::Clear => Act::Clear,
        };
        let not_after = self.road.there(ordered.deadline).unwrap_or(Micros::ZERO);
        let sync = Sync { draw, not_after, act, ..self.blank(&terms) };
        Some((Asked::Order(id), ordered.name.clone(), sync))
    }

    /// Nobody waits for it any more; whether it is done, nobody knows.
    pub(super) fn order_is_late(&mut self, id: u64) {
        if let Some(ordered) = self.orders.remove(&id) {
            ordered.waiter.answer(Answer::Late);
        }
    }

    /// The message of an order failed.
    pub(super) fn order_failed(&mut self, id: u64, kind: ErrorKind) {
        if let Some(ordered) = self.orders.remove(&id) {
            ordered.refuse(kind);
        }
    }

    /// The authority has answered an order: this instance goes by it from here on.
    pub(super) fn ordered(&mut self, id: u64, answer: Result<Reply, Error>, now: Micros) {
        let Some(ordered) = self.orders.remove(&id) else { return };
        let done = match answer {
            Ok(reply) if reply.outcome == Outcome::Late => Answer::Late,
            Ok(_) => {
                self.obey(&ordered, now);
                Answer::Done
            }
            Err(error) => Answer::Failed(error.kind()),
        };
        ordered.waiter.answer(done);
    }

    /// Goes by an order that is done, where this instance knows the key.
    fn obey(&mut self, ordered: &Ordered, now: Micros) {
        let key = Key::stored(&ordered.key.0, ordered.key.1);
        let blocks = matches!(ordered.order, Order::Block(span) if span > Micros::ZERO);
        // A key that nobody has asked for has a first allowance in `Buffered` mode, which a block ends as well.
        let allowed = self.rules.terms(ordered.rule).is_some_and(|terms| terms.mode == Mode::Buffered);
        let known = self.tier.find(ordered.rule, &key);
        let cell = if blocks && allowed { self.tier.cell(ordered.rule, &key).ok() } else { known };
        let Some(cell) = cell else { return };
        let index = if blocks { self.bucket_of(&cell, now) } else { cell.engine_slot() };
        let Some(index) = index else { return };
        self.current = Some(index);
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        match ordered.order {
            Order::Block(span) if blocks => bucket.block(now, now.plus(span)),
            _ => bucket.forget_denial(),
        }
        // What is under way was asked before, and may say what is not so any more.
        bucket.doubt_open();
        bucket.revised = true;
        bucket.next_at = now;
        self.visit(index, now);
    }
}
