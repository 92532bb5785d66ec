//! What goes wrong, and how much more may be admitted because of it.

use super::{Conceded, Run, What};
use crate::{
    algorithm::Algorithm,
    lease::Numbers,
    rule::{Cold, Mode, Terms},
    sim::world::{
        faults::Fault,
        node::{Slot, State},
    },
    time::Micros,
};
use std::{collections::HashMap, mem};

impl<'w> Run<'w> {
    pub(super) fn fault(&mut self, n: usize, now: Micros) {
        let (_, fault) = self.faults[n];
        match fault {
            Fault::Crash { instance, down } => {
                if let Some(slot) = self.slots.get_mut(instance).filter(|slot| slot.node.state != State::Down) {
                    slot.node.state = State::Down;
                    slot.until = now.plus(down.into());
                    let until = slot.until;
                    self.event(until, What::Back(instance));
                }
            }
            Fault::Freeze { instance, span } => {
                if let Some(slot) = self.slots.get_mut(instance).filter(|slot| slot.node.state == State::Up) {
                    slot.node.state = State::Frozen;
                    slot.until = now.plus(span.into());
                    let until = slot.until;
                    self.event(until, What::Back(instance));
                }
            }
            Fault::Cut { instance, span } => {
                let until = now.plus(span.into());
                let cut = |slot: &mut Slot| slot.cut_until = slot.cut_until.max(until);
                match instance {
                    Some(instance) => self.slots.get_mut(instance).into_iter().for_each(cut),
                    None => self.slots.iter_mut().for_each(cut),
                }
            }
            Fault::Stall { span } => self.stalled_until = self.stalled_until.max(now.plus(span.into())),
            Fault::Wipe => {
                self.concede_lost_memory(now);
                self.store.wipe();
            }
            Fault::Failover { lag } => {
                if let Some(saved) = self.saved.remove(&n) {
                    self.concede_failover(now, lag.into());
                    self.store.restore(&saved);
                }
            }
            Fault::Step { micros } => {
                self.concede_step(now, micros);
                self.store.step_clock(micros);
                let offset = self.steps.last().map_or(0, |(_, offset)| *offset);
                self.steps.push((now, offset.saturating_add(micros)));
            }
        }
    }

    /// A frozen or dead instance goes on.
    pub(super) fn back(&mut self, place: usize, now: Micros) {
        let slot = &self.slots[place];
        if slot.until != now {
            return; // crashed while it was frozen
        }
        match slot.node.state {
            State::Up => {}
            State::Down => {
                self.slots[place].node = self.give_birth();
                self.wake(place, now);
            }
            State::Frozen => {
                self.slots[place].node.state = State::Up;
                for n in mem::take(&mut self.held) {
                    if self.letters[n].as_ref().is_some_and(|letter| letter.place == place) {
                        self.letter(n, now);
                    } else {
                        self.held.push(n);
                    }
                }
                self.slots[place].node.wake = Micros::MAX;
                self.wake(place, now);
            }
        }
    }

    pub(super) fn concede(&mut self, at: Micros, key: usize, tokens: u64) {
        let rule = self.rule_of(key);
        // A turn of a queue that is given twice may fall behind a larger one that is out of its place, and is early by
        // that one's time.
        let queued = rule.numbers.algorithm == Algorithm::LeakyQueue;
        let larger = if queued { self.plan.traffic.largest_cost() - 1 } else { 0 };
        // What happens to the authority is nothing to who asks it nothing.
        if tokens > 0 && rule.mode != Mode::Local {
            self.conceded.push(Conceded { at, key: key as u32, tokens: tokens + larger });
        }
    }

