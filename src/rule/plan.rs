//! A rule with its lists, checked: the rule's own terms, and those of each special answer.

use super::{
    lists::{ENTRY_BYTES_MAX, EXACT_MAX, Entry, Lists, PATTERNS_MAX},
    model::{Constant, Override, Rule},
    policy::Cold,
    terms::{Fault, Terms, fault, intern},
};
use crate::error::Error;
use std::collections::HashSet;

/// Everything that a gate needs to know of one rule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// For every key that no list is about.
    pub(crate) terms: Terms,
    /// For the others, by the number that the lists give.
    pub(crate) others: Vec<Other>,
    /// `None` where there are none, so that such a rule pays nothing.
    pub(crate) lists: Option<Lists>,
}

/// What the keys of one entry get.
#[derive(Clone, Debug)]
pub(crate) struct Other {
    pub(crate) terms: Terms,
    /// The override as it was written; `None` for the deny and the allow list.
    pub(crate) entry: Option<Box<str>>,
}

impl Rule {
    /// Checks everything that a rule called `name` says, its lists included.
    ///
    /// # Errors
    /// [`Config`](crate::ErrorKind::Config) for the first thing that is wrong.
    pub(crate) fn plan(&self, name: &str) -> Result<Plan, Error> {
        Ok(self.planned(name)?)
    }

    /// [`plan`](Rule::plan), with the words of what is wrong apart.
    pub(super) fn planned(&self, name: &str) -> Result<Plan, Fault> {
        let terms = self.examine(name)?;
        if self.deny.is_empty() && self.allow.is_empty() && self.overrides.is_empty() {
            return Ok(Plan { terms, others: Vec::new(), lists: None });
        }
        let mut others = Vec::new();
        let mut lists = Lists::default();
        for (field, entries, constant) in
            [("deny", &self.deny, Constant::DenyAll), ("allow", &self.allow, Constant::Unlimited)]
        {
            if entries.is_empty() {
                continue;
            }
            for (at, text) in entries.iter().enumerate() {
                let entry = Entry::parse(text).map_err(|what| listed(name, field, at, &what))?;
                // On both lists, or twice on one: the first that was added says what it gets.
                lists.add(entry, others.len());
                few(name, &lists)?;
            }
            let terms = Terms { constant: Some(constant), shadow: terms.shadow, ..terms };
            others.push(Other { terms, entry: None });
        }
        let mut known = HashSet::new();
        for (at, (text, over)) in self.overrides.iter().enumerate() {
            let wrong = |what: &str| listed(name, "overrides", at, what);
            let entry = Entry::parse(text).map_err(|what| wrong(&what))?;
            if !known.insert(text.as_str()) {
                return Err(wrong(&format!("{text:?}: there are two overrides of this key or pattern")));
            }
            let mut theirs =
                self.overridden(name, text, over, &terms).map_err(|fault| Fault { entry: Some(at), ..fault })?;
            theirs.shadow = terms.shadow;
            theirs.label = match &entry {
                // Who has an exact one has no other: all of a rule's may share a label. No rule's name has a
                // control character in it.
                Entry::Exact(_) => intern(&format!("{name}\u{1}=")),
                Entry::Pattern(_) => intern(&format!("{name}\u{1}*{text}")),
            };
            lists.add(entry, others.len());
            few(name, &lists)?;
            others.push(Other { terms: theirs, entry: Some(text.as_str().into()) });
        }
        Ok(Plan { terms, others, lists: Some(lists) })
    }

    /// This rule without its lists, with another count and all that goes with the count in proportion.
    pub(super) fn scaled(&self, count: u64) -> Rule {
        let scaled = |burst: u64| {
            let scaled = u128::from(burst) * u128::from(count) / u128::from(self.count.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
        };
        let burst = self.burst.map(scaled);
        // Neither a credit nor how far a `Buffered` instance may be ahead is more than the burst.
        let most = burst.unwrap_or(count).max(1);
        let cold = match self.cold {
            Cold::Credit(tokens) => Cold::Credit(tokens.min(most)),
            cold => cold,
        };
        let delta_max = self.delta_max.map(|delta| delta.min(most));
        let (deny, allow, overrides) = (Vec::new(), Vec::new(), Vec::new());
        Rule { count, burst, cold, delta_max, deny, allow, overrides, ..self.clone() }
    }

    fn overridden(&self, name: &str, text: &str, over: &Override, terms: &Terms) -> Result<Terms, Fault> {
        let wrong = |what: &str| fault(name, "overrides", &format!("{text:?}: {what}"));
        let rule = match over {
            Override::Rule(rule) => {
                if !rule.deny.is_empty() || !rule.allow.is_empty() || !rule.overrides.is_empty() {
                    return Err(wrong("an override has no lists of its own"));
                }
                if rule.shadow && !terms.shadow {
                    return Err(wrong("shadow: an override is in shadow mode where its rule is, and not by itself"));
                }
                (**rule).clone()
            }
            Override::Limit(_) if self.constant.is_some() => {
                return Err(wrong("a rule without numbers has none to change; give a whole rule"));
            }
            Override::Limit(count) => self.scaled(*count),
        };
        let theirs = rule.examine(name).map_err(|fault| {
            let inner = Some(fault.field);
            Fault { inner, ..wrong(&format!("{}: {}", fault.field, fault.what)) }
        })?;
        if theirs.constant.is_none() && terms.constant.is_none() {
            if theirs.numbers.algorithm != terms.numbers.algorithm {
                let (algorithm, given) = (terms.numbers.algorithm, theirs.numbers.algorithm);
                return Err(wrong(&format!("algorithm: {algorithm:?}, as the rule itself, not {given:?}")));
            }
            if theirs.mode != terms.mode {
                return Err(wrong(&format!("mode: {:?}, as the rule itself, not {:?}", terms.mode, theirs.mode)));
            }
        }
        Ok(theirs)
    }
}

/// No more entries than there may be. Looked at with each, so that a list that is far too long is refused at once.
fn few(name: &str, lists: &Lists) -> Result<(), Fault> {
    if lists.patterns() <= PATTERNS_MAX && lists.exact() <= EXACT_MAX {
        return Ok(());
    }
    let what = format!(
        "at most {PATTERNS_MAX} patterns and {EXACT_MAX} exact entries of {ENTRY_BYTES_MAX} bytes in all lists of a rule, \
         not {} and {} or more",
        lists.patterns(),
        lists.exact()
    );
    Err(fault(name, "lists", &what))
}

fn listed(name: &str, field: &'static str, at: usize, what: &str) -> Fault {
    Fault { entry: Some(at), ..fault(name, field, what) }
}
