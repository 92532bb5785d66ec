//! Redis as the authority: one server, reached by one shared connection per gate.
//!
//! The scripts decide there what the book decides here; this side only carries. Never shows a
//! password.

mod buckets;
mod connection;
mod fault;
mod link;
mod plain;
mod script;
mod settings;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use connection::Connection;

use crate::{
    atomic::Arc,
    clock::Clock,
    error::{Error, ErrorKind},
};
use settings::Settings;
use std::{fmt, time::Duration};

/// A Redis server that instances share as their authority. Clones cheaply; a gate makes one
/// connection of its own, whatever the number of clones.
///
/// The URL is `redis://[user:password@]host[:port][/database]` or `unix:///path`. One server, without TLS; redirections
/// of a cluster and Sentinel are not followed. Scripts must be allowed. Tested with Redis 7.0. A `maxmemory-policy` that
/// may evict is no error: `build` tells it as an [`Event::Warning`](crate::Event::Warning), where
/// [`connect`](RedisStore::connect) could read it.
///
/// ```no_run
/// # async fn f() -> Result<(), tollgate::Error> {
/// use tollgate::RedisStore;
/// let store = RedisStore::connect("redis://:password@127.0.0.1:6379/0").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    settings: Arc<Settings>,
    warning: Option<Arc<str>>,
}

impl RedisStore {
    /// A store that has been seen to work: reached, let in, scripts allowed.
    ///
    /// # Cost
    /// One connection, closed again before this returns: a gate connects by itself, on the runtime
    /// of its engine.
    ///
    /// # Errors
    /// Within the connect time-out (2 s): [`Config`](crate::ErrorKind::Config) for a URL that makes
    /// no sense, asks for TLS or names a database that is not there; `Auth` for a wrong user or
    /// password; `Unreachable` when nobody answers; `Protocol` when it is no Redis; `Overloaded`
    /// while it loads; `NoPermission` where scripts are forbidden. None shows the password.
    pub async fn connect(url: impl AsRef<str>) -> Result<RedisStore, Error> {
        RedisStore::builder(url).connect().await
    }

    /// A store that is not reached for before the first question: a gate starts although Redis is
    /// away, and its rules' outage policies decide until Redis comes.
    ///
    /// # Errors
    /// `Config` when the URL makes no sense.
    pub fn lazy(url: impl AsRef<str>) -> Result<RedisStore, Error> {
        RedisStore::builder(url).lazy()
    }

    /// To say more than a URL does.
    pub fn builder(url: impl AsRef<str>) -> RedisStoreBuilder {
        RedisStoreBuilder { settings: Settings::parse(url.as_ref()) }
    }

    /// The road to it.
    pub(crate) fn open(&self) -> Connection {
        Connection::new(Arc::clone(&self.settings))
    }

    /// How long an answer may take.
    pub(crate) fn response_timeout(&self) -> Duration {
        self.settings.response_timeout
    }

    /// What was found at connecting that works but is probably not meant.
    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.settings).finish()
    }
}

/// What a [`RedisStore`] is made from. Everything is checked at the end, by
/// [`connect`](RedisStoreBuilder::connect) or [`lazy`](RedisStoreBuilder::lazy).
#[derive(Clone)]
#[must_use]
pub struct RedisStoreBuilder {
    settings: Result<Settings, Error>,
}

impl RedisStoreBuilder {
    /// The user to log in as, instead of the URL's.
    pub fn username(self, username: impl Into<String>) -> RedisStoreBuilder {
        self.with(|s| s.username = Some(username.into()))
    }

    /// The password, instead of the URL's.
    pub fn password(self, password: impl Into<String>) -> RedisStoreBuilder {
        self.with(|s| s.password = Some(password.into()))
    }

    /// The database number, instead of the URL's.
    pub fn database(self, database: u32) -> RedisStoreBuilder {
        self.with(|s| s.database = database.into())
    }

    /// How long connecting may take, all steps together; 2 s by default. Independent of the response
    /// time-out.
    pub fn connect_timeout(self, limit: Duration) -> RedisStoreBuilder {
        self.with(|s| s.connect_timeout = limit)
    }

    /// How long an answer may take, waiting for a turn included; 200 ms by default. It should be
    /// well above the round trip to the server: what comes later counts as unanswered.
    pub fn response_timeout(self, limit: Duration) -> RedisStoreBuilder {
        self.with(|s| s.response_timeout = limit)
    }

    /// Connects once to see that all is well.
    ///
    /// # Errors
    /// As [`RedisStore::connect`], and `Config` for settings out of range or outside a tokio runtime.
    pub async fn connect(self) -> Result<RedisStore, Error> {
        let mut store = self.lazy()?;
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::new(ErrorKind::Config, "connecting to Redis needs a tokio runtime; there is none here"));
        }
        let look = async {
            let link = connection::dial(&store.settings, &Clock::system()).await?;
            link::inspect(&link).await
        };
        let found = tokio::time::timeout(store.settings.connect_timeout, look).await;
        store.warning = found.unwrap_or_else(|_| Err(connection::too_late(&store.settings)))?.map(Arc::from);
        Ok(store)
    }

    /// Checks the settings and leaves connecting to the first question.
    ///
    /// # Errors
    /// `Config` for a URL that makes no sense and for settings out of range.
    pub fn lazy(self) -> Result<RedisStore, Error> {
        let settings = self.settings?;
        settings.check()?;
        Ok(RedisStore { settings: Arc::new(settings), warning: None })
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> RedisStoreBuilder {
        if let Ok(settings) = &mut self.settings {
            change(settings);
        }
        self
    }
}

impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStoreBuilder").field(&self.settings).finish()
    }
}
