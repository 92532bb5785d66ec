//! One connection: opened, authenticated and proven, then shared by all calls until it breaks.
//!
//! The client's multiplexer matches replies to calls, so a call that nobody waits for any more takes
//! its late reply with it. Never reconnects; that is `connection`.

use super::{
    fault::{self, Fault},
    settings::{Address, Settings},
};
use crate::{
    atomic::{Arc, AtomicU64, Ordering::Relaxed},
    error::{Error, ErrorKind},
    time::Micros,
};
use redis::{AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisResult, Value, aio::MultiplexedConnection, cmd};
use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    task::AbortHandle,
};

/// Commands that may wait inside the multiplexer for the socket.
const BUFFER: usize = 256;

/// An open connection. Its task ends when the last user drops it.
pub(super) struct Link {
    multiplexer: MultiplexedConnection,
    task: AbortHandle,
    written: Arc<AtomicU64>,
    /// The same socket, to look whether the other end has closed it. Never read from.
    probe: Option<std::net::TcpStream>,
    /// When the first of the calls that timed out since the last reply was sent; 0: none.
    silent_since: AtomicU64,
    /// When it was opened.
    pub(super) born: Micros,
}

impl Link {
    /// Connects, authenticates, chooses the database, and sees that a Redis answers. The caller sets
    /// the time limit.
    pub(super) async fn open(settings: &Settings, born: Micros) -> Result<Link, Error> {
        let address = &settings.address;
        let unreachable = |e: io::Error| {
            Error::new(ErrorKind::Unreachable, format!("cannot connect to Redis at {address}: {}", e.kind()))
        };
        let written = Arc::new(AtomicU64::new(0));
        let mut probe = None;
        let socket: Box<dyn Socket> = match address {
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                // Small messages, answers awaited: no time to wait for a full packet.
                stream.set_nodelay(true).map_err(unreachable)?;
                let stream = stream.into_std().map_err(unreachable)?;
                probe = Some(stream.try_clone().map_err(unreachable)?);
                Box::new(TcpStream::from_std(stream).map_err(unreachable)?)
            }
            #[cfg(unix)]
            Address::Unix(path) => Box::new(tokio::net::UnixStream::connect(path).await.map_err(unreachable)?),
            #[cfg(not(unix))]
            Address::Unix(_) => {
                return Err(Error::new(ErrorKind::Config, "this system has no Unix sockets"));
            }
        };
        let counted = Counted { socket, written: Arc::clone(&written) };
        // Without names and numbers the client sends nothing by itself; `greet` does, and sees the codes.
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(BUFFER);
        let opened = MultiplexedConnection::new_with_config(&nobody, counted, config).await;
        let (multiplexer, driver) =
            opened.map_err(|_| Error::new(ErrorKind::Unreachable, format!("cannot connect to Redis at {address}")))?;
        let task = tokio::spawn(driver).abort_handle();
        let link = Link { multiplexer, task, written, probe, silent_since: AtomicU64::new(0), born };
        link.greet(settings).await?;
        Ok(link)
    }

    /// AUTH, SELECT and PING in one go. Of what the server says only the code is passed on: some
    /// quote the command that they refuse, password and all.
    async fn greet(&self, settings: &Settings) -> Result<(), Error> {
        let auth = settings.password.as_ref().map(|password| {
            let mut auth = cmd("AUTH");
            if let Some(username) = &settings.username {
                auth.arg(username);
            }
            auth.arg(password);
            auth
        });
        let select = (settings.database != 0).then(|| {
            let mut select = cmd("SELECT");
            select.arg(settings.database);
            select
        });
        // One round trip for all: each is written before the first is answered, in this order. Not as
        // one pipeline, whose replies come together or not at all.
        let (auth, select, ping) = tokio::join!(biased; self.say(auth), self.say(select), self.say(Some(cmd("PING"))));
        Step::Auth.judge(auth, settings)?;
        Step::Select.judge(select, settings)?;
        Step::Ping.judge(ping, settings)
    }

    async fn say(&self, command: Option<Cmd>) -> Option<RedisResult<Value>> {
        match command {
            Some(command) => Some(self.multiplexer.clone().send_packed_command(&command).await),
            None => None,
        }
    }

    /// Sends one command and waits for its reply, without a time limit of its own.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, Fault> {
        if self.is_over() {
            return Err(Fault::NotSent);
        }
        // ordering: Relaxed, here and in `Counted`. The count guards no memory; a value that is
        // read late is higher, which only makes "surely not sent" rarer.
        let before = self.written.load(Relaxed);
        match self.multiplexer.clone().send_packed_command(command).await {
            Ok(Value::ServerError(error)) => {
                self.heard();
                Err(Fault::of_server(&error))
            }
            Ok(reply) => {
                self.heard();
                Ok(reply)
            }
            Err(error) => Err(Fault::of_client(&error, self.written.load(Relaxed) != before)),
        }
    }

    /// Whether the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Whether the other end has closed the connection, though the task that serves it has not had
    /// its turn since. One system call.
    pub(super) fn is_cut(&self) -> bool {
        self.probe.as_ref().is_some_and(|socket| match socket.peek(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        })
    }

    /// A reply came: it lives.
    fn heard(&self) {
        // ordering: Relaxed, here and below. One number by itself; a race between a reply and a
        // time-out may go either way.
        if self.silent_since.load(Relaxed) != 0 {
            self.silent_since.store(0, Relaxed);
        }
    }

    /// A call that was sent at `sent` had no reply until `now`. Returns since when all is silence.
    pub(super) fn missed(&self, sent: Micros, now: Micros) -> Micros {
        let sent = sent.0.max(1);
        let since = match self.silent_since.compare_exchange(0, sent, Relaxed, Relaxed) {
            Ok(_) => sent,
            Err(since) => since,
        };
        now.minus(Micros(since))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Else the task would wait for replies that may never come.
        self.task.abort();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("over", &self.is_over()).finish_non_exhaustive()
    }
}

