//! One central machine of each algorithm, in the plainest exact arithmetic: what many instances are measured against.
//!
//! Shares no code with the limiter's own machines, so that the two check each other. It is asked in the order of
//! time, and can be made to take what does not fit: by how much it is then overdrawn is by how much
//! a trace is above the bound.

use crate::{algorithm::Algorithm, lease::Numbers, time::Micros};
use std::collections::VecDeque;

/// A single machine that sees every request.
#[derive(Clone, Debug)]
pub(super) struct Central {
    state: State,
    /// Parts into which a token is divided, so that all numbers are whole.
    scale: i128,
    /// Where the span that is overdrawn now began.
    since: Micros,
}

#[derive(Clone, Debug)]
enum State {
    /// Parts of tokens in a bucket that gets `count` parts each microsecond, up to `cap`.
    Bucket { level: i128, cap: i128, count: i128, at: Micros },
    /// The level of a bucket that leaks `count` parts each microsecond and holds `cap`.
    Meter { filled: i128, cap: i128, count: i128, at: Micros },
    /// When the next may leave, in parts of a microsecond of which one interval has `period`; and how many intervals
    /// may lie between now and then.
    Queue { next: i128, count: i128, period: i128, depth: i128 },
    /// What was taken in the window that began at `start`; `cuts` counts the steps of the clock.
    Fixed { taken: i128, limit: i128, length: u64, offset: u64, label: (u64, u32) },
    /// Every request of the last `length`.
    Log { taken: VecDeque<(Micros, u64)>, sum: i128, limit: i128, length: u64 },
    /// What was taken in this window and in the one before.
    Counter { before: i128, now: i128, limit: i128, length: u64, start: u64 },
}

/// One moment, on both clocks that matter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// On the world's clock: spans are measured on it.
    pub(super) at: Micros,
    /// The same, plus every step forward that the authority's clock has made: logs are kept by it.
    pub(super) shown: Micros,
    /// What the authority's clock shows: windows are aligned to it.
    pub(super) there: Micros,
    /// How often that clock has been set.
    pub(super) steps: u32,
}

impl Central {
    /// A machine by these numbers that nobody has asked yet.
    pub(super) fn new(numbers: &Numbers) -> Central {
        let (burst, rate) = (i128::from(numbers.burst), numbers.rate);
        let (count, period) = (i128::from(rate.count()), i128::from(rate.period()));
        let (limit, length, cap) = (burst, numbers.window.0.max(1), burst * period);
        let (state, scale) = match numbers.algorithm {
            Algorithm::TokenBucket => (State::Bucket { level: cap, cap, count, at: Micros::ZERO }, period),
            Algorithm::LeakyMeter => (State::Meter { filled: 0, cap, count, at: Micros::ZERO }, period),
            Algorithm::LeakyQueue => (State::Queue { next: 0, count, period, depth: burst }, period),
            Algorithm::FixedWindow => {
                (State::Fixed { taken: 0, limit, length, offset: numbers.offset.0, label: (0, 0) }, 1)
            }
            Algorithm::SlidingLog => (State::Log { taken: VecDeque::new(), sum: 0, limit, length }, 1),
            Algorithm::SlidingCounter => (State::Counter { before: 0, now: 0, limit, length, start: 0 }, 1),
        };
        Central { state, scale, since: Micros::ZERO }
    }

    /// What still holds of these numbers where the authority's clock is set while it counts, and perhaps set `back`.
    ///
    /// A clock that runs back by less than a second stands still for its buckets, each since its own last message, and
    /// how much of the window before a sliding counter still counts is then nobody else's to know: twice the limit in any
    /// span is left of its promise. One that is set back by more weighs that window anew: once more the limit.
    pub(super) fn of_a_set_clock(numbers: &Numbers, back: bool) -> Central {
        if numbers.algorithm != Algorithm::SlidingCounter {
            return Central::new(numbers);
        }
        let limits = if back { 3 } else { 2 };
        let burst = numbers.burst.saturating_mul(limits);
        Central::new(&Numbers { algorithm: Algorithm::SlidingLog, burst, ..*numbers })
    }

