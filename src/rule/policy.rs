//! What a rule chooses: who decides, and what happens where nobody can or where nobody commits.

/// Who decides, and so what can be promised.
///
/// The bounds are over any span `T` of time, with `burst` and `rate` the rule's own.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// This process alone; the authority is never asked.
    ///
    /// Bound: `burst + rate * T` **for each instance**. A store that is away changes nothing.
    Local,
    /// This process, from tokens that the authority has lent it.
    ///
    /// Bound: `burst + rate * T` for **all instances together**, the same as one central bucket. While the
    /// authority is away the rule's [`Outage`] decides. The default, but for a [leaky queue](super::Rule::leaky_queue).
    #[default]
    Leased,
    /// The authority, asked every time; checks of one key that wait at the same moment share one question.
    ///
    /// Bound: `burst + rate * T` for all instances together. While the authority is away the rule's
    /// [`Outage`] decides.
    Exact,
    /// This process, from what it last heard; what it let through is reported afterwards.
    ///
    /// Bound: `burst + rate * T + N * delta_max` for all instances together, where `N` instances lived in `T`: each is
    /// at most [`delta_max`](super::Rule::delta_max) ahead of what the authority has booked. While the authority is away it
    /// goes on until then, and the rule's [`Outage`] decides after that.
    Buffered,
}

/// What a check gets while the authority cannot be asked and no lent tokens are left.
///
/// What is let through is booked afterwards, down to an empty bucket at most. A limit that says no is never
/// asked again through this fallback.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outage {
    /// No. Bound: nothing is added.
    Deny,
    /// Yes. No bound holds while the authority is away.
    Allow,
    /// This instance's share of the limit: `rate / members`, by a limiter in this process.
    ///
    /// Bound: about `burst + rate * T` for all instances together while the number of members last heard
    /// still holds, on top of what was lent before. With no number of members ever heard or
    /// configured, it denies. The default.
    #[default]
    Share,
}

/// What `check_now` says to a key for which no tokens are here yet, since it never waits.
///
/// The other checks wait for the authority instead, at most the rule's
/// [`deadline`](super::Rule::deadline).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cold {
    /// No, with the expected round trip as the time to retry; the tokens are asked for meanwhile.
    /// Bound: nothing is added. The default.
    #[default]
    Deny,
    /// Yes, for up to this many tokens per key and [lease life](super::Rule::lease_ttl); booked as debt, which
    /// later checks pay. Bound: adds this many **per instance**. 1 to the rule's burst.
    Credit(u64),
}

/// What becomes of a [reservation](crate::Reservation) that nobody commits.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Abandoned {
    /// Its tokens go back. The default: what is dropped on an early return or an error mostly did not do its work, and
    /// a commit that comes too late is charged all the same.
    #[default]
    Release,
    /// Its tokens count as used: for work that goes on, and costs, whatever becomes of whoever asked for it.
    Spend,
}
