//! The end of a world: all admissions replayed through one plain machine for each key.

use super::{Admitted, Run, Sort};
use crate::{
    algorithm::Algorithm,
    key::{Key, LongKeys},
    lease::Numbers,
    rule::Mode,
    sim::{
        Admission,
        central::{Central, Moment},
        world::report::{Report, Violation},
    },
    time::Micros,
};
use std::{collections::HashMap, time::Duration};

impl<'w> Run<'w> {
    /// A moment on the authority's clock.
    pub(super) fn moment(&self, at: Micros) -> Moment {
        let known = self.steps.partition_point(|(since, _)| *since <= at).max(1);
        let forward = self.steps[..known].windows(2).map(|pair| (pair[1].1 - pair[0].1).max(0)).sum::<i64>();
        let there = (at.0 as i64).saturating_add(self.steps[known - 1].1);
        Moment {
            at,
            shown: Micros(at.0.saturating_add(forward.unsigned_abs())),
            there: Micros(u64::try_from(there).unwrap_or(0)),
            steps: known as u32,
        }
    }

    /// Replays all admissions through one machine for each key.
    pub(super) fn judge(mut self) -> Report {
        // Nearly in order: only what the authority gave is told later than it was given.
        self.trace.sort_by_key(|admitted| admitted.when);
        let begin = self.begin;
        let since = |at: Micros| at.minus(begin);
        let mut report = Report {
            seed: self.plan.seed,
            span: self.plan.span.plus(self.plan.rest),
            requests: self.requests,
            admissions: self.trace.iter().filter(|a| a.sort == Sort::Admitted).count() as u64,
            places: self.slots.iter().map(|slot| slot.place).collect(),
            central: self.central_sum,
            violations: 0,
            first: None,
            excess: 0.0,
            conceded: 0,
            bound: self.bound(),
            states_lost: self.states_lost,
            conserved: None,
            unbalanced: None,
            trace: Vec::new(),
        };
        let calendar = self.clock.calendar().minus(self.clock.now());
        let locals = self.terms.iter().any(|terms| terms.mode == Mode::Local);
        // (machine, parts conceded so far), for each key, or for each key and instance of a local rule.
        let mut machines: HashMap<(u32, u32), (Central, i128)> = HashMap::new();
        let mut row: Vec<Option<(Central, i128)>> = vec![None; self.names.len()];
        let mut exceptions = self.conceded.iter().peekable();
        let mut given: HashMap<u32, u64> = HashMap::new();
        let plain = self.steps.len() == 1;
        let back = self.steps.windows(2).any(|pair| pair[1].1 < pair[0].1);
        let machine_of = |of: &Numbers| if plain { Central::new(of) } else { Central::of_a_set_clock(of, back) };
        let offset = self.steps[0].1;
        for admitted in &self.trace {
            let at = admitted.when.at;
            while let Some(exception) = exceptions.next_if(|exception| exception.at <= at) {
                let terms = self.rule_of(exception.key as usize);
                let place = &mut row[exception.key as usize];
                let (machine, parts) = place.get_or_insert_with(|| (machine_of(&terms.numbers), 0));
                *parts += machine.parts(exception.tokens);
                let sum = given.entry(exception.key).or_default();
                *sum += exception.tokens;
                report.conceded = report.conceded.max(*sum);
            }
            let terms = self.rule_of(admitted.key as usize);
            let local = locals && terms.mode == Mode::Local;
            let (machine, parts) = if local {
                let fresh = || (Central::new(&terms.numbers), 0);
                machines.entry((admitted.key, admitted.who)).or_insert_with(fresh)
            } else {
                row[admitted.key as usize].get_or_insert_with(|| (machine_of(&terms.numbers), 0))
            };
            let moment = if local {
                // By the instance's own calendar, which nobody sets.
                Moment { at, shown: at, there: at.plus(calendar), steps: 1 }
            } else if plain {
                Moment { at, shown: at, there: Micros((at.0 as i64 + offset) as u64), steps: 1 }
            } else {
                self.moment(at)
            };
            if admitted.sort != Sort::Admitted {
                // In a window it is as if neither had been, and a turn that nobody took keeps nobody apart.
                match admitted.sort {
                    Sort::Back => machine.give_back(moment, admitted.cost),
                    _ if terms.numbers.algorithm.is_window() => {}
                    _ if terms.numbers.algorithm == Algorithm::LeakyQueue => {}
                    _ => _ = machine.take(moment, admitted.cost),
                }
                continue;
            }
            let over = machine.take(moment, admitted.cost);
            if over > 0 {
                report.excess = report.excess.max(machine.tokens(over));
                if over > *parts {
                    report.violations += 1;
                    report.first.get_or_insert_with(|| Violation {
                        rule: admitted.key as usize / self.keys.len(),
                        key: admitted.key % self.keys.len() as u32,
                        from: since(machine.since()),
                        to: since(at),
                        excess: machine.tokens(over - *parts),
                    });
                }
            }
        }
        if self.plan.traces {
            let first = self.trace.iter().filter(|a| (a.key as usize) < self.keys.len() && a.sort == Sort::Admitted);
            let as_seen = |a: &Admitted| Admission { before: since(a.when.at), after: since(a.when.at), cost: a.cost };
            report.trace = first.map(as_seen).collect();
        }
        if let Some(audit) = &self.audit {
            let key = Key::new(&self.keys[0], LongKeys::Hash);
            let held = key.map_or(0, |key| self.slots.iter().map(|slot| slot.node.held(0, &key)).sum());
            let admitted = self.trace.iter().filter(|a| a.key == 0 && a.sort == Sort::Admitted).map(|a| a.cost).sum();
            report.conserved = Some(audit.close(admitted, held, self.store.sums(&self.names[0])));
            report.unbalanced = audit.unbalanced().map(since);
        }
        report
    }

    /// The bound of the first rule, in words.
    pub(super) fn bound(&self) -> String {
        let numbers = &self.terms[0].numbers;
        let mut words = if numbers.algorithm.is_window() {
            format!("{} in {:?}", numbers.burst, Duration::from(numbers.window))
        } else {
            format!("{} + {:.3}/s * T", numbers.burst, numbers.rate.per_second())
        };
        match self.terms[0].mode {
            Mode::Local => words.push_str(", each instance"),
            Mode::Buffered => words.push_str(" + N * ahead"),
            _ => {}
        }
        words
    }
}
