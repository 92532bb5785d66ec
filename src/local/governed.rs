//! Limits that this process keeps alone: the `Local` mode, and the `Share` policy in an outage. The
//! arithmetic is governor's; the numbers are checked before it sees them, and the states lie in our
//! own bounded registry.
//!
//! One number is kept per key: the time at which its bucket is full again, in nanoseconds. So a key
//! that is full is as good as one that was never seen, and is swept.

use super::{
    keyed::{Keyed, Name, Probe},
    registry::{Registry, Saturated},
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
    Quota, RateLimiter, clock::Clock as GovernorClock, middleware::StateInformationMiddleware, nanos::Nanos,
    state::StateStore,
};
use std::{
    fmt,
    hash::{Hash, Hasher},
    num::{NonZeroU32, NonZeroU64},
    sync::{Arc, OnceLock},
    time::Duration,
};

#[cfg(all(test, not(tollgate_loom)))]
mod tests;

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
pub(crate) enum Judged {
    Allowed {
        remaining: u64,
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

/// The states of all governed limits of one gate; bounded.
pub(crate) struct States {
    spots: Registry<Spot>,
    sweep_at: AtomicU64,
    /// How many must be there for a sweep to be worth its while: twice what the last one left.
    sweep_from: AtomicU64,
}

impl States {
    /// Room for `keys_max` states.
    pub(crate) fn new(keys_max: usize) -> Arc<States> {
        Arc::new(States {
            spots: Registry::new(keys_max),
            sweep_at: AtomicU64::new(0),
            sweep_from: AtomicU64::new(SWEEP_MIN),
        })
    }

    /// How many keys have a state.
    pub(crate) fn len(&self) -> usize {
        self.spots.len()
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
        self.sweep_from.store((self.spots.len() as u64 * 2).max(SWEEP_MIN), Relaxed);
    }
}

/// A time on governor's line.
fn nanos(at: Micros) -> u64 {
    at.0.saturating_mul(1_000).min(NANOS_MAX)
}

/// Lets governor keep a key's state in its spot.
struct InSpot;

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
                Ok(_) => return Ok(answer),
                Err(now) => seen = now,
            }
        }
    }
}

/// One hand of the crate's clock, for governor.
///
/// Governor counts from the first time that it is told. That must be the same for all limiters that
/// share a state, so it is told the line's beginning, and the hand is fitted afterwards.
#[derive(Default)]
struct Hand {
    precise: bool,
    clock: OnceLock<Clock>,
}

impl GovernorClock for Hand {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        let now = |clock: &Clock| if self.precise { clock.now() } else { clock.coarse() };
        Nanos::new(self.clock.get().map_or(0, |clock| nanos(now(clock))))
    }
}

type Limiter = RateLimiter<Arc<Spot>, InSpot, Hand, StateInformationMiddleware>;

/// Rate and burst as governor counts: both safe from overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    /// Nanoseconds for one token, rounded up.
    interval: NonZeroU64,
    burst: NonZeroU32,
}

impl Numbers {
    /// These numbers, where they can be kept; else why not.
    fn exactly(rate: Rate, burst: u64) -> Result<Numbers, Error> {
        let wrong = |why: String| Err(Error::new(ErrorKind::Config, why));
        let Some(fits) = u32::try_from(burst).ok().and_then(NonZeroU32::new) else {
            return wrong(format!("burst: a local limit takes 1 to 4,294,967,295, not {burst}"));
        };
        let numbers = Numbers::at_most(rate, burst);
        if numbers.burst != fits {
            return wrong(format!("burst: {burst} tokens at {rate:?} take more than 146 years to come back"));
        }
        let (exact, kept) =
            (u128::from(rate.period()) * 1_000, u128::from(numbers.interval.get()) * u128::from(rate.count()));
        if (kept - exact.min(kept)) * 100 > kept {
            let interval = numbers.interval;
            return wrong(format!(
                "rate: a local limit counts in whole nanoseconds for each token; {rate:?} would become one \
                 token each {interval} ns, which is more than 1 % slower"
            ));
        }
        Ok(numbers)
    }

