//! Rules from a TOML text, with the line and the column of what is wrong.
//!
//! The text is walked by hand, so that every error knows its place, also those that only the rule's own check finds.
//! Nothing here panics, whatever the text is.

mod fields;
mod text;

use super::{
    model::{Constant, Override, Rule},
    policy::{Abandoned, Cold, Mode, Outage},
    rules::Rules,
    terms::Fault,
};
use crate::{
    algorithm::Algorithm,
    error::{Error, ErrorKind},
    lease::Lost,
};
use fields::{Fields, Wrong, kind};
use std::{fs::File, io::Read, path::Path, time::Duration};
use toml::de::{DeTable, DeValue};

#[cfg(test)]
mod tests;

/// A larger file is refused: it is no file of rules.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// All that a rule's table may say.
const RULE_FIELDS: &[&str] = &[
    "algorithm",
    "limit",
    "per",
    "burst",
    "utc_offset",
    "plain_key",
    "mode",
    "delta_max",
    "outage",
    "overload",
    "cold_credit",
    "lost",
    "revision",
    "deadline",
    "lease_ttl",
    "horizon",
    "cadence",
    "reservation_ttl",
    "abandoned",
    "shadow",
    "allow",
    "deny",
    "override",
];
/// All that an override's table may say.
const OVERRIDE_FIELDS: &[&str] = &[
    "key",
    "algorithm",
    "limit",
    "per",
    "burst",
    "delta_max",
    "outage",
    "overload",
    "cold_credit",
    "lost",
    "revision",
    "deadline",
    "lease_ttl",
    "horizon",
    "cadence",
    "reservation_ttl",
    "abandoned",
];

impl Rules {
    /// The rules of a TOML text.
    ///
    /// Each rule is a table under `rules`. Its fields are what a [`Rule`] can say:
    ///
    /// | field | value |
    /// | --- | --- |
    /// | `algorithm` | `"token_bucket"`, `"leaky_bucket"`, `"leaky_queue"`, `"fixed_window"`, `"sliding_log"`, `"sliding_counter"`, `"unlimited"`, `"deny_all"` |
    /// | `limit`, `per` | how many in how long a time, or in a window of which length; both must be said |
    /// | `burst`, `delta_max`, `revision` | a whole number |
    /// | `cold_credit` | a whole number, for [`Cold::Credit`] |
    /// | `utc_offset` | `"+05:30"`, or seconds |
    /// | `plain_key` | a layout such as `"rate:{key}:{index}"`; see [`Rule::plain_key`] |
    /// | `mode` | `"local"`, `"leased"`, `"exact"`, `"buffered"` |
    /// | `outage`, `overload` | `"deny"`, `"allow"`, `"share"` |
    /// | `lost` | `"empty"`, `"full"` |
    /// | `abandoned` | `"release"`, `"spend"` |
    /// | `deadline`, `lease_ttl`, `horizon`, `cadence`, `reservation_ttl` | a time: `"10s"`, `"100ms"`, `"1h 30m"` (us, ms, s, m, h, d) |
    /// | `shadow` | `true`, `false` |
    /// | `allow`, `deny` | a list of keys and patterns |
    /// | `override` | tables with a `key` (or pattern) and the fields that are other than the rule's, without `mode`, `utc_offset`, `plain_key`, `shadow` and lists; a `limit` without a `burst` changes the burst in proportion; as `algorithm` only `"unlimited"` and `"deny_all"` |
    ///
    /// What is not said is as in a [`Rule`]. There must be at least one rule, so that an empty file never lifts all limits.
    ///
    /// ```
    /// # use tollgate::Rules;
    /// let rules = Rules::from_toml(r#"
    ///     [rules.api]
    ///     algorithm = "token_bucket"
    ///     limit = 10_000
    ///     per = "1s"
    ///     burst = 2_000
    ///     allow = ["health-check"]
    ///
    ///     [[rules.api.override]]
    ///     key = "partner-*"
    ///     limit = 50_000
    ///
    ///     [rules.login]
    ///     algorithm = "fixed_window"
    ///     limit = 5
    ///     per = "1m"
    ///     mode = "exact"
    /// "#)?;
    /// assert_eq!(rules.names().collect::<Vec<_>>(), ["api", "login"]);
    ///
    /// let error = Rules::from_toml("[rules.api]\nalgorithm = 'token_bucket'\nlimit = 10\nper = '1s'\nburst = 0").unwrap_err();
    /// assert_eq!(error.to_string(), "line 5, column 9: rule \"api\": burst: 1 to 1000000000 tokens, not 0 (given)");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for the first thing that is wrong, with its line and column: no TOML, a field that is
    /// unknown or of another type, and whatever a gate would not be built with.
    pub fn from_toml(text: &str) -> Result<Rules, Error> {
        read(text).map_err(|wrong| {
            let (line, column) = text::position(text, wrong.at);
            config(format!("line {line}, column {column}: {}", wrong.what))
        })
    }

