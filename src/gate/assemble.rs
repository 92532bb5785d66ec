//! From checked rules to setups: who answers them, and under which number the engine knows them.

use crate::{
    error::{Error, ErrorKind},
    limiter::{Common, ListAnswer, Listed, Setup, Way},
    local::{Governed, Quota},
    rule::{Mode, Plan, Terms},
    sync::Driver,
};
use std::{collections::HashMap, sync::Arc};

/// The number of a rule that nobody keeps a state for.
const NO_RULE: u32 = u32::MAX;

/// What the setups of one gate are made of.
pub(super) struct Parts {
    pub(super) common: Common,
    /// `None` where all rules were `Local` when the gate was built.
    pub(super) driver: Option<Driver>,
    pub(super) governed: Arc<Governed>,
    pub(super) fallback: Arc<Governed>,
}

/// Which number each rule has, and each override: where its keys' states are found.
///
/// A number is never given to another: the same rule, counting in the same way, finds its states again however often it
/// was changed or taken away meanwhile. What that keeps is bounded by how many different rules and overrides are ever set:
/// some 300 bytes for each.
#[derive(Debug, Default)]
pub(super) struct Roll {
    known: HashMap<Identity, u32>,
}

/// What makes a rule the same as before: its label, how it counts, and of an override the entry.
type Identity = (&'static str, &'static str, Option<Box<str>>);

impl Roll {
    /// The number of these terms.
    fn number(&mut self, terms: &Terms, entry: Option<&str>) -> Result<u32, Error> {
        if terms.constant.is_some() {
            return Ok(NO_RULE);
        }
        let next = u32::try_from(self.known.len()).ok().filter(|next| *next < NO_RULE);
        let next = next.ok_or_else(|| Error::new(ErrorKind::Config, "too many rules"))?;
        Ok(*self.known.entry((terms.label, terms.kind(), entry.map(Into::into))).or_insert(next))
    }

    /// Gives each rule its number; the terms of all that are asked of an engine, by number.
    pub(super) fn enter(&mut self, plans: &[Plan]) -> Result<Vec<Option<Terms>>, Error> {
        let mut numbered = Vec::new();
        for (terms, entry) in plans.iter().flat_map(all) {
            numbered.push((self.number(terms, entry)?, *terms));
        }
        let mut terms = vec![None; self.known.len()];
        for (number, there) in numbered {
            if let Some(place) = terms.get_mut(number as usize) {
                *place = Some(there);
            }
        }
        Ok(terms)
    }
}

/// A rule's own terms, and those of its special answers.
fn all(plan: &Plan) -> impl Iterator<Item = (&Terms, Option<&str>)> {
    std::iter::once((&plan.terms, None)).chain(plan.others.iter().map(|other| (&other.terms, other.entry.as_deref())))
}

/// Whether any of its keys is a matter for the authority.
pub(super) fn is_shared(plan: &Plan) -> bool {
    all(plan).any(|(terms, _)| terms.constant.is_none() && terms.mode != Mode::Local)
}

impl Parts {
    /// A rule, ready for use.
    ///
    /// # Errors
    /// A `Local` rule whose numbers this process cannot keep, and a shared one where the gate has no engine.
    pub(super) fn setup(&self, plan: &Plan, roll: &mut Roll) -> Result<Arc<Setup>, Error> {
        let one = |terms: &Terms, entry, listed, roll: &mut Roll| {
            Ok::<_, Error>(Arc::new(Setup::new(
                roll.number(terms, entry)?,
                *terms,
                self.way(terms)?,
                listed,
                &self.common,
            )))
        };
        let listed = match &plan.lists {
            None => None,
            Some(lists) => {
                let mut answers = Vec::new();
                for other in &plan.others {
                    let setup = one(&other.terms, other.entry.as_deref(), None, roll)?;
                    answers.push(ListAnswer::new(setup, other.entry.clone()));
                }
                Some(Listed::new(lists.clone(), answers))
            }
        };
        one(&plan.terms, None, listed, roll)
    }

    fn way(&self, terms: &Terms) -> Result<Way, Error> {
        if let Some(constant) = terms.constant {
            return Ok(Way::Constant(constant));
        }
        let wrong =
            |field: &str, what: &str| Error::new(ErrorKind::Config, format!("rule {:?}: {field}: {what}", terms.name));
        if terms.mode == Mode::Local {
            let quota = Quota::new(&terms.numbers).map_err(|e| wrong("rate", &e.to_string()))?;
            return Ok(Way::Local { governed: self.governed.clone(), quota });
        }
        match &self.driver {
            Some(driver) => Ok(Way::Shared { driver: driver.clone(), fallback: self.fallback.clone() }),
            None => {
                let what = "this gate was built with `Local` rules alone and asks no store: `Local`, or a gate built with \
                            a shared rule";
                Err(wrong("mode", what))
            }
        }
    }

    /// A rule that is gone.
    pub(super) fn lifted(&self, gone: &Setup) -> Arc<Setup> {
        Arc::new(Setup::new(NO_RULE, gone.terms, Way::Lifted, None, &self.common))
    }
}
