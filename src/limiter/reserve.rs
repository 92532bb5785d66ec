//! Reservations: an estimate is spent at once, and settled when the real cost is known.

use super::{
    handle::Limiter,
    key::KeyHandle,
    road::Taking,
    setup::{Setup, Way, count},
};
use crate::{
    algorithm::Algorithm,
    atomic::{Mutex, Ordering::Relaxed},
    clock::Alarm,
    decision::{Decision, Source},
    key::Key,
    local::Cell,
    rule::{Abandoned, Mode},
};
use std::{
    fmt,
    sync::{Arc, PoisonError},
    task::Wake,
};

impl Limiter {
    /// Takes an estimate of what a piece of work will cost, to be [committed](Reservation::commit) when its real cost is
    /// known: the tokens of a language model, the bytes of an answer.
    ///
    /// Asks as [`check_n`](Limiter::check_n) does, with the same cost and cancel safety. A denial is no error; it is the
    /// other half of the result, so that nobody gets a reservation without having been let in. An estimate of 0 takes
    /// nothing, and is refused only where a [`peek`](Limiter::peek) says no.
    ///
    /// The whole estimate is spent at once. Whoever commits less gets the rest back; whoever commits more is charged the
    /// rest as a debt, which later checks wait for. Who never commits, since the reservation was dropped or its
    /// [time](crate::Rule::reservation_ttl) passed, gets what the rule says: [`Abandoned`]. While a reservation is open
    /// its key keeps a place in the registry.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::{Rule, Settled, Tollgate}};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tollgate::Error> {
    /// let gate = Tollgate::builder().rule("tokens", Rule::token_bucket(1_000, Duration::from_secs(60))).build().await?;
    /// let tokens = gate.limiter("tokens")?;
    /// match tokens.reserve("user:42", 500).await {
    ///     Ok(reservation) => {
    ///         // ... ask the model, and count what it said ...
    ///         let settled = reservation.commit(320);
    ///         assert_eq!(settled, Settled { returned: 180, charged: 0, uncharged: 0 });
    ///     }
    ///     Err(denied) => println!("come again in {:?}", denied.retry_after()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The decision that says no.
    pub async fn reserve(&self, key: impl AsRef<[u8]>, estimate: u64) -> Result<Reservation, Decision> {
        let bytes = key.as_ref();
        // Kept for the reservation: what is taken by one setup goes back by the same.
        let setup = Arc::clone(&self.answers(bytes));
        let since = setup.clock.now();
        let decision = setup.asked(bytes, estimate).await;
        if !decision.is_allowed() {
            return Err(decision);
        }
        Ok(Reservation::open(self, setup, bytes, estimate, Taking::new(since, &decision), decision))
    }
}

impl KeyHandle {
    /// Takes an estimate, to be committed later; see [`Limiter::reserve`].
    ///
    /// # Errors
    /// As there.
    pub async fn reserve(&self, estimate: u64) -> Result<Reservation, Decision> {
        let (limiter, key) = self.parts();
        limiter.reserve(key, estimate).await
    }
}

/// What a commit made of a reservation, in tokens. They add up: the real cost is the estimate less what was returned, and
/// what was charged and what was not on top of it. (After a time-out that had released the estimate, without the estimate;
/// and where the rest of an estimate cannot come back, see [`commit`](Reservation::commit), that rest counts as used.) All
/// are 0 where no limit was asked: a list let it in, or a rule in shadow mode that would have refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Settled {
    /// Goes back to the limit: at once for a `Local` rule, else with the next sync; to a window as much as still counts.
    pub returned: u64,
    /// Charged beyond what was held: later checks wait for it.
    pub charged: u64,
    /// Used and not charged: more than one burst above the estimate, or the key is not known any more. Also
    /// counted in the [snapshot](crate::Snapshot::uncharged).
    pub uncharged: u64,
}

/// Tokens that were taken for work whose cost is not known yet.
///
/// [Commit](Reservation::commit) it when it is. One that is dropped, or that is not committed within the rule's
/// [`reservation_ttl`](crate::Rule::reservation_ttl), is abandoned: its tokens are released or count as
/// spent, as the [rule](crate::Rule::abandoned) says. That happens once, at its time, also to one that was leaked.
#[must_use = "a reservation that is dropped is abandoned"]
pub struct Reservation {
    core: Arc<Core>,
    decision: Decision,
    /// Dropped before anything else is done: it rings no more.
    alarm: Option<Alarm>,
}