    /// The rules of a TOML file; see [`from_toml`](Rules::from_toml).
    ///
    /// # Errors
    /// As [`from_toml`](Rules::from_toml), in the form `FILE:LINE:COLUMN: ...`; and where the file cannot be read, is no
    /// UTF-8 or has over 16 MiB.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Rules, Error> {
        let path = path.as_ref();
        let at = path.display();
        let mut bytes = Vec::new();
        let file = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        let length = file.map_err(|error| config(format!("{at}: {error}")))?;
        if length as u64 > FILE_BYTES_MAX {
            return Err(config(format!("{at}: more than 16 MiB: no file of rules")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(error.as_bytes().get(..good).unwrap_or_default()).into_owned();
            let (line, column) = text::position(&before, good);
            config(format!("{at}:{line}:{column}: not UTF-8"))
        })?;
        read(&text).map_err(|wrong| {
            let (line, column) = text::position(&text, wrong.at);
            config(format!("{at}:{line}:{column}: {}", wrong.what))
        })
    }
}

fn config(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

fn read(text: &str) -> Result<Rules, Wrong> {
    let document = DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        // The parser's words say what is wrong with a name, and not which it is.
        let name = text.get(span.clone()).filter(|name| !name.is_empty() && error.message() == "duplicate key");
        let name = name.map_or_else(String::new, |name| format!(": {}", text::shown(name)));
        Wrong { at: span.start, what: format!("{}{name}", error.message()) }
    })?;
    let top = Fields::new("the file", document.get_ref(), 0);
    top.only(&["rules"])?;
    let Some(rules) = top.table("rules")? else {
        return Err(Wrong { at: 0, what: "there are no rules; each is a table such as [rules.api]".to_owned() });
    };
    let mut tables: Vec<_> = rules.table.iter().collect();
    // As they stand in the file.
    tables.sort_by_key(|(name, _)| name.span().start);
    if tables.is_empty() {
        return Err(Wrong { at: rules.at, what: "there are no rules; each is a table such as [rules.api]".to_owned() });
    }
    let mut named = Vec::new();
    for (name, value) in tables {
        let (start, name) = (name.span().start, &**name.get_ref());
        let DeValue::Table(table) = value.get_ref() else {
            let what = format!("rule {}: a table, not {}", text::shown(name), kind(value.get_ref()));
            return Err(Wrong { at: value.span().start, what });
        };
        let fields = Fields::new(&format!("rule {}", text::shown(name)), table, start);
        let rule = rule(&fields)?;
        if let Err(fault) = rule.planned(name) {
            return Err(Wrong { at: place(&fields, &fault), what: fault.to_string() });
        }
        named.push((name.to_owned(), rule));
    }
    Ok(Rules { named })
}

