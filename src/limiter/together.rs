//! Several limits in one decision: all of them give their tokens, or none does.
//!
//! What this process can answer is taken first and kept in the air; who has to be asked is asked after that, all at
//! once. When all have said yes, what is in the air is spent; when one has not, everything goes back: to where it lay, or
//! through the engine where the authority had given it. Nothing here crosses keys in the store.

use super::{
    handle::Limiter,
    road::{LAG, Step, Taking},
    setup::{Setup, Way, count},
};
use crate::{
    decision::{Decision, Source, Verdict},
    error::ErrorKind,
    key::Key,
    local::{Cell, Draw, Drawn, Spent, Verdict as Said},
    rule::Mode,
    time::Micros,
};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
};

#[cfg(all(test, not(tollgate_loom)))]
mod tests;

/// The most limits in one decision.
pub(crate) const LIMITS_MAX: usize = 64;

/// What one limit has given so far.
enum Hand {
    /// Nothing that would have to go back.
    Empty,
    /// Tokens of a limit that this process keeps alone.
    Local(Spent, Said),
    /// Leased tokens, in the air.
    Air(Drawn),
    /// Tokens that the engine has handed out, or that have been spent already.
    Given,
    /// The engine has to be asked.
    Ask(Arc<Cell>),
    /// The authority has to count it on a plain key.
    Count,
}

/// One limit of several. Dropped, it gives back what is in its hand.
struct Part<'a> {
    limiter: &'a Limiter,
    setup: Arc<Setup>,
    key: Key<'a>,
    cost: u64,
    /// Nothing was taken before this.
    since: Micros,
    hand: Hand,
    said: Option<Decision>,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Local(spent, _) => {
                let present = self.limiter.successor(&self.setup);
                if let Way::Local { governed, quota } = &present.as_ref().unwrap_or(&self.setup).way {
                    governed.put_back(&spent, quota);
                } else if let Way::Local { governed, quota } = &self.setup.way {
                    governed.put_back(&spent, quota); // nobody counts by other numbers
                }
            }
            Hand::Given => {
                let taking = Taking::new(self.since, &self.said.unwrap_or(Decision::unasked()));
                self.setup.give_back(&self.key, self.cost, taking);
            }
            Hand::Air(_) | Hand::Ask(_) | Hand::Count | Hand::Empty => {} // what is in the air comes down by itself
        }
    }
}

