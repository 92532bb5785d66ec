//! A web server behind a rate limit: one bucket per API key, or per address where there is no key.
//!
//! ```text
//! cargo run --release --features gateway --example gateway -- --rate 100 --burst 20
//! curl -i -H 'x-api-key: alice' http://127.0.0.1:8080/
//! ```
//!
//! Start as many as you like with the same `--redis`: together they let through what one would.
//! Ctrl-C or SIGTERM ends it: open requests are answered, leases go back to the store.
//!
//! It never trusts a header for the peer's address. Behind a proxy of your own, take the address from
//! the header that the proxy sets, and check API keys before you limit by them: who may invent keys
//! has as many buckets as he likes.

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use clap::Parser;
use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    process::ExitCode,
    str::FromStr,
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch};
use tollgate::{Decision, ErrorKind, Event, Limiter, Observer, Outage, RedisStore, Rule, Tollgate};

/// The one rule's name: part of its keys in Redis, so gateways that share a limit agree on it.
const RULE: &str = "gateway";
/// The header that says who asks.
const API_KEY: &str = "x-api-key";
/// How long open requests may take when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// A web server that limits requests by API key or address.
#[derive(Debug, Parser)]
struct Options {
    /// Where to listen; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Redis in which gateways share the limit; without it each gateway limits alone
    #[arg(long, value_name = "URL", env = "REDIS_URL", hide_env_values = true)]
    redis: Option<String>,

    /// Requests that each key may make: 100 or 100/s a second, 30/m a minute, 5/h an hour
    #[arg(long, value_name = "N[/UNIT]", default_value = "100")]
    rate: Pace,

    /// Requests that may come at once; as many as come in one unit of the rate when not given
    #[arg(long, value_name = "N")]
    burst: Option<u64>,

    /// Who passes while Redis is away
    #[arg(long, value_enum, default_value = "share")]
    outage: Away,
}

/// `--outage`, see [`Outage`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Away {
    /// Nobody: 503
    Deny,
    /// Everybody
    Allow,
    /// As many as are this gateway's part of the limit
    Share,
}

/// A number of requests and the time in which they come.
#[derive(Clone, Copy, Debug)]
struct Pace {
    count: u64,
    per: Duration,
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Pace, String> {
        let (count, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(format!("{unit:?} is no unit; there are s, m and h")),
        };
        let count = count.parse().map_err(|e| format!("{count:?}: {e}"))?;
        // Whether it is too much or too little is for the rule to say.
        Ok(Pace { count, per: Duration::from_secs(seconds) })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let gate = gate(&options).await?;
    let limiter = gate.limiter(RULE)?;
    let bound = limiter.bound();
    // What is limited, and beside it what is not: a health check must not use up anybody's limit.
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route_layer(middleware::from_fn_with_state(limiter, limit))
        .route("/healthz", get(|| async { "ok\n" }));

    let listener = TcpListener::bind(options.listen).await.map_err(|e| format!("{}: {e}", options.listen))?;
    say(&format!("listening on http://{}", listener.local_addr()?));
    say(&format!("each key: at most {bound}"));
    serve(listener, app).await?;

    // Leases that are not given back would be missed by the other gateways until they end.
    gate.shutdown().await?;
    let seen = gate.snapshot();
    say(&format!("stopped: leases returned, {} syncs in {} messages", seen.syncs, seen.batches));
    Ok(())
}

async fn gate(options: &Options) -> Result<Tollgate, tollgate::Error> {
    let outage = match options.outage {
        Away::Deny => Outage::Deny,
        Away::Allow => Outage::Allow,
        Away::Share => Outage::Share,
    };
    let mut rule = Rule::token_bucket(options.rate.count, options.rate.per).outage(outage);
    if let Some(burst) = options.burst {
        rule = rule.burst(burst);
    }
    let mut builder = Tollgate::builder().rule(RULE, rule).observer(Log);
    if let Some(url) = &options.redis {
        // A wrong address or password is told now, and not in the first outage.
        builder = builder.store(RedisStore::connect(url).await?);
    }
    builder.build().await
}

/// Serves until a signal comes, then answers what is open, for a while.
async fn serve(listener: TcpListener, app: Router) -> std::io::Result<()> {
    let (tell, mut told) = watch::channel(false);
    let stopping = async move {
        signal().await;
        say("stopping: open requests are answered first");
        // Who listened may have ended meanwhile; that is no matter.
        _ = tell.send(true);
    };
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum::serve(listener, app).with_graceful_shutdown(stopping);
    let patience = async {
        // An error is the end of `stopping` without a word, which is the end of the server.
        _ = told.wait_for(|stopped| *stopped).await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = server => ended,
        () = patience => {
            say("some requests were still open and are cut off");
            Ok(())
        }
    }
}

/// Ends when the process is asked to stop.
async fn signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    _ = interrupt.await;
}

/// The middleware: one token per request, or an answer that says when to come again.
async fn limit(
    State(limiter): State<Limiter>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let decision = limiter.check(who(&request, peer.ip())).await;
    let mut response = if decision.is_allowed() { next.run(request).await } else { refusal(&decision) };
    let headers = response.headers_mut();
    headers.insert(LIMIT, HeaderValue::from(decision.limit()));
    headers.insert(REMAINING, HeaderValue::from(decision.remaining()));
    headers.insert(RESET, HeaderValue::from(whole_seconds(decision.reset_after())));
    response
}

/// Whom a request counts for. The two kinds of keys begin differently, so that no API key is an address.
fn who(request: &Request, peer: IpAddr) -> Vec<u8> {
    match request.headers().get(API_KEY).map(HeaderValue::as_bytes) {
        Some(key) if !key.is_empty() => [b"key:", key].concat(),
        _ => format!("peer:{}", network(peer)).into_bytes(),
    }
}

/// The address, or of a version 6 address the network: a single customer has 2^64 addresses of one.
fn network(peer: IpAddr) -> String {
    match peer.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

/// A no, by whom it was said: the limit (429), or whatever kept us from asking about it (503).
fn refusal(decision: &Decision) -> Response {
    let wait = decision.retry_after_secs();
    let (status, error) = match decision.trouble() {
        // With a wait it is a limit after all: this gateway's part of it, while the store is away.
        Some(ErrorKind::Saturated | ErrorKind::ShutDown) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Some(_) if wait.is_none() => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        _ => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
    };
    // Nobody knows how long a store stays away: a second is polite.
    let wait = wait.or((status == StatusCode::SERVICE_UNAVAILABLE).then_some(1));
    let told = wait.map_or("null".to_owned(), |seconds| seconds.to_string());
    let body = format!("{{\"error\":\"{error}\",\"retry_after\":{told}}}\n");
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    if let Some(seconds) = wait {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Rounded up: who waits so long has waited long enough.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// What an operator wants to know goes to standard error.
struct Log;

impl Observer for Log {
    fn event(&self, event: &Event) {
        // A closed standard error is no reason to stop serving.
        _ = writeln!(std::io::stderr(), "gateway: {event:?}");
    }
}

/// One line on standard output, at once, also into a pipe that may be closed.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
