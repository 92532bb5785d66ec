//! Whether a trace of admissions keeps a token bucket's bound, without accusing the scheduler.
//!
//! # What is a violation
//!
//! Nobody outside a limiter knows when exactly an admission happened; what can be known is a time read before
//! the check and a time read after it. An admission is *certainly inside* a span `[a, b]` when its `before` is
//! at or after `a` and its `after` at or before `b`. A violation is a span whose certainly contained admissions
//! cost more than `burst + rate * (b - a)`. Each one proves that the limiter admitted too much; anything looser
//! (say, dating each admission by its `after`) would blame the limiter for a thread that was not scheduled between
//! the decision and the look at the clock.
//!
//! Only spans from some `before` to some `after` need a look: a span that violates still does when it is shrunk to
//! the first `before` and the last `after` of what it contains.
//!
//! # How it is found
//!
//! With all numbers multiplied by the rate's period, so that they are whole, a span violates when
//!
//! ```text
//! cost(a, b) * period + count * a  >  burst * period + count * b
//! ```
//!
//! The ends `b` are swept upwards. A tree over the sorted starts `a` keeps, under each node, the sum of the costs
//! that the sweep has met and the largest left side among its starts, each counting the costs from itself to the
//! node's end: joined from two halves, that is the larger of the right half's and the left half's plus the right
//! half's sum. So meeting an admission is one path of the tree, the root has the answer for `b`, and a trace of
//! `n` admissions takes O(n log n) time and O(n) memory.

use super::reference::Reference;
use crate::{rate::Rate, time::Micros};
use std::fmt;

/// One admitted request, as seen from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Admission {
    /// Read from the clock before the check began, rounded down.
    pub before: Micros,
    /// Read from the same clock after the check was answered, rounded up: with a clock that cuts off, its time
    /// plus one microsecond.
    pub after: Micros,
    /// Tokens that it took.
    pub cost: u64,
}

/// What a [`Judge`] says about a trace.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// How many of the trace's `after` times end a span that certainly contains more than the bound. 0: the bound holds.
    pub violations: u64,
    /// By how many tokens the worst of these spans is above the bound; 0 when there is none.
    pub worst_excess: f64,
    /// The worst of these spans.
    pub worst_span: Option<(Micros, Micros)>,
    /// Tokens admitted in the whole trace; saturates.
    pub admitted: u64,
    /// From the first `before` to the last `after`.
    pub span: Micros,
}

impl Verdict {
    /// Whether no span is above the bound.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "violations {}, admitted {} in {:.3} s", self.violations, self.admitted, self.span.as_secs_f64())?;
        if let Some((a, b)) = self.worst_span {
            write!(f, ", worst {:.3} tokens above the bound from {} to {} µs", self.worst_excess, a.0, b.0)?;
        }
        Ok(())
    }
}

/// Judges traces by the bound of one token bucket: `burst + rate * T` over any span `T`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Micros, Rate, sim::{Admission, Judge}};
///
/// let judge = Judge::new(Rate::new(1_000, Duration::from_secs(1))?, 2);
/// let at = |us, cost| Admission { before: Micros(us), after: Micros(us), cost };
///
/// assert!(judge.violations(&[at(0, 2), at(1_000, 1)]).holds());
/// let verdict = judge.violations(&[at(0, 2), at(500, 1)]); // half a token too early
/// assert_eq!((verdict.violations, verdict.worst_excess), (1, 0.5));
/// # Ok::<(), tollgate::RateError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    rate: Rate,
    burst: u64,
}

impl Judge {
    /// A judge by this rate and this burst.
    #[must_use]
    pub fn new(rate: Rate, burst: u64) -> Judge {
        Judge { rate, burst }
    }

    /// The most whole tokens that any span of this length may admit; saturates.
    #[must_use]
    pub fn bound(&self, span: Micros) -> u64 {
        self.burst.saturating_add(self.rate.tokens_in(span))
    }

