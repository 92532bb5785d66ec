//! What travels between the engine and a store: questions about buckets, answers, heartbeats.
//!
//! Plain values; nothing here knows which store carries them.

use crate::{
    algorithm::Frame,
    error::Error,
    key::BucketName,
    lease::{Reply, Sync},
    time::Micros,
};

/// Questions about buckets of one tag that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// The hash tag that all these names carry: one slot of a cluster.
    pub(crate) tag: u16,
    /// The questions. No bucket is named twice by the same instance.
    pub(crate) questions: Vec<(BucketName, Sync)>,
}

/// One answer per question, in the same order. One bucket's error says nothing about the others.
pub(crate) type Answers = Vec<Result<Reply, Error>>;

/// A hit on a plain counter: a number in a key of its own, which other programs may count on too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The most that may be counted in one window.
    pub(crate) limit: u64,
    /// How much it counts, all of it or nothing. Zero only looks; below zero gives back, and never below nothing.
    pub(crate) cost: i64,
    /// Where the windows lie.
    pub(crate) frame: Frame,
    /// When the window began that the key means, on the authority's clock. Zero: it means none, and its window begins
    /// with its first hit.
    pub(crate) start: Micros,
}

/// What became of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// It is counted, and `count` is what is counted now.
    Taken {
        /// With this hit.
        count: i64,
        /// Until the window ends.
        ends_in: Micros,
        /// The authority's time.
        now: Micros,
    },
    /// It would go above the limit, and is not counted.
    Refused {
        /// Without this hit.
        count: i64,
        /// Until the window ends.
        ends_in: Micros,
        /// The authority's time.
        now: Micros,
    },
    /// By the authority's clock it is another window than the one that the key means; nothing was done.
    OtherWindow {
        /// The authority's time, by which to name the key anew.
        now: Micros,
    },
}

/// What the authority answers to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beat {
    /// Instances that beat within the last [`MEMBER_LIFE`], the asker included unless it leaves.
    pub(crate) members: u32,
    /// The authority's time.
    pub(crate) now: Micros,
}

/// How long an instance that is not heard of any more still counts as a member.
pub(crate) const MEMBER_LIFE: Micros = Micros::from_secs(5);