impl Part<'_> {
    fn is_refused(&self) -> bool {
        self.said.is_some_and(|said| !said.is_allowed())
    }

    /// Takes what this process has, and says so; or has to ask.
    fn take(&mut self) {
        let setup = &self.setup;
        let (hand, said) = match &setup.way {
            Way::Constant(constant) => (Hand::Empty, Some(setup.by_rule(*constant, true))),
            Way::Lifted => (Hand::Empty, Some(setup.lifted(true))),
            Way::Local { governed, quota } => match governed.take(setup.rule, &self.key, self.cost, quota) {
                (said @ (Said::Allowed { remaining } | Said::Queued { remaining, .. }), Some(spent)) => {
                    (Hand::Local(spent, said), Some(setup.allowed(remaining, Source::Local)))
                }
                (said, _) => (Hand::Empty, Some(setup.governed(said))),
            },
            Way::Shared { .. } if self.cost > setup.terms.cost_max() => {
                count(&setup.tallies.never);
                (Hand::Empty, Some(setup.never(Source::Lease)))
            }
            Way::Shared { .. } if setup.terms.plain.is_some() => (Hand::Count, None),
            Way::Shared { driver, .. } if setup.terms.mode == Mode::Exact => {
                match driver.tier().cell(setup.rule, &self.key) {
                    Ok(cell) => (Hand::Ask(cell), None),
                    Err(_) => (Hand::Empty, Some(setup.uncounted_saturated())),
                }
            }
            Way::Shared { driver, .. } => match driver.tier().draw(setup.rule, &self.key, self.cost) {
                Draw::Drawn(drawn) => {
                    let remaining = drawn.remaining();
                    (Hand::Air(drawn), Some(setup.allowed(remaining, Source::Lease)))
                }
                Draw::Denied { wait, remaining } => {
                    (Hand::Empty, Some(setup.denied(wait.plus(LAG), remaining, Source::Lease)))
                }
                Draw::Cold(cell) => (Hand::Ask(cell), None),
                Draw::Saturated => (Hand::Empty, Some(setup.saturated())),
            },
        };
        // A rule that shadows says yes to what it refuses, and has nothing taken.
        self.said = said.map(|said| setup.spoken(said));
        self.hand = hand;
    }

    /// The answer of somebody who was asked.
    fn told(&mut self, said: Decision) {
        // What an outage let through was not taken from anybody.
        let given = said.is_allowed() && matches!(said.source, Source::Authority | Source::Lease);
        self.hand = if given { Hand::Given } else { Hand::Empty };
        self.said = Some(self.setup.spoken(said));
    }

    /// Whom to ask, if somebody has to be: a `Buffered` key that nobody has asked for before has an allowance.
    fn first(&mut self) -> Option<Arc<Cell>> {
        let (Hand::Ask(cell), Way::Shared { driver, .. }) = (&self.hand, &self.setup.way) else { return None };
        match self.setup.first_of(cell.clone(), self.cost) {
            Step::Ask(cell) => Some(cell),
            Step::Done(said) => {
                driver.tier().call(cell); // to take charge of it
                self.told(said);
                None
            }
        }
    }

    /// Asks for somebody who cannot wait.
    fn ask_now(&mut self) {
        if matches!(self.hand, Hand::Count) {
            self.hand = Hand::Empty;
            self.said = Some(self.setup.spoken(self.setup.exact_now(&self.key, self.cost)));
            return;
        }
        let Some(cell) = self.first() else { return };
        self.hand = Hand::Empty;
        self.said = Some(self.setup.spoken(match self.setup.terms.mode {
            Mode::Exact => self.setup.exact_now(&self.key, self.cost),
            _ => self.setup.cold(&cell, self.cost),
        }));
    }

    /// Spends what is in the air. Where its lease has ended meanwhile, the key has to be asked for anew.
    fn commit(&mut self) {
        let Way::Shared { driver, .. } = &self.setup.way else { return };
        self.hand = match std::mem::replace(&mut self.hand, Hand::Empty) {
            Hand::Air(drawn) => match driver.tier().commit(drawn) {
                Ok(()) => Hand::Given,
                Err(cell) => Hand::Ask(cell),
            },
            other => other,
        };
    }

    /// It stays spent.
    fn keep(&mut self) {
        if let (Hand::Local(spent, said), Way::Local { governed, .. }) =
            (std::mem::replace(&mut self.hand, Hand::Empty), &self.setup.way)
        {
            governed.keep(spent, said);
        }
    }
}

/// The limits, each key of a rule once, with the sum of its costs. An error is the whole answer.
fn gather<'a>(limits: &[(&'a Limiter, &'a [u8], u64)]) -> Result<Vec<Part<'a>>, Decision> {
    if limits.len() > LIMITS_MAX {
        let none = Decision::unasked();
        return Err(Decision {
            verdict: Verdict::Never,
            trouble: Some(ErrorKind::Config),
            limit: 0,
            remaining: 0,
            ..none
        });
    }
    let mut parts: Vec<Part<'a>> = Vec::with_capacity(limits.len());
    let Some((first, ..)) = limits.first() else { return Ok(parts) };
    // One look for all of them: rules that are replaced meanwhile are seen by all or by none.
    let set = first.set();
    for &(limiter, bytes, cost) in limits {
        let setup = limiter.answers_by(&set, first, bytes);
        let Some(key) = setup.key(bytes) else { return Err(setup.spoken(setup.bad_key())) };
        let same = |part: &&mut Part<'_>| part.setup.is_same(&setup) && part.key == key;
        match parts.iter_mut().find(same) {
            Some(part) => part.cost = part.cost.saturating_add(cost),
            None => {
                // The coarse hand is never ahead.
                let since = setup.clock.coarse();
                parts.push(Part { limiter, setup, key, cost, since, hand: Hand::Empty, said: None });
            }
        }
    }
    Ok(parts)
}