/// A rule by its table.
fn rule(fields: &Fields<'_>) -> Result<Rule, Wrong> {
    fields.only(RULE_FIELDS)?;
    let algorithms: Vec<&str> = ALGORITHMS.iter().map(|(name, _)| *name).collect();
    let counts = fields.choice("algorithm", ALGORITHMS)?;
    let Some(counts) = counts else {
        return Err(fields.missing("algorithm", &format!("one of {}", algorithms.join(", "))));
    };
    let mut rule = match counts {
        Counts::Constant(Constant::DenyAll) => Rule::deny_all(),
        Counts::Constant(Constant::Unlimited) => Rule::unlimited(),
        Counts::By(algorithm) => {
            let Some(limit) = fields.whole("limit")? else {
                return Err(fields.missing("limit", "a whole number"));
            };
            let Some(per) = fields.span("per")? else {
                return Err(fields.missing("per", "a time such as \"1s\""));
            };
            by(algorithm, limit, per)
        }
    };
    if let Counts::Constant(_) = counts {
        fields.none_of(&["limit", "per"], "a rule of this algorithm has no numbers")?;
    }
    rule = common(rule, fields)?;
    if let Some(mode) = fields.choice("mode", MODES)? {
        rule = rule.mode(mode);
    }
    if let Some(seconds) = fields.offset("utc_offset")? {
        rule = rule.utc_offset(seconds);
    }
    if let Some(layout) = fields.text("plain_key")? {
        rule = rule.plain_key(layout);
    }
    if let Some(shadow) = fields.flag("shadow")? {
        rule = rule.shadow(shadow);
    }
    rule.deny = fields.texts("deny")?;
    rule.allow = fields.texts("allow")?;
    let mut overrides = Vec::new();
    for over in fields.tables("override")? {
        overrides.push(overridden(&rule, &over)?);
    }
    rule.overrides = overrides;
    Ok(rule)
}

/// A setter of a rule.
type SetSpan = fn(Rule, Duration) -> Rule;

/// What rules and overrides can say alike.
fn common(mut rule: Rule, fields: &Fields<'_>) -> Result<Rule, Wrong> {
    if let Some(burst) = fields.whole("burst")? {
        rule = rule.burst(burst);
    }
    if let Some(delta) = fields.whole("delta_max")? {
        rule = rule.delta_max(delta);
    }
    if let Some(credit) = fields.whole("cold_credit")? {
        rule = rule.cold(Cold::Credit(credit));
    }
    if let Some(revision) = fields.whole("revision")? {
        let Ok(revision) = u32::try_from(revision) else {
            return Err(fields.wrong("revision", &format!("0 to {}, not {revision}", u32::MAX)));
        };
        rule = rule.revision(revision);
    }
    if let Some(outage) = fields.choice("outage", OUTAGES)? {
        rule = rule.outage(outage);
    }
    if let Some(overload) = fields.choice("overload", OUTAGES)? {
        rule = rule.overload(overload);
    }
    if let Some(lost) = fields.choice("lost", &[("empty", Lost::Empty), ("full", Lost::Full)])? {
        rule = rule.lost(lost);
    }
    let abandoned = [("release", Abandoned::Release), ("spend", Abandoned::Spend)];
    if let Some(abandoned) = fields.choice("abandoned", &abandoned)? {
        rule = rule.abandoned(abandoned);
    }
    let spans: [(&str, SetSpan); 5] = [
        ("deadline", Rule::deadline),
        ("lease_ttl", Rule::lease_ttl),
        ("horizon", Rule::horizon),
        ("cadence", Rule::cadence),
        ("reservation_ttl", Rule::reservation_ttl),
    ];
    for (name, set) in spans {
        if let Some(span) = fields.span(name)? {
            rule = set(rule, span);
        }
    }
    Ok(rule)
}

