//! A rate that forgets: events a second, weighted by how recent they are.

use crate::time::Micros;

/// How long the past counts: an event of this age weighs 1/e of a new one.
pub(crate) const MEMORY: Micros = Micros::from_millis(300);

/// An exponentially weighted rate over looks at uneven times. 12 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ewma {
    per_second: f32,
    /// Low 32 bits of the milliseconds of the last look plus one; 0: never looked.
    looked: u32,
    /// Events since the last look that was long enough ago to count.
    pending: f32,
}

impl Ewma {
    /// Counts `events` that came since the last look, at time `now`.
    ///
    /// Looks closer together than 5 ms are gathered, so that a burst is not taken for a rate.
    pub(crate) fn look(&mut self, now: Micros, events: u64) {
        let millis = (now.as_millis() as u32).wrapping_add(1).max(1);
        if self.looked == 0 {
            self.looked = millis; // nobody knows over how long a time these events came
            return;
        }
        self.pending += events as f32;
        let gap = millis.wrapping_sub(self.looked);
        if gap < 5 {
            return;
        }
        let seconds = gap as f32 / 1_000.0;
        let seen = self.pending / seconds;
        let weight = 1.0 - (-seconds * 1e6 / MEMORY.0 as f32).exp();
        self.per_second =
            if self.per_second == 0.0 { seen } else { self.per_second + (seen - self.per_second) * weight };
        self.pending = 0.0;
        self.looked = millis;
    }

    /// Events a second.
    pub(crate) fn per_second(&self) -> f32 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_is_measured_and_a_silence_forgotten() {
        let mut rate = Ewma::default();
        for ms in 0..3_000 {
            rate.look(Micros::from_millis(ms), 2);
        }
        assert!((1_900.0..2_100.0).contains(&rate.per_second()), "{}", rate.per_second());
        rate.look(Micros::from_millis(6_000), 0);
        assert!(rate.per_second() < 5.0, "{}", rate.per_second());
    }

    #[test]
    fn the_first_look_alone_is_no_rate() {
        let mut rate = Ewma::default();
        rate.look(Micros::from_secs(9), 1_000_000);
        assert_eq!(rate.per_second(), 0.0);
        rate.look(Micros::from_secs(10), 500);
        assert!((rate.per_second() - 500.0).abs() < 1.0);
    }
}
