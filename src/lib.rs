//! Tollgate limits requests at very high rates: almost every question is answered inside the process, in tens of
//! nanoseconds, and Redis keeps all instances honest.
//!
//! # Why
//!
//! A limiter that asks Redis for every request is exact and slow. One that counts in the process and tells
//! Redis now and then is fast, and with `N` processes it lets up to `N` times the limit pass. Here each process
//! spends tokens that the *authority* (Redis, or a store inside the process) has lent it, in batches and in
//! the background. What is lent counts as gone until the authority hears otherwise, so all instances together admit
//! **no more than one central bucket would**, also when messages get lost and instances crash.
//!
//! # First steps
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{Rule, Tollgate};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tollgate::Error> {
//! let gate = Tollgate::builder() // .store(RedisStore::connect(url).await?) shares it with other processes
//!     .rule("api", Rule::token_bucket(10_000, Duration::from_secs(1)).burst(2_000))
//!     .build()
//!     .await?;
//!
//! let api = gate.limiter("api")?; // cheap to clone: keep it where requests are served
//! let decision = api.check("user:42").await;
//! assert!(decision.is_allowed());
//! assert_eq!(decision.limit(), 2_000);
//!
//! // A refusal is an answer too, and says when to come again.
//! let first = api.check_n("user:42", 1_500).await;
//! let d = api.check_n("user:42", 1_500).await;
//! assert!(first.is_allowed());
//! assert!(!d.is_allowed() && d.retry_after_secs() >= Some(1));
//!
//! gate.shutdown().await // gives back what was lent
//! # }
//! ```
//!
//! | call | waits | for |
//! | --- | --- | --- |
//! | [`check`](Limiter::check) | only for a key without tokens here: one round trip | async code |
//! | [`check_now`](Limiter::check_now) | never | hot paths |
//! | [`check_blocking`](Limiter::check_blocking) | as `check`, parking the thread | threads without a runtime |
//! | [`acquire`](Limiter::acquire) | in line, until the limit says yes or its deadline | work that may be late |
//! | [`reserve`](Limiter::reserve) | as `check` | work whose cost is known afterwards |
//! | [`Tollgate::check_all`] | as `check` | several limits: all give, or none does |
//! | [`key`](Limiter::key) | | a handle to one key that skips the look-up |
//!
//! # Modes
//!
//! | [`Mode`] | who decides | at most admitted in any span `T` | when the store is away |
//! | --- | --- | --- | --- |
//! | [`Local`](Mode::Local) | this process alone | `burst + rate * T` for each instance | no difference |
//! | [`Leased`](Mode::Leased), the default | this process, from lent tokens | `burst + rate * T` for all instances together | what was lent, then the rule's [`Outage`] |
//! | [`Exact`](Mode::Exact) | the authority, each time | `burst + rate * T` for all instances together | the rule's [`Outage`] |
//! | [`Buffered`](Mode::Buffered) | this process, and reports afterwards | the same and `N` instances' [`delta_max`](Rule::delta_max) | goes on for `delta_max`, then the rule's [`Outage`] |
//!
//! So for buckets; the [other algorithms](guide::algorithms) count in windows or let requests leave one by one.
//!
//! A gate whose rules are all `Local` is built by [`build_local`](Builder::build_local) and needs no runtime.
//!
//! # Rules that change
//!
//! [`replace_rules`](Tollgate::replace_rules) puts a whole set of [`Rules`] in place while checks go on; limiters follow. With the
//! feature `rules-file` a set can be read from a TOML file, and with `watch` the gate follows that file. A rule may also have
//! [lists](Rule::allow) of keys and patterns, and a new one can be tried in [shadow](Rule::shadow) mode first.
//!
//! # Three kinds of no
//!
//! The limit says no: a [`Decision`] that is not allowed, with [`retry_after`](Decision::retry_after). The store fails:
//! a decision with [`trouble`](Decision::trouble), made by the rule's policy. Something is set up wrongly: an [`Error`] of
//! [`build`](Builder::build), [`limiter`](Tollgate::limiter) or `RedisStore::connect`, and never of a check.
//!
//! # Where to go next
//!
//! - [`Rule`]: all that can be said about a limit. [`Builder`]: all that can be said about a gate.
//! - [`guide::guarantees`]: what is promised, when more can pass and how much, and the test of each line.
//! - [`guide::architecture`]: how it works, for whoever takes over. [`guide::testing`]: how it is tested.
//! - [`guide::algorithms`]: which algorithm to choose, with figures of the same traffic through each.
//! - [`sim`]: judge a trace of admissions of your own, or a whole world in virtual time.
//! - The examples `quickstart` (measures your machine), `gateway` (a web server behind a limit) and `algorithms` (plots).
//!
//! # Features
//!
//! | feature | brings |
//! | --- | --- |
//! | `redis` (default) | `RedisStore` |
//! | `rules-file` | `Rules::from_toml`, `Rules::from_file` |
//! | `watch` | `Tollgate::watch_rules`, and `rules-file` |
//! | `sim` | `sim::World`; needed by no server |
//! | `gateway` | what the example `gateway` needs; nothing in the library |

mod algorithm;
mod atomic;
mod clock;
mod decision;
mod error;
mod ewma;
mod gate;
pub mod guide;
mod hash;
mod key;
mod lease;
mod limiter;
mod local;
mod observe;
mod rate;
mod rule;
pub mod sim;
mod store;
mod sync;
mod time;

pub use algorithm::Algorithm;
pub use clock::Clock;
pub use decision::{Decision, Source};
pub use error::{Error, ErrorKind};
#[cfg(feature = "watch")]
pub use gate::RulesWatch;
pub use gate::{Builder, Replaced, RuleSnapshot, Snapshot, Tollgate};
pub use key::{KEY_BYTES_MAX, LongKeys};
pub use lease::Lost;
pub use limiter::{Bound, KeyHandle, Limiter, Reservation, Saturated, Scope, Settled};
pub use observe::{Event, Link, Observer};
pub use rate::{PERIOD_MAX, RATE_PER_SECOND_MAX, Rate, RateError};
pub use rule::{Abandoned, Cold, Mode, Outage, Rule, Rules};
pub use store::{MemoryStore, Store};
#[cfg(feature = "redis")]
pub use store::{RedisStore, RedisStoreBuilder};
pub use time::Micros;
