//! Decisions in the words of the rule that made them.

use super::setup::Setup;
use crate::{
    decision::{Decision, Source, Verdict},
    error::ErrorKind,
    time::Micros,
};

impl Setup {
    #[inline]
    pub(super) fn allowed(&self, remaining: u64, source: Source) -> Decision {
        let numbers = &self.terms.numbers;
        Decision {
            verdict: Verdict::Allowed,
            source,
            trouble: None,
            refused_by: None,
            limit: numbers.burst,
            remaining: remaining.min(numbers.burst),
            rate: numbers.rate,
            retry_after: Micros::ZERO,
            delay: Micros::ZERO,
        }
    }

    #[inline]
    pub(super) fn denied(&self, wait: Micros, remaining: u64, source: Source) -> Decision {
        Decision {
            verdict: Verdict::Denied,
            refused_by: Some(self.terms.name),
            retry_after: wait,
            ..self.allowed(remaining, source)
        }
    }

    /// The cost is above the burst: no waiting helps.
    #[cold]
    pub(super) fn never(&self, source: Source) -> Decision {
        Decision { verdict: Verdict::Never, refused_by: Some(self.terms.name), ..self.allowed(0, source) }
    }

    /// Not the limit but something else said no, and nobody knows for how long.
    #[cold]
    pub(super) fn troubled(&self, kind: ErrorKind, source: Source) -> Decision {
        Decision { trouble: Some(kind), ..self.denied(Micros::MAX, 0, source) }
    }
}
