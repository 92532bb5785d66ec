//! How many questions may be on their way at once: as many as the authority answers in good time.
//!
//! When many keys turn cold at the same moment, all instances together could ask more than the authority
//! answers before the time-out, and then every answer would be for nothing. So the window grows while
//! answers come quickly and shrinks when they are slow or missing (additive increase, multiplicative
//! decrease: Chiu and Jain 1989, as in TCP). Pure: no clock.

use crate::{error::ErrorKind, time::Micros};

/// The window at first, and the least and the most it ever is.
const FIRST: f64 = 100.0;
const LEAST: f64 = 20.0;
const MOST: f64 = 2_000.0;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Window {
    size: f64,
    under_way: usize,
    /// Answers quicker than the first let it grow; slower than the second make it shrink.
    quick: Micros,
    slow: Micros,
    /// Messages that left before this cannot tell anything new.
    shrunk_at: Micros,
}

impl Window {
    pub(super) fn new(response_timeout: Micros) -> Window {
        let (quick, slow) = (Micros(response_timeout.0 / 40), Micros(response_timeout.0 / 8));
        Window { size: FIRST, under_way: 0, quick, slow, shrunk_at: Micros::ZERO }
    }

    /// How many more questions may leave now.
    pub(super) fn room(&self) -> usize {
        (self.size as usize).saturating_sub(self.under_way)
    }

    pub(super) fn left(&mut self, questions: usize) {
        self.under_way = self.under_way.saturating_add(questions);
    }

    /// A message of so many questions that left at `sent` came back at `now`, well or not.
    pub(super) fn came_back(&mut self, questions: usize, sent: Micros, now: Micros, failure: Option<ErrorKind>) {
        self.under_way = self.under_way.saturating_sub(questions);
        let trip = now.minus(sent);
        let overloaded = matches!(failure, Some(ErrorKind::Unanswered | ErrorKind::Overloaded));
        if overloaded || (failure.is_none() && trip > self.slow) {
            if sent >= self.shrunk_at {
                self.size = (self.size / 2.0).max(LEAST);
                self.shrunk_at = now;
            }
        } else if failure.is_none() && trip < self.quick {
            // A tenth more for each window that came back quickly.
            self.size = (self.size + questions as f64 / 10.0).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Micros = Micros(300);

    #[test]
    fn quick_answers_let_it_grow_and_slow_ones_halve_it_once_a_round() {
        let mut window = Window::new(Micros::from_millis(200));
        assert_eq!(window.room(), 100);
        window.left(100);
        assert_eq!(window.room(), 0);
        window.came_back(100, Micros(0), QUICK, None);
        assert_eq!(window.room(), 110);
        let slow = Micros::from_millis(60);
        window.left(100);
        window.came_back(50, Micros(0), slow, None);
        window.came_back(50, Micros(0), slow, None);
        assert_eq!(window.room(), 55, "both left before the first was known to be slow");
        window.left(50);
        window.came_back(50, slow, slow.plus(slow), Some(ErrorKind::Unanswered));
        assert_eq!(window.room(), 27);
    }

    #[test]
    fn it_never_closes_and_never_grows_without_end() {
        let mut window = Window::new(Micros::from_millis(200));
        let mut now = Micros(0);
        for _ in 0..100 {
            now = now.plus(Micros::from_millis(200));
            window.came_back(0, now, now, Some(ErrorKind::Unanswered));
        }
        assert_eq!(window.room(), 20);
        for _ in 0..100_000 {
            window.left(20);
            window.came_back(20, now, now.plus(QUICK), None);
        }
        assert_eq!(window.room(), 2_000);
    }
}
