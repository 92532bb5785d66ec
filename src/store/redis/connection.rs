//! The road to Redis that the engine holds: one link at a time, replaced when it broke.
//!
//! Each call ends within the response time-out, whatever it waits for: a place, a new link, or the
//! answer. Never decides when to ask again; a broken link is replaced by the next call that comes.

use super::{
    fault::Fault,
    link::Link,
    script::{Call, Script},
    settings::Settings,
};
use crate::{
    atomic::{Arc, Mutex, MutexGuard},
    clock::Clock,
    error::{Error, ErrorKind},
    key::BucketName,
    lease::InstanceId,
    store::op::{Beat, MEMBER_LIFE},
    time::Micros,
};
use redis::Value;
use std::{fmt, sync::PoisonError, time::Duration};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

/// Calls that may be under way at once; further ones wait for a place, within their time.
pub(super) const PLACES: usize = 256;

/// A link on which all calls timed out for this many response time-outs is taken for dead.
const SILENCES_MAX: u32 = 3;

/// A link must be this old before a refusal that concerns the whole server makes us look for the
/// server anew (its name may lead to the new master by then).
const REDIAL_AFTER: Micros = if cfg!(test) { Micros::from_millis(50) } else { Micros::from_secs(1) };

/// The road to one Redis. Clones share one link.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Shared>);

struct Shared {
    settings: Arc<Settings>,
    clock: Clock,
    places: Semaphore,
    slot: Mutex<Slot>,
}

/// What there is of a link.
enum Slot {
    Empty,
    /// A task connects; all who need the link wait for what it tells.
    Connecting(watch::Receiver<Option<Result<Arc<Link>, Error>>>),
    Live(Arc<Link>),
}

/// How far a call came; decides what its time-out means.
enum Stage {
    /// Waits for others to finish.
    Place,
    /// Waits for a link.
    Link,
    /// Written, at this time, on this link.
    Sent(Micros, Arc<Link>),
}

impl Connection {
    pub(super) fn new(settings: Arc<Settings>) -> Connection {
        Connection(Arc::new(Shared {
            settings,
            clock: Clock::system(),
            places: Semaphore::new(PLACES),
            slot: Mutex::new(Slot::Empty),
        }))
    }

    /// One heartbeat; see [`Beat`].
    pub(crate) async fn beat(&self, name: &BucketName, instance: InstanceId, leave: bool) -> Result<Beat, Error> {
        let leave = if leave { "1" } else { "0" };
        let args = [instance.0.to_string(), leave.to_owned(), MEMBER_LIFE.as_millis().to_string()];
        let call = Call { keys: vec![name], args: args.map(String::into_bytes).into() };
        match self.call(Script::beat(), &call).await? {
            Value::Array(parts) => match parts[..] {
                [Value::Int(members), Value::Int(now)] => Ok(Beat {
                    members: u32::try_from(members.max(0)).unwrap_or(u32::MAX),
                    now: Micros(now.max(0).unsigned_abs()),
                }),
                _ => Err(Error::new(ErrorKind::Protocol, "a heartbeat's answer has the wrong shape")),
            },
            _ => Err(Error::new(ErrorKind::Protocol, "a heartbeat's answer is no array")),
        }
    }

    /// Calls a script once: by its hash, and again with its text when the server did not have it
    /// (then the first try surely did nothing). Ends within the response time-out.
    pub(super) async fn call(&self, script: &Script, call: &Call<'_>) -> Result<Value, Error> {
        let limit = self.0.settings.response_timeout;
        let mut stage = Stage::Place;
        if let Ok(done) = timeout(limit, self.converse(script, call, &mut stage)).await {
            return done;
        }
        Err(match stage {
            Stage::Place => {
                Error::new(ErrorKind::Unanswered, format!("no place among the calls to Redis within {limit:?}"))
            }
            Stage::Link => {
                Error::new(ErrorKind::Unreachable, format!("no connection to Redis within {limit:?}; still trying"))
            }
            Stage::Sent(at, link) => {
                let silence = Duration::from(link.missed(at, self.0.clock.now()));
                if silence >= limit.saturating_mul(SILENCES_MAX) {
                    self.discard(&link);
                }
                Error::new(ErrorKind::Unanswered, format!("no answer from Redis within {limit:?}"))
            }
        })
    }