/// What the reservation and its alarm share.
struct Core {
    /// Knows the rule's numbers as they are by then.
    limiter: Limiter,
    /// The rule as it was.
    setup: Arc<Setup>,
    key: Box<[u8]>,
    digest: bool,
    estimate: u64,
    taking: Taking,
    /// The estimate was taken from the limit, and not let through by a policy that asks nobody.
    taken: bool,
    /// Pinned and reserved while this lives; `None` where this process keeps the limit alone.
    cell: Option<Arc<Cell>>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Nobody committed it: its tokens went back, or did not.
    Abandoned {
        released: bool,
    },
    Committed,
}

impl Reservation {
    fn open(
        limiter: &Limiter,
        setup: Arc<Setup>,
        key: &[u8],
        estimate: u64,
        taking: Taking,
        decision: Decision,
    ) -> Reservation {
        // A policy, a list or a shadowing rule that let it through has taken nothing that could come back.
        let by_limit = matches!(decision.source(), Source::Local | Source::Lease | Source::Authority);
        let taken = by_limit && decision.trouble().is_none();
        let name = setup.key(key);
        let cell = match (&setup.way, &name) {
            // A plain key has no cell.
            (Way::Shared { driver, .. }, Some(name)) if setup.terms.plain.is_none() => {
                // Twice, should the first cell be closed just now.
                let mut found = (0..2).filter_map(|_| driver.tier().cell(setup.rule, name).ok());
                found.find(|cell| cell.pin()).inspect(|cell| {
                    cell.reserve();
                    // The engine lets idle cells go, and only those that it knows.
                    driver.tier().call(cell);
                })
            }
            _ => None,
        };
        let (key, digest) = name.map_or((key.into(), false), |name| (name.bytes().into(), name.is_digest()));
        count(&setup.tallies.reserved);
        let (clock, ttl) = (setup.clock.clone(), setup.terms.reservation_ttl);
        let limiter = limiter.clone();
        let core = Arc::new(Core {
            limiter,
            setup,
            key,
            digest,
            estimate,
            taking,
            taken,
            cell,
            state: Mutex::new(State::Open),
        });
        let alarm = Some(clock.alarm(clock.now().plus(ttl), core.clone().into()));
        Reservation { core, decision, alarm }
    }

    /// The answer that let it in.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// What was taken when it was made.
    #[must_use]
    pub fn estimate(&self) -> u64 {
        self.core.estimate
    }

    /// Whether its time has not passed yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.core.state() == State::Open
    }

    /// Settles it by the real cost. There is no second commit of the same reservation.
    ///
    /// - Below the estimate: the rest goes back, never more than was taken, and the limit is never raised by it. What
    ///   comes back to a window rule must still be in its window. Nothing comes back to a
    ///   [leaky queue](crate::Rule::leaky_queue), whose turns perish, and nothing that an outage let in.
    /// - Above: the rest is charged as debt, at most one burst (or one window's limit) of it. What a
    ///   [`Buffered`](Mode::Buffered) rule is charged so, and one that an outage let in, empties the bucket at most.
    /// - Where the rule was [replaced](crate::Tollgate::replace_rules) meanwhile: by the numbers of now. Nothing comes back
    ///   where another mode decides by now and the key was asked for in it; what is charged is charged there.
    /// - After its time had passed: what was released is charged anew, within the same maximum, and nothing goes back
    ///   twice. What counted as spent stays so.
    ///
    /// Never waits.
    pub fn commit(mut self, real: u64) -> Settled {
        self.alarm = None;
        let core = &*self.core;
        let before = std::mem::replace(&mut *core.state(), State::Committed);
        let held = if before == (State::Abandoned { released: true }) { 0 } else { core.estimate };
        if before == State::Open {
            count(&core.setup.tallies.committed);
        }
        if matches!(self.decision.source(), Source::Rule | Source::Shadow) {
            return Settled::default(); // no limit is kept
        }
        if real <= held {
            let returned = if before == State::Open && core.taken { core.give_back(held - real) } else { 0 };
            return Settled { returned, ..Settled::default() };
        }
        let most = core.estimate.saturating_add(self.decision.limit());
        let charged = core.charge(real.min(most) - held);
        let uncharged = real - held - charged;
        let add = |sum: u64| Some(sum.saturating_add(uncharged));
        // ordering: Relaxed. A count that orders nothing. The closure never declines.
        let _ = core.setup.tallies.uncharged.fetch_update(Relaxed, Relaxed, add);
        Settled { returned: 0, charged, uncharged }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.alarm = None;
        self.core.abandon();
    }
}