    /// Takes `cost` if it fits, all or none, and says whether it did. For a queue: whether it may wait.
    pub(super) fn offer(&mut self, moment: Moment, cost: u64) -> bool {
        let fits = match &self.state {
            State::Queue { next, count, period, depth } => {
                let ahead = (next - i128::from(moment.at.0) * count).max(0);
                // As a bucket that holds one and may owe `depth`: 1 - ahead - cost >= -depth.
                period - ahead - i128::from(cost) * period >= -depth * period
            }
            _ => self.room(moment) >= i128::from(cost) * self.scale,
        };
        if fits {
            self.take(moment, cost);
        }
        fits
    }

    /// Takes `cost` whether it fits or not, and says by how many parts of a token it was too much; zero or below
    /// when it was not. For a queue the moment is the time to leave.
    pub(super) fn take(&mut self, moment: Moment, cost: u64) -> i128 {
        if let State::Queue { next, count, period, .. } = &mut self.state {
            let at = i128::from(moment.at.0) * *count;
            let early = *next - at;
            // Told as a wait and a place behind others, each in whole microseconds, rounded up: it may have been up to
            // two sooner.
            *next = (at - 2 * *count + 1).max(*next) + i128::from(cost) * *period;
            return early;
        }
        let room = self.room(moment);
        let cost = i128::from(cost);
        match &mut self.state {
            State::Bucket { level, .. } => *level -= cost * self.scale,
            State::Meter { filled, .. } => *filled += cost * self.scale,
            State::Fixed { taken, .. } => *taken += cost,
            State::Log { taken, sum, .. } => {
                *sum += cost;
                match taken.back_mut() {
                    Some((at, all)) if *at == moment.shown => *all += cost as u64,
                    _ => taken.push_back((moment.shown, cost as u64)),
                }
            }
            State::Counter { now, .. } => *now += cost,
            State::Queue { .. } => {}
        }
        cost * self.scale - room
    }

    /// Fills it up again by what was taken and given back, up to its cap. For buckets: in a window what came back is as
    /// if it had never been taken.
    pub(super) fn give_back(&mut self, moment: Moment, tokens: u64) {
        self.room(moment);
        let parts = self.parts(tokens);
        match &mut self.state {
            State::Bucket { level, cap, .. } => *level = (*level + parts).min(*cap),
            State::Meter { filled, .. } => *filled = (*filled - parts).max(0),
            _ => {}
        }
    }

    /// Parts of tokens that may be taken at this moment.
    fn room(&mut self, moment: Moment) -> i128 {
        match &mut self.state {
            State::Bucket { level, cap, count, at } => {
                *level += i128::from(moment.at.minus(*at).0) * *count;
                *at = moment.at.max(*at);
                if *level >= *cap {
                    (*level, self.since) = (*cap, moment.at);
                }
                *level
            }
            State::Meter { filled, cap, count, at } => {
                *filled -= i128::from(moment.at.minus(*at).0) * *count;
                *at = moment.at.max(*at);
                if *filled <= 0 {
                    (*filled, self.since) = (0, moment.at);
                }
                *cap - *filled
            }
            State::Queue { .. } => 0,
            State::Fixed { taken, limit, length, offset, label } => {
                let now = ((moment.there.0 + *offset) / *length, moment.steps);
                if now != *label {
                    (*label, *taken, self.since) = (now, 0, moment.at);
                }
                *limit - *taken
            }
            State::Log { taken, sum, limit, length } => {
                while let Some((_, cost)) = taken.front().copied().filter(|(at, _)| at.0 + *length <= moment.shown.0) {
                    *sum -= i128::from(cost);
                    taken.pop_front();
                }
                self.since = Micros(moment.at.0.saturating_sub(*length));
                *limit - *sum
            }
            State::Counter { before, now, limit, length, start } => {
                let begun = moment.there.0 / *length * *length;
                match begun.checked_sub(*start) {
                    Some(0) => {}
                    Some(gone) if gone == *length => (*before, *now) = (*now, 0),
                    // A clock that was put back: what was counted stays, as in the window that is now.
                    None => {}
                    Some(_) => (*before, *now) = (0, 0),
                }
                *start = begun;
                self.since = Micros(moment.at.0.saturating_sub(*length));
                let left = i128::from(*length - (moment.there.0 - begun));
                let whole = i128::from(*length);
                *limit - *now - (*before * left + whole - 1) / whole
            }
        }
    }

    /// Parts of a token as tokens, for people to read.
    pub(super) fn tokens(&self, parts: i128) -> f64 {
        parts as f64 / self.scale as f64
    }

