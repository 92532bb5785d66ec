//! Limits that this process keeps alone: the `Local` mode, and the `Share` policy in an outage. The
//! arithmetic is governor's; the numbers are checked before it sees them, and the states lie in our
//! own bounded registry.
//!
//! One number is kept per key: the time at which its bucket is full again, in nanoseconds. So a key
//! that is full is as good as one that was never seen, and is swept.

use super::{
    front::{self, Count, Totals},
    keyed::{Keyed, Name, Probe},
    registry::{Registry, Saturated},
    tier::Counts,
};
use crate::{
    atomic::{AtomicU64, Ordering::Relaxed},
    clock::Clock,
    error::{Error, ErrorKind},
    key::Key,
    rate::{PERIOD_MAX, Rate},
    time::Micros,
};
use governor::{
    RateLimiter, clock::Clock as GovernorClock, middleware::StateInformationMiddleware, nanos::Nanos, state::StateStore,
};
use std::{
    cell::Cell,
    collections::HashMap,
    fmt,
    hash::{Hash, Hasher},
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
    time::Duration,
};

mod back;
#[cfg(all(test, not(tollgate_loom)))]
mod tests;

pub(crate) use back::Spent;

/// Times and spans stay below this, so that no sum of governor's overflows: now, and twice the burst.
/// 146 years.
const NANOS_MAX: u64 = u64::MAX / 4;
/// A burst that comes back within this always needs the precise clock.
const PRECISE_BELOW: u64 = 20_000_000;
/// How far the coarse hand may be behind, generously: it moves each millisecond.
const BEHIND_MAX: u64 = 10_000_000;
/// How often states are swept at most.
const SWEEP_PAUSE: Micros = Micros::from_secs(1);
/// Below this many states nobody sweeps.
const SWEEP_MIN: u64 = if cfg!(test) { 16 } else { 1_024 };

/// What a governed limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed {
        remaining: u64,
    },
    /// Allowed, after so long a wait.
    Queued {
        remaining: u64,
        delay: Micros,
    },
    Denied {
        wait: Micros,
        remaining: u64,
    },
    /// The cost is above the burst.
    Never,
    /// A new key, and no room for it.
    Saturated,
}

/// One key's state: when it is full again, in nanoseconds of the clock's line.
struct Spot {
    name: Name,
    full_at: AtomicU64,
}

impl Keyed for Spot {
    fn name(&self) -> &Name {
        &self.name
    }
}

// Governor asks for these of a key. A spot is one thing with one address.
impl PartialEq for Spot {
    fn eq(&self, other: &Spot) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Spot {}

impl Hash for Spot {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.name.hash());
    }
}

/// A time on governor's line.
fn nanos(at: Micros) -> u64 {
    at.0.saturating_mul(1_000).min(NANOS_MAX)
}

/// Lets governor keep a key's state in its spot. Remembers what the last yes made of what.
#[derive(Default)]
struct InSpot(Cell<Moved>);

/// What a spot said before a yes, and after it.
#[derive(Clone, Copy, Default)]
struct Moved {
    before: u64,
    after: u64,
}

impl StateStore for InSpot {
    type Key = Arc<Spot>;

