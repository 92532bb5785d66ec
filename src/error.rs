//! One error for everything that is not an answer.
//!
//! A denial is never an error. No message here carries a password or a whole URL.

use std::fmt;

/// What kind of failure it was; what a caller matches on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A rule or a setting is out of range; the message names the rule and the field.
    Config,
    /// No rule has this name.
    UnknownRule,
    /// The key cannot be used: over 1 KiB where long keys are refused.
    BadKey,
    /// The store could not be reached: no connection, or it was cut.
    Unreachable,
    /// The store did not answer in time. It may or may not have acted.
    Unanswered,
    /// The store refused the password or the user.
    Auth,
    /// The store is up but cannot serve now: loading, busy with a script, or overloaded.
    Overloaded,
    /// The store is out of memory and refused to write.
    OutOfMemory,
    /// The store is a replica, or lost its replicas: it refuses to write.
    ReadOnly,
    /// The user may not run this command or touch this key.
    NoPermission,
    /// The key holds something that is not ours.
    WrongType,
    /// The store's answer makes no sense to us, or it refused for a reason that has no kind here.
    Protocol,
    /// A bounded buffer is full.
    BufferFull,
    /// The call's own deadline passed.
    Deadline,
    /// The cost is above what can ever be had at once: no amount of waiting will help.
    NeverFits,
    /// The gate is shut down.
    ShutDown,
    /// The registry of keys is at its cap and the key is new.
    Saturated,
}

/// Why something could not be done: a [kind](Error::kind) to match on and a sentence to read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// An error of this kind that says this.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call may go through later without anything being changed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unreachable
                | ErrorKind::Unanswered
                | ErrorKind::Overloaded
                | ErrorKind::OutOfMemory
                | ErrorKind::ReadOnly
                | ErrorKind::BufferFull
                | ErrorKind::Deadline
                | ErrorKind::Saturated
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
