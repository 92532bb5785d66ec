//! One question that somebody waits for: a slot, a ticket to wait with, and the end to answer at.
//!
//! Needs no runtime: a ticket is a plain future, and a thread can park on it. A ticket that is
//! dropped tells the engine that nobody waits any more.

use super::plain::Ask;
use crate::{
    atomic::{Arc, Mutex},
    clock::{COARSE_TICK, Clock},
    error::ErrorKind,
    local::Cell,
    time::Micros,
};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::PoisonError,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The tokens are this request's, given by the authority or from the hold.
    Given {
        /// Tokens that can probably still be had.
        remaining: u64,
        /// Whether the authority itself gave them.
        by_authority: bool,
        /// How long to wait before going on; zero but for queues.
        delay: Micros,
    },
    /// Not enough tokens.
    Denied {
        /// When to ask again.
        wait: Micros,
        /// Tokens that can probably still be had.
        remaining: u64,
        /// Whether the authority said so to this very question.
        by_authority: bool,
    },
    /// What a peek saw.
    Seen {
        /// Tokens that nobody has.
        free: u64,
        /// Until there are as many as was asked for; zero when there are.
        wait: Micros,
    },
    /// What a plain counter says.
    Counted {
        /// Whether the hit was counted.
        taken: bool,
        /// What is counted now, this hit included if it was.
        count: i64,
        /// Until the window ends.
        ends_in: Micros,
    },
    /// What was ordered is done.
    Done,
    /// The store failed, in this way.
    Failed(ErrorKind),
    /// The deadline passed first.
    Late,
    /// The cell was closed meanwhile: look the key up again.
    Closed,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Answered(Answer),
    Left,
}

/// The engine's end.
#[derive(Debug)]
pub(crate) struct Waiter(Arc<Mutex<State>>);

/// The asker's end. Who drops it gets nothing, and what was asked for meanwhile goes back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ticket {
    state: Arc<Mutex<State>>,
    /// Where tokens go that are given and that nobody hears of.
    back: Option<Back>,
}

/// Takes back what was given to somebody who had just left.
pub(super) trait Restore: Send + Sync {
    fn restore(&self, given: Given, by: Answer);
}

/// What goes back.
#[derive(Debug)]
pub(super) enum Given {
    /// Tokens of a cell, and when they were asked for.
    Tokens(std::sync::Arc<Cell>, u64, Micros),
    /// What a plain counter has counted.
    Hit(std::sync::Arc<Ask>),
}

struct Back {
    to: std::sync::Arc<dyn Restore>,
    given: Given,
}

impl fmt::Debug for Back {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Back").field("given", &self.given).finish_non_exhaustive()
    }
}

/// Both ends of one new question.
pub(crate) fn pair() -> (Ticket, Waiter) {
    let shared = Arc::new(Mutex::new(State::Waiting(None)));
    (Ticket { state: shared.clone(), back: None }, Waiter(shared))
}

impl Waiter {
    /// Whether somebody still waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), State::Waiting(_))
    }

    /// Hands the answer over; `false` when nobody waits any more.
    pub(crate) fn answer(&self, answer: Answer) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = State::Answered(answer);
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                true
            }
            State::Answered(_) | State::Left => false,
        }
    }
}

/// A question that is forgotten, by a panic or a mistake, is answered all the same: nobody waits for
/// ever.
impl Drop for Waiter {
    fn drop(&mut self) {
        self.answer(Answer::Failed(ErrorKind::Protocol));
    }
}

impl Ticket {
    /// Parks this thread until the answer is there, at most until `deadline`; then it is
    /// [`Answer::Late`].
    pub(crate) fn wait(mut self, clock: &Clock, deadline: Micros) -> Answer {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
        loop {
            if let Poll::Ready(answer) = self.look(&waker) {
                return answer;
            }
            let left = deadline.minus(clock.now());
            if left == Micros::ZERO {
                return Answer::Late;
            }
            // A manual clock may be moved by another thread at any time: look again now and then.
            let longest = if clock.is_manual() { COARSE_TICK } else { left.into() };
            thread::park_timeout(longest);
        }
    }

    /// Has what is given to it go back, should it be dropped before it has heard of it.
    pub(super) fn restoring(mut self, to: std::sync::Arc<dyn Restore>, given: Given) -> Ticket {
        self.back = Some(Back { to, given });
        self
    }

    fn look(&mut self, waker: &Waker) -> Poll<Answer> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Answered(answer) => {
                self.back = None;
                Poll::Ready(*answer)
            }
            State::Left => Poll::Ready(Answer::Late),
            State::Waiting(place) => {
                match place {
                    Some(old) if old.will_wake(waker) => {}
                    _ => *place = Some(waker.clone()),
                }
                Poll::Pending
            }
        }
    }
}

impl Future for Ticket {
    type Output = Answer;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        self.look(context.waker())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Waiting(_) => *state = State::Left,
            State::Answered(by @ (Answer::Given { .. } | Answer::Counted { taken: true, .. })) => {
                drop(state);
                if let Some(back) = self.back.take() {
                    back.to.restore(back.given, by);
                }
            }
            State::Answered(_) | State::Left => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Answer = Answer::Given { remaining: 3, by_authority: true, delay: Micros::ZERO };

    #[test]
    fn a_thread_is_woken_by_the_answer() {
        let (ticket, waiter) = pair();
        let clock = Clock::system();
        let asker = thread::spawn(move || ticket.wait(&clock, Micros::MAX));
        assert!(waiter.answer(YES));
        assert_eq!(asker.join().ok(), Some(YES));
    }

    #[test]
    fn a_thread_waits_no_longer_than_its_deadline() {
        let (ticket, waiter) = pair();
        let clock = Clock::manual();
        assert_eq!(ticket.wait(&clock, clock.now()), Answer::Late);
        assert!(!waiter.answer(YES), "nobody waits any more");
    }

    #[test]
    fn a_question_that_is_forgotten_is_answered() {
        let (ticket, waiter) = pair();
        drop(waiter);
        assert_eq!(ticket.wait(&Clock::manual(), Micros::MAX), Answer::Failed(ErrorKind::Protocol));
    }

    #[test]
    fn the_engine_sees_that_an_asker_left() {
        let (ticket, waiter) = pair();
        assert!(waiter.is_waited_for());
        drop(ticket);
        assert!(!waiter.is_waited_for());
    }
}
