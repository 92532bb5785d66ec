//! Rules that are replaced while the gate runs: all of them at once, or none.

use super::{assemble::Roll, handle::Tollgate};
use crate::{
    error::Error,
    limiter::{Set, Setup, Way},
    local::Quota,
    observe::Event,
    rule::{Rule, Rules},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError},
};

/// What a replacement has changed, in names of rules.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Rules that are new.
    pub added: Vec<&'static str>,
    /// Rules that are different now.
    pub changed: Vec<&'static str>,
    /// Rules that are gone: their limiters let everything pass.
    pub removed: Vec<&'static str>,
    /// How many rules stayed as they were.
    pub kept: usize,
}

/// What whoever replaces rules has to know.
#[derive(Debug)]
pub(super) struct Desk {
    roll: Roll,
    /// The rules as they were given, to see which of them have changed.
    rules: HashMap<String, Rule>,
    /// The numbers by which each `Local` rule counts, or did when it was taken away: its keys' states are in them.
    quotas: HashMap<u32, Quota>,
}

impl Desk {
    pub(super) fn new(roll: Roll, rules: &Rules) -> Desk {
        Desk { roll, rules: by_name(rules), quotas: HashMap::new() }
    }
}

fn by_name(rules: &Rules) -> HashMap<String, Rule> {
    rules.iter().map(|(name, rule)| (name.to_owned(), rule.clone())).collect()
}

impl Tollgate {
    /// Replaces all rules at once, while checks go on.
    ///
    /// # Promise
    /// Everything is checked before anything changes. Each check sees the old rule or the new one, whole; one that starts
    /// after this has returned sees the new one, also by a [`Limiter`](crate::Limiter) or
    /// [`KeyHandle`](crate::KeyHandle) from before.
    ///
    /// - **State is kept** where a rule of the same name counts in the same way: what was spent stays spent, and what is
    ///   left is clipped to the new limit. A rule that counts in another way (another constructor) starts anew.
    ///   A key of a `Local` bucket that is asked just then may get one burst of the new numbers more.
    /// - **A rule that is left out is lifted**: its limiters let everything pass, with
    ///   [`UnknownRule`](crate::ErrorKind::UnknownRule) as the trouble. When it comes back they follow it again, and its
    ///   state in the authority is found again.
    /// - Instances may have different rules for a while: with equal [revisions](Rule::revision) each counts by its own
    ///   numbers, and the bound is the larger's.
    ///
    /// The observer is told [`Event::RulesReplaced`], or [`Event::RulesRefused`] with the error's words.
    ///
    /// # Cost
    /// Checks pay nothing but for limiters from before, which need some nanoseconds more from now on. The call itself makes
    /// what is needed for each rule that has changed, and walks the states of all `Local` keys once where numbers of
    /// a `Local` rule did: some milliseconds for 100,000 of them. The engine changes over in the background, and looks at
    /// each of its buckets.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), naming rule and field, for the first thing that is wrong: as
    /// [`build`](crate::Builder::build), and a shared rule where the gate was built with `Local` rules alone. Nothing has
    /// changed then.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::{Mode, Rule, Rules, Tollgate}};
    /// let per_minute = |n| Rule::token_bucket(n, Duration::from_secs(60)).mode(Mode::Local);
    /// let gate = Tollgate::builder().rule("api", per_minute(30)).build_local()?;
    /// let api = gate.limiter("api")?;
    /// assert_eq!(api.check_now("a").limit(), 30);
    /// let replaced = gate.replace_rules(Rules::new().rule("api", per_minute(150)))?;
    /// assert_eq!(replaced.changed, ["api"]);
    /// assert_eq!(api.check_now("a").limit(), 150);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn replace_rules(&self, rules: Rules) -> Result<Replaced, Error> {
        let replaced = self.replace(&rules);
        let event = match &replaced {
            Ok(Replaced { added, changed, removed, .. }) => {
                Event::RulesReplaced { added: added.clone(), changed: changed.clone(), removed: removed.clone() }
            }
            Err(error) => Event::RulesRefused { message: error.to_string() },
        };
        self.inner.parts.common.alarm.event(&event);
        replaced
    }

    fn replace(&self, rules: &Rules) -> Result<Replaced, Error> {
        let plans = rules.plans()?;
        let inner = &*self.inner;
        let mut desk = inner.desk.lock().unwrap_or_else(PoisonError::into_inner);
        let old: Set = inner.home.set().clone();
        let mut next = old.emptied();
        let mut replaced = Replaced::default();
        for ((name, rule), plan) in rules.iter().zip(&plans) {
            let before = old.live.get(name).and_then(|place| old.at(*place));
            let setup = match before {
                Some(setup) if desk.rules.get(name) == Some(rule) => {
                    replaced.kept += 1;
                    setup.clone()
                }
                _ => {
                    let names = if before.is_some() { &mut replaced.changed } else { &mut replaced.added };
                    names.push(plan.terms.name);
                    inner.parts.setup(plan, &mut desk.roll)?
                }
            };
            next.put(setup);
        }
        let stay: HashSet<&str> = next.live.keys().copied().collect();
        for (place, gone) in old.rules().filter(|(_, setup)| !stay.contains(setup.terms.name)) {
            replaced.removed.push(gone.terms.name);
            if let Some(there) = next.places.get_mut(place) {
                *there = inner.parts.lifted(gone);
            }
        }
        // From here on nothing can fail. The engine first: whoever asks by the new set is known to it.
        let terms = desk.roll.enter(&plans)?;
        if let Some(driver) = &inner.parts.driver {
            driver.replace_rules(terms);
        }
        desk.quotas.extend(old.places.iter().flat_map(quotas));
        let requoted = requoted(&desk.quotas, &next);
        inner.home.replace(next);
        if !requoted.is_empty() {
            inner.parts.governed.requote(&requoted);
        }
        desk.rules = by_name(rules);
        Ok(replaced)
    }
}

/// The `Local` rules whose numbers have changed, by their own: from what, to what.
fn requoted(before: &HashMap<u32, Quota>, next: &Set) -> HashMap<u32, (Quota, Quota)> {
    let after = next.places.iter().flat_map(quotas);
    after
        .filter_map(|(rule, to)| Some((rule, (*before.get(&rule)?, to))))
        .filter(|(_, (from, to))| from != to)
        .collect()
}

fn quotas(setup: &Arc<Setup>) -> Vec<(u32, Quota)> {
    let quota = |setup: &Setup| match &setup.way {
        Way::Local { quota, .. } => Some((setup.rule, *quota)),
        _ => None,
    };
    setup.all().filter_map(|setup| quota(setup)).collect()
}
