//! What a book answers.

use super::Header;
use crate::{
    algorithm::Algorithm,
    lease::message::{Outcome, Reply, Sync},
    time::Micros,
};

/// The answer to a message that was applied: what is free, and how long who comes now would have to wait.
pub(super) fn answer(head: &Header, sync: &Sync, now: Micros) -> Reply {
    let blocked = head.blocked > now;
    let fixed = head.numbers.algorithm == Algorithm::FixedWindow;
    let frame = head.frame();
    Reply {
        generation: head.generation,
        numbers: Some(head.numbers).filter(|n| n.revision > sync.numbers.revision),
        free: if blocked { 0 } else { head.free().max(0) as u64 },
        retry_after: if blocked { head.blocked.minus(now) } else { head.wait(sync.need.cost.max(1), now) },
        blocked,
        window: if fixed { frame.start(now) } else { Micros::ZERO },
        ends_in: if fixed { frame.ends_in(now) } else { Micros::ZERO },
        ..unanswered(sync, Outcome::Applied, now)
    }
}

/// The answer to a message that had no effect.
pub(super) fn unanswered(sync: &Sync, outcome: Outcome, now: Micros) -> Reply {
    Reply {
        outcome,
        epoch: sync.epoch,
        seq: sync.seq,
        generation: 0,
        numbers: None,
        given: 0,
        grant: 0,
        free: 0,
        retry_after: Micros::ZERO,
        now,
        key_ttl: Micros::ZERO,
        lost: false,
        blocked: false,
        window: Micros::ZERO,
        ends_in: Micros::ZERO,
        delay: Micros::ZERO,
    }
}
