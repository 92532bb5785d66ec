//! What travels between the engine and a store: questions about buckets, answers, heartbeats.
//!
//! Plain values; nothing here knows which store carries them.

use crate::{
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
