//! What goes into the engine and what comes out: plain values, so that a simulator can carry them too.

use super::{orders::Order, plain::Ask, waiter::Waiter};
use crate::{
    error::Error,
    key::BucketName,
    local::Cell,
    observe::Event,
    rule::Terms,
    store::{Answers, Batch, Beat, Counted, Hit},
    time::Micros,
};
use std::sync::Arc;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A cell ran low, or refused for want of tokens.
    Call(Arc<Cell>),
    /// Somebody waits for tokens of this cell.
    Ask {
        /// Whose tokens.
        cell: Arc<Cell>,
        /// How many; at least 1.
        cost: u64,
        /// When the asker gives up, on the gate's clock.
        deadline: Micros,
        /// Where the answer goes.
        waiter: Waiter,
    },
    /// Somebody wants to know how much there is, and changes nothing.
    Peek {
        /// The rule's number.
        rule: u32,
        /// The key's bytes and whether they are a digest.
        key: (Box<[u8]>, bool),
        /// For how many tokens the wait is wanted; at least 1.
        cost: u64,
        /// When the asker gives up.
        deadline: Micros,
        /// Where the answer goes.
        waiter: Waiter,
    },
    /// Somebody waits for something to be done with a key.
    Order {
        /// The rule's number.
        rule: u32,
        /// The key's bytes and whether they are a digest.
        key: (Box<[u8]>, bool),
        /// What.
        order: Order,
        /// When the asker gives up.
        deadline: Micros,
        /// Where the answer goes.
        waiter: Waiter,
    },
    /// Tokens that were taken here and are given back.
    Refund {
        /// Whose tokens.
        cell: Arc<Cell>,
        /// How many.
        tokens: u64,
        /// None of them was taken before this.
        since: Micros,
    },
    /// Somebody wants something of a plain counter.
    Hit {
        /// What, and of which one.
        ask: Arc<Ask>,
        /// When the asker gives up.
        deadline: Micros,
        /// Where the answer goes; `None`: nobody waits for it.
        waiter: Option<Waiter>,
    },
    /// What was counted on a plain counter here is given back.
    GiveBack {
        /// What, and of which one.
        ask: Arc<Ask>,
        /// When the window that it was counted in is over, on our clock.
        until: Micros,
    },
    /// A hit was answered, or was not.
    Counted {
        /// Which hit.
        id: u64,
        /// What came of it.
        result: Result<Counted, Error>,
    },
    /// A batch was answered, or was not.
    Answered {
        /// Which batch.
        id: u64,
        /// What came of it.
        result: Result<Answers, Error>,
    },
    /// A heartbeat was answered, or was not.
    Beaten(Result<Beat, Error>),
    /// These rules, by number, take the place of the old ones; `None`: no such rule (any more).
    Rules(Vec<Option<Terms>>),
    /// Give everything back and stop; by then at the latest.
    Close(Micros),
}

/// Something to be done by whoever drives the engine.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Carry this batch to the store and bring the answers under this id.
    Send {
        /// Which batch.
        id: u64,
        /// What to ask.
        batch: Batch,
    },
    /// Count this on a plain counter and bring the answer under this id.
    Count {
        /// Which hit.
        id: u64,
        /// The counter.
        name: BucketName,
        /// What to count.
        hit: Hit,
    },
    /// Tell the store that this instance lives, or that it leaves.
    Beat {
        /// Whether it leaves.
        leave: bool,
    },
    /// Tell the observer.
    Report(Event),
    /// Stop.
    Done {
        /// Whether everything was given back before the time for it was over.
        clean: bool,
    },
}