    pub(super) fn rule_of(&self, key: usize) -> &'w Terms {
        &self.terms[key / self.keys.len()]
    }

    /// A `Buffered` instance may be ahead of the authority; one with a credit may take it in each lease life.
    pub(super) fn concede_a_birth(&mut self) {
        let now = self.clock.now();
        let span = self.plan.span.plus(self.plan.rest);
        for key in 0..self.names.len() {
            let terms = self.rule_of(key);
            if terms.mode == Mode::Buffered {
                self.concede(now, key, terms.ahead(1));
            }
            if let Cold::Credit(tokens) = terms.cold {
                let lives = span.0 / terms.lease_ttl.0.max(1) + 1;
                self.concede(now, key, tokens.saturating_mul(lives));
            }
        }
    }

    /// What may be spent twice when the authority forgets: what is out, one burst where one who never knew the bucket
    /// asks first (or it starts full), and what was owed.
    ///
    /// Let T be what is free, and G be T less all that instances gave themselves and have not told (see
    /// `sync::ahead`): what is admitted in a span is G at its start, the refill, and all leaps of T, less G at its end.
    /// G starts at the burst at most, or after the loss at the burst and what is out; it ends at `-N * ahead` or more,
    /// which their births have conceded. When memory is lost T leaps from where it was to the burst. Debts that are
    /// booked put T below zero, and then that is more than a burst.
    pub(super) fn concede_lost_memory(&mut self, now: Micros) {
        for key in 0..self.names.len() {
            let (out, owed) = self.out_and_owed(key);
            self.concede(now, key, out.saturating_add(owed).saturating_add(most(&self.rule_of(key).numbers)));
        }
    }

    /// What is lent of a key, and how far what is free is below zero. (A queue is below zero when it is used.)
    fn out_and_owed(&self, key: usize) -> (u64, u64) {
        let is_queue = self.rule_of(key).numbers.algorithm == Algorithm::LeakyQueue;
        let owed = |free: i64| if is_queue { 0 } else { free.min(0).unsigned_abs() };
        self.store.sums(&self.names[key]).map_or((0, 0), |sums| (sums.out, owed(sums.free)))
    }

    /// What was let go in the lost time.
    pub(super) fn concede_failover(&mut self, now: Micros, lag: Micros) {
        let since = now.minus(lag);
        let mut lost: HashMap<u32, u64> = HashMap::new();
        for (at, key, tokens) in self.lent.iter().flatten().rev().take_while(|(at, ..)| *at >= since) {
            debug_assert!(*at <= now);
            *lost.entry(*key).or_default() += tokens;
        }
        let mut lost: Vec<_> = lost.into_iter().collect();
        lost.sort_unstable();
        lost.into_iter().for_each(|(key, tokens)| self.concede(now, key as usize, tokens));
    }

    /// A step forward ends leases early, and brings refill that no time has brought. After any step a `Buffered` instance
    /// may take for two windows what the authority takes for one, and be ahead in both.
    pub(super) fn concede_step(&mut self, now: Micros, micros: i64) {
        let instances = self.slots.len() as u64;
        for key in 0..self.names.len() {
            let terms = self.rule_of(key);
            if terms.mode == Mode::Buffered && terms.numbers.algorithm == Algorithm::FixedWindow {
                self.concede(now, key, terms.ahead(1).saturating_mul(instances));
            }
        }
        let Ok(step) = u64::try_from(micros) else { return };
        for key in 0..self.names.len() {
            let numbers = &self.rule_of(key).numbers;
            let (out, owed) = self.out_and_owed(key);
            // Windows are judged by the authority's clock, to which no time was added.
            let came = numbers.rate.tokens_in(Micros(step)).saturating_add(1);
            let refill = if numbers.algorithm.is_window() { 0 } else { came.min(most(numbers).saturating_add(owed)) };
            self.concede(now, key, out.saturating_add(refill));
        }
    }
}

/// The most that a full machine lets pass at once: from a queue one leaves, and so many wait.
fn most(numbers: &Numbers) -> u64 {
    numbers.burst + u64::from(numbers.algorithm == Algorithm::LeakyQueue)
}
