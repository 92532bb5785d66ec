//! Limits that this process keeps alone, whatever they count: the `Local` mode, and the `Share` policy in an outage.
//!
//! Buckets are governor's; windows and queues are our own machines. Blocks lie beside both.

use super::{
    governed::{self, Pace, Paces, Verdict},
    tier::Counts,
    windowed::{self, Windowed},
};
use crate::{
    algorithm::{Algorithm, Frame, Limit},
    atomic::{AtomicU64, Mutex, Ordering::Relaxed},
    clock::Clock,
    error::{Error, ErrorKind},
    key::Key,
    lease::Numbers,
    rate::{PERIOD_MAX, Rate},
    time::Micros,
};
use std::{collections::HashMap, fmt, sync::PoisonError};

/// A rule's numbers as this process counts by them. A small plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// A bucket.
    Pace(Pace),
    /// A window or a queue.
    Machine(Limit),
}

impl Quota {
    /// These numbers.
    ///
    /// # Errors
    /// For buckets, as [`Pace::new`]: what governor cannot keep.
    pub(crate) fn new(numbers: &Numbers) -> Result<Quota, Error> {
        if is_bucket(numbers.algorithm) {
            return Ok(Quota::Pace(Pace::new(numbers.rate, numbers.burst)?));
        }
        Ok(Quota::Machine(limit(numbers, numbers.rate, numbers.burst)))
    }

    /// One member's share of these numbers, for an outage; at least one token, and a little too strict where it cannot be
    /// kept exactly.
    ///
    /// # Errors
    /// No members: nobody to share with.
    pub(crate) fn share(numbers: &Numbers, members: u32) -> Result<Quota, Error> {
        if is_bucket(numbers.algorithm) || members == 0 {
            return Ok(Quota::Pace(Pace::share(numbers.rate, numbers.burst, members)?));
        }
        let part = (numbers.burst / u64::from(members)).max(1);
        let rate = match numbers.algorithm {
            Algorithm::LeakyQueue => slower(numbers.rate, members),
            _ => numbers.rate, // of no meaning for a window
        };
        Ok(Quota::Machine(limit(numbers, rate, part)))
    }
}

fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket | Algorithm::LeakyMeter)
}

fn limit(numbers: &Numbers, rate: Rate, burst: u64) -> Limit {
    Limit { algorithm: numbers.algorithm, rate, burst, frame: Frame::new(numbers.window, numbers.offset) }
}

/// The rate over so many members, or the nearest below that can be said.
fn slower(rate: Rate, members: u32) -> Rate {
    let period = u128::from(rate.period()) * u128::from(members.max(1));
    let longest = u128::from(PERIOD_MAX.0);
    let (count, period) = match period > longest {
        true => ((u128::from(rate.count()) * longest / period).max(1), longest),
        false => (u128::from(rate.count()), period),
    };
    let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    Rate::per_micros(narrow(count), Micros(narrow(period))).unwrap_or(rate)
}

/// What one check took, so that it can be put back.
#[must_use = "what is not put back is spent"]
pub(crate) enum Spent {
    Pace(governed::Spent),
    Machine(windowed::Spent),
}

/// All limits of one gate that this process keeps alone. Bounded: at most so many keys have a state, of buckets and of
/// machines each, and so many are blocked.
pub(crate) struct Governed {
    paces: Paces,
    windowed: Windowed,
    blocks: Blocks,
    clock: Clock,
}

impl Governed {
    /// Room for `keys_max` states, over all rules.
    pub(crate) fn new(clock: Clock, keys_max: usize) -> Governed {
        Governed {
            paces: Paces::new(clock.clone(), keys_max),
            windowed: Windowed::new(clock.clone(), keys_max),
            blocks: Blocks::new(keys_max),
            clock,
        }
    }

    /// Takes `cost` tokens, all or none; a cost of 0 only looks.
    pub(crate) fn check(&self, rule: u32, key: &Key<'_>, cost: u64, quota: &Quota) -> Verdict {
        if let Some(wait) = self.blocks.wait(rule, key, &self.clock) {
            return self.paces.refused(wait);
        }
        match quota {
            Quota::Pace(pace) => self.paces.check(rule, key, cost, pace),
            Quota::Machine(limit) => self.windowed.check(rule, key, cost, limit),
        }
    }

