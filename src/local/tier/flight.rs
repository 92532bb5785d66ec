//! Tokens taken for a decision of several limits: in the air until all have said yes, then spent or put back.

use super::Tier;
use crate::{
    key::Key,
    local::{
        cell::Cell,
        front::{self, Count},
        keyed::{Keyed, Probe},
    },
    time::Micros,
};
use std::sync::Arc;

/// What this process can say to one limit of several.
#[derive(Debug)]
pub(crate) enum Draw {
    /// Its tokens are in the air.
    Drawn(Drawn),
    /// The authority has said not to ask again so soon.
    Denied { wait: Micros, remaining: u64 },
    /// Not enough here; the engine has to be asked.
    Cold(Arc<Cell>),
    /// A new key, and no room for it.
    Saturated,
}

/// Tokens in the air. Dropped, they go back.
#[derive(Debug)]
#[must_use = "what is dropped goes back"]
pub(crate) struct Drawn {
    cell: Arc<Cell>,
    generation: u64,
    cost: u64,
    left: u64,
    landed: bool,
}

impl Drop for Drawn {
    fn drop(&mut self) {
        if !self.landed {
            self.cell.purse.restore(self.cell.moves(), self.generation, self.cost);
        }
    }
}

impl Drawn {
    /// Tokens that can probably still be had beside these.
    pub(crate) fn remaining(&self) -> u64 {
        self.left.saturating_add(self.cell.free())
    }
}

impl Tier {
    /// Takes `cost` tokens, at least 1, out of the pool, to be [committed](Tier::commit) or dropped.
    ///
    /// Counts a refusal and nothing else. Reads the precise clock.
    pub(crate) fn draw(&self, rule: u32, key: &Key<'_>, cost: u64) -> Draw {
        let probe = Probe::new(rule, key);
        let Ok(cell) = self.registry.get_or_insert(&probe, |name| Cell::new(name, self.gate)) else {
            front::count(&self.totals, Count::Saturated);
            return Draw::Saturated;
        };
        let now = self.clock.now();
        if let Some(drawn) = self.try_draw(&cell, cost, now) {
            return Draw::Drawn(drawn);
        }
        match cell.denied(cost, now) {
            Some(wait) => {
                cell.refuse(cost);
                front::count(&self.totals, Count::Denied);
                Draw::Denied { wait, remaining: cell.remaining(now) }
            }
            None => Draw::Cold(cell),
        }
    }

    fn try_draw(&self, cell: &Arc<Cell>, cost: u64, now: Micros) -> Option<Drawn> {
        let lease = cell.purse.lease();
        if !cell.is_live(lease, now, &self.clock) {
            return None;
        }
        let generation = lease.generation();
        let draw = || cell.purse.draw(cell.moves(), generation, cost).ok();
        let left = draw().or_else(|| {
            // What this thread has taken ahead belongs to it as well.
            front::release(front::of_gate(self.gate, cell.name().hash()), |there| Arc::ptr_eq(there, cell));
            draw()
        })?;
        Some(Drawn { cell: cell.clone(), generation, cost, left, landed: false })
    }

    /// Spends what is in the air; when its lease has ended meanwhile, the tokens are worthless, and the cell has to be
    /// asked anew.
    pub(crate) fn commit(&self, mut drawn: Drawn) -> Result<(), Arc<Cell>> {
        let (lease, now) = (drawn.cell.purse.lease(), self.clock.now());
        if lease.generation() != drawn.generation || !drawn.cell.is_live(lease, now, &self.clock) {
            return Err(drawn.cell.clone());
        }
        drawn.landed = true;
        drawn.cell.purse.land(drawn.cell.moves(), drawn.cost);
        front::count(&self.totals, Count::Admitted);
        if drawn.cell.is_low(drawn.left) {
            self.call(&drawn.cell);
        }
        Ok(())
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        local::{Bell, Local},
    };

    struct Silent;

    impl Bell for Silent {
        fn ring(&self) {}
    }

    const KEY: Key<'_> = Key::Raw(b"k");

    /// A tier on a clock that stands still, with a key that holds so many tokens for 10 s.
    fn tier(tokens: u64) -> (Arc<Tier>, Clock, Arc<Cell>) {
        let clock = Clock::manual();
        let tier = Tier::new(clock.clone(), 1, Arc::new(Silent));
        let cell = tier.cell(0, &KEY).expect("there is room");
        cell.reborn();
        cell.grant(tokens, clock.now().plus(Micros::from_secs(10)));
        (tier, clock, cell)
    }

    #[track_caller]
    fn drawn(tier: &Tier, cost: u64) -> Drawn {
        match tier.draw(0, &KEY, cost) {
            Draw::Drawn(drawn) => drawn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_in_the_air_is_held_and_comes_back_or_is_spent() {
        let (tier, _, cell) = tier(10);
        let first = drawn(&tier, 4);
        assert_eq!((cell.look().hold, cell.look().pool, first.remaining()), (10, 6, 6));
        drop(first);
        assert_eq!((cell.look().hold, cell.look().pool), (10, 10));
        assert!(tier.commit(drawn(&tier, 10)).is_ok());
        assert_eq!((cell.look().hold, cell.look().pool), (0, 0));
        assert!(matches!(tier.draw(0, &KEY, 1), Draw::Cold(_)));
        assert_eq!((tier.counts().admitted, tier.counts().denied), (1, 0), "what went back was no check");
    }

    #[test]
    fn what_was_in_the_air_when_its_lease_ended_is_worthless() {
        let (tier, clock, cell) = tier(10);
        let (old, older) = (drawn(&tier, 4), drawn(&tier, 3));
        cell.reborn();
        cell.grant(5, clock.now().plus(Micros::from_secs(10)));
        assert!(tier.commit(old).is_err());
        drop(older);
        assert_eq!((cell.look().hold, cell.look().pool), (5, 5), "nothing of the old lease came back");

        let late = drawn(&tier, 5);
        clock.advance(Micros::from_secs(10));
        assert!(tier.commit(late).is_err(), "its end has passed, though nobody has noticed yet");
    }

    #[test]
    fn a_refusal_that_is_remembered_refuses_and_is_counted() {
        let (tier, clock, cell) = tier(0);
        cell.deny_until(1, clock.now().plus(Micros::from_millis(50)));
        assert!(matches!(tier.draw(0, &KEY, 1), Draw::Denied { wait: Micros(50_000), remaining: 0 }));
        assert_eq!((tier.counts().denied, cell.look().refused), (1, 1));
        assert!(matches!(tier.draw(0, &Key::Raw(b"another"), 1), Draw::Saturated));
    }

    #[test]
    fn the_threads_own_credit_is_not_missed() {
        let (tier, _, cell) = tier(100);
        cell.set_hot(true);
        for _ in 0..3 {
            assert!(matches!(tier.check(0, &KEY, 1), Local::Allowed { .. }));
        }
        assert!(cell.look().pool < 97, "the thread has some");
        assert!(tier.commit(drawn(&tier, 97)).is_ok());
        assert_eq!(cell.look().hold, 0);
    }
}