/// One step of the greeting.
#[derive(Clone, Copy, Debug)]
enum Step {
    Auth,
    Select,
    Ping,
}

impl Step {
    /// Whether the reply to this step, if it was taken, lets us in.
    fn judge(self, reply: Option<RedisResult<Value>>, settings: &Settings) -> Result<(), Error> {
        let address = &settings.address;
        let error = match reply {
            Some(Ok(Value::ServerError(error))) => error,
            Some(Err(error)) => {
                return Err(match Fault::of_client(&error, true) {
                    Fault::Garbage => Error::new(ErrorKind::Protocol, format!("what answers at {address} is no Redis")),
                    _ => Error::new(ErrorKind::Unreachable, format!("the connection to {address} was closed at once")),
                });
            }
            Some(Ok(_)) | None => return Ok(()),
        };
        let code = error.code();
        let kind = fault::refusal(code, error.details().unwrap_or_default()).kind();
        let (kind, what) = match (self, kind) {
            // Alive, and we are in: this user may only do less.
            (Step::Ping, ErrorKind::NoPermission) => return Ok(()),
            (Step::Auth, ErrorKind::Protocol) | (_, ErrorKind::Auth) if settings.password.is_none() => {
                (ErrorKind::Auth, "asks for a password".to_owned())
            }
            (Step::Auth, ErrorKind::Protocol) | (_, ErrorKind::Auth) => {
                (ErrorKind::Auth, "refused the user or the password".to_owned())
            }
            (Step::Select, ErrorKind::Protocol) => {
                (ErrorKind::Config, format!("has no database {}", settings.database))
            }
            (_, kind) => (kind, "cannot serve now".to_owned()),
        };
        Err(Error::new(kind, format!("Redis at {address} {what} ({code})")))
    }
}

/// The maxmemory policy, where the server tells it, and whether scripts may run.
///
/// Returns a sentence when the policy may throw out buckets.
pub(super) async fn inspect(link: &Link) -> Result<Option<String>, Error> {
    let mut script = cmd("EVAL");
    script.arg("return 1").arg(0);
    link.ask(&script).await.map_err(|fault| match fault {
        Fault::Refused(e) => Error::new(e.kind(), format!("Redis does not run scripts for us: {e}")),
        other => other.into_error(),
    })?;
    let mut config = cmd("CONFIG");
    config.arg("GET").arg("maxmemory-policy");
    let mut policy = match link.ask(&config).await {
        Ok(Value::Array(pair)) => pair.get(1).and_then(text),
        Ok(_) | Err(Fault::Refused(_)) => None,
        Err(fault) => return Err(fault.into_error()),
    };
    if policy.is_none() {
        let mut info = cmd("INFO");
        info.arg("memory");
        policy = match link.ask(&info).await {
            Ok(reply) => text(&reply).and_then(|all| {
                all.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(|p| p.trim().to_owned())
            }),
            Err(Fault::Refused(_)) => None,
            Err(fault) => return Err(fault.into_error()),
        };
    }
    Ok(policy.filter(|policy| policy != "noeviction").map(|policy| {
        format!("Redis' maxmemory-policy is {policy}: it may evict buckets, whose state is then lost; use noeviction")
    }))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A socket that counts what the operating system took from it.
struct Counted {
    socket: Box<dyn Socket>,
    written: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.socket).poll_write(cx, bytes);
        if let Poll::Ready(Ok(n)) = done {
            self.written.fetch_add(n as u64, Relaxed);
        }
        done
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
