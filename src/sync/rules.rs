//! The rules that the engine goes by, and how they are replaced as a whole between two turns.
//!
//! A rule's number never changes its meaning: the same number is the same name and algorithm for the
//! gate's whole life. New rules get new numbers, and one that was removed keeps its own.

use super::turn::Engine;
use crate::{
    rule::{Mode, Terms},
    time::Micros,
};

/// One rule, as of its latest edition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) terms: Terms,
    /// Whether anybody may still be served by it; one that was removed is kept for its buckets' last words.
    pub(super) live: bool,
    /// Rises with each change: a bucket that knows another one has not heard of it.
    pub(super) edition: u32,
}

/// All rules, by number.
#[derive(Debug)]
pub(super) struct Rules(Vec<Option<Rule>>);

impl Rules {
    pub(super) fn new(terms: Vec<Terms>) -> Rules {
        Rules(terms.into_iter().map(|terms| Some(Rule { terms, live: true, edition: 0 })).collect())
    }

    /// The rule of this number, if there ever was one.
    pub(super) fn get(&self, rule: u32) -> Option<Rule> {
        self.0.get(rule as usize).copied().flatten()
    }

    /// What it says, whether or not anybody may still be served by it.
    pub(super) fn terms(&self, rule: u32) -> Option<Terms> {
        self.get(rule).map(|rule| rule.terms)
    }

    /// Whether keys of this rule may get a bucket.
    pub(super) fn serves(&self, rule: u32) -> bool {
        self.get(rule).is_some_and(|rule| rule.live && rule.terms.mode != Mode::Local)
    }

    /// Puts the new rules in place of the old; whether anything is different.
    fn replace(&mut self, next: Vec<Option<Terms>>) -> bool {
        if self.0.len() < next.len() {
            self.0.resize(next.len(), None);
        }
        let next = next.into_iter().chain(std::iter::repeat(None));
        let mut changed = false;
        for (place, terms) in self.0.iter_mut().zip(next) {
            match (place.as_mut(), terms) {
                (Some(rule), Some(terms)) => {
                    let same = rule.terms.label == terms.label && rule.terms.kind() == terms.kind();
                    debug_assert!(same, "a rule's number never changes its meaning");
                    if same && (rule.terms != terms || !rule.live) {
                        *rule = Rule { terms, live: true, edition: rule.edition.wrapping_add(1) };
                        changed = true;
                    }
                }
                (Some(rule), None) if rule.live => {
                    (rule.live, rule.edition) = (false, rule.edition.wrapping_add(1));
                    changed = true;
                }
                (None, Some(terms)) => *place = Some(Rule { terms, live: true, edition: 0 }),
                (_, None) => {}
            }
        }
        changed
    }
}

impl Engine {
    /// Goes by these rules from now on. Every bucket is looked at at once: those of a changed rule
    /// [hear of it](Engine::revise), and what they have to tell waits for its turn as any other question.
    pub(super) fn replace_rules(&mut self, next: Vec<Option<Terms>>, now: Micros) {
        if self.rules.replace(next) {
            self.round = Some(0);
            self.visit_all(now);
        }
    }

    /// Tells a bucket of its rule's new numbers: what the old ones had denied is forgotten, what is more than the new
    /// ones allow goes back, and the authority hears of them. Of a rule that is gone, or that is decided in another
    /// way now, only the bucket's last words stay.
    pub(super) fn revise(&mut self, index: u32, rule: &Rule, now: Micros) {
        let epoch = self.new_epoch();
        let Some(bucket) = self.buckets.get_mut(index as usize).and_then(Option::as_deref_mut) else { return };
        bucket.edition = rule.edition;
        bucket.forget_denial();
        bucket.doubt_open();
        bucket.revised = true;
        bucket.next_at = now;
        let numbers = &rule.terms.numbers;
        if bucket.frame != (numbers.window, numbers.offset) {
            bucket.frame = (numbers.window, numbers.offset);
            if bucket.window != Micros::ZERO {
                // What is held is of a window that is not there any more.
                self.tally.expired += bucket.end_window(epoch, now);
            }
        }
        let hold = bucket.look(now).hold;
        bucket.leaving |= !rule.live || rule.terms.mode != bucket.mode;
        if bucket.leaving || hold > numbers.burst {
            bucket.give_back();
        }
        if bucket.leaving {
            bucket.cell.close();
            self.tier.remove(&bucket.cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn terms(name: &str, count: u64) -> Terms {
        crate::rule::Rule::token_bucket(count, Duration::from_secs(1)).check(name).expect("a fair rule")
    }

    #[test]
    fn a_rule_that_is_the_same_keeps_its_edition_and_one_that_was_removed_keeps_its_number() {
        let mut rules = Rules::new(vec![terms("a", 1), terms("b", 2)]);
        assert!(!rules.replace(vec![Some(terms("a", 1)), Some(terms("b", 2))]));
        assert!(rules.replace(vec![Some(terms("a", 5)), None, Some(terms("c", 3))]));
        assert_eq!(rules.get(0).map(|rule| (rule.edition, rule.terms.numbers.burst)), Some((1, 5)));
        assert!(!rules.serves(1) && rules.terms(1).is_some());
        assert!(rules.serves(2) && !rules.serves(3));
        assert!(rules.replace(vec![Some(terms("a", 5)), Some(terms("b", 2))]), "c is removed, b is back");
        assert!(rules.serves(1) && !rules.serves(2));
        assert_eq!(rules.get(1).map(|rule| rule.edition), Some(2));
    }
}
