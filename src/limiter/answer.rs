//! Decisions in the words of the rule that made them.

use super::setup::{Setup, Way, count};
use crate::{
    algorithm::Algorithm,
    decision::{Decision, Reset, Source, Verdict},
    error::ErrorKind,
    rule::Constant,
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
            reset: if numbers.window == Micros::ZERO { Reset::Rate } else { self.reset() },
        }
    }

    /// When a window's limit is there again. Takes no remainder: few ask.
    #[inline]
    fn reset(&self) -> Reset {
        let numbers = &self.terms.numbers;
        let (length, fixed) = (numbers.window, numbers.algorithm == Algorithm::FixedWindow);
        if !fixed && numbers.algorithm != Algorithm::SlidingCounter {
            return Reset::Span(length);
        }
        let now = match &self.way {
            Way::Shared { driver, .. } => driver.there(self.clock.coarse()),
            _ => Some(self.clock.calendar()),
        };
        match now {
            Some(now) if fixed => Reset::Window { length, over: now.plus(numbers.offset) },
            Some(over) => Reset::NextWindow { length, over },
            // Before the authority has told its time nothing is known but the length.
            None => Reset::Span(if fixed { length } else { length.plus(length) }),
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

    /// What a rule says that asks nobody; a check is counted, a look is not.
    #[cold]
    pub(super) fn by_rule(&self, constant: Constant, counted: bool) -> Decision {
        let (limit, decision, tally) = match constant {
            Constant::DenyAll => (0, self.never(Source::Rule), &self.tallies.rule_denied),
            Constant::Unlimited => (u64::MAX, self.allowed(0, Source::Rule), &self.tallies.rule_allowed),
        };
        if counted {
            count(tally);
        }
        Decision { limit, remaining: limit, ..decision }
    }

    /// The rule is gone, and its limit with it.
    #[cold]
    pub(super) fn lifted(&self, counted: bool) -> Decision {
        if counted {
            count(&self.tallies.lifted);
        }
        let free = self.allowed(0, Source::Rule);
        Decision { trouble: Some(ErrorKind::UnknownRule), limit: u64::MAX, remaining: u64::MAX, ..free }
    }

    /// The last word on a check: a rule that shadows refuses nobody, and counts whom it would have refused.
    #[inline]
    pub(super) fn spoken(&self, decision: Decision) -> Decision {
        if !self.terms.shadow || decision.is_allowed() {
            return decision;
        }
        count(&self.tallies.shadow_denied);
        decision.overlooked()
    }

    /// The last word on a look, which is counted nowhere.
    pub(super) fn shown(&self, decision: Decision) -> Decision {
        if self.terms.shadow { decision.overlooked() } else { decision }
    }
}
