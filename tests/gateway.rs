//! The gateway as users run it: processes of their own on a real Redis, asked over real HTTP.
#![cfg(all(feature = "gateway", feature = "redis", unix))]

mod support;

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};
use support::RedisServer;

/// Longer than anything here takes, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(30);

/// The example's program, which cargo puts beside the folder of the tests' own.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let path = test.ancestors().nth(2).expect("target/PROFILE/deps/test").join("examples").join("gateway");
    assert!(
        path.is_file(),
        "{} is missing: `cargo build --all-features --examples` builds it, and so does `cargo test --all-features`",
        path.display()
    );
    path
}

/// A running gateway; killed when dropped.
struct Gateway {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Option<ChildStderr>,
    url: String,
}

impl Gateway {
    fn start(options: &[&str]) -> Gateway {
        let mut command = Command::new(program());
        command.args(["--listen", "127.0.0.1:0"]).args(options).env_remove("REDIS_URL");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the gateway starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let err = child.stderr.take();
        let mut line = String::new();
        out.read_line(&mut line).expect("text");
        let url = line.trim_end().strip_prefix("listening on ").unwrap_or_default().to_owned();
        let mut gateway = Gateway { child, out, err, url };
        if gateway.url.is_empty() {
            let (status, _, words) = gateway.end();
            panic!("the gateway does not listen but said {line:?} {words:?} and ended: {status}");
        }
        gateway
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid()]).status().expect("kill");
        assert!(sent.success(), "kill {signal} {}", self.pid());
    }

    /// Waits for its end: how it ended, what it had still to say, and what went to standard error.
    fn end(&mut self) -> (ExitStatus, String, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "the gateway does not end");
            thread::sleep(Duration::from_millis(5));
        };
        let (mut said, mut complaints) = (String::new(), String::new());
        self.out.read_to_string(&mut said).expect("text");
        if let Some(mut err) = self.err.take() {
            err.read_to_string(&mut complaints).expect("text");
        }
        (status, said, complaints)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What came back, as far as a test looks at it.
#[derive(Debug)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    limit: Option<String>,
    remaining: Option<String>,
    reset: Option<String>,
    body: String,
}

impl Answer {
    fn is_yes(&self) -> bool {
        assert!(matches!(self.status, 200 | 429), "{self:?}");
        self.status == 200
    }
}

/// A client that keeps its connection.
fn client() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE)).build().into()
}

fn ask(client: &ureq::Agent, gateway: &Gateway, key: Option<&str>) -> Answer {
    let mut request = client.get(format!("{}/", gateway.url));
    if let Some(key) = key {
        request = request.header("x-api-key", key);
    }
    let mut response = request.call().expect("an answer");
    let header = |name: &str| response.headers().get(name).map(|text| text.to_str().expect("text").to_owned());
    let [retry_after, limit, remaining, reset] =
        ["retry-after", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"].map(header);
    let status = response.status().as_u16();
    let body = response.body_mut().read_to_string().expect("text");
    Answer { status, retry_after, limit, remaining, reset, body }
}

#[test]
fn two_gateways_on_one_redis_share_one_limit() {
    const BURST: f64 = 100.0;
    const RATE: f64 = 200.0;
    let redis = RedisServer::start();
    let options = ["--redis", &redis.url(), "--rate", "200", "--burst", "100"];
    let gateways = [Gateway::start(&options), Gateway::start(&options)];
    let span = Duration::from_secs(4);

    let start = Instant::now();
    let (yes, asked) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicU64::new(0));
    thread::scope(|scope| {
        for (gateway, yes) in gateways.iter().zip(&yes) {
            for _ in 0..2 {
                scope.spawn(|| {
                    let client = client();
                    while start.elapsed() < span {
                        // A relaxed count, read when the threads have ended.
                        yes.fetch_add(u64::from(ask(&client, gateway, Some("alice")).is_yes()), Relaxed);
                        asked.fetch_add(1, Relaxed);
                    }
                });
            }
        }
    });
    let took = start.elapsed().as_secs_f64();
    let [one, two] = yes.map(|yes| yes.into_inner() as f64);
    let (admitted, asked, calls) = (one + two, asked.into_inner(), redis.calls("evalsha"));
    println!("{one} + {two} of {asked} in {took:.2} s with {calls} script calls");

    assert!(asked as f64 > 2.0 * (BURST + RATE * took), "no saturation: only {asked} requests in {took:.2} s");
    assert!(admitted <= BURST + RATE * took, "{admitted} in {took:.2} s");
    assert!(admitted >= 0.97 * (BURST + RATE * span.as_secs_f64()), "{admitted} in {took:.2} s");
    assert!(one.min(two) > 0.1 * admitted, "{one} and {two}: one starves");
    // Each asks at most 100 times a second about a key, and once about its members.
    assert!((calls as f64) < 2.0 * 105.0 * took + 20.0, "{calls} calls in {took:.2} s");

    // Another key, and an address, have buckets of their own.
    let client = client();
    assert!(ask(&client, &gateways[0], Some("bob")).is_yes());
    assert!(ask(&client, &gateways[1], None).is_yes());
}

