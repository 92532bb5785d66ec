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