/// The key of an override, and the rule's own fields with those of the override in their place.
fn overridden(rule: &Rule, fields: &Fields<'_>) -> Result<(String, Override), Wrong> {
    fields.only(OVERRIDE_FIELDS)?;
    let Some(key) = fields.text("key")? else {
        return Err(fields.missing("key", "a key or a pattern"));
    };
    let constants = [("unlimited", Constant::Unlimited), ("deny_all", Constant::DenyAll)];
    let over = match fields.choice("algorithm", &constants)? {
        Some(constant) => {
            let others: Vec<&str> =
                OVERRIDE_FIELDS.iter().copied().filter(|n| !["key", "algorithm"].contains(n)).collect();
            fields.none_of(&others, "an override of this algorithm has no numbers")?;
            if constant == Constant::DenyAll { Rule::deny_all() } else { Rule::unlimited() }
        }
        None if rule.constant.is_some() => {
            return Err(fields.missing("algorithm", "the rule has no numbers to change: unlimited, deny_all"));
        }
        None => {
            let count = fields.whole("limit")?.unwrap_or(rule.count);
            let mut over = rule.scaled(count);
            if let Some(per) = fields.span("per")? {
                over.per = per;
            }
            common(over, fields)?
        }
    };
    Ok((key.to_owned(), Override::Rule(Box::new(over))))
}

/// Where the rule's own check found something wrong.
fn place(fields: &Fields<'_>, fault: &Fault) -> usize {
    let known = |field: &'static str| match field {
        "rate" if fault.what.contains("the period") => "per",
        "rate" => "limit",
        "window" => "per",
        "cold" => "cold_credit",
        "overrides" => "override",
        field => field,
    };
    if let (Some(entry), "overrides") = (fault.entry, fault.field) {
        let tables = fields.tables("override").unwrap_or_default();
        if let Some(over) = tables.get(entry) {
            let inner = fault.inner.map_or("key", known);
            return over.place(inner).or_else(|| over.place("limit")).unwrap_or(over.at);
        }
    }
    let entry = fault.entry.and_then(|entry| fields.entry(fault.field, entry));
    let by_default = || if fault.field == "burst" { fields.place("limit") } else { None };
    entry.or_else(|| fields.place(known(fault.field))).or_else(by_default).unwrap_or(fields.at)
}

/// How a rule of the file counts.
#[derive(Clone, Copy)]
enum Counts {
    By(Algorithm),
    Constant(Constant),
}

const ALGORITHMS: &[(&str, Counts)] = &[
    ("token_bucket", Counts::By(Algorithm::TokenBucket)),
    ("leaky_bucket", Counts::By(Algorithm::LeakyMeter)),
    ("leaky_queue", Counts::By(Algorithm::LeakyQueue)),
    ("fixed_window", Counts::By(Algorithm::FixedWindow)),
    ("sliding_log", Counts::By(Algorithm::SlidingLog)),
    ("sliding_counter", Counts::By(Algorithm::SlidingCounter)),
    ("unlimited", Counts::Constant(Constant::Unlimited)),
    ("deny_all", Counts::Constant(Constant::DenyAll)),
];
const MODES: &[(&str, Mode)] =
    &[("local", Mode::Local), ("leased", Mode::Leased), ("exact", Mode::Exact), ("buffered", Mode::Buffered)];
const OUTAGES: &[(&str, Outage)] = &[("deny", Outage::Deny), ("allow", Outage::Allow), ("share", Outage::Share)];

fn by(algorithm: Algorithm, limit: u64, per: Duration) -> Rule {
    match algorithm {
        Algorithm::TokenBucket => Rule::token_bucket(limit, per),
        Algorithm::LeakyMeter => Rule::leaky_bucket(limit, per),
        Algorithm::LeakyQueue => Rule::leaky_queue(limit, per),
        Algorithm::FixedWindow => Rule::fixed_window(limit, per),
        Algorithm::SlidingLog => Rule::sliding_log(limit, per),
        Algorithm::SlidingCounter => Rule::sliding_counter(limit, per),
    }
}
