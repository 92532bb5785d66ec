//! The map from keys to cells: bounded, and asked by reference.
//!
//! Never throws a cell out by itself. At the cap a new key gets no cell, and the caller is told.

use super::keyed::{Keyed, Name, PassThrough, Probe, Probed};
use crate::atomic::{AtomicU64, Ordering::Relaxed};
use dashmap::{DashMap, Entry};
use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// So many that growing one of a million keys' shards, which looks at each of its cells, takes well
/// below a millisecond.
const SHARDS: usize = 128;

/// The registry is at its cap, and the key is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saturated;

/// A cell that is its own key in the map: eight bytes per entry.
struct Slot<C>(Arc<C>);

impl<C: Keyed> Probed for Slot<C> {
    #[inline]
    fn probed(&self) -> Probe<'_> {
        self.0.name().probe()
    }
}

impl<'a, C: Keyed + 'a> Borrow<dyn Probed + 'a> for Slot<C> {
    #[inline]
    fn borrow(&self) -> &(dyn Probed + 'a) {
        self
    }
}

impl<C: Keyed> PartialEq for Slot<C> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.probed() == other.probed()
    }
}

impl<C: Keyed> Eq for Slot<C> {}

impl<C: Keyed> Hash for Slot<C> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.probed().hash);
    }
}

/// Cells by (rule, key), at most `keys_max` of them.
pub(super) struct Registry<C> {
    map: DashMap<Slot<C>, (), PassThrough>,
    keys: AtomicU64,
    keys_max: u64,
}

impl<C: Keyed> Registry<C> {
    pub(super) fn new(keys_max: usize) -> Registry<C> {
        Registry {
            map: DashMap::with_hasher_and_shard_amount(PassThrough::default(), SHARDS),
            keys: AtomicU64::new(0),
            keys_max: u64::try_from(keys_max).unwrap_or(u64::MAX),
        }
    }

    /// Lets `look` see the key's cell, if it has one, while the cell cannot be removed.
    ///
    /// `look` must not come back to the registry.
    #[inline]
    pub(super) fn view<T>(&self, probe: &Probe<'_>, look: impl FnOnce(&Arc<C>) -> T) -> Option<T> {
        self.map.view(probe as &dyn Probed, |slot, ()| look(&slot.0))
    }

    /// The key's cell, if it has one that is not closed.
    pub(super) fn get(&self, probe: &Probe<'_>) -> Option<Arc<C>> {
        self.view(probe, |cell| (!cell.is_closed()).then(|| cell.clone())).flatten()
    }

    /// The key's cell; a new one where it has none or only a closed one.
    pub(super) fn get_or_insert(&self, probe: &Probe<'_>, make: impl FnOnce(Name) -> C) -> Result<Arc<C>, Saturated> {
        if let Some(cell) = self.get(probe) {
            return Ok(cell);
        }
        // ordering: Relaxed, here and below. The count guards no memory; a place is reserved before
        // it is filled, so that the cap holds whoever comes first.
        let reserved = self.keys.fetch_add(1, Relaxed) < self.keys_max;
        let cell = Arc::new(make(Name::new(probe)));
        let found = match self.map.entry(Slot(cell.clone())) {
            Entry::Occupied(there) if there.key().0.is_closed() => {
                // The shard stays locked between: nobody sees the key without a cell, or with two.
                there.replace_entry(());
                Ok(cell)
            }
            Entry::Occupied(there) => Ok(there.key().0.clone()),
            Entry::Vacant(place) if reserved => {
                place.insert(());
                return Ok(cell);
            }
            Entry::Vacant(_) => Err(Saturated),
        };
        self.keys.fetch_sub(1, Relaxed);
        found
    }

    /// Removes this very cell; a younger one of the same key stays.
    pub(super) fn remove_if_same(&self, cell: &Arc<C>) -> bool {
        let probe = cell.name().probe();
        let removed = self.map.remove_if(&probe as &dyn Probed, |slot, ()| Arc::ptr_eq(&slot.0, cell));
        if removed.is_some() {
            self.keys.fetch_sub(1, Relaxed);
        }
        removed.is_some()
    }

    /// Visits every cell, a shard at a time with nobody else in it, and removes those for which
    /// `keep` is false.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Arc<C>) -> bool) {
        let mut removed = 0;
        self.map.retain(|slot, ()| {
            let stays = keep(&slot.0);
            removed += u64::from(!stays);
            stays
        });
        self.keys.fetch_sub(removed, Relaxed);
    }

    /// How many cells there are.
    pub(super) fn len(&self) -> usize {
        usize::try_from(self.keys.load(Relaxed)).unwrap_or(usize::MAX)
    }

    /// Whether a new key would get no cell.
    pub(super) fn is_full(&self) -> bool {
        self.keys.load(Relaxed) >= self.keys_max
    }
}
