//! The answer to a check: a value, never an error.

use crate::{error::ErrorKind, rate::Rate, time::Micros};
use std::time::Duration;

/// Who decided.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// This process alone, by a `Local` rule.
    Local,
    /// This process, from tokens it has leased (or knows that there are none).
    Lease,
    /// The authority, asked for this very check.
    Authority,
    /// The outage policy, because the authority could not be asked.
    Outage,
    /// The rule itself: it denies all, is unlimited, or has the key on its deny or allow list. Nobody was asked.
    Rule,
    /// A rule in [shadow](crate::Rule::shadow) mode: it would have refused, and let the request pass.
    Shadow,
}

/// Yes, not now, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verdict {
    Allowed,
    /// Allowed, since the rule only shadows: it would have been denied.
    WouldDeny,
    /// The same, and it would have been never.
    WouldNever,
    Denied,
    Never,
}

/// What a limiter says about one request.
///
/// A small plain value; reading it costs nothing and calls nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Decision {
    pub(crate) verdict: Verdict,
    pub(crate) source: Source,
    pub(crate) trouble: Option<ErrorKind>,
    pub(crate) refused_by: Option<&'static str>,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) rate: Rate,
    /// [`Micros::MAX`] when nobody knows.
    pub(crate) retry_after: Micros,
    /// How long an allowed request has to wait; zero but for leaky queues.
    pub(crate) delay: Micros,
    /// When what was spent comes back.
    pub(crate) reset: Reset,
}

/// When what a rule has counted is there to be had again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reset {
    /// At its rate.
    Rate,
    /// After a span of this length at the latest.
    Span(Micros),
    /// At the end of the present window of this length, of which so much, or that and whole ones before it, is over.
    Window { length: Micros, over: Micros },
    /// At the end of the window after that.
    NextWindow { length: Micros, over: Micros },
}

impl Decision {
    /// A yes that asked nobody.
    pub(crate) const fn unasked() -> Decision {
        Decision {
            verdict: Verdict::Allowed,
            source: Source::Local,
            trouble: None,
            refused_by: None,
            limit: u64::MAX,
            remaining: u64::MAX,
            rate: Rate::ONE_A_SECOND,
            retry_after: Micros::ZERO,
            delay: Micros::ZERO,
            reset: Reset::Rate,
        }
    }

    /// Whether the request may go on.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed | Verdict::WouldDeny | Verdict::WouldNever)
    }

    /// Whether no amount of waiting will help: the cost is above the burst, or the rule or its deny list refuses
    /// whatever comes.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        matches!(self.verdict, Verdict::Never)
    }

    /// The rule's burst: the most that can be had at once. 0 where the rule refuses whatever comes, `u64::MAX` where
    /// it lets everything pass.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Tokens that can probably still be had, an estimate from what this process knows.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// When to try again; `None` when allowed, when the cost can never fit, or when the store failed
    /// and nobody knows. A denial's wait is never zero.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Denied if self.retry_after != Micros::MAX => Some(Micros(self.retry_after.0.max(1)).into()),
            _ => None,
        }
    }

    /// How long an allowed request has to wait before it goes on: its turn in a
    /// [leaky queue](crate::Rule::leaky_queue). Zero for every other rule.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay.into()
    }

    /// [`retry_after`](Decision::retry_after) in whole seconds for the HTTP header, rounded up and
    /// never zero: a client that obeys it is let in.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        self.retry_after().map(|wait| Micros::from(wait).0.div_ceil(1_000_000).max(1))
    }

    /// The time in which all of the limit can be had again if nobody asks, from the same estimate as
    /// [`remaining`](Decision::remaining). For a fixed window that is its end; for a log and a sliding counter the
    /// time after which nothing that was spent until now can count any more.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        let missing = self.limit.saturating_sub(self.remaining);
        let left = |length: Micros, over: Micros| length.minus(Micros(over.0 % length.0.max(1)));
        let after = match self.reset {
            Reset::Rate => self.rate.time_for(missing),
            _ if missing == 0 => Micros::ZERO,
            Reset::Span(length) => length,
            Reset::Window { length, over } => left(length, over),
            Reset::NextWindow { length, over } => left(length, over).plus(length),
        };
        after.into()
    }

    /// Who decided.
    #[must_use]
    pub const fn source(&self) -> Source {
        match self.verdict {
            Verdict::WouldDeny | Verdict::WouldNever => Source::Shadow,
            _ => self.source,
        }
    }

    /// The answer that this would be, were the rule not in [shadow](crate::Rule::shadow) mode: with its
    /// [`source`](Decision::source) and [`retry_after`](Decision::retry_after). The decision itself where it makes no
    /// difference.
    pub const fn would_be(&self) -> Decision {
        let verdict = match self.verdict {
            Verdict::WouldDeny => Verdict::Denied,
            Verdict::WouldNever => Verdict::Never,
            said => said,
        };
        Decision { verdict, ..*self }
    }

    /// What a rule in shadow mode says instead.
    pub(crate) const fn overlooked(self) -> Decision {
        let verdict = match self.verdict {
            Verdict::Denied => Verdict::WouldDeny,
            Verdict::Never => Verdict::WouldNever,
            said => said,
        };
        Decision { verdict, ..self }
    }

    /// The rule that said no, or [would have](Decision::would_be).
    #[must_use]
    pub const fn refused_by(&self) -> Option<&'static str> {
        self.refused_by
    }

    /// What was wrong when something other than the limit shaped this answer.
    #[must_use]
    pub const fn trouble(&self) -> Option<ErrorKind> {
        self.trouble
    }
}