    /// These numbers, or the nearest below them that can be kept.
    fn at_most(rate: Rate, burst: u64) -> Numbers {
        let interval = (u128::from(rate.period()) * 1_000).div_ceil(u128::from(rate.count()));
        let interval = u64::try_from(interval).unwrap_or(NANOS_MAX).clamp(1, NANOS_MAX);
        let burst = burst.min(NANOS_MAX / interval).clamp(1, u64::from(u32::MAX));
        Numbers {
            interval: NonZeroU64::new(interval).unwrap_or(NonZeroU64::MIN),
            burst: u32::try_from(burst).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN),
        }
    }

    /// The time in which an empty bucket fills up.
    fn span(self) -> u64 {
        self.interval.get().saturating_mul(u64::from(self.burst.get()))
    }

    fn limiter(self, precise: bool, clock: &Clock) -> Limiter {
        let each = Duration::from_nanos(self.interval.get());
        // `with_period` declines a period of zero, which this never is.
        let quota = Quota::with_period(each).unwrap_or(Quota::per_second(NonZeroU32::MIN)).allow_burst(self.burst);
        let limiter = Limiter::new(quota, InSpot, Hand { precise, clock: OnceLock::new() });
        let _ = limiter.clock().clock.set(clock.clone());
        limiter
    }
}

/// One rule's limit, kept by this process alone.
///
/// # Promise
/// In any span `t`, at most `burst + rate * t` tokens for each key.
///
/// # Cost
/// A look-up, and a CAS on the key's word. A clock is read for a key that is all but full or empty, and
/// for each where the burst is worth less than 20 ms of the rate.
pub(crate) struct Governed {
    rule: u32,
    numbers: Numbers,
    /// By the coarse hand; missing where the burst is too small for it.
    quick: Option<Limiter>,
    exact: Limiter,
    clock: Clock,
    states: Arc<States>,
}

impl Governed {
    /// A limit of exactly these numbers.
    ///
    /// # Errors
    /// A burst of 0 or above 2^32 - 1, one that takes over 146 years to come back, and a rate that would lose
    /// more than 1 % when the time for a token is rounded to whole nanoseconds.
    pub(crate) fn new(rule: u32, rate: Rate, burst: u64, clock: Clock, states: Arc<States>) -> Result<Governed, Error> {
        Ok(Governed::of(rule, Numbers::exactly(rate, burst)?, clock, states))
    }

    /// A limit of these numbers or the nearest below them: for a share in an outage, where a little
    /// too strict is better than none.
    pub(crate) fn at_most(rule: u32, rate: Rate, burst: u64, clock: Clock, states: Arc<States>) -> Governed {
        Governed::of(rule, Numbers::at_most(rate, burst), clock, states)
    }

    fn of(rule: u32, numbers: Numbers, clock: Clock, states: Arc<States>) -> Governed {
        let quick = (numbers.span() >= PRECISE_BELOW).then(|| numbers.limiter(false, &clock));
        Governed { rule, numbers, quick, exact: numbers.limiter(true, &clock), clock, states }
    }

    /// The same limit by other numbers: each key keeps as many tokens as it lacked of its burst.
    ///
    /// Walks all states, a part of the registry at a time. Checks that still go by the old limit
    /// meanwhile count by the old numbers.
    ///
    /// # Errors
    /// As [`new`](Governed::new).
    pub(crate) fn changed(&self, rate: Rate, burst: u64) -> Result<Governed, Error> {
        Ok(self.with(Numbers::exactly(rate, burst)?))
    }

    /// [`changed`](Governed::changed) for a limit made by [`at_most`](Governed::at_most).
    pub(crate) fn changed_at_most(&self, rate: Rate, burst: u64) -> Governed {
        self.with(Numbers::at_most(rate, burst))
    }

    fn with(&self, numbers: Numbers) -> Governed {
        if numbers.interval != self.numbers.interval || numbers.span() < self.numbers.span() {
            let now = nanos(self.clock.now());
            let (old, new) = (u128::from(self.numbers.interval.get()), u128::from(numbers.interval.get()));
            let convert = |full_at: u64| {
                let lacking = u128::from(full_at.checked_sub(now)?);
                let lacking = u64::try_from((lacking * new).div_ceil(old)).unwrap_or(u64::MAX);
                Some(now + lacking.min(numbers.span()))
            };
            self.states.spots.retain(|spot| {
                if spot.name.probe().rule == self.rule {
                    // ordering: Relaxed, as in `measure_and_replace`. Declines where the key is full.
                    let _ = spot.full_at.fetch_update(Relaxed, Relaxed, convert);
                }
                true
            });
        }
        Governed::of(self.rule, numbers, self.clock.clone(), self.states.clone())
    }

