//! What a gate says of itself. Never a key, never a password.

use crate::{
    atomic::{AtomicU64, Ordering::Relaxed},
    limiter::{Bound, Tallies},
    local::Governed,
    observe::Link,
    sync::Driver,
};
use std::time::Duration;

/// A rule and its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSnapshot {
    /// Its name.
    pub name: &'static str,
    /// The most that it admits for one key that is on none of its lists.
    pub bound: Bound,
}

/// Counts since the gate was built, and how things are now.
///
/// Counts are of checks where nothing else is said. Each check that asks for a token or more is in exactly one
/// of `local_*`, `lease_*`, `authority_*`, `cold_*`, `outage_*`, `rule_*`, `lifted`, `never`, `bad_keys` and `saturated`.
/// They are read one after the other while checks go on, so only those of a quiet gate add up to the last one.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The rules, in the order in which they were given.
    pub rules: Vec<RuleSnapshot>,
    /// Allowed by `Local` rules.
    pub local_allowed: u64,
    /// Denied by `Local` rules.
    pub local_denied: u64,
    /// Allowed from leased tokens, without waiting.
    pub lease_allowed: u64,
    /// Denied because it was known that there are no tokens, without waiting.
    pub lease_denied: u64,
    /// Allowed after waiting for the authority.
    pub authority_allowed: u64,
    /// Denied after waiting for the authority.
    pub authority_denied: u64,
    /// Allowed by `check_now` on [credit](crate::Cold::Credit).
    pub cold_allowed: u64,
    /// Denied by `check_now` because no tokens of the key were here.
    pub cold_denied: u64,
    /// Allowed by an outage policy.
    pub outage_allowed: u64,
    /// Denied by an outage policy, or because the gate is shut down.
    pub outage_denied: u64,
    /// Of the last two, how many because the store was there and refused to serve.
    pub overload: u64,
    /// Of the same two, how many because the check's deadline passed.
    pub late: u64,
    /// Allowed without asking anybody: by an unlimited rule, or an allow list.
    pub rule_allowed: u64,
    /// Denied without asking anybody: by a rule that denies all, or a deny list.
    pub rule_denied: u64,
    /// Allowed because the limiter's rule was removed.
    pub lifted: u64,
    /// Of all that were refused here, how many passed all the same, since their rule is in shadow mode.
    pub shadow_denied: u64,
    /// Refused because the cost is above the burst.
    pub never: u64,
    /// Refused because the key is too long.
    pub bad_keys: u64,
    /// Answered by the saturated policy.
    pub saturated: u64,
    /// Reservations that are open now.
    pub reservations: u64,
    /// Reservations that were dropped, or not committed in time.
    pub abandoned: u64,
    /// Tokens that were used by reservations and that no limit was charged for; see [`Settled`](crate::Settled).
    pub uncharged: u64,
    /// Keys known now.
    pub keys: u64,
    /// Tokens held now, over all keys.
    pub held: u64,
    /// Questions asked about buckets.
    pub syncs: u64,
    /// Messages in which they travelled.
    pub batches: u64,
    /// Questions whose message failed, so that nobody knows whether they had an effect. Their tokens are at
    /// worst spent without having been used.
    pub in_doubt: u64,
    /// Answers that came too late to be used.
    pub wasted: u64,
    /// Buckets that the store answered with an error.
    pub bucket_errors: u64,
    /// Buckets whose state was lost, as far as this instance was the first to notice.
    pub states_lost: u64,
    /// Tokens let through without a grant in a fixed window that ended before the store could be told: they belong to
    /// no later one, and are counted in none.
    pub expired: u64,
    /// How well the store answers.
    pub link: Link,
    /// Instances that share the limits; `None` when nobody has told.
    pub members: Option<u32>,
    /// From a question to its answer, smoothed over the last ones.
    pub round_trip: Duration,
}

impl Snapshot {
    pub(super) fn of(
        driver: Option<&Driver>,
        governed: &Governed,
        tallies: &Tallies,
        rules: Vec<RuleSnapshot>,
    ) -> Snapshot {
        // ordering: Relaxed. Each count stands for itself.
        let read = |count: &AtomicU64| count.load(Relaxed);
        let tier = driver.map(|driver| driver.tier().counts()).unwrap_or_default();
        let tally = driver.map(Driver::tally).unwrap_or_default();
        let local = governed.counts();
        Snapshot {
            rules,
            local_allowed: local.admitted,
            local_denied: local.denied,
            lease_allowed: tier.admitted,
            lease_denied: tier.denied,
            authority_allowed: read(&tallies.authority_allowed),
            authority_denied: read(&tallies.authority_denied),
            cold_allowed: read(&tallies.cold_allowed),
            cold_denied: read(&tallies.cold_denied),
            outage_allowed: read(&tallies.outage_allowed),
            outage_denied: read(&tallies.outage_denied),
            overload: read(&tallies.overload),
            late: read(&tallies.late),
            rule_allowed: read(&tallies.rule_allowed),
            rule_denied: read(&tallies.rule_denied),
            lifted: read(&tallies.lifted),
            shadow_denied: read(&tallies.shadow_denied),
            never: read(&tallies.never),
            bad_keys: read(&tallies.bad_keys),
            saturated: tier.saturated + local.saturated + read(&tallies.saturated),
            reservations: read(&tallies.reserved)
                .saturating_sub(read(&tallies.committed))
                .saturating_sub(read(&tallies.abandoned)),
            abandoned: read(&tallies.abandoned),
            uncharged: read(&tallies.uncharged),
            keys: tier.keys + local.keys,
            held: tally.hold,
            syncs: tally.syncs,
            batches: tally.batches,
            in_doubt: tally.in_doubt,
            wasted: tally.wasted,
            bucket_errors: tally.bucket_errors,
            states_lost: tally.states_lost,
            expired: tally.expired,
            link: driver.map(Driver::link).unwrap_or_default(),
            members: driver.and_then(Driver::members),
            round_trip: driver.map(Driver::round_trip).unwrap_or_default().into(),
        }
    }
}
