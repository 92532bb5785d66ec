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
            return Err(fault(name, "burst", &format!("1 to {BURST_MAX} tokens, not {burst} ({given})")));
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
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    fn fair() -> Rule {
        Rule::token_bucket(100, SECOND)
    }

    #[track_caller]
    fn refused(name: &str, rule: &Rule, field: &str) -> String {
        let error = rule.check(name).expect_err("out of range");
        assert_eq!(error.kind(), ErrorKind::Config);
        let message = error.to_string();
        assert!(message.starts_with("rule ") && message.contains(&format!(": {field}: ")), "{message}");
        message
    }

    #[test]
    fn a_rule_that_says_nothing_more_has_the_documented_defaults() {
        let terms = fair().check("api").expect("a fair rule");
        let rate = Rate::new(100, SECOND).expect("a fair rate");
        let want = Terms {
            name: "api",
            label: "api",
            constant: None,
            shadow: false,
            numbers: Numbers::bucket(0, rate, 100),
            plain: None,
            mode: Mode::Leased,
            outage: Outage::Share,
            overload: Outage::Share,
            delta_max: None,
            cold: Cold::Deny,
            lost: Lost::Empty,
            deadline: Micros::from_millis(50),
            lease_ttl: Micros::from_secs(10),
            horizon: Micros::from_millis(100),
            cadence: Micros::from_millis(10),
            reservation_ttl: Micros::from_secs(60),
            abandoned: Abandoned::Release,
        };
        assert_eq!(terms, want);
    }

    #[test]
    fn every_setter_reaches_the_terms() {
        let rule = fair()
            .burst(7)
            .mode(Mode::Leased)
            .outage(Outage::Deny)
            .cold(Cold::Credit(7))
            .lost(Lost::Full)
            .revision(3)
            .deadline(Duration::from_millis(1))
            .lease_ttl(Duration::from_millis(100))
            .horizon(Duration::from_millis(100))
            .cadence(SECOND);
        let terms = rule.check("api").expect("a fair rule");
        assert_eq!((terms.numbers.burst, terms.numbers.revision), (7, 3));
        assert_eq!((terms.outage, terms.cold, terms.lost), (Outage::Deny, Cold::Credit(7), Lost::Full));
        assert_eq!((terms.deadline, terms.lease_ttl), (Micros::from_millis(1), Micros::from_millis(100)));
        assert_eq!((terms.horizon, terms.cadence), (Micros::from_millis(100), Micros::from_secs(1)));
        assert_eq!(fair().mode(Mode::Exact).check("api").map(|t| t.mode), Ok(Mode::Exact));
    }

    // case C-13: more than a thousand a second is an everyday rate.
    #[test]
    fn rates_of_fifteen_hundred_and_two_thousand_a_second_are_taken_exactly() {
        for count in [1_500, 2_000, 999_983, 1_000_000_000] {
            let terms = Rule::token_bucket(count, SECOND).check("fast").expect("a fair rule");
            assert_eq!(terms.numbers.rate.tokens_in(Micros::from_secs(10)), 10 * count);
            assert_eq!(terms.numbers.burst, count);
        }
    }

    // cases C-14, C-17: a limit or a window of zero is refused when it is configured, not when it is hit.
    #[test]
    fn zero_and_absurd_numbers_are_refused_with_the_rule_and_the_field() {
        let table: &[(Rule, &str)] = &[
            (Rule::token_bucket(0, Duration::from_secs(60)), "rate"),
            (Rule::token_bucket(1_000, Duration::ZERO), "rate"),
            (Rule::token_bucket(1, Duration::from_nanos(1)), "rate"),
            (Rule::token_bucket(1, Duration::from_nanos(1_500)), "rate"),
            (Rule::token_bucket(1, Duration::MAX), "rate"),
            (Rule::token_bucket(u64::MAX, SECOND), "rate"),
            (Rule::token_bucket(1_000_000_001, SECOND), "rate"),
            (Rule::token_bucket(2_000_000_000, DAY), "burst"), // by its default
            (fair().burst(0), "burst"),
            (fair().burst(1_000_000_001), "burst"),
            (fair().burst(u64::MAX), "burst"),
            (Rule::token_bucket(1, DAY).burst(36_526), "burst"),
            (Rule::token_bucket(1, 366 * DAY).burst(1_000_000_000), "burst"),
            (fair().cold(Cold::Credit(0)), "cold"),
            (fair().cold(Cold::Credit(101)), "cold"),
            (fair().mode(Mode::Local).cold(Cold::Credit(1)), "cold"),
            (fair().mode(Mode::Exact).cold(Cold::Credit(1)), "cold"),
            (fair().deadline(Duration::ZERO), "deadline"),
            (fair().deadline(Duration::from_micros(999)), "deadline"),
            (fair().deadline(Duration::from_secs(61)), "deadline"),
            (fair().lease_ttl(Duration::from_millis(99)), "lease_ttl"),
            (fair().lease_ttl(Duration::MAX), "lease_ttl"),
            (fair().horizon(Duration::ZERO), "horizon"),
            (fair().horizon(Duration::from_secs(11)), "horizon"),
            (fair().lease_ttl(SECOND).horizon(2 * SECOND), "horizon"),
            (fair().cadence(Duration::from_micros(999)), "cadence"),
            (fair().cadence(Duration::from_millis(1_001)), "cadence"),
            (fair().mode(Mode::Exact).plain_key("{key}"), "plain_key"),
            (Rule::sliding_log(1, SECOND).mode(Mode::Exact).plain_key("{key}"), "plain_key"),
            (Rule::deny_all().plain_key("{key}"), "plain_key"),
            (Rule::fixed_window(1, SECOND).plain_key("{key}"), "plain_key"),
            (Rule::fixed_window(1, SECOND).mode(Mode::Local).plain_key("{key}"), "plain_key"),
            (Rule::fixed_window(1, SECOND).mode(Mode::Buffered).plain_key("{key}"), "plain_key"),
            (Rule::fixed_window(1, SECOND).mode(Mode::Exact).plain_key("{index}"), "plain_key"),
            (Rule::fixed_window(1, SECOND / 2).mode(Mode::Exact).plain_key("{key}:{start}"), "plain_key"),
            (Rule::fixed_window(1, DAY).utc_offset(3_600).mode(Mode::Exact).plain_key("{key}"), "utc_offset"),
            (Rule::fixed_window(0, SECOND), "limit"),
            (Rule::fixed_window(1_000_000_000, Duration::from_millis(1)), "limit"),
            (Rule::sliding_log(1, Duration::ZERO), "window"),
            (Rule::sliding_counter(1, Duration::from_nanos(1_500_500)), "window"),
        ];
        for (rule, field) in table {
            let message = refused("login", rule, field);
            assert!(message.starts_with("rule \"login\": "), "{message}");
        }
    }

    #[test]
    fn times_are_told_in_the_units_of_a_file() {
        let message = refused("r", &fair().lease_ttl(Duration::from_secs(90 * 60)), "lease_ttl");
        assert!(message.ends_with("100ms to 1h, not 5400s"), "{message}");
        let message = refused("r", &Rule::fixed_window(1, 367 * DAY), "window");
        assert!(message.ends_with("1ms to 366d, not 367d"), "{message}");
    }

    #[test]
    fn the_ends_of_every_range_are_allowed() {
        for rule in [
            Rule::token_bucket(1, 366 * DAY).burst(99),
            Rule::token_bucket(1, DAY).burst(36_525),
            Rule::token_bucket(1, DAY).burst(1),
            Rule::token_bucket(1_000, Duration::from_micros(1)).burst(1_000_000_000),
            fair().deadline(Duration::from_secs(60)).lease_ttl(Duration::from_secs(3_600)),
            fair().lease_ttl(Duration::from_secs(3_600)).horizon(Duration::from_secs(3_600)),
            fair().horizon(Duration::from_millis(1)).cadence(Duration::from_millis(1)),
        ] {
            assert!(rule.check("api").is_ok(), "{rule:?} {:?}", rule.check("api"));
        }
    }

    #[test]
    fn only_a_fixed_window_in_exact_mode_has_plain_keys_and_others_are_told_why() {
        let fixed = Rule::fixed_window(5, SECOND).plain_key("rate:{key}:{index}");
        let terms = fixed.clone().mode(Mode::Exact).check("api").expect("a fair rule");
        assert!(terms.plain.is_some_and(Template::is_dated));
        let message = refused("api", &fixed, "plain_key");
        assert!(message.contains("`Exact`, not `Leased`"), "{message}");
        let message = refused("api", &fair().plain_key("rate:{key}"), "plain_key");
        assert!(message.contains("fixed windows alone"), "{message}");
    }

    #[test]
    fn an_error_says_what_was_given_and_what_is_allowed() {
        let message = refused("api", &fair().burst(0), "burst");
        assert_eq!(message, "rule \"api\": burst: 1 to 1000000000 tokens, not 0 (given)");
        let message = refused("api", &fair().cadence(Duration::ZERO), "cadence");
        assert_eq!(message, "rule \"api\": cadence: 1ms to 1s, not 0ns");
    }

    // case C-37: "4000 per second" with a burst of 8000 lets 20,000 through in 3 s, not 8,000.
    #[test]
    fn four_thousand_a_second_means_four_thousand_each_second() {
        let terms = Rule::token_bucket(4_000, SECOND).burst(8_000).check("api").expect("a fair rule");
        assert_eq!(terms.numbers.burst + terms.numbers.rate.tokens_in(Micros::from_secs(3)), 20_000);
    }

    #[test]
    fn a_name_is_any_printable_text_of_128_bytes() {
        for good in ["a", "user login", "api:{v1}", "限流", &"x".repeat(128)] {
            assert_eq!(fair().check(good).map(|t| t.name), Ok(good));
        }
        for bad in ["", "a\nb", "a\0", "\u{7f}", "\u{85}", &"x".repeat(129), &"é".repeat(65)] {
            let message = refused(bad, &fair(), "name");
            assert!(message.len() < 300 && !message.contains(char::is_control), "{message}");
        }
    }

    #[test]
    fn a_name_is_kept_once_however_often_it_is_used() {
        let first = fair().check("kept-once").expect("a fair rule").name;
        let second = fair().burst(3).check(&String::from("kept-once")).expect("a fair rule").name;
        assert!(std::ptr::eq(first, second));
    }
}
