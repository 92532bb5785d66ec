//! `acquire`: waits until the limit says yes.

use super::{
    handle::Limiter,
    key::KeyHandle,
    set::Present,
    setup::{Setup, Way},
};
use crate::{
    clock::Clock,
    decision::{Decision, Verdict},
    error::{Error, ErrorKind},
    observe::Link,
    time::Micros,
};
use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

/// The head of a line asks again after this at the latest: what is given back, unblocked or replaced
/// meanwhile may have ended its wait.
const AGAIN_MAX: Micros = Micros::from_secs(1);
/// Between two questions while nobody knows when to come again; doubles up to the second one.
const PAUSE_MIN: Micros = Micros::from_millis(5);
const PAUSE_MAX: Micros = Micros::from_millis(200);

impl Limiter {
    /// Waits for its turn and takes `cost` tokens: at once where they are there and nobody waits, and else at most
    /// `deadline` from now.
    ///
    /// Who waits for a key stands in line, one line for each key and rule of this gate: first come, first served,
    /// whatever the costs. Only the first in line asks the limit, so ten thousand who wait ask no more often than
    /// one. (Plain checks do not stand in line, and other instances have lines of their own.) In
    /// [`Mode::Exact`](crate::Mode::Exact) that makes one question at a time, so at most one admission each round trip by this way.
    ///
    /// For a [leaky queue](crate::Rule::leaky_queue) it also waits until the request may leave: those who come
    /// through here leave at a constant rate.
    ///
    /// A cost of 0 takes nothing and does not wait. A deadline of 0 takes what can be had without waiting. While the
    /// store is away the rule's [`Outage`](crate::Outage) policy answers the first in line; what it lets through has
    /// [`trouble`](Decision::trouble).
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::{ErrorKind, Mode, Rule, Tollgate}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let rule = Rule::token_bucket(100, Duration::from_secs(1)).burst(1).mode(Mode::Local);
    /// let gate = Tollgate::builder().rule("crawl", rule).build_local()?;
    /// let crawl = gate.limiter("crawl")?;
    /// for _page in 0..3 {
    ///     crawl.acquire("example.com", 1, Duration::from_secs(5)).await?; // one each 10 ms
    /// }
    /// let error = crawl.acquire("example.com", 2, Duration::from_secs(5)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NeverFits);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Deadline`] when the time has passed: the message says whether it waited for the limit or for the
    /// store. The store's own kind where that was in trouble until then. At once: [`ErrorKind::NeverFits`] for
    /// a cost above the burst, [`ErrorKind::BadKey`], [`ErrorKind::Saturated`] for a new key at the cap of the
    /// registry or of the lines, [`ErrorKind::ShutDown`]; and `Deadline` where a leaky queue would let it leave only after
    /// that. Such a place in the queue perishes.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line, and the next one moves up. Nothing was taken for who was not the first;
    /// what was asked for in the name of the first is given back to the limit when the answer comes.
    ///
    /// # Cost
    /// That of [`check_n`](Limiter::check_n), a lock twice, and one small allocation. Needs no runtime: the clock's
    /// thread wakes who waits, to about a millisecond.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, cost: u64, deadline: Duration) -> Result<Decision, Error> {
        let key = key.as_ref();
        Asker { limiter: self, handle: None, key }.acquire(cost, deadline).await
    }
}

impl KeyHandle {
    /// Waits for its turn and takes `cost` tokens; see [`Limiter::acquire`].
    ///
    /// # Errors
    /// As there.
    pub async fn acquire(&self, cost: u64, deadline: Duration) -> Result<Decision, Error> {
        let (limiter, key) = self.parts();
        Asker { limiter, handle: Some(self), key }.acquire(cost, deadline).await
    }
}