    /// Takes `cost` tokens, all or none; a cost of 0 only looks.
    pub(crate) fn check(&self, key: &Key<'_>, cost: u64) -> Judged {
        let Some(wanted) = NonZeroU32::new(u32::try_from(cost).unwrap_or(u32::MAX)) else {
            return self.peek(key, 0);
        };
        if cost > u64::from(self.numbers.burst.get()) {
            return Judged::Never;
        }
        let probe = Probe::new(self.rule, key);
        if let Some(judged) = self.states.spots.view(&probe, |spot| self.judge(spot, wanted)) {
            return judged;
        }
        self.states.sweep(self.clock.coarse());
        match self.states.spots.get_or_insert(&probe, |name| Spot { name, full_at: AtomicU64::new(0) }) {
            Ok(spot) => self.judge(&spot, wanted),
            Err(Saturated) => Judged::Saturated,
        }
    }

    /// What [`check`](Governed::check) would say; changes and stores nothing.
    pub(crate) fn peek(&self, key: &Key<'_>, cost: u64) -> Judged {
        if cost > u64::from(self.numbers.burst.get()) {
            return Judged::Never;
        }
        let probe = Probe::new(self.rule, key);
        let full_at = self.states.spots.view(&probe, |spot| spot.full_at.load(Relaxed)).unwrap_or(0);
        let now = nanos(self.clock.now());
        let remaining = self.remaining(full_at, now);
        if remaining >= cost {
            return Judged::Allowed { remaining };
        }
        let tokens_at = full_at.saturating_add(self.numbers.interval.get().saturating_mul(cost));
        let earliest = tokens_at.saturating_sub(self.numbers.span());
        Judged::Denied { wait: wait(earliest, now), remaining }
    }

    fn judge(&self, spot: &Arc<Spot>, cost: NonZeroU32) -> Judged {
        // While a key lacks more than the coarse hand can be behind, a yes does not depend on the exact
        // time: it moves `full_at` by the cost from where it is. A key that is all but full would be dated
        // too early, and get that time's tokens twice. A no is not a no yet, nor its wait exact.
        if let Some(quick) = &self.quick
            && spot.full_at.load(Relaxed) > nanos(self.clock.coarse()).saturating_add(BEHIND_MAX)
            && let Ok(Ok(state)) = quick.check_key_n(spot, cost)
        {
            return Judged::Allowed { remaining: u64::from(state.remaining_burst_capacity()) };
        }
        let now = nanos(self.clock.now());
        match self.exact.check_key_n(spot, cost) {
            Ok(Ok(state)) => Judged::Allowed { remaining: u64::from(state.remaining_burst_capacity()) },
            Ok(Err(not_until)) => {
                let remaining = self.remaining(spot.full_at.load(Relaxed), now);
                Judged::Denied { wait: wait(not_until.earliest_possible().as_u64(), now), remaining }
            }
            Err(_) => Judged::Never,
        }
    }

    /// Whole tokens there at `now`.
    fn remaining(&self, full_at: u64, now: u64) -> u64 {
        let lacking = full_at.saturating_sub(now);
        self.numbers.span().saturating_sub(lacking) / self.numbers.interval
    }
}

/// Rounded up, so that it is long enough; never zero.
fn wait(earliest: u64, now: u64) -> Micros {
    Micros(earliest.saturating_sub(now).div_ceil(1_000).max(1))
}

impl fmt::Debug for Governed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Governed").field("rule", &self.rule).field("numbers", &self.numbers).finish_non_exhaustive()
    }
}

/// One member's share of a limit: `rate / members`, exact where a [`Rate`] can say it and else the
/// nearest below, and at least one token of burst.
pub(crate) fn share(rate: Rate, burst: u64, members: u64) -> (Rate, u64) {
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