    async fn converse(&self, script: &Script, call: &Call<'_>, stage: &mut Stage) -> Result<Value, Error> {
        let _place = self.0.places.acquire().await.map_err(|_| Fault::NotSent.into_error())?;
        let mut command = script.by_hash(call);
        let (mut in_full, mut again) = (false, false);
        loop {
            *stage = Stage::Link;
            let link = self.link().await?;
            *stage = Stage::Sent(self.0.clock.now(), Arc::clone(&link));
            let fault = match link.ask(&command).await {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            match fault {
                Fault::NoScript if !in_full => {
                    command = script.by_text(call);
                    in_full = true;
                    continue;
                }
                Fault::NotSent | Fault::Cut | Fault::Garbage => self.discard(&link),
                Fault::Refused(ref error) => self.refused(&link, error.kind()),
                Fault::NoScript => {}
            }
            // A link that ended while nobody looked costs one more try, never two.
            if matches!(fault, Fault::NotSent) && !again {
                again = true;
                continue;
            }
            return Err(fault.into_error());
        }
    }

    /// The same refusal, found inside a reply.
    pub(super) fn refused_inside(&self, kind: ErrorKind) {
        let link = match &*self.slot() {
            Slot::Live(link) => Arc::clone(link),
            _ => return,
        };
        self.refused(&link, kind);
    }

    /// A refusal that concerns the server rather than the call: it may be the wrong server by now.
    fn refused(&self, link: &Arc<Link>, kind: ErrorKind) {
        let wrong_server = matches!(kind, ErrorKind::ReadOnly | ErrorKind::Auth);
        if wrong_server && self.0.clock.now().minus(link.born) > REDIAL_AFTER {
            self.discard(link);
        }
    }

    /// The link, or the one that is being made: by one task for all who wait.
    async fn link(&self) -> Result<Arc<Link>, Error> {
        // What was closed while nobody spoke is best noticed before something is sent into it; with
        // other calls under way its task is awake and notices by itself.
        let idle = self.0.places.available_permits() + 1 >= PLACES;
        let mut news = {
            let mut slot = self.slot();
            match &*slot {
                Slot::Live(link) if !(link.is_over() || idle && link.is_cut()) => return Ok(Arc::clone(link)),
                Slot::Connecting(news) if news.has_changed().is_ok() => news.clone(),
                // A task that is gone without a word went down with its runtime.
                _ => {
                    let (tell, news) = watch::channel(None);
                    *slot = Slot::Connecting(news.clone());
                    tokio::spawn(self.clone().connect(tell));
                    news
                }
            }
        };
        match news.wait_for(Option::is_some).await {
            Ok(told) => told.clone().unwrap_or_else(|| Err(Fault::NotSent.into_error())),
            Err(_) => Err(Fault::NotSent.into_error()),
        }
    }

    async fn connect(self, tell: watch::Sender<Option<Result<Arc<Link>, Error>>>) {
        let done = dial(&self.0.settings, &self.0.clock).await.map(Arc::new);
        *self.slot() = match &done {
            Ok(link) => Slot::Live(Arc::clone(link)),
            Err(_) => Slot::Empty,
        };
        let _ = tell.send(Some(done));
    }

    /// Forgets a link; calls that still wait on it keep it until they end.
    fn discard(&self, link: &Arc<Link>) {
        let mut slot = self.slot();
        if matches!(&*slot, Slot::Live(current) if Arc::ptr_eq(current, link)) {
            *slot = Slot::Empty;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a link within the connect time-out, whatever the response time-out is.
pub(super) async fn dial(settings: &Settings, clock: &Clock) -> Result<Link, Error> {
    let limit = settings.connect_timeout;
    match timeout(limit, Link::open(settings, clock.now())).await {
        Ok(done) => done,
        Err(_) => Err(too_late(settings)),
    }
}

/// The error of a server that did not answer while connecting.
pub(super) fn too_late(settings: &Settings) -> Error {
    let (address, limit) = (&settings.address, settings.connect_timeout);
    Error::new(ErrorKind::Unreachable, format!("Redis at {address} did not answer within {limit:?}"))
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.0.settings).finish()
    }
}
