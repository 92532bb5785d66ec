//! The authority and the road to it: in this process, or in Redis.
//!
//! A store carries questions and brings answers. It never decides about retries, outages or who may
//! pass; that is the engine's and the rules' business.

mod memory;
mod op;
#[cfg(feature = "redis")]
mod redis;

pub use self::memory::MemoryStore;
// In full: tests/floors.rs takes a path that begins with the crate's name for the crate.
#[cfg(feature = "redis")]
pub use crate::store::redis::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "sim")]
pub(crate) use memory::{Saved, Sums};
pub(crate) use op::{Answers, Batch, Beat, Counted, Hit};

use crate::{error::Error, key::BucketName, lease::InstanceId};
use std::time::Duration;

/// Who holds the shared truth. Clones cheaply; clones are the same store.
///
/// Made by `From` from one of the stores: [`MemoryStore`] or `RedisStore`.
#[derive(Clone, Debug)]
pub struct Store(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Memory(MemoryStore),
    #[cfg(feature = "redis")]
    Redis(RedisStore),
}

impl Store {
    /// The road to it. Connects with the first question, inside the runtime that asks it.
    pub(crate) fn open(&self) -> Connection {
        Connection(match &self.0 {
            Kind::Memory(store) => Road::Memory(store.clone()),
            #[cfg(feature = "redis")]
            Kind::Redis(store) => Road::Redis(store.open()),
        })
    }

    /// How long an answer may take: after it, a question of ours is dead. `None`: no time at all.
    pub(crate) fn response_timeout(&self) -> Option<Duration> {
        match &self.0 {
            Kind::Memory(_) => None,
            #[cfg(feature = "redis")]
            Kind::Redis(store) => Some(store.response_timeout()),
        }
    }

    /// What was found at connecting that works but is probably not meant.
    pub(crate) fn warning(&self) -> Option<&str> {
        match &self.0 {
            Kind::Memory(_) => None,
            #[cfg(feature = "redis")]
            Kind::Redis(store) => store.warning(),
        }
    }
}

impl Default for Store {
    /// An embedded store of its own.
    fn default() -> Store {
        MemoryStore::default().into()
    }
}

impl From<MemoryStore> for Store {
    fn from(store: MemoryStore) -> Store {
        Store(Kind::Memory(store))
    }
}

#[cfg(feature = "redis")]
impl From<RedisStore> for Store {
    fn from(store: RedisStore) -> Store {
        Store(Kind::Redis(store))
    }
}

/// An open road to a store. Clones cheaply; clones share one connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Road);

#[derive(Clone, Debug)]
enum Road {
    Memory(MemoryStore),
    #[cfg(feature = "redis")]
    Redis(crate::store::redis::Connection),
}

impl Connection {
    /// Asks about all buckets of a batch at once.
    ///
    /// # Errors
    /// When the batch as a whole failed, within the store's response time-out. `Unanswered` and
    /// `Protocol` (an answer that makes no sense): it may or may not have been applied. Any other
    /// kind: it was not.
    pub(crate) async fn sync(&self, batch: &Batch) -> Result<Answers, Error> {
        match &self.0 {
            Road::Memory(store) => store.sync(batch),
            #[cfg(feature = "redis")]
            Road::Redis(connection) => connection.sync(batch).await,
        }
    }

    /// Counts a hit on the plain counter of this key, all of it or nothing.
    ///
    /// # Errors
    /// As [`sync`](Connection::sync); `WrongType` where the key holds no whole number.
    pub(crate) async fn count_plain(&self, name: &BucketName, hit: &Hit) -> Result<Counted, Error> {
        match &self.0 {
            Road::Memory(store) => store.count_plain(name, hit),
            #[cfg(feature = "redis")]
            Road::Redis(connection) => connection.count_plain(name, hit).await,
        }
    }

    /// Tells that an instance lives, or with `leave` that it goes, and asks how many do.
    ///
    /// # Errors
    /// As [`sync`](Connection::sync).
    pub(crate) async fn beat(&self, name: &BucketName, instance: InstanceId, leave: bool) -> Result<Beat, Error> {
        match &self.0 {
            Road::Memory(store) => store.beat(name, instance, leave),
            #[cfg(feature = "redis")]
            Road::Redis(connection) => connection.beat(name, instance, leave).await,
        }
    }
}