    fn measure_and_replace<T, F, E>(&self, spot: &Arc<Spot>, judge: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // ordering: Relaxed, all. The word is the whole state and guards no other memory; the CAS alone
        // makes each decision follow from the one before.
        let mut seen = spot.full_at.load(Relaxed);
        loop {
            let (answer, next) = judge(Some(Nanos::new(seen)))?;
            match spot.full_at.compare_exchange_weak(seen, next.as_u64(), Relaxed, Relaxed) {
                Ok(_) => {
                    self.0.set(Moved { before: seen, after: next.as_u64() });
                    return Ok(answer);
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// The time of one check, for governor.
///
/// Governor counts from the first time that it is told. That must be the same for all who share a
/// state, so it is told 0 first, and the time afterwards.
struct At(Cell<u64>);

impl GovernorClock for At {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.get())
    }
}

type Limiter = RateLimiter<Arc<Spot>, InSpot, At, StateInformationMiddleware>;

/// Rate and burst as governor counts: safe from overflow. A small plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Nanoseconds for one token, rounded up.
    interval: NonZeroU64,
    burst: NonZeroU32,
}

impl Pace {
    /// These numbers.
    ///
    /// # Errors
    /// A burst of 0 or above 2^32 - 1, one that takes over 146 years to come back, and a rate that would lose
    /// more than 1 % when the time for a token is rounded to whole nanoseconds. The message says which.
    pub(crate) fn new(rate: Rate, burst: u64) -> Result<Pace, Error> {
        let wrong = |why: String| Err(Error::new(ErrorKind::Config, why));
        let Some(fits) = u32::try_from(burst).ok().and_then(NonZeroU32::new) else {
            return wrong(format!("burst: a local limit takes 1 to 4,294,967,295, not {burst}"));
        };
        let quota = Pace::at_most(rate, burst);
        if quota.burst != fits {
            return wrong(format!("burst: {burst} tokens at {rate:?} take more than 146 years to come back"));
        }
        let (exact, kept) =
            (u128::from(rate.period()) * 1_000, u128::from(quota.interval.get()) * u128::from(rate.count()));
        if (kept - exact.min(kept)) * 100 > kept {
            let interval = quota.interval;
            return wrong(format!(
                "rate: a local limit counts in whole nanoseconds for each token; {rate:?} would become one \
                 token each {interval} ns, which is more than 1 % slower"
            ));
        }
        Ok(quota)
    }

    /// One member's share of these numbers, for an outage: exact where governor can keep it, and else the
    /// nearest below, since a little too strict is better than none.
    ///
    /// # Errors
    /// No members: nobody to share with.
    pub(crate) fn share(rate: Rate, burst: u64, members: u32) -> Result<Pace, Error> {
        if members == 0 {
            return Err(Error::new(ErrorKind::Config, "instances: a limit is shared by at least one"));
        }
        let (rate, burst) = share(rate, burst, u64::from(members));
        Ok(Pace::at_most(rate, burst))
    }

    /// These numbers, or the nearest below them that can be kept.
    fn at_most(rate: Rate, burst: u64) -> Pace {
        let interval = (u128::from(rate.period()) * 1_000).div_ceil(u128::from(rate.count()));
        let interval = u64::try_from(interval).unwrap_or(NANOS_MAX).clamp(1, NANOS_MAX);
        let burst = burst.min(NANOS_MAX / interval).clamp(1, u64::from(u32::MAX));
        Pace {
            interval: NonZeroU64::new(interval).unwrap_or(NonZeroU64::MIN),
            burst: u32::try_from(burst).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The time in which an empty bucket fills up.
    fn span(self) -> u64 {
        self.interval.get().saturating_mul(u64::from(self.burst.get()))
    }

    /// The latest that a spot may say: nobody lacks more than the whole burst, and owes more than one beside it.
    fn emptiest(self, now: u64) -> u64 {
        now.saturating_add(self.span().saturating_mul(2))
    }

    /// Takes `cost` tokens of the spot at `now`, all or none: what is left, or when they will be there.
    fn take(self, spot: &Arc<Spot>, cost: NonZeroU32, now: u64) -> Result<(u64, Moved), Option<u64>> {
        let each = Duration::from_nanos(self.interval.get());
        // `with_period` declines a period of zero, which this never is.
        let quota = governor::Quota::with_period(each).ok_or(None)?.allow_burst(self.burst);
        let limiter = Limiter::new(quota, InSpot::default(), At(Cell::new(0)));
        limiter.clock().0.set(now);
        match limiter.check_key_n(spot, cost) {
            Ok(Ok(state)) => Ok((u64::from(state.remaining_burst_capacity()), limiter.into_state_store().0.get())),
            Ok(Err(not_until)) => Err(Some(not_until.earliest_possible().as_u64())),
            Err(_) => Err(None),
        }
    }

    /// Whole tokens there at `now`.
    fn remaining(self, full_at: u64, now: u64) -> u64 {
        self.span().saturating_sub(full_at.saturating_sub(now)) / self.interval
    }
}

/// All limits of one gate that this process keeps alone. Bounded: at most so many keys have a state.
///
/// # Promise
/// In any span `t`, at most `burst + rate * t` tokens for each key.
///
/// # Cost
/// A look-up, and a CAS on the key's word. A clock is read for a key that is all but full or empty, and
/// for each where the burst is worth less than 20 ms of the rate.
pub(crate) struct Paces {
    clock: Clock,
    spots: Registry<Spot>,
    totals: Arc<Totals>,
    sweep_at: AtomicU64,
    /// How many must be there for a sweep to be worth its while: twice what the last one left.
    sweep_from: AtomicU64,
}

impl Paces {
    /// Room for `keys_max` states, over all rules.
    pub(crate) fn new(clock: Clock, keys_max: usize) -> Paces {
        Paces {
            clock,
            spots: Registry::new(keys_max),
            totals: Totals::new(),
            sweep_at: AtomicU64::new(0),
            sweep_from: AtomicU64::new(SWEEP_MIN),
        }
    }

    /// Takes `cost` tokens, all or none; a cost of 0 only looks.
    pub(crate) fn check(&self, rule: u32, key: &Key<'_>, cost: u64, quota: &Pace) -> Verdict {
        let Some(wanted) = NonZeroU32::new(u32::try_from(cost).unwrap_or(u32::MAX)) else {
            return self.known(rule, key, 0, quota);
        };
        if cost > u64::from(quota.burst.get()) {
            return Verdict::Never;
        }
        let probe = Probe::new(rule, key);
        let verdict = self.spots.view(&probe, |spot| self.judge(spot, wanted, *quota).0).unwrap_or_else(|| {
            self.spot(&probe).map_or(Verdict::Saturated, |spot| self.judge(&spot, wanted, *quota).0)
        });
        self.count(verdict);
        verdict
    }

    /// The key's state, made where there is none.
    fn spot(&self, probe: &Probe<'_>) -> Result<Arc<Spot>, Saturated> {
        if let Some(spot) = self.spots.get(probe) {
            return Ok(spot);
        }
        self.sweep(self.clock.coarse());
        self.spots.get_or_insert(probe, |name| Spot { name, full_at: AtomicU64::new(0) })
    }

    fn count(&self, verdict: Verdict) {
        let counted = match verdict {
            Verdict::Allowed { .. } | Verdict::Queued { .. } => Count::Admitted,
            Verdict::Denied { .. } | Verdict::Never => Count::Denied,
            Verdict::Saturated => Count::Saturated,
        };
        front::count(&self.totals, counted);
    }

    /// Counts a check that was refused before it came here.
    pub(super) fn refused(&self, wait: Micros) -> Verdict {
        front::count(&self.totals, Count::Denied);
        Verdict::Denied { wait, remaining: 0 }
    }

    /// Forgets what was taken for a key.
    pub(super) fn clear(&self, rule: u32, key: &Key<'_>) {
        // ordering: Relaxed, as in `measure_and_replace`.
        self.spots.view(&Probe::new(rule, key), |spot| spot.full_at.store(0, Relaxed));
    }

    /// What a check for one token would say; changes, stores and counts nothing.
    pub(crate) fn peek(&self, rule: u32, key: &Key<'_>, quota: &Pace) -> Verdict {
        self.known(rule, key, 1, quota)
    }

    /// Gives the keys of these rules new numbers, from the first to the second: each lacks as many tokens of its burst as
    /// before, at most all.
    ///
    /// Walks all states once, a part of the registry at a time. A check that runs meanwhile may find its key as it was:
    /// it never waits longer than the new burst takes to come back.
    pub(crate) fn requote(&self, rules: &HashMap<u32, (Pace, Pace)>) {
        let now = nanos(self.clock.now());
        self.spots.retain(|spot| {
            let Some((from, to)) = rules.get(&spot.name.probe().rule) else { return true };
            let (old, new) = (u128::from(from.interval.get()), u128::from(to.interval.get()));
            let convert = |full_at: u64| {
                let lacking = u128::from(full_at.checked_sub(now)?);
                let lacking = u64::try_from((lacking * new).div_ceil(old)).unwrap_or(u64::MAX);
                Some(now + lacking.min(to.span()))
            };
            // ordering: Relaxed, as in `measure_and_replace`. Declines where the key is full.
            let _ = spot.full_at.fetch_update(Relaxed, Relaxed, convert);
            true
        });
    }

    /// What has been done so far. Exact once the checking threads have stopped.
    pub(crate) fn counts(&self) -> Counts {
        let [admitted, denied, saturated] = self.totals.sum();
        Counts { admitted, denied, saturated, keys: self.spots.len() as u64 }
    }

    fn known(&self, rule: u32, key: &Key<'_>, cost: u64, quota: &Pace) -> Verdict {
        let probe = Probe::new(rule, key);
        let now = nanos(self.clock.now());
        let full_at = self.spots.view(&probe, |spot| spot.full_at.load(Relaxed)).unwrap_or(0);
        let full_at = full_at.min(quota.emptiest(now));
        let remaining = quota.remaining(full_at, now);
        if remaining >= cost {
            return Verdict::Allowed { remaining };
        }
        let tokens_at = full_at.saturating_add(quota.interval.get().saturating_mul(cost));
        Verdict::Denied { wait: wait(tokens_at.saturating_sub(quota.span()), now), remaining }
    }

    fn judge(&self, spot: &Arc<Spot>, cost: NonZeroU32, quota: Pace) -> (Verdict, Moved) {
        // While a key lacks more than the coarse hand can be behind, a yes does not depend on the exact
        // time: it moves `full_at` by the cost from where it is. A key that is all but full would be dated
        // too early, and get that time's tokens twice. A no is not a no yet, nor its wait exact.
        let coarse = nanos(self.clock.coarse());
        let full_at = spot.full_at.load(Relaxed);
        if quota.span() >= PRECISE_BELOW
            && full_at > coarse.saturating_add(BEHIND_MAX)
            && let Ok((remaining, moved)) = quota.take(spot, cost, coarse)
        {
            return (Verdict::Allowed { remaining }, moved);
        }
        let now = nanos(self.clock.now());
        let emptiest = quota.emptiest(now);
        if full_at > emptiest {
            // Left from other numbers.
            spot.full_at.fetch_min(emptiest, Relaxed);
        }
        match quota.take(spot, cost, now) {
            Ok((remaining, moved)) => (Verdict::Allowed { remaining }, moved),
            Err(Some(earliest)) => {
                let remaining = quota.remaining(spot.full_at.load(Relaxed), now);
                (Verdict::Denied { wait: wait(earliest, now), remaining }, Moved::default())
            }
            Err(None) => (Verdict::Never, Moved::default()),
        }
    }

    /// Removes the states that are full, if it is time to. One thread does it, for the price of a look
    /// at each state; as each sweep waits for twice as many, a new key pays for one or two looks.
    fn sweep(&self, now: Micros) {
        // ordering: Relaxed, throughout. These only decide who sweeps when; the cells are looked at under
        // the registry's locks.
        let due = self.sweep_at.load(Relaxed);
        let worth = self.spots.is_full() || self.spots.len() as u64 >= self.sweep_from.load(Relaxed);
        if !worth || now.0 < due {
            return;
        }
        if self.sweep_at.compare_exchange(due, now.plus(SWEEP_PAUSE).0, Relaxed, Relaxed).is_err() {
            return;
        }
        let now = nanos(now);
        // Whoever is about to write to a spot outside of the registry's locks holds an `Arc` of it,
        // and got that under the lock.
        self.spots.retain(|spot| Arc::strong_count(spot) > 1 || spot.full_at.load(Relaxed) > now);
        self.sweep_from.store((self.spots.len() as u64).saturating_mul(2).max(SWEEP_MIN), Relaxed);
    }
}

/// Rounded up, so that it is long enough; never zero.
fn wait(earliest: u64, now: u64) -> Micros {
    Micros(earliest.saturating_sub(now).div_ceil(1_000).max(1))
}

impl fmt::Debug for Paces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paces").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// One member's share of a limit: `rate / members`, exact where a [`Rate`] can say it and else the
/// nearest below, and at least one token of burst.
fn share(rate: Rate, burst: u64, members: u64) -> (Rate, u64) {
    let members = members.max(1);
    let (count, period) = (u128::from(rate.count()), u128::from(rate.period()) * u128::from(members));
    let shared = gcd(count, period);
    let (count, period) = (count / shared, period / shared);
    let longest = u128::from(PERIOD_MAX.0);
    let (count, period) = if period > longest { ((count * longest / period).max(1), longest) } else { (count, period) };
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    // Slower than a fair rate, and with a fair period: never refused.
    let share = Rate::per_micros(narrow(count), Micros(narrow(period))).unwrap_or(rate);
    (share, (burst / members).max(1))
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