    /// Finds every violation in a trace, which may be in any order.
    ///
    /// An `after` below its `before` counts as equal to it. Arithmetic is exact for any trace that fits into
    /// memory with costs below 2^53, and saturates beyond. A million admissions take under a second.
    #[must_use]
    pub fn violations(&self, trace: &[Admission]) -> Verdict {
        let mut starts: Vec<u64> = trace.iter().map(|a| a.before.0).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut ends: Vec<(u64, u64, u64)> =
            trace.iter().map(|a| (a.after.max(a.before).0, a.before.0, a.cost)).collect();
        ends.sort_unstable();

        let first = starts.first().copied().unwrap_or(0);
        let last = ends.last().map_or(0, |e| e.0);
        let (mut violations, mut worst) = (0, None);
        let mut tree = Tree::new(starts.len());
        for same_end in ends.chunk_by(|x, y| x.0 == y.0) {
            let end = same_end[0].0;
            for &(_, before, cost) in same_end {
                // It is there: every `before` is among the starts.
                let place = starts.partition_point(|start| *start < before);
                tree.add(place, self.scaled(cost), self.come(before - first));
            }
            let excess = tree.best().saturating_sub(self.come(end - first)).saturating_sub(self.scaled(self.burst));
            if excess > 0 {
                violations += 1;
                worst = worst.max(Some((excess, end)));
            }
        }
        Verdict {
            violations,
            // A float is near enough to read; whether there is an excess was decided exactly.
            worst_excess: worst.map_or(0.0, |(excess, _)| excess as f64 / self.rate.period() as f64),
            worst_span: worst.map(|(excess, end)| (self.start_of(excess, end, &ends), Micros(end))),
            admitted: trace.iter().fold(0, |sum: u64, a| sum.saturating_add(a.cost)),
            span: Micros(last - first),
        }
    }

    /// What one central bucket, full at first, admits of these attempts (time and cost) when each is decided at
    /// its own time and never asks again: the sum of the admitted costs.
    ///
    /// The attempts must be in the order of time; an earlier one counts as made at the latest time before it.
    /// Measures how much of a limit a limiter uses.
    #[must_use]
    pub fn reference(&self, attempts: &[(Micros, u64)]) -> u64 {
        let mut bucket = Reference::new(self.rate, self.burst);
        let admitted = attempts.iter().filter(|(at, cost)| bucket.offer(*at, *cost));
        admitted.fold(0, |sum: u64, (_, cost)| sum.saturating_add(*cost))
    }

    /// Tokens, in parts of 1 / period.
    fn scaled(&self, tokens: u64) -> i128 {
        // Below 2^64 * 2^45.
        i128::from(tokens) * i128::from(self.rate.period())
    }

    /// What comes in a span, in parts of 1 / period.
    fn come(&self, span: u64) -> i128 {
        // Below 2^64 * 2^55.
        i128::from(span) * i128::from(self.rate.count())
    }

    /// The start of the span that ends at `end` with this excess.
    fn start_of(&self, excess: i128, end: u64, ends: &[(u64, u64, u64)]) -> Micros {
        let mut inside: Vec<(u64, u64)> = ends.iter().filter(|e| e.0 <= end).map(|e| (e.1, e.2)).collect();
        inside.sort_unstable();
        let mut sum: i128 = 0;
        for same_start in inside.chunk_by(|x, y| x.0 == y.0).rev() {
            let start = same_start[0].0;
            sum = same_start.iter().fold(sum, |sum, (_, cost)| sum.saturating_add(self.scaled(*cost)));
            if sum.saturating_sub(self.come(end - start)).saturating_sub(self.scaled(self.burst)) >= excess {
                return Micros(start);
            }
        }
        Micros(inside.first().map_or(end, |first| first.0))
    }
}

/// A part of the starts: what was met there, and the largest left side among them.
#[derive(Clone, Copy)]
struct Node {
    sum: i128,
    best: i128,
}