/// Runs until it is done or the clock shows `ends`. It is polled at least once, also where that is past.
pub(super) async fn by<T>(clock: &Clock, ends: Micros, work: impl Future<Output = T>) -> Option<T> {
    let (mut work, mut sleep) = (pin!(work), pin!(clock.sleep_until(ends)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Whoever wants tokens, by key or by handle.
struct Asker<'a> {
    limiter: &'a Limiter,
    handle: Option<&'a KeyHandle>,
    key: &'a [u8],
}

impl Asker<'_> {
    /// The rule as it is now.
    fn setup(&self) -> Present<'_> {
        self.limiter.answers(self.key)
    }

    async fn ask(&self, cost: u64) -> Decision {
        match self.handle {
            Some(handle) => handle.check_n(cost).await,
            None => self.limiter.check_n(self.key, cost).await,
        }
    }

    async fn acquire(&self, cost: u64, deadline: Duration) -> Result<Decision, Error> {
        let setup = self.setup();
        let clock = setup.clock.clone();
        let ends = clock.now().plus(deadline.into());
        let Some(key) = setup.key(self.key) else {
            return self.settled(setup.spoken(setup.bad_key()));
        };
        if cost == 0 {
            let known = setup.known(&key);
            return Ok(Decision { verdict: Verdict::Allowed, refused_by: None, retry_after: Micros::ZERO, ..known });
        }
        let seat = setup.lines.enter(self.limiter.name(), &key);
        let Some(seat) = seat else {
            return self.settled(setup.spoken(setup.uncounted_saturated()));
        };
        drop(setup);
        if !seat.is_first() {
            let turn = by(&clock, ends, seat.turn()).await;
            // A turn that comes with the deadline is none: of a crowd whose time is over, nobody asks any more.
            if turn.is_none() || clock.now() >= ends {
                return Err(self.late(deadline, self.setup().road_trouble(), "in line for the limit"));
            }
        }
        let decision = self.first_in_line(cost, &clock, ends, deadline).await?;
        let departs = clock.now().plus(decision.delay);
        // The place was had: who comes next may have the next one.
        drop(seat);
        if decision.delay > Micros::ZERO {
            if departs > ends {
                return Err(self.late(deadline, None, "for the limit: its turn to leave comes later, and is given up"));
            }
            clock.sleep_until(departs).await;
        }
        Ok(decision)
    }

    /// Asks until the answer is yes, or no other will come in time.
    async fn first_in_line(
        &self,
        cost: u64,
        clock: &Clock,
        ends: Micros,
        deadline: Duration,
    ) -> Result<Decision, Error> {
        let mut pause = PAUSE_MIN;
        loop {
            let Some(decision) = by(clock, ends, self.ask(cost)).await else {
                return Err(self.late(deadline, self.setup().road_trouble(), "for the store's answer"));
            };
            if decision.is_allowed() {
                return Ok(decision);
            }
            if decision.is_never() {
                let (rule, limit) = (self.limiter.name(), decision.limit());
                let message = format!("rule {rule:?}: a cost of {cost} never fits: at most {limit} can be had at once");
                return Err(Error::new(ErrorKind::NeverFits, message));
            }
            if let Some(ErrorKind::ShutDown | ErrorKind::BadKey | ErrorKind::Saturated) = decision.trouble() {
                return self.settled(decision);
            }
            let wait = match decision.retry_after() {
                Some(wait) => {
                    pause = PAUSE_MIN;
                    Micros::from(wait).min(AGAIN_MAX)
                }
                None => {
                    let now = pause;
                    pause = Micros(now.0 * 2).min(PAUSE_MAX);
                    now
                }
            };
            let again = clock.now().plus(wait);
            clock.sleep_until(again.min(ends)).await;
            if again > ends {
                let what = if decision.trouble().is_some() { "for the store" } else { "for the limit" };
                return Err(self.late(deadline, decision.trouble(), what));
            }
        }
    }

    /// The time has passed; `trouble` is what was wrong with the store, if anything was.
    fn late(&self, deadline: Duration, trouble: Option<ErrorKind>, what: &str) -> Error {
        let (rule, kind) = (self.limiter.name(), trouble.unwrap_or(ErrorKind::Deadline));
        let store = trouble.map(|kind| format!(" (the store: {kind:?})")).unwrap_or_default();
        Error::new(kind, format!("rule {rule:?}: waited {deadline:?} {what}{store}"))
    }

    /// What is so, with a trouble that no waiting ends.
    fn settled(&self, decision: Decision) -> Result<Decision, Error> {
        if decision.is_allowed() {
            return Ok(decision); // `Saturated::Allow`
        }
        let kind = decision.trouble().unwrap_or(ErrorKind::Saturated);
        let why = match kind {
            ErrorKind::BadKey => "the key is too long",
            ErrorKind::ShutDown => "the gate is shut down",
            _ => "the key is new, and there are as many as there may be",
        };
        Err(Error::new(kind, format!("rule {:?}: {why}", self.limiter.name())))
    }
}

impl Setup {
    /// Why the authority cannot be asked at all, where that is so.
    fn road_trouble(&self) -> Option<ErrorKind> {
        let Way::Shared { driver, .. } = &self.way else { return None };
        (driver.link() == Link::Down).then(|| driver.cause())
    }
}