impl Core {
    fn state(&self) -> crate::atomic::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody commits it, or nobody did in time. Does something once, and only to an open one.
    fn abandon(&self) {
        let released = self.setup.terms.abandoned == Abandoned::Release && self.taken && !self.perishes();
        {
            let mut state = self.state();
            if *state != State::Open {
                return;
            }
            *state = State::Abandoned { released };
        }
        count(&self.setup.tallies.abandoned);
        if released {
            self.give_back(self.estimate);
        }
    }

    /// Turns in a queue do not come back: those behind have theirs already.
    fn perishes(&self) -> bool {
        self.setup.terms.numbers.algorithm == Algorithm::LeakyQueue
    }

    /// Gives back what was taken, and says how much of it: nothing where the rule is decided in another way by now, since
    /// nobody remembers the taking any more.
    fn give_back(&self, tokens: u64) -> u64 {
        if tokens == 0 || self.perishes() {
            return 0;
        }
        match (&self.setup.way, &self.cell) {
            (Way::Local { .. }, _) => {
                let present = self.limiter.successor(&self.setup);
                // What a store counts by now was not taken from it; the state is kept for when it counts again.
                let present = present.filter(|setup| matches!(setup.way, Way::Local { .. }));
                present.as_ref().unwrap_or(&self.setup).give_back(&self.key(), tokens, self.taking);
            }
            (Way::Shared { .. }, Some(cell)) if cell.is_closed() => return 0,
            (Way::Shared { driver, .. }, Some(cell)) => driver.refund(cell, tokens, self.taking.since),
            _ => self.setup.give_back(&self.key(), tokens, self.taking),
        }
        tokens
    }

    /// Charges tokens that were used beyond what is held, and says how many of them it could: where the rule is decided
    /// in another way by now, there.
    fn charge(&self, tokens: u64) -> u64 {
        let present = self.limiter.successor(&self.setup);
        let setup = present.as_ref().unwrap_or(&self.setup);
        let driver = match &setup.way {
            Way::Local { governed, quota } => return governed.charge(setup.rule, &self.key(), tokens, quota),
            Way::Shared { driver, .. } => driver,
            Way::Constant(_) | Way::Lifted => return 0,
        };
        if let Some(template) = setup.terms.plain {
            setup.charge_count(driver, template, &self.key(), tokens);
            return tokens;
        }
        let open = self.cell.as_ref().filter(|cell| !cell.is_closed());
        let successor = || driver.tier().cell(setup.rule, &self.key()).ok().filter(|_| present.is_some());
        // One that is closed tells nobody any more; of a rule that is gone there is no other.
        let Some(cell) = open.cloned().or_else(successor) else { return 0 };
        if self.taken && setup.terms.mode != Mode::Buffered {
            cell.add_debt(tokens);
        } else {
            cell.add_outage(tokens);
        }
        driver.tier().call(&cell);
        tokens
    }

    fn key(&self) -> Key<'_> {
        Key::stored(&self.key, self.digest)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if let Some(cell) = &self.cell {
            cell.unreserve();
            cell.unpin();
        }
    }
}

/// Its time has passed.
impl Wake for Core {
    fn wake(self: Arc<Self>) {
        self.abandon();
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key: what users are called is not for logs.
        f.debug_struct("Reservation")
            .field("rule", &self.core.setup.terms.name)
            .field("estimate", &self.core.estimate)
            .field("state", &*self.core.state())
            .finish_non_exhaustive()
    }
}