/// Nothing met: no start here may be the answer.
const EMPTY: Node = Node { sum: 0, best: i128::MIN };

impl Node {
    fn join(left: Node, right: Node) -> Node {
        // An empty half stays far below every real answer: sums are positive, but 2^127 away.
        let across = if left.best == i128::MIN { i128::MIN } else { left.best.saturating_add(right.sum) };
        Node { sum: left.sum.saturating_add(right.sum), best: right.best.max(across) }
    }
}

/// A heap-ordered tree: node `i` has the halves `2 i` and `2 i + 1`, the leaves come last.
struct Tree {
    nodes: Vec<Node>,
    leaves: usize,
}

impl Tree {
    fn new(starts: usize) -> Tree {
        let leaves = starts.next_power_of_two();
        Tree { nodes: vec![EMPTY; 2 * leaves], leaves }
    }

    /// Meets an admission of this cost that begins at this place among the starts, before which so much came.
    fn add(&mut self, place: usize, cost: i128, come: i128) {
        let mut at = self.leaves + place;
        let sum = self.nodes[at].sum.saturating_add(cost);
        self.nodes[at] = Node { sum, best: sum.saturating_add(come) };
        while at > 1 {
            at /= 2;
            self.nodes[at] = Node::join(self.nodes[2 * at], self.nodes[2 * at + 1]);
        }
    }

