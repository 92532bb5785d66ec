//! A rule as its user writes it: a builder whose setters never fail.
//!
//! Nothing is checked here; [`terms`](super::terms) does that, once, when a gate is built.

use super::policy::{Abandoned, Cold, Mode, Outage};
use crate::{algorithm::Algorithm, lease::Lost};
use std::time::Duration;

/// A limit and all that belongs to it, under a name that the gate's builder gives it.
///
/// Setters never fail. The numbers are checked when the gate is built, and an error then names the rule
/// and the field. They are whole numbers and durations, so none can be negative or not a number.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Mode, Outage, Rule};
///
/// // 10,000 requests each second, at most 2,000 of them at once, over all instances together.
/// let api = Rule::token_bucket(10_000, Duration::from_secs(1)).burst(2_000);
///
/// // Five attempts a minute, each decided by the authority; none while it is away.
/// let login = Rule::token_bucket(5, Duration::from_secs(60)).mode(Mode::Exact).outage(Outage::Deny);
/// # assert_ne!(api, login);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a rule limits nothing until a gate is built with it"]
pub struct Rule {
    pub(super) algorithm: Algorithm,
    pub(super) count: u64,
    pub(super) per: Duration,
    pub(super) burst: Option<u64>,
    /// Seconds east of Greenwich at which a fixed window's days begin.
    pub(super) utc_offset: i32,
    /// The layout of the keys that it shares with other programs.
    pub(super) plain_key: Option<String>,
    pub(super) mode: Mode,
    pub(super) delta_max: Option<u64>,
    pub(super) outage: Outage,
    pub(super) overload: Outage,
    pub(super) cold: Cold,
    pub(super) lost: Lost,
    pub(super) revision: u32,
    pub(super) deadline: Duration,
    pub(super) lease_ttl: Duration,
    pub(super) horizon: Duration,
    pub(super) cadence: Duration,
    pub(super) reservation_ttl: Duration,
    pub(super) abandoned: Abandoned,
    /// Every check gets this answer.
    pub(super) constant: Option<Constant>,
    pub(super) shadow: bool,
    pub(super) allow: Vec<String>,
    pub(super) deny: Vec<String>,
    pub(super) overrides: Vec<(String, Override)>,
}

/// An answer that asks nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    DenyAll,
    Unlimited,
}

/// What a key that an override is about has instead of the rule's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Override {
    /// So many instead of the rule's count, and the burst in proportion.
    Limit(u64),
    Rule(Box<Rule>),
}

impl Rule {
    /// A token bucket that gets `count` tokens each `per`, evenly, and holds `count` of them when full.
    ///
    /// `token_bucket(4_000, Duration::from_secs(1))` is four thousand a second, not one each four thousand
    /// seconds. A request takes one token, or its cost; a bucket that is not full goes on filling at the
    /// same pace whatever is asked of it. So at most `burst + rate * T` are admitted in any span `T`.
    ///
    /// Allowed: from 1 token per 366 days to 1,000,000,000 tokens a second, `per` a whole number of
    /// microseconds up to 366 days.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::Rule};
    /// let second = Duration::from_secs(1);
    /// // Unless told otherwise, one period's tokens may come at once.
    /// assert_ne!(Rule::token_bucket(100, second), Rule::token_bucket(100, second).burst(5));
    /// ```
    pub fn token_bucket(count: u64, per: Duration) -> Rule {
        Rule::of(Algorithm::TokenBucket, count, per)
    }

    /// A leaky bucket as a meter: `count` requests leak out each `per`, evenly, and it holds `count` of them when full,
    /// or [`burst`](Rule::burst). A full one refuses.
    ///
    /// The token bucket's dual, with the same bound and the same answers. Allowed: as for a token bucket.
    pub fn leaky_bucket(count: u64, per: Duration) -> Rule {
        Rule::of(Algorithm::LeakyMeter, count, per)
    }

