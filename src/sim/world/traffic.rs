//! Who asks for what, and when.

use crate::time::Micros;
use std::{f64::consts::TAU, time::Duration};

/// The requests that a [`World`](super::World) is made of. Each instance draws its own from the world's seed, so that
/// faults and answers change none of them: two worlds that differ in their rule alone see the same requests.
///
/// ```
/// use std::time::Duration;
/// use tollgate::sim::Traffic;
///
/// // A thousand a second, two in three for the first of two instances, 50 more at once each second.
/// let traffic = Traffic::poisson(1_000.0).weights(&[2.0, 1.0]).bursts(Duration::from_secs(1), 50);
/// # assert_ne!(traffic, Traffic::even(1_000.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Traffic {
    per_second: f64,
    even: bool,
    bursts: Option<(Micros, u64)>,
    daily: Option<(Micros, f64)>,
    restless: Option<Micros>,
    keys: u32,
    zipf: f64,
    costs: Vec<u64>,
    weights: Vec<f64>,
    waits: f64,
}

impl Traffic {
    /// Requests that come one by one, independently of each other, so many a second over all instances. Less than none, or
    /// no number, is none.
    pub fn poisson(per_second: f64) -> Traffic {
        Traffic {
            per_second: if per_second.is_finite() { per_second.max(0.0) } else { 0.0 },
            even: false,
            bursts: None,
            daily: None,
            restless: None,
            keys: 1,
            zipf: 0.0,
            costs: vec![1],
            weights: Vec::new(),
            waits: 1.0,
        }
    }

    /// Requests that come at even distances.
    pub fn even(per_second: f64) -> Traffic {
        Traffic { even: true, ..Traffic::poisson(per_second) }
    }

    /// So many requests more, over all instances and in one moment, at each multiple of this time.
    pub fn bursts(mut self, every: Duration, requests: u64) -> Traffic {
        self.bursts = Some((Micros::from(every).max(Micros(1)), requests));
        self
    }

    /// A day of this length: demand swings between the part `low` of itself, at the start of the day, and all of it.
    pub fn daily(mut self, day: Duration, low: f64) -> Traffic {
        self.daily = Some((Micros::from(day).max(Micros(1)), low.clamp(0.0, 1.0)));
        self
    }

    /// After each such time demand becomes, by lot, nothing, a fifth, one and a half or ten times itself. Silence lets
    /// buckets fill up, and what was lent elsewhere come into question.
    pub fn restless(mut self, every: Duration) -> Traffic {
        self.restless = Some(Micros::from(every).max(Micros(1)));
        self
    }

    /// So many keys, each asked for as often. 1 when not set.
    pub fn keys(mut self, keys: u32) -> Traffic {
        self.keys = keys.max(1);
        self
    }

    /// So many keys, the `n`th of which is asked for in proportion to `1 / n^exponent`.
    pub fn zipf(mut self, keys: u32, exponent: f64) -> Traffic {
        (self.keys, self.zipf) = (keys.max(1), exponent.max(0.0));
        self
    }

    /// The tokens that a request takes, one of these by lot; 1 when not set. Zeros are left out.
    pub fn costs(mut self, costs: &[u64]) -> Traffic {
        self.costs = costs.iter().copied().filter(|cost| *cost > 0).collect();
        if self.costs.is_empty() {
            self.costs.push(1);
        }
        self
    }

    /// How demand is shared among instances, in any unit; evenly when not set. Instances that are not named get the
    /// last weight.
    pub fn weights(mut self, weights: &[f64]) -> Traffic {
        self.weights = weights.iter().map(|w| w.max(0.0)).collect();
        self
    }

    /// The part of all requests that wait for the authority when the key is cold, as `check` does; the others are
    /// answered at once, as by `check_now`. 1 when not set.
    pub fn waits(mut self, part: f64) -> Traffic {
        self.waits = part.clamp(0.0, 1.0);
        self
    }

    pub(super) fn largest_cost(&self) -> u64 {
        self.costs.iter().copied().max().unwrap_or(1)
    }

    pub(super) fn key_count(&self) -> u32 {
        self.keys
    }

