//! What goes back to a local limit, and what is charged to it afterwards.

use super::{Moved, Pace, Paces, Spot, Verdict, nanos};
use crate::{atomic::Ordering::Relaxed, key::Key, local::keyed::Probe};
use std::{num::NonZeroU32, sync::Arc};

/// What one check took, so that it can be put back.
#[must_use = "what is not put back is spent"]
pub(crate) struct Spent {
    spot: Arc<Spot>,
    moved: Moved,
    /// What it is worth, in nanoseconds.
    worth: u64,
    pace: Pace,
}

impl Spent {
    /// Whether it was taken by these numbers.
    pub(crate) fn is_of(&self, pace: &Pace) -> bool {
        self.pace == *pace
    }
}

impl Pace {
    /// The time in which so many tokens come.
    fn worth(self, tokens: u64) -> u64 {
        self.interval.get().saturating_mul(tokens)
    }
}

impl Paces {
    /// [`check`](Paces::check) for `cost` tokens, at least 1, that may have to go back. Counts a refusal, and leaves
    /// it to [`Paces::keep`] to count a yes that stays.
    pub(crate) fn take(&self, rule: u32, key: &Key<'_>, cost: u64, quota: &Pace) -> (Verdict, Option<Spent>) {
        let wanted = NonZeroU32::new(u32::try_from(cost).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
        let (verdict, spent) = if wanted > quota.burst {
            (Verdict::Never, None)
        } else {
            self.spot(&Probe::new(rule, key)).map_or((Verdict::Saturated, None), |spot| {
                let (verdict, moved) = self.judge(&spot, wanted, *quota);
                (verdict, Some(Spent { spot, moved, worth: quota.worth(cost), pace: *quota }))
            })
        };
        if let Verdict::Allowed { .. } = verdict {
            return (verdict, spent);
        }
        self.count(verdict);
        (verdict, None)
    }

    /// The tokens stay spent.
    pub(crate) fn keep(&self, spent: Spent, verdict: Verdict) {
        drop(spent);
        self.count(verdict);
    }

    /// Undoes a take.
    ///
    /// The state is exactly the one before where nobody took or gave in between. Else what would have come back by
    /// itself meanwhile, to a bucket that was full without this take, is not given: it is never too much.
    pub(crate) fn put_back(&self, spent: &Spent) {
        let Spent { spot, moved: Moved { before, after }, worth, .. } = spent;
        // ordering: Relaxed, throughout: the word is the whole state.
        let Err(_) = spot.full_at.compare_exchange(*after, *before, Relaxed, Relaxed) else { return };
        // Without the take the key would have been full at `after - worth`. From then on nothing came for it.
        let full_without = after.saturating_sub(*worth);
        let overdue = nanos(self.clock.now()).saturating_sub(full_without);
        let back = worth.saturating_sub(overdue);
        let _ = spot.full_at.fetch_update(Relaxed, Relaxed, |at| Some(at.saturating_sub(back)));
    }

    /// Gives tokens back; nothing where the key has no state, and never more than makes it full.
    pub(crate) fn refund(&self, rule: u32, key: &Key<'_>, tokens: u64, quota: &Pace) {
        let worth = quota.worth(tokens);
        self.spots.view(&Probe::new(rule, key), |spot| {
            // A state in the past is a full bucket.
            let _ = spot.full_at.fetch_update(Relaxed, Relaxed, |at| Some(at.saturating_sub(worth)));
        });
    }

    /// Charges tokens that were used already, as a debt that later checks wait for: as far as the key then owes no
    /// more than one burst. Says how many that were.
    pub(crate) fn charge(&self, rule: u32, key: &Key<'_>, tokens: u64, quota: &Pace) -> u64 {
        let Ok(spot) = self.spot(&Probe::new(rule, key)) else { return 0 };
        let now = nanos(self.clock.now());
        let mut charged = 0;
        let _ = spot.full_at.fetch_update(Relaxed, Relaxed, |at| {
            let from = at.max(now);
            charged = tokens.min(quota.emptiest(now).saturating_sub(from) / quota.interval);
            Some(from.saturating_add(quota.worth(charged)))
        });
        charged
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use crate::{clock::Clock, rate::Rate, time::Micros};
    use proptest::prelude::*;

    const KEY: Key<'_> = Key::Raw(b"k");

    fn ten_a_second(clock: &Clock) -> (Paces, Pace) {
        let rate = Rate::per_micros(10, Micros::from_secs(1)).expect("a fair rate");
        (Paces::new(clock.clone(), 100), Pace::new(rate, 10).expect("a fair burst"))
    }

    fn left(governed: &Paces, quota: &Pace) -> u64 {
        match governed.check(0, &KEY, 0, quota) {
            Verdict::Allowed { remaining } | Verdict::Denied { remaining, .. } => remaining,
            other => panic!("{other:?}"),
        }
    }

    fn take(governed: &Paces, cost: u64, quota: &Pace) -> Option<Spent> {
        governed.take(0, &KEY, cost, quota).1
    }

    #[test]
    fn what_is_put_back_at_once_leaves_the_state_as_it_was() {
        let clock = Clock::manual();
        let (governed, quota) = ten_a_second(&clock);
        for already in 0..10 {
            let (_, first) = governed.take(0, &KEY, 1, &quota);
            let state = || governed.spots.view(&Probe::new(0, &KEY), |spot| spot.full_at.load(Relaxed));
            let before = state();
            if let Some(spent) = take(&governed, 10 - already - 1, &quota) {
                clock.advance(Micros(7));
                governed.put_back(&spent);
            }
            assert_eq!(state(), before, "{already}");
            drop(first);
        }
    }

    #[test]
    fn what_came_back_by_itself_is_not_given_a_second_time() {
        let clock = Clock::manual();
        let (governed, quota) = ten_a_second(&clock);
        let spent = take(&governed, 10, &quota).expect("ten are there");
        clock.advance(Micros::from_secs(5)); // full again, whatever is put back
        drop(take(&governed, 10, &quota).expect("ten are there"));
        governed.put_back(&spent);
        assert_eq!(left(&governed, &quota), 0);
    }

    #[test]
    fn a_refund_fills_no_bucket_above_its_burst_and_none_that_was_never_used() {
        let clock = Clock::manual();
        let (governed, quota) = ten_a_second(&clock);
        governed.refund(0, &KEY, 5, &quota);
        assert_eq!(governed.counts().keys, 0);
        drop(take(&governed, 10, &quota));
        governed.refund(0, &KEY, 4, &quota);
        assert_eq!(left(&governed, &quota), 4);
        governed.refund(0, &KEY, u64::MAX, &quota);
        assert_eq!(left(&governed, &quota), 10);
        drop(take(&governed, 10, &quota));
        assert_eq!(left(&governed, &quota), 0);
    }

    #[test]
    fn a_debt_is_paid_by_time_and_is_never_above_one_burst() {
        let clock = Clock::manual();
        let (governed, quota) = ten_a_second(&clock);
        drop(take(&governed, 10, &quota));
        assert_eq!(governed.charge(0, &KEY, 4, &quota), 4);
        assert_eq!(governed.charge(0, &KEY, 100, &quota), 6);
        assert_eq!(governed.charge(0, &KEY, 1, &quota), 0);
        clock.advance(Micros::from_millis(1_000));
        assert_eq!(left(&governed, &quota), 0);
        assert!(take(&governed, 1, &quota).is_none(), "a debt of ten tokens takes a second");
        clock.advance(Micros::from_millis(100));
        assert_eq!(left(&governed, &quota), 1);
    }

    proptest! {
        /// Whatever else happens to the key, a take that is put back leaves it no better than had it never been.
        #[test]
        fn a_take_that_is_put_back_never_leaves_more(
            before in 0..10_u64, cost in 1..=10_u64, steps in prop::collection::vec((0..400_u64, 0..4_u64), 0..8),
        ) {
            let (with, without) = (Clock::manual(), Clock::manual());
            let ((a, quota), (b, _)) = (ten_a_second(&with), ten_a_second(&without));
            for governed in [&a, &b] {
                governed.check(0, &KEY, before, &quota);
            }
            let spent = take(&a, cost, &quota);
            for (millis, cost) in steps {
                with.advance(Micros::from_millis(millis));
                without.advance(Micros::from_millis(millis));
                // What passes beside the take passes without it.
                if let Verdict::Allowed { .. } = a.check(0, &KEY, cost, &quota) {
                    let passes = matches!(b.check(0, &KEY, cost, &quota), Verdict::Allowed { .. });
                    prop_assert!(passes);
                }
            }
            spent.inspect(|spent| a.put_back(spent));
            prop_assert!(left(&a, &quota) <= left(&b, &quota));
        }
    }
}