    /// A leaky bucket as a queue: requests leave one by one, `count` each `per`, evenly, with no burst at all. `count`
    /// of them may wait, or as many as [`burst`](Rule::burst) says; one more is refused.
    ///
    /// An allowed request has a [`delay`](crate::Decision::delay) to wait before it goes on; `acquire` waits it.
    /// A time to leave that nobody took perishes: neither a refund nor a commit gives it back. [`Mode::Exact`] when nothing else is set, or [`Mode::Local`]: a
    /// time to leave cannot be lent ahead. Over all instances two requests leave at least
    /// an interval less one round trip apart.
    pub fn leaky_queue(count: u64, per: Duration) -> Rule {
        Rule::of(Algorithm::LeakyQueue, count, per).mode(Mode::Exact)
    }

    /// At most `limit` in each window of the authority's clock: those that begin at a multiple of `window` since
    /// 1970-01-01T00:00, by a clock that is [`utc_offset`](Rule::utc_offset) ahead of UTC.
    ///
    /// Cheap, and easy to explain to users; but twice the limit can pass around an edge between two windows.
    ///
    /// Allowed: 1 to 1,000,000,000 a window and no more than 1,000,000,000 a second, `window` a whole number of microseconds
    /// from 1 ms to 366 days.
    pub fn fixed_window(limit: u64, window: Duration) -> Rule {
        Rule::of(Algorithm::FixedWindow, limit, window)
    }

    /// At most `limit` in any span of this length, to within 1/1024 of it: what was spent may count that much longer.
    ///
    /// Exact, for up to some 1,000 entries of memory in the authority for each key, however many requests there are.
    /// Allowed: as for a [fixed window](Rule::fixed_window).
    pub fn sliding_log(limit: u64, window: Duration) -> Rule {
        Rule::of(Algorithm::SlidingLog, limit, window)
    }

    /// At most `limit` by two windows of the clock: what the present one counted, and of the one before as much as the
    /// window's length, ending now, still covers, as if it had come evenly.
    ///
    /// Smooth and cheap: two numbers for each key. Any span of the window's length admits less than twice the limit.
    /// Allowed: as for a [fixed window](Rule::fixed_window).
    pub fn sliding_counter(limit: u64, window: Duration) -> Rule {
        Rule::of(Algorithm::SlidingCounter, limit, window)
    }

