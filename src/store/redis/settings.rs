//! Where the server is and how to talk to it: the URL, taken apart and checked.
//!
//! Keeps the password to itself: no text made here has it, nor the URL.

use crate::error::{Error, ErrorKind};
use redis::{ConnectionAddr, IntoConnectionInfo, parse_redis_url};
use std::{fmt, path::PathBuf, time::Duration};

/// How long connecting may take, all steps together, when nothing else is said.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an answer may take when nothing else is said.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(200);
/// No time-out may be longer; one that is was meant in another unit.
const TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// All that is needed to connect.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) address: Address,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

/// Where the server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Settings {
    /// The settings that a URL holds, and defaults for the rest.
    pub(super) fn parse(url: &str) -> Result<Settings, Error> {
        let url = url.trim();
        let parsed = parse_redis_url(url).ok_or_else(|| {
            config("the store's URL is none of redis://[user:password@]host[:port][/database] or unix:///path")
        })?;
        if matches!(parsed.scheme(), "rediss" | "valkeys") {
            return Err(config("the store's URL asks for TLS, which this build does not have"));
        }
        // Where a password has one of these marks in it, unescaped, its rest would be taken for
        // another part of the URL, and could be shown.
        if parsed.fragment().is_some() {
            return Err(config("the store's URL has a #; in a password it is written %23"));
        }
        let socket = parsed.scheme() == "unix" || parsed.scheme().ends_with("+unix");
        let known = |name: &str| name == "protocol" || (socket && matches!(name, "db" | "user" | "pass"));
        if parsed.query_pairs().any(|(name, _)| !known(&name)) {
            return Err(config("the store's URL has an unknown parameter; in a password a ? is written %3F"));
        }
        // The client's own words may hold parts of the URL, so they are not passed on.
        let info = url.into_connection_info().map_err(|_| {
            config("the store's URL does not parse: host, port or database are wrong, or the password is not escaped")
        })?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) if !host.is_empty() => Address::Tcp(host.clone(), *port),
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(config("the store's URL names no host")),
        };
        let redis = info.redis_settings();
        Ok(Settings {
            address,
            username: redis.username().map(str::to_owned),
            password: redis.password().filter(|p| !p.is_empty()).map(str::to_owned),
            database: redis.db(),
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
        })
    }

    /// Whether they make sense together.
    pub(super) fn check(&self) -> Result<(), Error> {
        for (name, span) in [("connect", self.connect_timeout), ("response", self.response_timeout)] {
            if span.is_zero() || span > TIMEOUT_MAX {
                let message = format!("the store's {name} time-out must be above zero and at most 600 s, not {span:?}");
                return Err(config(message));
            }
        }
        if self.database < 0 {
            return Err(config(format!("the store's database number is below zero: {}", self.database)));
        }
        if self.username.is_some() && self.password.is_none() {
            return Err(config("the store has a user name without a password"));
        }
        Ok(())
    }
}

fn config(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, message)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &format_args!("{}", self.address))
            .field("database", &self.database)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let s = Settings::parse("redis://ann:p%40ss@[::1]:7000/3").expect("a fair URL");
        assert_eq!(s.address, Address::Tcp("::1".into(), 7000));
        assert_eq!((s.username.as_deref(), s.password.as_deref()), (Some("ann"), Some("p@ss")));
        assert_eq!((s.database, s.address.to_string()), (3, "[::1]:7000".to_owned()));
        let s = Settings::parse("redis://localhost").expect("a short URL");
        assert_eq!((s.address.to_string(), s.database, s.password), ("localhost:6379".to_owned(), 0, None));
        let s = Settings::parse("redis+unix:///run/redis.sock?db=2").expect("a socket");
        assert_eq!((s.address, s.database), (Address::Unix("/run/redis.sock".into()), 2));
    }

    #[test]
    fn a_url_that_makes_no_sense_is_refused_without_its_password() {
        for bad in [
            "",
            "hunter2",
            "hunter2@host",
            "http://:hunter2@localhost",
            "rediss://:hunter2@localhost",
            "redis://",
            "redis://:hunter2@",
            "redis://:hunter2@localhost:99999",
            "redis://:hunter2@localhost:port",
            "redis://:hunter2@localhost/db",
            "redis://:hunter2@0.0.0.0",
            "redis://user:12#hunter2@localhost",
            "redis://user:12?hunter2@localhost",
            "redis://user:12/hunter2@localhost",
            "redis://:hunter2@localhost/?protocol=hunter2",
            "redis://:hunter2%FF@localhost",
            "redis:hunter2",
        ] {
            let error = Settings::parse(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{bad}: {error}");
        }
    }

    #[test]
    fn settings_that_do_not_fit_together_are_refused() {
        let fair = Settings::parse("redis://localhost").expect("a fair URL");
        assert!(fair.check().is_ok());
        let zero = Settings { response_timeout: Duration::ZERO, ..fair.clone() };
        let long = Settings { connect_timeout: Duration::MAX, ..fair.clone() };
        let below = Settings { database: -1, ..fair.clone() };
        let nobody = Settings { username: Some("ann".into()), ..fair };
        for bad in [zero, long, below, nobody] {
            assert_eq!(bad.check().map_err(|e| e.kind()), Err(ErrorKind::Config), "{bad:?}");
        }
    }
}