/// Takes from all who can be answered here. Those who need nothing say what is known.
fn take(parts: &mut [Part<'_>]) {
    for part in parts {
        if part.cost > 0 {
            part.take();
        } else {
            let known = part.setup.known(&part.key);
            part.said = Some(Decision { verdict: Verdict::Allowed, refused_by: None, ..known });
        }
    }
}

/// Asks for tokens of all limits, all or none.
pub(crate) async fn check_all(limits: &[(&Limiter, &[u8], u64)]) -> Decision {
    let mut parts = match gather(limits) {
        Ok(parts) => parts,
        Err(decision) => return decision,
    };
    take(&mut parts);
    // Each round has fewer in the air than the one before: it ends.
    while !parts.iter().any(Part::is_refused) {
        ask(&mut parts).await;
        if settle(&mut parts) {
            break;
        }
    }
    verdict(&parts)
}

/// Spends what is in the air, if nobody has refused; whether nothing is left to be asked.
fn settle(parts: &mut [Part<'_>]) -> bool {
    if parts.iter().any(Part::is_refused) {
        return true;
    }
    parts.iter_mut().for_each(Part::commit);
    let done = !parts.iter().any(|part| matches!(part.hand, Hand::Ask(_)));
    if done {
        parts.iter_mut().for_each(Part::keep);
    }
    done
}

/// [`check_all`] for those who cannot wait.
pub(crate) fn check_all_now(limits: &[(&Limiter, &[u8], u64)]) -> Decision {
    let mut parts = match gather(limits) {
        Ok(parts) => parts,
        Err(decision) => return decision,
    };
    take(&mut parts);
    loop {
        // Cold keys last, and only as long as nobody has refused: a policy may spend what cannot be put back.
        for at in 0..parts.len() {
            if !parts.iter().any(Part::is_refused) {
                parts[at].ask_now();
            } else if let (Hand::Ask(cell), Way::Shared { driver, .. }) = (&parts[at].hand, &parts[at].setup.way)
                && parts[at].setup.terms.mode != Mode::Exact
            {
                driver.tier().call(cell); // warm the next time
            }
        }
        if settle(&mut parts) {
            return verdict(&parts);
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// Asks, all at once, for those who have to.
async fn ask(parts: &mut [Part<'_>]) {
    let mut open: Vec<(usize, Asked)> = Vec::new();
    for (at, part) in parts.iter_mut().enumerate() {
        if matches!(part.hand, Hand::Count) {
            let (setup, cost) = (part.setup.clone(), part.cost);
            let (key, digest): (Box<[u8]>, bool) = (part.key.bytes().into(), part.key.is_digest());
            part.hand = Hand::Empty;
            open.push((at, Box::pin(async move { setup.count(&Key::stored(&key, digest), cost).await })));
            continue;
        }
        if let Some(cell) = part.first() {
            let (setup, cost) = (part.setup.clone(), part.cost);
            part.hand = Hand::Empty;
            open.push((at, Box::pin(async move { setup.ask(cell, cost).await })));
        }
    }
    poll_fn(|context| {
        // What is answered is in its part's hand at once, and goes back from there when this call is dropped.
        open.retain_mut(|(at, asked)| match asked.as_mut().poll(context) {
            Poll::Ready(said) => {
                parts[*at].told(said);
                false
            }
            Poll::Pending => true,
        });
        if open.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn verdict(parts: &[Part<'_>]) -> Decision {
    let said: Vec<Decision> = parts.iter().filter_map(|part| part.said).collect();
    combine(&said)
}

/// One answer of many: of those who refuse the first, with the longest wait of all who do; else the one nearest to being
/// exhausted, with the longest delay.
fn combine(all: &[Decision]) -> Decision {
    let refusing = || all.iter().filter(|said| !said.is_allowed());
    if let Some(first) = refusing().next() {
        // Where one can never say yes, or nobody knows when it will, that holds for all together.
        let never = refusing().any(Decision::is_never);
        let wait = refusing().filter(|said| !said.is_never()).map(|said| said.retry_after).max();
        let verdict = if never { Verdict::Never } else { first.verdict };
        return Decision { verdict, retry_after: wait.unwrap_or(Micros::ZERO), ..*first };
    }
    let share = |a: &Decision, of: &Decision| u128::from(a.remaining) * u128::from(of.limit);
    let nearest = all.iter().copied().reduce(|a, b| if share(&b, &a) < share(&a, &b) { b } else { a });
    let Some(nearest) = nearest else { return Decision::unasked() };
    let delay = all.iter().map(|said| said.delay).max().unwrap_or_default();
    let trouble = nearest.trouble.or_else(|| all.iter().find_map(|said| said.trouble));
    Decision { delay, trouble, ..nearest }
}