// cases C-34, C-36: Retry-After is a whole number of at least 1, and who waits just so long gets in.
#[test]
fn who_waits_as_long_as_retry_after_says_is_let_in() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&["--redis", &redis.url(), "--rate", "40/m", "--burst", "1"]);
    let client = client();
    for key in [Some("alice"), None] {
        let first = ask(&client, &gateway, key);
        assert!(first.is_yes());
        assert_eq!((first.limit.as_deref(), first.remaining.as_deref()), (Some("1"), Some("0")));
        assert_eq!(first.reset.as_deref(), Some("2"), "a token comes in 1.5 s, told rounded up");
        thread::sleep(Duration::from_millis(100));
        for _ in 0..3 {
            let no = ask(&client, &gateway, key);
            assert!(!no.is_yes());
            assert_eq!(no.retry_after.as_deref(), Some("2"), "{no:?}");
            assert_eq!(no.body, "{\"error\":\"rate_limited\",\"retry_after\":2}\n");
        }
        thread::sleep(Duration::from_secs(2));
        assert!(ask(&client, &gateway, key).is_yes());
    }
}

#[test]
fn a_gateway_that_is_stopped_returns_its_leases_though_clients_keep_their_connections() {
    let redis = RedisServer::start();
    let options = ["--redis", &redis.url(), "--rate", "60/h", "--burst", "100"];
    let mut first = [Gateway::start(&options), Gateway::start(&options)];
    let third = Gateway::start(&options);
    let client = client();
    // One minute brings one token: what is admitted soon after the start is the burst.
    let start = Instant::now();
    let mut admitted = 0;
    for _ in 0..20 {
        for gateway in &first {
            admitted += u64::from(ask(&client, gateway, Some("alice")).is_yes());
        }
    }
    assert_eq!(admitted, 40);
    while ask(&client, &third, Some("alice")).is_yes() {
        admitted += 1;
    }
    println!("{admitted} of 100 before the others stop");

    for (gateway, signal) in first.iter_mut().zip(["-INT", "-TERM"]) {
        let sent = Instant::now();
        gateway.signal(signal);
        let (status, said, complaints) = gateway.end();
        assert_eq!(status.code(), Some(0), "{said} {complaints}");
        assert!(said.contains("stopped: leases returned") && !said.contains("cut off"), "{said} {complaints}");
        assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
    }
    // All that was lent to them can be had by the third, well before their leases would have ended. Its
    // no of before is asked about again within a second.
    let stopped = Instant::now();
    while admitted < 100 && stopped.elapsed() < Duration::from_secs(7) {
        admitted += u64::from(ask(&client, &third, Some("alice")).is_yes());
        thread::sleep(Duration::from_millis(2));
    }
    let refilled = start.elapsed().as_secs() / 60 + 1;
    assert!((100..=100 + refilled).contains(&admitted), "{admitted}");
}

#[test]
fn without_redis_the_outage_policy_answers_and_a_no_is_503() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let options = |outage| ["--redis", &url, "--rate", "1", "--burst", "1", "--outage", outage];
    let [deny, allow] = ["deny", "allow"].map(|outage| Gateway::start(&options(outage)));
    redis.kill();
    let client = client();
    let no = ask_any(&client, &deny, "alice", 503);
    assert_eq!(no.retry_after.as_deref(), Some("1"), "{no:?}");
    assert_eq!(no.body, "{\"error\":\"unavailable\",\"retry_after\":1}\n");
    for _ in 0..3 {
        ask_any(&client, &allow, "alice", 200);
    }
    // What is not limited answers in any case.
    let health = client.get(format!("{}/healthz", deny.url)).call().expect("an answer");
    assert_eq!(health.status().as_u16(), 200);
    assert!(health.headers().get("ratelimit-limit").is_none());
}

fn ask_any(client: &ureq::Agent, gateway: &Gateway, key: &str, status: u16) -> Answer {
    let answer = ask(client, gateway, Some(key));
    assert_eq!(answer.status, status, "{answer:?}");
    answer
}

#[test]
fn options_that_make_no_sense_are_told_and_no_password_is_shown() {
    let run = |options: &[&str]| {
        let mut command = Command::new(program());
        let output = command.args(options).env_remove("REDIS_URL").stdin(Stdio::null()).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (fine, help) = run(&["--help"]);
    assert!(fine);
    for option in ["--listen", "--redis", "--rate", "--burst", "--outage", "127.0.0.1:8080", "REDIS_URL"] {
        assert!(help.contains(option), "{option} is not in {help}");
    }
    let closed = format!("redis://:secret@127.0.0.1:{}", support::free_port());
    for (options, word) in [
        (&["--rate", "0"][..], "rate"),
        (&["--rate", "many"], "--rate"),
        (&["--rate", "1/y"], "no unit"),
        (&["--burst", "0"], "burst"),
        (&["--burst=-1"], "--burst"),
        (&["--listen", "nowhere"], "--listen"),
        (&["--redis", "http://127.0.0.1"], "gateway: "),
        (&["--redis", &closed], "gateway: "),
    ] {
        let (fine, text) = run(&[&["--listen", "127.0.0.1:0"], options].concat());
        assert!(!fine && text.contains(word), "{options:?}: {text}");
        assert!(!text.contains("secret") && !text.contains("panicked"), "{text}");
    }
}
