//! The rules of one gate at one time, and how limiters follow them.

use super::setup::Setup;
use crate::rule::{Current, Seen};
use std::{collections::HashMap, ops::Deref, sync::Arc};

/// All rules of a gate, put in place together. A name keeps its place for the life of the gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    /// By place; a rule that was removed leaves a [`Lifted`](super::setup::Way::Lifted) setup.
    pub(crate) places: Vec<Arc<Setup>>,
    /// The place of each name that there ever was a rule of.
    known: HashMap<&'static str, usize>,
    /// The place of each rule that there is.
    pub(crate) live: HashMap<&'static str, usize>,
    /// The places of the rules that there are, in their user's order.
    pub(crate) order: Vec<usize>,
}

/// What the limiters of one gate share: where they look when their rule was replaced.
#[derive(Debug)]
pub(crate) struct Home {
    set: Current<Set>,
}

impl Home {
    pub(crate) fn new(set: Set) -> Arc<Home> {
        Arc::new(Home { set: Current::new(set) })
    }

    /// The rules as they are now: one consistent set, for a short look.
    pub(crate) fn set(&self) -> Seen<Set> {
        self.set.read()
    }

    /// Puts `next` in place, and has every limiter whose rule is another one now look for it.
    ///
    /// One caller at a time; checks go on meanwhile, and each sees the old set or the new one.
    pub(crate) fn replace(&self, next: Set) {
        let gone: Vec<Arc<Setup>> = {
            let now = self.set.read();
            let stays =
                |(at, old): &(usize, &Arc<Setup>)| next.places.get(*at).is_some_and(|new| Arc::ptr_eq(old, new));
            now.places.iter().enumerate().filter(|place| !stays(place)).map(|(_, old)| old.clone()).collect()
        };
        self.set.replace(next);
        gone.iter().for_each(|old| old.retire());
    }
}

impl Set {
    /// A set without rules, in which those of this one find their places again.
    pub(crate) fn emptied(&self) -> Set {
        Set { places: self.places.clone(), known: self.known.clone(), ..Set::default() }
    }

    /// Puts a rule into the set, at its name's place: one of its own where the name is new.
    pub(crate) fn put(&mut self, setup: Arc<Setup>) {
        let name = setup.terms.name;
        let place = *self.known.entry(name).or_insert(self.places.len());
        match self.places.get_mut(place) {
            Some(there) => *there = setup,
            None => self.places.push(setup),
        }
        self.live.insert(name, place);
        self.order.push(place);
    }

    /// The setup at this place.
    pub(crate) fn at(&self, place: usize) -> Option<&Arc<Setup>> {
        self.places.get(place)
    }

    /// The rules that there are, in their user's order.
    pub(crate) fn rules(&self) -> impl Iterator<Item = (usize, &Arc<Setup>)> {
        self.order.iter().filter_map(|place| Some((*place, self.places.get(*place)?)))
    }
}

/// The setup that answers for a key at present.
#[derive(Debug)]
pub(super) enum Present<'a> {
    /// The limiter's own.
    Own(&'a Arc<Setup>),
    /// The one that took its place.
    Newer(Arc<Setup>),
}

impl Deref for Present<'_> {
    type Target = Arc<Setup>;

    #[inline]
    fn deref(&self) -> &Arc<Setup> {
        match self {
            Present::Own(setup) => setup,
            Present::Newer(setup) => setup,
        }
    }
}
