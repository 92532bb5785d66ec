//! A rule that has been checked: plain numbers that everything below the gate can trust.
//!
//! The only way to have [`Terms`] is [`Rule::check`]. An error names the rule, the field, what was given
//! and what is allowed.

use super::{
    model::{Constant, Rule},
    plain::Template,
    policy::{Abandoned, Cold, Mode, Outage},
};
use crate::{
    algorithm::{Algorithm, Frame},
    error::{Error, ErrorKind},
    lease::{Lost, Numbers},
    rate::{Rate, RateError},
    time::Micros,
};
use std::{
    collections::HashSet,
    ops::RangeInclusive,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// The longest name of a rule, in bytes: it is part of every bucket's key.
pub(crate) const NAME_BYTES_MAX: usize = 128;
/// The largest burst.
pub(crate) const BURST_MAX: u64 = 1_000_000_000;
/// The longest time an empty bucket may take to fill: 100 years. It keeps every time in the protocol, such as
/// the life of a bucket's key, below the 2^53 up to which Lua counts exactly.
pub(crate) const FULL_AFTER_MAX: Micros = Micros::from_secs(36_525 * 86_400);
/// What the authority adds to a lease's life, so that a coarse or slow clock never spends a dead lease.
pub(crate) const LEASE_MARGIN: Micros = Micros::from_millis(250);

const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60);
const LEASE_TTLS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(366 * 86_400);
const DAY_SECONDS: u32 = 86_400;
const HORIZON_MIN: Duration = Duration::from_millis(1);
const RESERVATIONS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);
const CADENCES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(1);

const _: () = assert!(FULL_AFTER_MAX.0 < 1 << 53, "times in Lua must stay exact");

/// A checked rule under its name. Copied freely; nothing in it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The rule's name; equal names are one string.
    pub(crate) name: &'static str,
    /// What stands for the rule in a bucket's name: its name, but for an override, whose keys have buckets of their own.
    pub(crate) label: &'static str,
    /// Every check gets this answer, and the numbers are never asked.
    pub(crate) constant: Option<Constant>,
    /// Decides and counts, but never refuses.
    pub(crate) shadow: bool,
    /// Revision, rate and burst.
    pub(crate) numbers: Numbers,
    /// The layout of its keys, where it counts on plain ones; only fixed windows in `Exact` mode do.
    pub(crate) plain: Option<Template>,
    /// Who decides.
    pub(crate) mode: Mode,
    /// What a check gets while the authority is away.
    pub(crate) outage: Outage,
    /// What a check gets while the authority refuses to serve.
    pub(crate) overload: Outage,
    /// How far a `Buffered` instance may be ahead, where the rule says so.
    pub(crate) delta_max: Option<u64>,
    /// What `check_now` says to a key without tokens here.
    pub(crate) cold: Cold,
    /// What a bucket starts with when its state was lost.
    pub(crate) lost: Lost,
    /// How long a check may wait.
    pub(crate) deadline: Micros,
    /// Life of a lease at the instance; the authority adds [`LEASE_MARGIN`].
    pub(crate) lease_ttl: Micros,
    /// For how long ahead tokens are lent.
    pub(crate) horizon: Micros,
    /// The least time between two questions about one bucket.
    pub(crate) cadence: Micros,
    /// How long a reservation may stay open.
    pub(crate) reservation_ttl: Micros,
    /// What becomes of one that nobody commits.
    pub(crate) abandoned: Abandoned,
}

impl Terms {
    /// The algorithm's part of a bucket's name.
    pub(crate) const fn kind(&self) -> &'static str {
        self.numbers.algorithm.kind()
    }

    /// The most that one request can ever get: the burst, and in a queue the place of who leaves at once as well.
    pub(crate) const fn cost_max(&self) -> u64 {
        match self.numbers.algorithm {
            Algorithm::LeakyQueue => self.numbers.burst.saturating_add(1),
            _ => self.numbers.burst,
        }
    }

    /// How many tokens a `Buffered` instance may be ahead of the authority, where so many share the limit.
    pub(crate) fn ahead(&self, members: u32) -> u64 {
        self.delta_max.unwrap_or_else(|| (self.numbers.burst / 10 / u64::from(members.max(1))).max(1))
    }
}

impl Rule {
    /// Checks everything that a rule called `name` says.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for the first thing that is out of range.
    #[allow(dead_code, reason = "worlds and tests want the terms alone")]
    pub(crate) fn check(&self, name: &str) -> Result<Terms, Error> {
        Ok(self.examine(name)?)
    }

