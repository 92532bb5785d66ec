//! What went wrong, in our words: the server's error codes become kinds.
//!
//! Never passes on a text that could carry a password: of what fails while connecting, only the
//! code is told.

use crate::error::{Error, ErrorKind};
use redis::{ErrorKind as ClientKind, RedisError, ServerError};

/// How one command on one connection failed.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The connection ended before a byte of it left: surely not applied.
    NotSent,
    /// The connection ended while the answer was due: applied or not, nobody knows.
    Cut,
    /// What came is no Redis reply.
    Garbage,
    /// The server does not have the script (any more): surely not applied.
    NoScript,
    /// The server refused it: not applied.
    Refused(Error),
}

impl Fault {
    /// The fault that the client reports; `sent` tells whether bytes have left since it was asked.
    pub(super) fn of_client(error: &RedisError, sent: bool) -> Fault {
        match error.kind() {
            ClientKind::Parse | ClientKind::UnexpectedReturnType => Fault::Garbage,
            _ if sent => Fault::Cut,
            _ => Fault::NotSent,
        }
    }

    /// The fault that the server reports.
    pub(super) fn of_server(error: &ServerError) -> Fault {
        match error.code() {
            "NOSCRIPT" => Fault::NoScript,
            code => Fault::Refused(refusal(code, error.details().unwrap_or_default())),
        }
    }

    /// As an error of the whole batch.
    pub(super) fn into_error(self) -> Error {
        match self {
            Fault::NotSent => Error::new(ErrorKind::Unreachable, "the connection to Redis is gone"),
            Fault::Cut => Error::new(ErrorKind::Unanswered, "the connection to Redis was cut before the answer came"),
            Fault::Garbage => Error::new(ErrorKind::Protocol, "the answer is no Redis reply"),
            Fault::NoScript => Error::new(ErrorKind::Protocol, "Redis does not know a script that was sent in full"),
            Fault::Refused(error) => error,
        }
    }
}

/// The error that a code and the words after it stand for.
pub(super) fn refusal(code: &str, words: &str) -> Error {
    Error::new(kind(code, words), format!("Redis refused: {code} {words}").trim_end().to_owned())
}

/// The error of one bucket, from the words with which a script reports it.
///
/// Some servers put the script's name and line before the code, so the code is the first word in
/// capitals.
pub(super) fn of_bucket(words: &str) -> Error {
    let is_code = |word: &&str| word.len() >= 3 && word.bytes().all(|b| b.is_ascii_uppercase());
    let code = words.split([' ', ':']).find(is_code).unwrap_or("ERR");
    let rest = words.split_once(code).map_or(words, |(_, rest)| rest.trim_start());
    Error::new(kind(code, rest), format!("Redis refused: {words}"))
}

/// The kind of each code that a server is known to answer.
fn kind(code: &str, words: &str) -> ErrorKind {
    match code {
        "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => ErrorKind::ReadOnly,
        "OOM" => ErrorKind::OutOfMemory,
        "BUSY" | "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "UNKILLABLE" => ErrorKind::Overloaded,
        "NOPERM" => ErrorKind::NoPermission,
        "WRONGTYPE" => ErrorKind::WrongType,
        "NOAUTH" | "WRONGPASS" | "DENIED" => ErrorKind::Auth,
        "ERR" if words.starts_with("max number of clients") => ErrorKind::Overloaded,
        _ => ErrorKind::Protocol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case A-26: overloaded is not gone; each refusal has its own kind.
    #[test]
    fn every_known_code_has_its_kind() {
        for (code, words, want) in [
            ("READONLY", "You can't write against a read only replica.", ErrorKind::ReadOnly),
            ("MASTERDOWN", "Link with MASTER is down", ErrorKind::ReadOnly),
            ("OOM", "command not allowed when used memory > 'maxmemory'.", ErrorKind::OutOfMemory),
            ("BUSY", "Redis is busy running a script.", ErrorKind::Overloaded),
            ("LOADING", "Redis is loading the dataset in memory", ErrorKind::Overloaded),
            ("TRYAGAIN", "Multiple keys request during rehashing of slot", ErrorKind::Overloaded),
            ("CLUSTERDOWN", "The cluster is down", ErrorKind::Overloaded),
            ("ERR", "max number of clients reached", ErrorKind::Overloaded),
            ("NOPERM", "this user has no permissions", ErrorKind::NoPermission),
            ("WRONGTYPE", "Operation against a key holding the wrong kind", ErrorKind::WrongType),
            ("NOAUTH", "Authentication required.", ErrorKind::Auth),
            ("WRONGPASS", "invalid username-password pair", ErrorKind::Auth),
            ("ERR", "unknown command", ErrorKind::Protocol),
            ("NEWCODE", "of a later version", ErrorKind::Protocol),
        ] {
            assert_eq!(refusal(code, words).kind(), want, "{code}");
            assert_eq!(of_bucket(&format!("{code} {words}")).kind(), want, "{code} of a bucket");
        }
    }

    #[test]
    fn a_code_is_found_behind_a_scripts_name_and_line() {
        let old = "@user_script: 12: WRONGTYPE Operation against a key";
        assert_eq!(of_bucket(old).kind(), ErrorKind::WrongType);
        assert_eq!(of_bucket("nothing that we know").kind(), ErrorKind::Protocol);
    }
}