    /// [`check`](Governed::check) for `cost` tokens, at least 1, that may have to go back. Counts a refusal, and leaves
    /// it to [`Governed::keep`] to count a yes that stays.
    pub(crate) fn take(&self, rule: u32, key: &Key<'_>, cost: u64, quota: &Quota) -> (Verdict, Option<Spent>) {
        if let Some(wait) = self.blocks.wait(rule, key, &self.clock) {
            return (self.paces.refused(wait), None);
        }
        match quota {
            Quota::Pace(pace) => {
                let (verdict, spent) = self.paces.take(rule, key, cost, pace);
                (verdict, spent.map(Spent::Pace))
            }
            Quota::Machine(limit) => {
                let (verdict, spent) = self.windowed.take(rule, key, cost, limit);
                (verdict, spent.map(Spent::Machine))
            }
        }
    }

    /// The tokens stay spent.
    pub(crate) fn keep(&self, spent: Spent, verdict: Verdict) {
        match spent {
            Spent::Pace(spent) => self.paces.keep(spent, verdict),
            Spent::Machine(_) => self.windowed.count(verdict),
        }
    }

    /// Undoes a take, of a key that counts by these numbers by now: never gives too much.
    pub(crate) fn put_back(&self, spent: &Spent, quota: &Quota) {
        match (spent, quota) {
            // Taken by other numbers: what it is worth by these depends on when they came.
            (Spent::Pace(spent), Quota::Pace(pace)) if spent.is_of(pace) => self.paces.put_back(spent),
            (Spent::Pace(_), _) => {}
            (Spent::Machine(spent), _) => self.windowed.put_back(spent),
        }
    }

    /// Gives tokens back that were taken at `since` or later; nothing where the key has no state or never took as many, and
    /// never more than makes it full.
    pub(crate) fn refund(&self, rule: u32, key: &Key<'_>, tokens: u64, since: Micros, quota: &Quota) {
        match quota {
            Quota::Pace(pace) => self.paces.refund(rule, key, tokens, pace),
            Quota::Machine(limit) => self.windowed.refund(rule, key, tokens, since, limit),
        }
    }

    /// Charges tokens that were used already: as a debt of one burst at most, and of a window what it has left. Says how many
    /// that were.
    pub(crate) fn charge(&self, rule: u32, key: &Key<'_>, tokens: u64, quota: &Quota) -> u64 {
        match quota {
            Quota::Pace(pace) => self.paces.charge(rule, key, tokens, pace),
            Quota::Machine(limit) => self.windowed.charge(rule, key, tokens, limit),
        }
    }

    /// What a check for one token would say; changes, stores and counts nothing.
    pub(crate) fn peek(&self, rule: u32, key: &Key<'_>, quota: &Quota) -> Verdict {
        if let Some(wait) = self.blocks.wait(rule, key, &self.clock) {
            return Verdict::Denied { wait, remaining: 0 };
        }
        match quota {
            Quota::Pace(pace) => self.paces.peek(rule, key, pace),
            Quota::Machine(limit) => self.windowed.known(rule, key, 1, limit),
        }
    }

    /// Refuses a key for so long; zero lifts a block.
    ///
    /// # Errors
    /// [`ErrorKind::Saturated`]: as many keys are blocked as may be known.
    pub(crate) fn block(&self, rule: u32, key: &Key<'_>, span: Micros) -> Result<(), Error> {
        self.blocks.put(rule, key, span, self.clock.now())
    }

    /// Forgets what was counted for a key, and any block.
    pub(crate) fn clear(&self, rule: u32, key: &Key<'_>) {
        // Lifting a block needs no room.
        _ = self.blocks.put(rule, key, Micros::ZERO, self.clock.now());
        self.paces.clear(rule, key);
        self.windowed.clear(rule, key);
    }