    /// [`check`](Rule::check), with the rule, the field and the words of what is wrong apart.
    pub(super) fn examine(&self, name: &str) -> Result<Terms, Fault> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
            let shown: String = name.chars().take(40).collect();
            let dots = if shown.len() < name.len() { "..." } else { "" };
            return Err(fault(
                &format!("{shown}{dots}"),
                "name",
                &format!("1 to {NAME_BYTES_MAX} bytes without control characters"),
            ));
        }
        let (window, offset) = self.window(name)?;
        let rate = Rate::new(self.count, self.per).map_err(|error| {
            let field = match error {
                _ if !self.algorithm.is_window() => "rate",
                RateError::CountZero | RateError::TooFast => "limit",
                RateError::PeriodTooFine | RateError::PeriodTooLong => "window",
            };
            fault(name, field, &format!("{error} ({} tokens per {:?})", self.count, self.per))
        })?;

        let (burst, given) = match self.burst {
            Some(burst) => (burst, "given"),
            None => (self.count, "the count, since none is set"),
        };
        if burst == 0 || burst > BURST_MAX {
            let (field, given) = if self.algorithm.is_window() { ("limit", "in a window") } else { ("burst", given) };
            return Err(fault(name, field, &format!("1 to {BURST_MAX} tokens, not {burst} ({given})")));
        }
        if rate.time_for(burst) > FULL_AFTER_MAX {
            let what = format!("{burst} tokens ({given}) take more than 100 years to come; lower it or raise the rate");
            return Err(fault(name, "burst", &what));
        }

        if let Cold::Credit(credit) = self.cold {
            if credit == 0 || credit > burst {
                let what =
                    format!("a credit of 1 to {burst} tokens (the burst), not {credit}; `Cold::Deny` gives none");
                return Err(fault(name, "cold", &what));
            }
            match self.mode {
                Mode::Leased => {}
                Mode::Local => {
                    let what = "a `Local` rule has no cold keys: nothing is lent to it, so there is nothing to credit";
                    return Err(fault(name, "cold", what));
                }
                Mode::Buffered => {
                    let what = "a `Buffered` rule never waits for a cold key; `delta_max` says how far it goes ahead";
                    return Err(fault(name, "cold", what));
                }
                Mode::Exact => {
                    let what = "a credit spends before the authority is asked, and an `Exact` rule promises to ask";
                    return Err(fault(name, "cold", what));
                }
            }
        }

        if self.algorithm == Algorithm::LeakyQueue && matches!(self.mode, Mode::Leased | Mode::Buffered) {
            let what = "a leaky queue hands out times to leave one after the other, which cannot be lent ahead or \
                        reported afterwards; `Exact` or `Local`";
            return Err(fault(name, "mode", what));
        }
        if let Some(delta) = self.delta_max {
            if self.mode != Mode::Buffered {
                return Err(fault(name, "delta_max", "only a `Buffered` rule goes ahead of the authority"));
            }
            if delta == 0 || delta > burst {
                return Err(fault(name, "delta_max", &format!("1 to {burst} tokens (the burst), not {delta}")));
            }
        }

        self.is_constant_alone(name)?;
        let lease_ttl = within(name, "lease_ttl", self.lease_ttl, LEASE_TTLS)?;
        let known = intern(name);
        Ok(Terms {
            name: known,
            label: known,
            constant: self.constant,
            shadow: self.shadow,
            numbers: Numbers { revision: self.revision, algorithm: self.algorithm, rate, burst, window, offset },
            plain: self.template(name, Frame::new(window, offset))?,
            mode: self.mode,
            outage: self.outage,
            overload: self.overload,
            delta_max: self.delta_max,
            cold: self.cold,
            lost: self.lost,
            deadline: within(name, "deadline", self.deadline, DEADLINES)?,
            lease_ttl,
            horizon: within(name, "horizon", self.horizon, HORIZON_MIN..=self.lease_ttl)?,
            cadence: within(name, "cadence", self.cadence, CADENCES)?,
            reservation_ttl: within(name, "reservation_ttl", self.reservation_ttl, RESERVATIONS)?,
            abandoned: self.abandoned,
        })
    }

    /// A rule that asks nobody has nothing to say of how it would ask.
    fn is_constant_alone(&self, name: &str) -> Result<(), Fault> {
        let Some(constant) = self.constant else { return Ok(()) };
        let what = match constant {
            Constant::DenyAll => "a rule that denies all has no numbers and asks nobody",
            Constant::Unlimited => "an unlimited rule has no numbers and asks nobody",
        };
        if self.burst.is_some() {
            return Err(fault(name, "burst", what));
        }
        if self.mode != Mode::Local {
            return Err(fault(name, "mode", what));
        }
        Ok(())
    }

    /// The layout of plain keys, where the rule has one.
    fn template(&self, name: &str, frame: Frame) -> Result<Option<Template>, Fault> {
        let Some(text) = &self.plain_key else { return Ok(None) };
        if self.algorithm != Algorithm::FixedWindow {
            let what = "a plain key is one number that counts one window: for fixed windows alone";
            return Err(fault(name, "plain_key", what));
        }
        if self.mode != Mode::Exact {
            let what = format!(
                "nothing can be lent from a number on which other programs count, nor reported to it afterwards: `Exact`, \
                 not `{:?}`",
                self.mode
            );
            return Err(fault(name, "plain_key", &what));
        }
        let template = Template::new(text, frame).map_err(|what| fault(name, "plain_key", &what))?;
        if self.utc_offset != 0 && !template.is_dated() {
            let what = "a plain key without {index} or {start} has a window that begins with its first hit, at no time of \
                        the clock";
            return Err(fault(name, "utc_offset", what));
        }
        Ok(Some(template))
    }

    /// The length of its windows, and by how much they begin before a multiple of that.
    fn window(&self, name: &str) -> Result<(Micros, Micros), Fault> {
        if self.utc_offset != 0 && self.algorithm != Algorithm::FixedWindow {
            return Err(fault(name, "utc_offset", "only fixed windows begin at a time of the clock"));
        }
        if self.utc_offset.unsigned_abs() >= DAY_SECONDS {
            let what = format!("less than a day, {DAY_SECONDS} s, either way, not {} s", self.utc_offset);
            return Err(fault(name, "utc_offset", &what));
        }
        if !self.algorithm.is_window() {
            return Ok((Micros::ZERO, Micros::ZERO));
        }
        if self.burst.is_some() {
            return Err(fault(name, "burst", "a window has a limit and no burst"));
        }
        let window = within(name, "window", self.per, WINDOWS)?;
        let length = i64::try_from(window.0).unwrap_or(i64::MAX); // at most 366 days
        let offset = (i64::from(self.utc_offset) * 1_000_000).rem_euclid(length);
        Ok((window, Micros(offset.unsigned_abs())))
    }
}