    /// No to every request, without asking anybody: [`is_never`](crate::Decision::is_never), for no waiting helps.
    ///
    /// To switch something off, or to let in only who is on the [allow list](Rule::allow). A limit of 0 is an error in every
    /// other rule, since it is mostly a mistake.
    ///
    /// ```
    /// # use tollgate::{Rule, Tollgate};
    /// let gate = Tollgate::builder().rule("beta", Rule::deny_all().allow("staff-*")).build_local()?;
    /// let beta = gate.limiter("beta")?;
    /// assert!(beta.check_now("staff-7").is_allowed());
    /// assert!(beta.check_now("guest").is_never());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn deny_all() -> Rule {
        Rule::constant(Constant::DenyAll)
    }

    /// Yes to every request, without asking anybody.
    ///
    /// Nothing is counted for its keys: [`limit`](crate::Decision::limit) and
    /// [`remaining`](crate::Decision::remaining) are `u64::MAX`.
    pub fn unlimited() -> Rule {
        Rule::constant(Constant::Unlimited)
    }

    fn constant(constant: Constant) -> Rule {
        // The numbers are never asked.
        let plain = Rule::of(Algorithm::TokenBucket, 1, Duration::from_secs(1)).mode(Mode::Local);
        Rule { constant: Some(constant), ..plain }
    }

    fn of(algorithm: Algorithm, count: u64, per: Duration) -> Rule {
        Rule {
            algorithm,
            count,
            per,
            burst: None,
            utc_offset: 0,
            plain_key: None,
            mode: Mode::default(),
            delta_max: None,
            outage: Outage::default(),
            overload: Outage::default(),
            cold: Cold::default(),
            lost: Lost::default(),
            revision: 0,
            deadline: Duration::from_millis(50),
            lease_ttl: Duration::from_secs(10),
            horizon: Duration::from_millis(100),
            cadence: Duration::from_millis(10),
            reservation_ttl: Duration::from_secs(60),
            abandoned: Abandoned::default(),
            constant: None,
            shadow: false,
            allow: Vec::new(),
            deny: Vec::new(),
            overrides: Vec::new(),
        }
    }

    /// The most that a full bucket holds, so the most that can be had at once. `count` when not set.
    ///
    /// Allowed: 1 to 1,000,000,000, and no more than what comes in 100 years. In
    /// [`Mode::Leased`], a burst worth less than about 20 ms of the rate loses throughput: tokens that are lent
    /// cannot refill, and every instance needs a few.
    pub fn burst(mut self, tokens: u64) -> Rule {
        self.burst = Some(tokens);
        self
    }

    /// Where fixed windows begin, in seconds east of Greenwich; 0 when not set. With a window of one day they are the
    /// calendar days of that offset; summer time is not followed. For [fixed windows](Rule::fixed_window) alone, and among
    /// those on [plain keys](Rule::plain_key) for layouts with `{index}` or `{start}`. Allowed: less than a day either way.
    pub fn utc_offset(mut self, seconds: i32) -> Rule {
        self.utc_offset = seconds;
        self
    }

    /// Counts on plain keys of this layout, to share them with other programs: a number in a string, counted with `INCR`
    /// and ended with `EXPIRE`, as older code does. For [fixed windows](Rule::fixed_window) in [`Mode::Exact`] alone:
    /// nothing can be lent from a number on which others count.
    ///
    /// | in the layout | stands for |
    /// | --- | --- |
    /// | `{key}` | the key; must be there |
    /// | `{index}` | the number of the window, counted since 1970 |
    /// | `{start}` | when the window began, in whole seconds since 1970; the window must be whole seconds, too |
    /// | `{{`, `}}` | a brace, as in `rate:{{{key}}}` for a cluster's hash tag |
    ///
    /// With neither `{index}` nor `{start}` a key's window begins with its first hit, whoever counts it, and the key's
    /// time to live is its end. The layout is the whole key: the gate's prefix does not stand before it.
    ///
    /// # Promise
    /// Checked, counted and given its time to live in one step of the authority: never more than the limit, what others
    /// counted there included; a refused request is not counted; a time to live that somebody lost is set again, and
    /// none is pushed back. Twice the limit can pass around an edge between two windows, as in any fixed window.
    ///
    /// # What is other than in a rule without it
    /// - Each check is a question of its own, and so is a [`peek`](crate::Limiter::peek); nothing is kept for a key but
    ///   what can be refunded.
    /// - A plain counter cannot tell a question from its repetition, and has no time after which a question is dead. One whose
    ///   answer was lost may have been counted; one that came too late is given back when its answer comes. So an outage costs
    ///   at most what was asked, and lets nothing more pass.
    /// - [`refund`](crate::Limiter::refund) gives back what was taken here in the present window.
    /// - What an [`Outage`] policy lets through is counted nowhere afterwards.
    /// - A number that was lost counts from nothing again: [`lost`](Rule::lost) and [`revision`](Rule::revision) say nothing.
    /// - [`block`](crate::Limiter::block) is an error: other programs would not go by it.
    /// - Keys above 1 KiB are refused: nobody else would look for their hash.
    /// - An [override](Rule::override_limit) of a limit counts on the same keys; two rules of one layout do, too.
    ///
    /// Allowed: 1 to 256 bytes without control characters.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::{Mode, Rule}};
    /// // As the older service does: INCR rate:user:42:28333350, EXPIRE rate:user:42:28333350 60.
    /// let login = Rule::fixed_window(5, Duration::from_secs(60)).mode(Mode::Exact).plain_key("rate:user:{key}:{index}");
    /// # let _ = login;
    /// ```
    pub fn plain_key(mut self, layout: impl Into<String>) -> Rule {
        self.plain_key = Some(layout.into());
        self
    }

    /// How far a [`Mode::Buffered`] instance may be ahead of what the authority has booked, in tokens for each key;
    /// burst / (10 * members), at least 1, when not set. For that mode alone. Allowed: 1 to the burst.
    pub fn delta_max(mut self, tokens: u64) -> Rule {
        self.delta_max = Some(tokens);
        self
    }

    /// Who decides; [`Mode::Leased`] when not set, but [`Mode::Exact`] for a [leaky queue](Rule::leaky_queue).
    pub fn mode(mut self, mode: Mode) -> Rule {
        self.mode = mode;
        self
    }

    /// What a check gets while the authority is away, and where it answers a key with an error that is no
    /// [overload](Rule::overload), such as a wrong type; [`Outage::Share`] when not set.
    ///
    /// Like all that is said of the authority (`overload`, `lost`, `deadline`, `lease_ttl`, `horizon`, `cadence`) it says
    /// nothing in [`Mode::Local`].
    pub fn outage(mut self, outage: Outage) -> Rule {
        self.outage = outage;
        self
    }

    /// What a check gets while the authority is there but refuses to serve: out of memory, busy, read-only;
    /// [`Outage::Share`] when not set. Apart from [`outage`](Rule::outage), since an authority that is merely
    /// overloaded will not be helped by admitting more.
    pub fn overload(mut self, overload: Outage) -> Rule {
        self.overload = overload;
        self
    }

    /// What `check_now` says to a key without tokens here; [`Cold::Deny`] when not set.
    ///
    /// [`Cold::Credit`] is for [`Mode::Leased`] alone: `Local` has no cold keys, `Exact` promises that the
    /// authority decides each time, and `Buffered` has its [`delta_max`](Rule::delta_max).
    pub fn cold(mut self, cold: Cold) -> Rule {
        self.cold = cold;
        self
    }

    /// What a bucket starts with when the authority lost its state; [`Lost::Empty`] when not set.
    pub fn lost(mut self, lost: Lost) -> Rule {
        self.lost = lost;
        self
    }

    /// Which of two sets of numbers is the newer one while a deploy runs; 0 when not set.
    ///
    /// The higher revision wins at once, in every instance. With equal revisions each instance counts by
    /// its own numbers, and the bound is the larger's.
    pub fn revision(mut self, revision: u32) -> Rule {
        self.revision = revision;
        self
    }

    /// How long a check may wait for the authority's answer, all queues included; 50 ms when not set.
    ///
    /// When it has passed, the outage policy answers. Allowed: 1 ms to 60 s.
    pub fn deadline(mut self, span: Duration) -> Rule {
        self.deadline = span;
        self
    }

    /// How long lent tokens may be spent; 10 s when not set. Allowed: 100 ms to 1 h.
    ///
    /// Longer: idle keys ask less often. Shorter: the tokens of an instance that died come back sooner, as
    /// refill.
    pub fn lease_ttl(mut self, span: Duration) -> Rule {
        self.lease_ttl = span;
        self
    }

    /// For how long ahead of the measured demand tokens are lent; 100 ms when not set. Allowed: 1 ms to
    /// [`lease_ttl`](Rule::lease_ttl).
    pub fn horizon(mut self, span: Duration) -> Rule {
        self.horizon = span;
        self
    }

    /// The least time between two questions about one bucket; 10 ms when not set. Allowed: 1 ms to 1 s.
    ///
    /// Shorter is fairer and uses small bursts better; longer asks the authority less. A cadence above the
    /// [`horizon`](Rule::horizon) leaves an instance without tokens between two questions.
    pub fn cadence(mut self, span: Duration) -> Rule {
        self.cadence = span;
        self
    }

    /// Lets these keys pass without counting them: one key, or all that a pattern matches.
    ///
    /// In a pattern `*` is any text, also none, and `?` is one character; a backslash before `*`, `?` or a backslash takes
    /// their meaning away. All else is compared with the key as it is given to the check, byte by byte.
    ///
    /// Which list decides: an exact entry before a pattern, whatever list they are on; then the [deny](Rule::deny) list
    /// before the allow list before the [overrides](Rule::override_key); then of the patterns of one list the first.
    ///
    /// # Cost
    /// A rule without lists pays nothing. With lists, a check looks its key up in a map and then tries the patterns in turn,
    /// some nanoseconds each. Allowed: 1,000 patterns and 100,000 exact entries in a rule, each of at most 1,024 bytes.
    ///
    /// ```
    /// # use {std::time::Duration, tollgate::Rule};
    /// let login = Rule::token_bucket(5, Duration::from_secs(60))
    ///     .allow("health-check")
    ///     .deny("bot-*")
    ///     .override_limit("partner-??", 500);
    /// # let _ = login;
    /// ```
    pub fn allow(mut self, entry: impl Into<String>) -> Rule {
        self.allow.push(entry.into());
        self
    }

    /// Refuses these keys, as [`deny_all`](Rule::deny_all) does: one key, or all that a pattern matches; see
    /// [`allow`](Rule::allow).
    pub fn deny(mut self, entry: impl Into<String>) -> Rule {
        self.deny.push(entry.into());
        self
    }

    /// Another rule for these keys, each by itself: one key, or all that a pattern matches; see [`allow`](Rule::allow).
    ///
    /// Answers carry this rule's name. The other one counts in the same way: the same algorithm and mode, or
    /// [`unlimited`](Rule::unlimited), or [`deny_all`](Rule::deny_all). It has no lists, and is in
    /// [shadow](Rule::shadow) mode if this rule is; one that shadows by itself is an error.
    ///
    /// A key's state under an override is its own: when an override comes or goes, the key starts with a full bucket. While
    /// the override stays and its numbers change, state is kept.
    ///
    /// An override that has matched nothing by the rule's 10,000th check is told as an
    /// [`Event::Warning`](crate::Event::Warning), once.
    pub fn override_key(mut self, entry: impl Into<String>, rule: Rule) -> Rule {
        self.overrides.push((entry.into(), Override::Rule(Box::new(rule))));
        self
    }

    /// [`override_key`](Rule::override_key) with this rule itself, but `count` instead of its own, and a burst in
    /// proportion.
    pub fn override_limit(mut self, entry: impl Into<String>, count: u64) -> Rule {
        self.overrides.push((entry.into(), Override::Limit(count)));
        self
    }

    /// Decides and counts, and lets everything pass: to try a rule on real traffic. Not so when not set.
    ///
    /// What it would have refused is allowed with [`Source::Shadow`](crate::Source::Shadow);
    /// [`would_be`](crate::Decision::would_be) tells the answer it would have been, and the snapshot counts them
    /// (`shadow_denied`). What it would have allowed takes its tokens as ever.
    pub fn shadow(mut self, shadow: bool) -> Rule {
        self.shadow = shadow;
        self
    }

    /// How long a [reservation](crate::Limiter::reserve) may stay open; 60 s when not set. After that it counts as
    /// [abandoned](Rule::abandoned). Allowed: 1 ms to 24 h.
    pub fn reservation_ttl(mut self, span: Duration) -> Rule {
        self.reservation_ttl = span;
        self
    }

    /// What becomes of a reservation that is dropped, or not committed in time; [`Abandoned::Release`] when not set.
    pub fn abandoned(mut self, abandoned: Abandoned) -> Rule {
        self.abandoned = abandoned;
        self
    }
}