    /// Gives the keys of these rules new numbers, from the first to the second: what was spent stays spent.
    pub(crate) fn requote(&self, rules: &HashMap<u32, (Quota, Quota)>) {
        // A machine sees for itself that its numbers have changed.
        let paces = |(rule, (from, to)): (&u32, &(Quota, Quota))| match (from, to) {
            (Quota::Pace(from), Quota::Pace(to)) => Some((*rule, (*from, *to))),
            _ => None,
        };
        self.paces.requote(&rules.iter().filter_map(paces).collect());
    }

    /// What has been done so far. Exact once the checking threads have stopped.
    pub(crate) fn counts(&self) -> Counts {
        let (a, b) = (self.paces.counts(), self.windowed.counts());
        Counts {
            admitted: a.admitted + b.admitted,
            denied: a.denied + b.denied,
            saturated: a.saturated + b.saturated,
            keys: a.keys + b.keys,
        }
    }
}

impl fmt::Debug for Governed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Governed").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// A key as blocks name it: its rule, its bytes, and whether they are a digest.
type Blocked = (u32, Box<[u8]>, bool);

/// Keys that are refused for a time.
struct Blocks {
    /// How many there are: nobody looks further while there are none.
    some: AtomicU64,
    ends: Mutex<HashMap<Blocked, Micros>>,
    keys_max: usize,
}

impl Blocks {
    fn new(keys_max: usize) -> Blocks {
        Blocks { some: AtomicU64::new(0), ends: Mutex::new(HashMap::new()), keys_max }
    }

    /// How long this key is still blocked.
    #[inline]
    fn wait(&self, rule: u32, key: &Key<'_>, clock: &Clock) -> Option<Micros> {
        // ordering: Relaxed: a hint; the map is asked under its lock. Who has just blocked a key sees its own store.
        if self.some.load(Relaxed) == 0 {
            return None;
        }
        self.wait_of_blocked(rule, key, clock.now())
    }

    #[cold]
    fn wait_of_blocked(&self, rule: u32, key: &Key<'_>, now: Micros) -> Option<Micros> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let until = *ends.get(&(rule, key.bytes().into(), key.is_digest()))?;
        Some(until.minus(now)).filter(|wait| *wait > Micros::ZERO)
    }

    fn put(&self, rule: u32, key: &Key<'_>, span: Micros, now: Micros) -> Result<(), Error> {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (rule, key.bytes().into(), key.is_digest());
        if span == Micros::ZERO {
            ends.remove(&key);
        } else {
            if ends.len() >= self.keys_max && !ends.contains_key(&key) {
                ends.retain(|_, until| *until > now);
            }
            if ends.len() >= self.keys_max && !ends.contains_key(&key) {
                let message = format!("block: {} keys are blocked, which is as many as this gate knows", ends.len());
                return Err(Error::new(ErrorKind::Saturated, message));
            }
            ends.insert(key, now.plus(span));
        }
        // ordering: Relaxed: see `wait`.
        self.some.store(ends.len() as u64, Relaxed);
        Ok(())
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use crate::key::LongKeys;

    #[test]
    fn no_more_keys_are_blocked_than_may_be_known_and_those_that_are_over_make_room() {
        let clock = Clock::manual();
        let governed = Governed::new(clock.clone(), 3);
        let keys = ["a", "b", "c", "d"].map(|text| Key::new(text.as_bytes(), LongKeys::Hash).expect("a short key"));
        let second = Micros::from_secs(1);
        for (nth, key) in (1..).zip(&keys[..3]) {
            governed.block(0, key, Micros(nth * second.0)).expect("room");
        }
        let full = governed.block(0, &keys[3], second).expect_err("three are blocked");
        assert_eq!(full.kind(), ErrorKind::Saturated);
        governed.block(0, &keys[1], Micros(9 * second.0)).expect("one that is known");
        clock.advance(second);
        governed.block(0, &keys[3], second).expect("the first is over");
        let wait = |key| governed.blocks.wait(0, key, &clock);
        assert_eq!(
            keys.each_ref().map(wait),
            [None, Some(Micros(8 * second.0)), Some(Micros(2 * second.0)), Some(second)]
        );
        // What is lifted makes room, and needs none.
        governed.clear(0, &keys[1]);
        governed.block(0, &keys[0], second).expect("room");
    }
}