    /// What one of so many instances is asked, from `start` on.
    pub(super) fn source(&self, instance: usize, instances: usize, start: Micros, seed: u64) -> Source {
        let weight = |i: usize| self.weights.get(i).or(self.weights.last()).copied().unwrap_or(1.0);
        let all: f64 = (0..instances).map(weight).sum();
        let part = if all > 0.0 { weight(instance) / all } else { 0.0 };
        let per_micro = self.per_second * part / 1e6;
        let burst = self.bursts.map_or(0, |(_, size)| {
            let (size, n, i) = (size, instances.max(1) as u64, instance as u64);
            size / n + u64::from(i < size % n)
        });
        let mut heavy = Vec::new();
        if self.zipf > 0.0 && self.keys > 1 {
            let mut sum = 0.0;
            heavy.extend((1..=self.keys).map(|n| {
                sum += f64::from(n).powf(-self.zipf);
                sum
            }));
        }
        let mut source = Source {
            traffic: self.clone(),
            rng: fastrand::Rng::with_seed(seed.wrapping_add((instance as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))),
            phases: seed,
            per_micro,
            start: start.0 as f64,
            at: start.0 as f64,
            drawn: f64::INFINITY,
            burst,
            burst_at: self.bursts.filter(|_| burst > 0).map_or(Micros::MAX, |(every, _)| start.plus(every)),
            burst_left: 0,
            heavy,
        };
        // Evenly spaced instances do not ask in step.
        source.at += if self.even && per_micro > 0.0 { instance as f64 / instances as f64 / per_micro } else { 0.0 };
        source.draw();
        source
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) key: u32,
    pub(super) cost: u64,
    pub(super) waits: bool,
}

/// The requests of one instance, in the order of time.
#[derive(Debug)]
pub(super) struct Source {
    traffic: Traffic,
    rng: fastrand::Rng,
    /// What decides the phases of restless demand, the same for all instances.
    phases: u64,
    per_micro: f64,
    start: f64,
    at: f64,
    /// The next request that comes by itself.
    drawn: f64,
    burst: u64,
    burst_at: Micros,
    burst_left: u64,
    heavy: Vec<f64>,
}

impl Source {
    /// When the next request comes.
    pub(super) fn next_at(&self) -> Micros {
        if self.burst_left > 0 {
            return self.burst_at;
        }
        let drawn = if self.drawn < 1e18 { Micros(self.drawn as u64) } else { Micros::MAX };
        drawn.min(self.burst_at)
    }

    /// That request; the one after it is next.
    pub(super) fn take(&mut self) -> Request {
        let at = self.next_at();
        if self.burst_left == 0 && self.burst_at == at {
            self.burst_left = self.burst;
        }
        if self.burst_left > 0 {
            self.burst_left -= 1;
            if self.burst_left == 0
                && let Some((every, _)) = self.traffic.bursts
            {
                self.burst_at = at.plus(every);
            }
        } else {
            self.at = self.drawn;
            self.draw();
        }
        Request { key: self.key(), cost: self.cost(), waits: self.is_patient() }
    }

    fn key(&mut self) -> u32 {
        if self.traffic.keys <= 1 {
            return 0;
        }
        match self.heavy.last() {
            Some(sum) => {
                let place = self.rng.f64() * sum;
                let key = self.heavy.partition_point(|up_to| *up_to < place);
                u32::try_from(key).unwrap_or(0).min(self.traffic.keys - 1)
            }
            None => self.rng.u32(0..self.traffic.keys),
        }
    }

    fn cost(&mut self) -> u64 {
        match self.traffic.costs[..] {
            [only] => only,
            _ => self.rng.choice(&self.traffic.costs).copied().unwrap_or(1),
        }
    }

    fn is_patient(&mut self) -> bool {
        let part = self.traffic.waits;
        part >= 1.0 || (part > 0.0 && self.rng.f64() < part)
    }

    /// Draws the next request that comes by itself.
    fn draw(&mut self) {
        let mut at = self.at;
        // Each round ends a phase of silence or throws one candidate away: a bound for demand that never comes.
        for _ in 0..100_000 {
            let (factor, until) = self.phase(at);
            let rate = self.per_micro * factor;
            let gap = match (rate > 0.0, self.traffic.even) {
                (false, _) => f64::INFINITY,
                (true, true) => 1.0 / rate,
                // 1 - f is above 0, so its logarithm is finite.
                (true, false) => -(1.0 - self.rng.f64()).ln() / rate,
            };
            if at + gap > until {
                at = until; // memoryless: begin anew there
                continue;
            }
            at += gap;
            if self.traffic.daily.is_none_or(|(day, low)| self.rng.f64() < self.of_day(at, day, low)) {
                self.drawn = at;
                return;
            }
            if at.is_infinite() {
                break;
            }
        }
        self.drawn = f64::INFINITY;
    }

