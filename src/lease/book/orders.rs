//! Orders about a bucket that are no report: to forget what was counted, and to block it for a time.
//!
//! They tell nothing of their sender and leave no record of it, so one that is repeated is done again.

use super::{Book, NEVER, answer::answer};
use crate::{
    lease::message::{Act, Reply, Sync},
    time::Micros,
};

impl Book {
    /// Does what the message orders at `raw`. Where there is no bucket, only a block makes one.
    pub(super) fn order(&mut self, sync: &Sync, raw: Micros) -> Reply {
        let absent = self.header.is_none();
        let now = self.set_clock(raw);
        let mut head = self.head(sync, now);
        self.refill(&mut head, None, now);
        head.clip();
        let span = match sync.act {
            Act::Block(span) => span,
            _ => {
                head.clear();
                Micros::ZERO
            }
        };
        let until = now.plus(span).min(NEVER);
        head.blocked = if until > now { until } else { Micros::ZERO };
        let reply = answer(&head, sync, now);
        if absent && head.blocked == Micros::ZERO {
            return Reply { generation: 0, ..reply };
        }
        let key_ttl = head.key_ttl(now);
        self.header = Some(head);
        self.expires_at = raw.plus(key_ttl);
        Reply { key_ttl, ..reply }
    }
}