fn within(name: &str, field: &'static str, span: Duration, allowed: RangeInclusive<Duration>) -> Result<Micros, Fault> {
    if allowed.contains(&span) {
        return Ok(span.into());
    }
    let what = format!("{} to {}, not {}", Said(*allowed.start()), Said(*allowed.end()), Said(span));
    Err(fault(name, field, &what))
}

/// A time in the units of a file of rules: nobody counts the seconds of a year.
struct Said(Duration);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.as_secs(), self.0.subsec_nanos()) {
            (secs @ 1.., 0) if secs.is_multiple_of(86_400) => write!(f, "{}d", secs / 86_400),
            (secs @ 1.., 0) if secs.is_multiple_of(3_600) => write!(f, "{}h", secs / 3_600),
            _ => write!(f, "{:?}", self.0),
        }
    }
}

/// What is wrong with a rule, in parts, so that a file can say where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) rule: String,
    pub(super) field: &'static str,
    /// Which entry of a list it is, where the field is one.
    pub(super) entry: Option<usize>,
    /// Which field of that entry.
    pub(super) inner: Option<&'static str>,
    pub(super) what: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rule {:?}: {}: {}", self.rule, self.field, self.what)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        Error::new(ErrorKind::Config, fault.to_string())
    }
}

pub(super) fn fault(name: &str, field: &'static str, what: &str) -> Fault {
    Fault { rule: name.to_owned(), field, entry: None, inner: None, what: what.to_owned() }
}

/// The one string of this name that lives as long as the process.
///
/// Decisions carry their rule's name and must stay small and `Copy`, so the name is leaked. That is bounded:
/// names come from configuration and never from a request, each distinct one is leaked once, however
/// many gates and reloads use it, and it is at most [`NAME_BYTES_MAX`] long.
pub(super) fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known;
    }
    let new: &'static str = Box::leak(name.into());
    names.insert(new);
    new
}

#[cfg(test)]
mod tests;