    /// This many tokens in parts.
    pub(super) fn parts(&self, tokens: u64) -> i128 {
        i128::from(tokens) * self.scale
    }

    /// Where the span began that the last request closed.
    pub(super) fn since(&self) -> Micros {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rate::Rate, sim::Reference};
    use proptest::{collection::vec, prelude::*};

    fn numbers(algorithm: Algorithm, burst: u64, window: u64) -> Numbers {
        let rate = Rate::per_micros(burst, Micros(window)).expect("a fair rate");
        Numbers { algorithm, window: Micros(window), ..Numbers::bucket(0, rate, burst) }
    }

    fn at(us: u64) -> Moment {
        Moment { at: Micros(us), shown: Micros(us), there: Micros(us), steps: 0 }
    }

    fn passed(algorithm: Algorithm, attempts: &[(u64, u64)]) -> Vec<bool> {
        let mut machine = Central::new(&numbers(algorithm, 10, 100));
        attempts.iter().map(|(us, cost)| machine.offer(at(*us), *cost)).collect()
    }

    #[test]
    fn each_machine_does_what_its_name_says() {
        // (at, cost) and whether it passes: 10 in 100 µs.
        let edge = [(99, 10), (99, 1), (100, 10), (100, 1), (149, 1), (199, 1), (200, 1)];
        let yes = |text: &str| text.chars().map(|c| c == 'y').collect::<Vec<_>>();
        assert_eq!(passed(Algorithm::TokenBucket, &edge), yes("ynnnyyy"));
        assert_eq!(passed(Algorithm::LeakyMeter, &edge), yes("ynnnyyy"));
        assert_eq!(passed(Algorithm::FixedWindow, &edge), yes("ynynnny"));
        assert_eq!(passed(Algorithm::SlidingLog, &edge), yes("ynnnnyy"));
        assert_eq!(passed(Algorithm::SlidingCounter, &edge), yes("ynnnyyy"));
    }

    #[test]
    fn a_queue_lets_as_many_wait_as_it_says() {
        let mut machine = Central::new(&numbers(Algorithm::LeakyQueue, 3, 30));
        let passed: Vec<bool> = [0, 0, 0, 0, 0, 9, 10].iter().map(|us| machine.offer(at(*us), 1)).collect();
        // One leaves at once, three wait.
        assert_eq!(passed, [true, true, true, true, false, false, true]);
    }

    proptest! {
        #[test]
        fn bucket_and_meter_are_the_same_and_agree_with_whole_tokens_and_a_remainder(
            count in 1..5_u64, period in 1..30_u64, burst in 1..20_u64,
            mut attempts in vec((0..1_000_u64, 1..4_u64), 1..200),
        ) {
            attempts.sort_unstable();
            let rate = Rate::per_micros(count, Micros(period)).expect("a fair rate");
            let bucket = Numbers::bucket(0, rate, burst);
            let mut machines = [Algorithm::TokenBucket, Algorithm::LeakyMeter]
                .map(|algorithm| Central::new(&Numbers { algorithm, ..bucket }));
            let mut plain = Reference::new(rate, burst);
            for (us, cost) in attempts {
                let fits = plain.offer(Micros(us), cost);
                prop_assert!(machines.iter_mut().all(|machine| machine.offer(at(us), cost) == fits));
            }
        }

        #[test]
        fn what_a_machine_lets_pass_never_overdraws_another_of_its_kind(
            kind in 0..5_usize, burst in 1..20_u64, window in 1..300_u64,
            mut attempts in vec((0..1_000_u64, 1..4_u64), 1..200),
        ) {
            attempts.sort_unstable();
            let algorithm = [
                Algorithm::TokenBucket, Algorithm::LeakyMeter, Algorithm::FixedWindow,
                Algorithm::SlidingLog, Algorithm::SlidingCounter,
            ][kind];
            let numbers = numbers(algorithm, burst, window);
            let (mut decides, mut judges) = (Central::new(&numbers), Central::new(&numbers));
            for (us, cost) in attempts {
                if decides.offer(at(us), cost) {
                    prop_assert!(judges.take(at(us), cost) <= 0);
                }
            }
            prop_assert!(judges.take(at(1_000), burst + 1) > 0);
        }
    }
}
