//! The harness itself: what other tests rely on is tested first.

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};
use support::{Proxy, RedisServer};

fn ping(port: u16, patience: Duration) -> Option<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(b"PING\r\n").ok()?;
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).ok()?;
    (&reply == b"+PONG\r\n").then(|| start.elapsed())
}

#[test]
fn a_server_answers_restarts_empty_on_its_port_and_is_gone_when_dropped() {
    let mut server = RedisServer::with_password("open sesame");
    let port = server.port();
    assert_eq!(server.cli(&["SET", "a", "1"]), "OK");
    server.restart();
    assert_eq!((server.port(), server.cli(&["EXISTS", "a"])), (port, "0".to_owned()));
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn a_frozen_server_is_silent_until_it_thaws() {
    let server = RedisServer::start();
    server.freeze();
    assert_eq!(ping(server.port(), Duration::from_millis(200)), None);
    server.thaw();
    assert!(ping(server.port(), Duration::from_secs(10)).is_some());
}

#[test]
fn the_proxy_delays_cuts_refuses_freezes_and_resumes() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let patient = Duration::from_secs(10);
    assert!(ping(proxy.port(), patient).is_some());
    proxy.delay_replies(Duration::from_millis(150));
    assert!(ping(proxy.port(), patient).is_some_and(|took| took >= Duration::from_millis(150)));
    proxy.delay_replies(Duration::ZERO);

    server.cli(&["CONFIG", "RESETSTAT"]);
    proxy.cut_before_reply();
    assert_eq!(ping(proxy.port(), patient), None);
    assert_eq!(server.calls("ping"), 1, "the server has acted");

    proxy.refuse();
    assert_eq!(ping(proxy.port(), patient), None);
    proxy.resume();
    assert!(ping(proxy.port(), patient).is_some());

    proxy.freeze();
    assert_eq!(ping(proxy.port(), Duration::from_millis(200)), None);
    proxy.resume();
    assert!(ping(proxy.port(), patient).is_some());
}
