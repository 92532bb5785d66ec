//! The keys of a rule that get something else: denied, allowed, or another rule's numbers.

use super::setup::Setup;
use crate::{
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    observe::Event,
    rule::Lists,
};
use std::{fmt, sync::Arc};

/// After so many checks of its rule an override that matched nothing is told.
const PATIENCE: u64 = 10_000;

/// What a listed key gets.
pub(crate) struct Answer {
    setup: Arc<Setup>,
    /// The override as it was written; `None` for the deny and the allow list.
    entry: Option<Box<str>>,
    met: AtomicBool,
}

impl Answer {
    pub(crate) fn new(setup: Arc<Setup>, entry: Option<Box<str>>) -> Answer {
        Answer { setup, entry, met: AtomicBool::new(false) }
    }
}

/// A rule's lists, with what their keys get.
pub(crate) struct Listed {
    lists: Lists,
    answers: Vec<Answer>,
    /// Look-ups so far, up to [`PATIENCE`].
    asked: AtomicU64,
}

impl Listed {
    pub(crate) fn new(lists: Lists, answers: Vec<Answer>) -> Listed {
        Listed { lists, answers, asked: AtomicU64::new(0) }
    }

    /// The setup of each special answer.
    fn setups(&self) -> impl Iterator<Item = &Arc<Setup>> {
        self.answers.iter().map(|answer| &answer.setup)
    }

    /// What the key gets; `None` where no list is about it.
    fn find(&self, key: &[u8]) -> Option<&Answer> {
        let answer = self.answers.get(self.lists.find(key)?)?;
        // ordering: Relaxed, here and below: a mark and a count that order nothing. Looked at first, so that the line
        // is written once.
        if !answer.met.load(Relaxed) {
            answer.met.store(true, Relaxed);
        }
        Some(answer)
    }

    /// Whether this look-up is the one after which unused overrides are told. Counts no further.
    fn is_time(&self) -> bool {
        self.asked.load(Relaxed) < PATIENCE && self.asked.fetch_add(1, Relaxed) + 1 == PATIENCE
    }
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No entry: what users are called is not for logs.
        let (exact, patterns) = (self.lists.exact(), self.lists.patterns());
        f.debug_struct("Listed").field("exact", &exact).field("patterns", &patterns).finish_non_exhaustive()
    }
}

impl Setup {
    /// The rule itself and what its lists give.
    pub(crate) fn all(self: &Arc<Setup>) -> impl Iterator<Item = &Arc<Setup>> {
        std::iter::once(self).chain(self.listed.iter().flat_map(|listed| listed.setups()))
    }

    /// Who answers for this key: this rule, or what its lists say. Fresh from every look.
    #[inline]
    pub(super) fn for_key(self: &Arc<Setup>, key: &[u8]) -> &Arc<Setup> {
        match &self.listed {
            None => self,
            Some(listed) => self.by_list(listed, key),
        }
    }

    #[inline(never)]
    fn by_list<'a>(self: &'a Arc<Setup>, listed: &'a Listed, key: &[u8]) -> &'a Arc<Setup> {
        let found = listed.find(key).map_or(self, |answer| &answer.setup);
        if listed.is_time() {
            self.tell_unmet(listed);
        }
        found
    }

    #[cold]
    fn tell_unmet(&self, listed: &Listed) {
        for answer in &listed.answers {
            if let Some(entry) = &answer.entry
                && !answer.met.load(Relaxed)
            {
                let name = self.terms.name;
                let message = format!("rule {name:?}: overrides: {entry:?} has matched none of {PATIENCE} checks");
                self.alarm.event(&Event::Warning { message });
            }
        }
    }
}