    fn best(&self) -> i128 {
        self.nodes[1].best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use std::time::Duration;

    fn rate(count: u64, micros: u64) -> Rate {
        Rate::per_micros(count, Micros(micros)).expect("a fair rate")
    }

    fn at(us: u64, cost: u64) -> Admission {
        Admission { before: Micros(us), after: Micros(us), cost }
    }

    /// Every span there is, one after the other.
    fn oracle(rate: Rate, burst: u64, trace: &[Admission]) -> (u64, i128) {
        let mut ends: Vec<u64> = trace.iter().map(|a| a.after.0).collect();
        ends.sort_unstable();
        ends.dedup();
        let (mut violations, mut worst) = (0, 0);
        for b in ends {
            let excess = |a: u64| {
                let inside = trace.iter().filter(|x| x.before.0 >= a && x.after.0 <= b);
                let cost: i128 = inside.map(|x| i128::from(x.cost)).sum();
                (cost - i128::from(burst)) * i128::from(rate.period()) - i128::from(b - a) * i128::from(rate.count())
            };
            let starts = trace.iter().map(|x| x.before.0).filter(|a| *a <= b);
            let most = starts.map(excess).max().unwrap_or(0);
            violations += u64::from(most > 0);
            worst = most.max(worst);
        }
        (violations, worst)
    }

    fn traces() -> impl Strategy<Value = Vec<Admission>> {
        let admission = (0..60_u64, 0..12_u64, 0..4_u64).prop_map(|(before, width, cost)| Admission {
            before: Micros(before),
            after: Micros(before + width),
            cost,
        });
        vec(admission, 0..40)
    }

    proptest! {
        #[test]
        fn the_sweep_agrees_with_looking_at_every_span(
            count in 1..5_u64, period in 1..30_u64, burst in 1..20_u64, trace in traces(),
        ) {
            let rate = rate(count, period);
            let verdict = Judge::new(rate, burst).violations(&trace);
            let (violations, worst) = oracle(rate, burst, &trace);
            prop_assert_eq!(verdict.violations, violations);
            prop_assert_eq!(verdict.worst_excess, worst as f64 / rate.period() as f64);
            prop_assert_eq!(verdict.worst_span.is_some(), violations > 0);
            if let Some((a, b)) = verdict.worst_span {
                let inside = trace.iter().filter(|x| x.before >= a && x.after <= b);
                let cost: u64 = inside.map(|x| x.cost).sum();
                let bound = burst as f64 + rate.per_second() * b.minus(a).as_secs_f64();
                prop_assert!((cost as f64 - bound - verdict.worst_excess).abs() < 1e-6);
            }
        }

        #[test]
        fn what_one_central_bucket_admits_is_never_a_violation_and_one_more_at_once_is(
            count in 1..5_u64, period in 1..30_u64, burst in 1..20_u64,
            mut attempts in vec((0..1_000_u64, 1..4_u64), 1..200),
        ) {
            attempts.sort_unstable();
            let rate = rate(count, period);
            let judge = Judge::new(rate, burst);
            let mut bucket = Reference::new(rate, burst);
            let mut trace: Vec<Admission> =
                attempts.iter().filter(|(us, cost)| bucket.offer(Micros(*us), *cost)).map(|(us, cost)| at(*us, *cost)).collect();
            let verdict = judge.violations(&trace);
            prop_assert!(verdict.holds(), "{}", verdict);
            let attempts: Vec<_> = attempts.into_iter().map(|(us, cost)| (Micros(us), cost)).collect();
            prop_assert_eq!(judge.reference(&attempts), verdict.admitted);

            trace.push(at(500, burst + 1));
            prop_assert!(!judge.violations(&trace).holds());
        }
    }

    #[test]
    fn one_planted_excess_among_many_admissions_is_found_where_it_is() {
        // 1,000 a second, burst 10: after the burst, one each millisecond is exactly what may pass.
        let judge = Judge::new(rate(1, 1_000), 10);
        let mut trace: Vec<_> = (0..50_000).map(|ms| at(ms * 1_000, 1)).collect();
        trace.extend((0..9).map(|_| at(0, 1)));
        let fair = judge.violations(&trace);
        assert!(fair.holds(), "{fair}");
        assert_eq!((fair.admitted, fair.span), (50_009, Micros(49_999_000)));

        trace.push(at(30_000_400, 1));
        let verdict = judge.violations(&trace);
        // From that one on, every later end closes a span with one token too many in it.
        assert_eq!(verdict.violations, 20_000);
        assert_eq!(verdict.worst_excess, 1.0);
        let (a, b) = verdict.worst_span.expect("a span");
        assert!(a <= Micros(30_000_400) && b > Micros(30_000_400), "{verdict}");
    }

    #[test]
    fn a_check_that_the_scheduler_held_up_accuses_nobody() {
        let judge = Judge::new(rate(1, 1_000), 1);
        let held_up = Admission { before: Micros(0), after: Micros(900_000), cost: 1 };
        assert!(judge.violations(&[held_up, at(899_999, 1)]).holds());
        let on_time = Admission { before: Micros(899_900), after: Micros(900_000), cost: 1 };
        assert_eq!(judge.violations(&[on_time, at(899_999, 1)]).violations, 1);
    }

    #[test]
    fn an_empty_trace_and_the_ends_of_all_ranges_are_judged_without_a_panic() {
        let judge = Judge::new(rate(1_000, 1), 1);
        let nothing = judge.violations(&[]);
        assert_eq!((nothing.holds(), nothing.admitted, nothing.span), (true, 0, Micros::ZERO));
        let backwards = Admission { before: Micros(9), after: Micros(3), cost: 1 };
        assert!(judge.violations(&[backwards]).holds());
        let slowest = Judge::new(Rate::new(1, Duration::from_secs(366 * 86_400)).expect("a fair rate"), 1);
        for judge in [judge, slowest] {
            let ends = [at(0, u64::MAX), at(u64::MAX, u64::MAX), at(u64::MAX, 1)];
            assert!(judge.violations(&ends).violations > 0);
            assert_eq!(judge.violations(&ends).admitted, u64::MAX);
        }
        assert_eq!(judge.bound(Micros::MAX), u64::MAX);
        assert_eq!(judge.reference(&[(Micros::MAX, 1), (Micros::ZERO, 1)]), 1);
    }
}
