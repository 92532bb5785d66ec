//! How the low floors report: one trait, told of what happened, never asked.

use crate::error::ErrorKind;

/// How well the store answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Link {
    /// It answers.
    #[default]
    Up,
    /// The last question failed or was late; the next ones are still asked.
    Shaky,
    /// It has failed for a while: only probes are sent, and outage policies decide.
    Down,
}

/// Something that an operator would want to know. Never carries a request's key or a password; an entry of a rule's own
/// lists is named where it is wrong or matches nothing.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The link to the store changed.
    Link {
        /// What it is now.
        now: Link,
        /// The failure that changed it, if it was one.
        cause: Option<ErrorKind>,
    },
    /// The store answered one bucket with an error; the others of its batch are fine.
    Bucket {
        /// The rule whose bucket it was.
        rule: String,
        /// What was wrong.
        kind: ErrorKind,
        /// The store's words.
        message: String,
    },
    /// A bucket's state was lost (wiped or evicted), and the rule's policy was applied.
    StateLost {
        /// The rule whose bucket it was.
        rule: String,
    },
    /// The engine panicked, was caught, and goes on.
    EnginePanic {
        /// What the panic said.
        message: String,
    },
    /// The registry is at its cap: new keys get the saturated policy. Told once a second at most.
    Saturated {
        /// The cap.
        keys_max: usize,
    },
    /// The gate's rules were replaced, all at once.
    RulesReplaced {
        /// Rules that are new.
        added: Vec<&'static str>,
        /// Rules that are different now.
        changed: Vec<&'static str>,
        /// Rules that are gone: their limiters let everything pass.
        removed: Vec<&'static str>,
    },
    /// Rules that should have replaced the gate's were wrong, or could not be read. Nothing has changed.
    RulesRefused {
        /// What is wrong, and where.
        message: String,
    },
    /// Something that works but is probably not meant.
    Warning {
        /// What, in a sentence.
        message: String,
    },
}

/// Told of every [`Event`], on the thread where it happened. Must be quick and must not block.
///
/// ```
/// use tollgate::{Event, Observer, Rule, Tollgate};
///
/// struct Log;
///
/// impl Observer for Log {
///     fn event(&self, event: &Event) {
///         eprintln!("{event:?}");
///     }
/// }
///
/// let gate = Tollgate::builder().observer(Log).rule("off", Rule::deny_all()).build_local()?;
/// # drop(gate);
/// # Ok::<(), tollgate::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn event(&self, event: &Event);
}

/// Looks away.
impl Observer for () {
    fn event(&self, _: &Event) {}
}
