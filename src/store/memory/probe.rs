//! What a simulated world needs of the embedded store: its time, its books, and a state to fall back to.

use super::{Book, MemoryStore};
use crate::{
    key::BucketName,
    lease::{InstanceId, Meter},
    time::Micros,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::PoisonError,
};

/// All that a store remembers, at one moment.
#[derive(Debug)]
pub(crate) struct Saved {
    books: Vec<(BucketName, Book)>,
    ends: BinaryHeap<Reverse<(Micros, BucketName)>>,
    members: Vec<(BucketName, HashMap<InstanceId, Micros>)>,
}

/// What a book says of its bucket as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    /// What nobody has; below zero where more was spent than there was, and for a queue whose next place is taken.
    pub(crate) free: i64,
    /// The part of the next token, in units of 1 / period.
    pub(crate) part: u64,
    /// What is lent.
    pub(crate) out: u64,
}

impl MemoryStore {
    /// The authority's time.
    pub(crate) fn time(&self) -> Micros {
        self.now()
    }

    /// Sets a copy of the state aside, as a replica has it.
    pub(crate) fn save(&self) -> Saved {
        Saved {
            books: self.0.books.iter().map(|at| (at.key().clone(), at.value().clone())).collect(),
            ends: self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            members: self.0.members.iter().map(|at| (at.key().clone(), at.value().clone())).collect(),
        }
    }

    /// Goes on from a copy: what came after it is forgotten.
    pub(crate) fn restore(&self, saved: &Saved) {
        self.wipe();
        *self.0.ends.lock().unwrap_or_else(PoisonError::into_inner) = saved.ends.clone();
        for (name, book) in &saved.books {
            self.0.books.insert(name.clone(), book.clone());
        }
        for (name, members) in &saved.members {
            self.0.members.insert(name.clone(), members.clone());
        }
    }

    /// What the book of this bucket says as a whole; `None` when it is absent.
    pub(crate) fn sums(&self, name: &BucketName) -> Option<Sums> {
        let book = self.0.books.get(name)?;
        let head = book.header()?;
        let (free, part) = match &head.meter {
            Meter::Bucket(bucket) => (bucket.tokens, bucket.rem),
            Meter::Window(_) => (head.free(), 0),
        };
        Some(Sums { free, part, out: head.out })
    }
}
