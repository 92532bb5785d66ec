//! A set of rules under their names: what a gate is built with, or given later.

use super::{Rule, plan::Plan};
use crate::error::{Error, ErrorKind};
use std::collections::HashSet;

/// Rules under their names, in order.
///
/// ```
/// # use {std::time::Duration, tollgate::{Rule, Rules}};
/// let second = Duration::from_secs(1);
/// let rules = Rules::new().rule("api", Rule::token_bucket(100, second)).rule("login", Rule::token_bucket(1, second));
/// assert_eq!(rules.names().collect::<Vec<_>>(), ["api", "login"]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "rules limit nothing until a gate has them"]
pub struct Rules {
    pub(super) named: Vec<(String, Rule)>,
}

impl Rules {
    /// No rules yet.
    pub fn new() -> Rules {
        Rules::default()
    }

    /// Adds a rule under a name: 1 to 128 bytes without control characters, each name once.
    pub fn rule(mut self, name: impl Into<String>, rule: Rule) -> Rules {
        self.named.push((name.into(), rule));
        self
    }

    /// Adds all of those after these.
    pub fn and(mut self, more: Rules) -> Rules {
        self.named.extend(more.named);
        self
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| name.as_str())
    }

    /// The rules with their names, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Rule)> {
        self.named.iter().map(|(name, rule)| (name.as_str(), rule))
    }

    /// Checks all of them.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for the first thing that is wrong with a rule, and for two rules of one name.
    pub(crate) fn plans(&self) -> Result<Vec<Plan>, Error> {
        let mut names = HashSet::new();
        self.iter()
            .map(|(name, rule)| {
                let plan = rule.plan(name)?;
                if !names.insert(plan.terms.name) {
                    let message = format!("rule {name:?}: name: there are two rules of this name");
                    return Err(Error::new(ErrorKind::Config, message));
                }
                Ok(plan)
            })
            .collect()
    }
}

impl<N: Into<String>> FromIterator<(N, Rule)> for Rules {
    fn from_iter<I: IntoIterator<Item = (N, Rule)>>(rules: I) -> Rules {
        Rules { named: rules.into_iter().map(|(name, rule)| (name.into(), rule)).collect() }
    }
}
