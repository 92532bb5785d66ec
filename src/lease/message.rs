//! The one message of the lease protocol, and its answer.
//!
//! Both are plain values: the engine fills them in, a store carries them, the book answers them.
//! Every number is below 2^53, because the Lua twin counts in doubles.

use crate::{algorithm::Algorithm, rate::Rate, time::Micros};

/// Above this no number in a message goes: Lua's numbers are doubles and exact only up to here.
pub(crate) const EXACT_MAX: u64 = 1 << 53;

/// The numbers of a rule as one instance knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Set by the user during a deploy; of two that differ, the higher wins.
    pub(crate) revision: u32,
    /// How it counts; part of the bucket's name, so the same in every message that meets a bucket.
    pub(crate) algorithm: Algorithm,
    /// How fast tokens come; for a window, its limit per length.
    pub(crate) rate: Rate,
    /// How many tokens the bucket holds when full; at least 1. For a window its limit, for a leaky queue how many
    /// may wait.
    pub(crate) burst: u64,
    /// The length of a window; zero for buckets.
    pub(crate) window: Micros,
    /// A fixed window begins where the authority's time plus this is a multiple of its length; below the length.
    pub(crate) offset: Micros,
}

impl Numbers {
    /// The numbers of a token bucket.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) const fn bucket(revision: u32, rate: Rate, burst: u64) -> Numbers {
        let (algorithm, window, offset) = (Algorithm::TokenBucket, Micros::ZERO, Micros::ZERO);
        Numbers { revision, algorithm, rate, burst, window, offset }
    }
}

/// What a message is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Act {
    /// To tell what was spent and ask for more.
    #[default]
    Sync,
    /// Only to look: answered as if asked, and nothing changes.
    Peek,
    /// To forget what was counted: all but what is lent is free again, a block is lifted, and the generation
    /// stays. Tells nothing of the sender and leaves no record of it.
    Clear,
    /// To give and lend nothing for this long from now; zero lifts it. Tells nothing of the sender, as above.
    Block(Micros),
}

/// One random number per gate: which instance speaks. Below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InstanceId(pub(crate) u64);

/// Requests that wait for this very answer: `count` of them, each of `cost` tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Tokens that each of them takes; 0 when nobody waits.
    pub(crate) cost: u64,
    /// How many wait.
    pub(crate) count: u64,
}

/// A rising total of tokens that were spent without a grant, since epoch `born`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    /// All that was spent this way.
    pub(crate) sum: u64,
    /// The part of it that the authority is known to have booked.
    pub(crate) acked: u64,
}

/// What a bucket starts with when its state was lost (wiped or evicted, not merely expired).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lost {
    /// Nothing: a slow start, and at most what was lent when it was lost more than the bound. (A sender
    /// that never knew the bucket may be the first to create it: then as `Full`.) The default.
    #[default]
    Empty,
    /// A full bucket: no slow start, and up to one burst more than the bound.
    Full,
}

/// What an instance tells and asks about one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sync {
    /// The bucket's generation as this instance last heard it; 0 when it knows none.
    pub(crate) generation: u64,
    /// A random number, at least 1 and below 2^53: the generation, should the bucket be created now.
    pub(crate) draw: u64,
    /// The sender's numbers.
    pub(crate) numbers: Numbers,
    /// The sender.
    pub(crate) instance: InstanceId,
    /// Rises with each new life of the sender's cell: created, or its lease ended.
    pub(crate) epoch: u64,
    /// Rises with each message of this epoch.
    pub(crate) seq: u64,
    /// The epoch in which the totals `debt` and `outage` began.
    pub(crate) born: u64,
    /// The authority's time after which the question is dead; 0: never.
    pub(crate) not_after: Micros,
    /// Spent from grants in this epoch, less what was refunded; cumulative.
    pub(crate) used: i64,
    /// What the sender still has of its grants.
    pub(crate) hold: u64,
    /// Time since the sender last spent here, rounded down; 0 is always safe.
    pub(crate) age: Micros,
    /// What waits right now; spent by the authority at this moment.
    pub(crate) need: Need,
    /// Tokens to lend ahead.
    pub(crate) want: u64,
    /// Measured demand in thousandths of a token a second, for the share; at least 1.
    pub(crate) demand: u64,
    /// Life of the lease from the moment of its grant, margin included.
    pub(crate) span: Micros,
    /// Spent without any grant; may push the bucket below empty.
    pub(crate) debt: Total,
    /// Let through while the authority was away; charged down to an empty bucket at most.
    pub(crate) outage: Total,
    /// What to start with when the bucket's state was lost.
    pub(crate) lost: Lost,
    /// Fixed windows: the start, on the authority's clock, of the window that `used`, `hold`, `debt` and `outage`
    /// belong to; zero: not known, and nothing is held.
    pub(crate) window: Micros,
    /// Windows: what `used` was lowered by for refunds since the last message that was answered was admitted no earlier
    /// than this, on the authority's clock. Zero: there were none. A sender that does not know lowers nothing: of a
    /// difference alone the authority could not tell what was spent from what came back.
    pub(crate) fresh: Micros,
    /// What the message is for.
    pub(crate) act: Act,
}

/// How a [`Sync`] was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Applied, once.
    Applied,
    /// Past its `not_after`: no effect at all.
    Late,
    /// Not above the (epoch, seq) that the authority has: a repeat, or overtaken. No effect at all.
    Stale,
}

/// What the authority answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// How the question was taken. Unless `Applied`, only `epoch`, `seq` and `now` mean anything.
    pub(crate) outcome: Outcome,
    /// The question's epoch.
    pub(crate) epoch: u64,
    /// The question's seq.
    pub(crate) seq: u64,
    /// The bucket's generation.
    pub(crate) generation: u64,
    /// The numbers of a higher revision, when the authority has one.
    pub(crate) numbers: Option<Numbers>,
    /// How many of `need` were given their tokens; a prefix.
    pub(crate) given: u64,
    /// Tokens lent ahead.
    pub(crate) grant: u64,
    /// Whole tokens that nobody has, after this answer.
    pub(crate) free: u64,
    /// How long until one more request of this cost could be served, if nobody else comes; zero: now.
    pub(crate) retry_after: Micros,
    /// The authority's time.
    pub(crate) now: Micros,
    /// How long the bucket's state lives from now on, if nobody asks.
    pub(crate) key_ttl: Micros,
    /// This message met a bucket that had lost its state, and triggered the rule's policy.
    pub(crate) lost: bool,
    /// The key is blocked: nothing is given or lent for `retry_after`, and what is held should come back.
    pub(crate) blocked: bool,
    /// Fixed windows: the start of the present one, on the authority's clock; zero for all others.
    pub(crate) window: Micros,
    /// Fixed windows: until the end of the present one, where every lease ends; zero for all others.
    pub(crate) ends_in: Micros,
    /// Leaky queues: how long the first of those given has to wait before it may leave. Each next one leaves
    /// `cost` intervals later.
    pub(crate) delay: Micros,
}
