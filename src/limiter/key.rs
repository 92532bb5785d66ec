//! `KeyHandle`: checks of one key without a look-up.

use super::{
    handle::Limiter,
    road::Step,
    setup::{Setup, Way},
};
use crate::{
    decision::Decision,
    key::Key,
    local::{Cell, Local},
    rule::Mode,
};
use std::{fmt, sync::Arc};

/// One key of one limiter. Clones share; the last one lets the key go.
#[derive(Clone, Debug)]
pub struct KeyHandle {
    place: Arc<Place>,
}

struct Place {
    limiter: Limiter,
    key: Box<[u8]>,
    /// Pinned while this lives. `None` where the rule is `Local` or the registry was full.
    cell: Option<Arc<Cell>>,
}

impl KeyHandle {
    pub(super) fn new(limiter: Limiter, key: &[u8]) -> KeyHandle {
        let setup = limiter.answers(key);
        let cell = match (&setup.way, Key::new(key, setup.long)) {
            (Way::Shared { driver, .. }, Some(name)) if matches!(setup.terms.mode, Mode::Leased | Mode::Buffered) => {
                // Twice, should the first cell be closed just now.
                let mut found = (0..2).filter_map(|_| driver.tier().cell(setup.rule, &name).ok());
                let cell = found.find(|cell| cell.pin());
                // The engine lets idle cells go, and only those that it knows.
                cell.inspect(|cell| driver.tier().call(cell))
            }
            _ => None,
        };
        drop(setup);
        KeyHandle { place: Arc::new(Place { limiter, key: key.into(), cell }) }
    }

    /// Asks for one token; see [`Limiter::check_n`].
    pub async fn check(&self) -> Decision {
        self.check_n(1).await
    }

    /// Asks for `cost` tokens; see [`Limiter::check_n`].
    pub async fn check_n(&self, cost: u64) -> Decision {
        match self.first(cost) {
            Some((_, Step::Done(decision))) => decision,
            Some((setup, Step::Ask(cell))) => setup.ask(cell, cost).await,
            None => self.place.limiter.check_n(&self.place.key, cost).await,
        }
    }

    /// Asks for one token and never waits; see [`Limiter::check_now_n`].
    #[inline]
    pub fn check_now(&self) -> Decision {
        self.check_now_n(1)
    }

    /// Asks for `cost` tokens and never waits; see [`Limiter::check_now_n`].
    #[inline]
    pub fn check_now_n(&self, cost: u64) -> Decision {
        match self.local(cost) {
            Some((setup, local)) => setup.at_once(local, cost),
            None => self.place.limiter.check_now_n(&self.place.key, cost),
        }
    }

    /// Asks for one token, parking this thread while the key is cold; see [`Limiter::check_n`].
    pub fn check_blocking(&self) -> Decision {
        self.check_blocking_n(1)
    }

    /// Asks for `cost` tokens, parking this thread while the key is cold; see [`Limiter::check_n`].
    pub fn check_blocking_n(&self, cost: u64) -> Decision {
        match self.first(cost) {
            Some((_, Step::Done(decision))) => decision,
            Some((setup, Step::Ask(cell))) => setup.ask_blocking(cell, cost),
            None => self.place.limiter.check_blocking_n(&self.place.key, cost),
        }
    }

    /// Looks and changes nothing; see [`Limiter::peek`].
    pub async fn peek(&self) -> Decision {
        self.place.limiter.peek(&self.place.key).await
    }

    /// Gives tokens back; see [`Limiter::refund`].
    pub fn refund(&self, tokens: u64) {
        self.place.limiter.refund(&self.place.key, tokens);
    }

    /// Whose key it is, and its bytes.
    pub(super) fn parts(&self) -> (&Limiter, &[u8]) {
        (&self.place.limiter, &self.place.key)
    }

    /// What the local tier says of this cell; `None` where it has to be looked up after all: the rule was replaced, say.
    #[inline]
    fn local(&self, cost: u64) -> Option<(&Setup, Local)> {
        let setup = &*self.place.limiter.setup;
        match (&self.place.cell, &setup.way) {
            (Some(cell), Way::Shared { driver, .. })
                if setup.is_straight() && cost > 0 && cost <= setup.terms.numbers.burst =>
            {
                Some((setup, driver.tier().check_cell(cell, cost)))
            }
            _ => None,
        }
    }

    fn first(&self, cost: u64) -> Option<(&Setup, Step)> {
        self.local(cost).map(|(setup, local)| (setup, setup.step(local, cost)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(cell) = &self.cell {
            cell.unpin();
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key: what users are called is not for logs.
        f.debug_struct("Place").field("limiter", &self.limiter.name()).finish_non_exhaustive()
    }
}
