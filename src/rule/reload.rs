//! What is read together is replaced together: a value behind one pointer, read without a lock.
//!
//! Never edited in place; who reads sees the old value or the new one, whole.

use arc_swap::{ArcSwap, Guard};
use std::{fmt, ops::Deref, sync::Arc};

/// The present value.
pub(crate) struct Current<T>(ArcSwap<T>);

/// A value as it was when it was read. For a short look: who keeps it keeps the value.
pub(crate) struct Seen<T>(Guard<Arc<T>>);

impl<T> Current<T> {
    pub(crate) fn new(value: T) -> Current<T> {
        Current(ArcSwap::from_pointee(value))
    }

    /// The present value: some nanoseconds, no lock, and nothing that other readers write.
    pub(crate) fn read(&self) -> Seen<T> {
        Seen(self.0.load())
    }

    /// Puts `next` in place for every read that starts after this returns.
    pub(crate) fn replace(&self, next: T) {
        self.0.store(Arc::new(next));
    }
}

impl<T> Deref for Seen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Seen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen").finish_non_exhaustive()
    }
}