    /// The part of full demand at this time of the day.
    fn of_day(&self, at: f64, day: Micros, low: f64) -> f64 {
        let turn = (at - self.start) / day.0 as f64;
        low + (1.0 - low) * (0.5 - 0.5 * (turn * TAU).cos())
    }

    /// By how much demand is multiplied now, and until when.
    fn phase(&self, at: f64) -> (f64, f64) {
        let Some(every) = self.traffic.restless else { return (1.0, f64::INFINITY) };
        let phase = ((at - self.start) / every.0 as f64).floor();
        let lot = fastrand::Rng::with_seed(self.phases ^ (phase as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93)).u64(0..4);
        let factor = [0.0, 0.2, 1.5, 10.0][lot as usize];
        // A step past the edge, so that rounding never leaves it in the old phase.
        (factor, self.start + (phase + 1.0) * every.0 as f64 + 1e-3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(traffic: &Traffic, instance: usize, instances: usize, end: u64) -> Vec<u64> {
        let mut source = traffic.source(instance, instances, Micros(1_000), 7);
        let mut times = Vec::new();
        while source.next_at() < Micros(1_000 + end) {
            times.push(source.next_at().0 - 1_000);
            source.take();
        }
        times
    }

    #[test]
    fn the_same_seed_is_the_same_traffic_and_it_comes_as_often_as_it_says() {
        let traffic = Traffic::poisson(1_000.0);
        let some = times(&traffic, 0, 2, 10_000_000);
        assert_eq!(some, times(&traffic, 0, 2, 10_000_000));
        assert_ne!(some, times(&traffic, 1, 2, 10_000_000));
        assert!((4_700..5_300).contains(&some.len()), "{}", some.len());
        assert!(some.is_sorted());
    }

    #[test]
    fn bursts_come_in_one_moment_and_are_shared_out_whole() {
        let traffic = Traffic::even(0.0).bursts(Duration::from_millis(1), 5);
        assert_eq!(times(&traffic, 0, 2, 2_001), [1_000, 1_000, 1_000, 2_000, 2_000, 2_000]);
        assert_eq!(times(&traffic, 1, 2, 2_001), [1_000, 1_000, 2_000, 2_000]);
    }

    #[test]
    fn weights_divide_demand_and_a_day_has_its_low() {
        let traffic = Traffic::poisson(11_000.0).weights(&[10.0, 1.0]);
        let (many, few) = (times(&traffic, 0, 2, 1_000_000).len(), times(&traffic, 1, 2, 1_000_000).len());
        assert!((9_500..10_500).contains(&many) && (850..1_150).contains(&few), "{many} {few}");
        let day = times(&Traffic::poisson(1_000.0).daily(Duration::from_secs(10), 0.0), 0, 1, 10_000_000);
        let noon = day.iter().filter(|at| (4_000_000..6_000_000).contains(*at)).count();
        let night = day.iter().filter(|at| **at < 1_000_000 || **at >= 9_000_000).count();
        assert!(noon > 20 * night, "{noon} {night}");
    }

    #[test]
    fn restless_demand_falls_silent_and_rises() {
        let times = times(&Traffic::poisson(1_000.0).restless(Duration::from_millis(100)), 0, 1, 10_000_000);
        let mut by_phase = [0; 100];
        times.iter().for_each(|at| by_phase[(*at / 100_000) as usize] += 1);
        assert!(by_phase.iter().filter(|n| **n < 3).count() > 10, "silence");
        assert!(by_phase.iter().filter(|n| **n > 800).count() > 10, "ten times as much");
    }

    #[test]
    fn the_first_of_many_keys_is_asked_for_most() {
        let mut source = Traffic::poisson(1.0).zipf(100, 1.0).source(0, 1, Micros::ZERO, 3);
        let mut asked = [0; 100];
        (0..10_000).for_each(|_| asked[source.take().key as usize] += 1);
        // 1 / (1 + 1/2 + ... + 1/100) is 0.193.
        assert!((1_700..2_150).contains(&asked[0]) && asked[99] < 60, "{} {}", asked[0], asked[99]);
    }
}
