//! Getting in: who is let in, who is not, how long it takes, and what is said about it.

use super::*;
use std::{
    io::{Read, Write},
    net::TcpListener,
};

/// The error, after looking that the password is nowhere in it and that it came in time.
async fn refused(store: RedisStoreBuilder, limit: Duration) -> Error {
    let store = store.connect_timeout(limit);
    assert!(!format!("{store:?}").contains("hunter2"));
    let clock = Clock::system();
    let start = clock.now();
    let error = store.connect().await.expect_err("it must be refused");
    let took = Duration::from(clock.now().minus(start));
    assert!(took < limit + Duration::from_secs(2), "{took:?}");
    let source = std::error::Error::source(&error).map(|s| format!("{s} {s:?}"));
    assert!(!format!("{error} {error:?} {source:?}").contains("hunter2"), "{error:?}");
    error
}

// case H-01: a wrong password is an error at once, and never told.
#[tokio::test]
async fn a_wrong_password_user_or_database_is_refused_in_time_and_without_the_password() {
    let server = RedisServer::with_password("hunter2");
    let port = server.port();
    let limit = Duration::from_secs(5);
    let at = |text: &str| RedisStore::builder(format!("redis://{text}127.0.0.1:{port}"));
    for wrong in [at(""), at(":not-hunter2@"), at("nobody:hunter2@"), at("").username("nobody").password("hunter2")] {
        assert_eq!(refused(wrong, limit).await.kind(), ErrorKind::Auth);
    }
    let database = refused(at(":hunter2@").database(16), limit).await;
    assert_eq!(database.kind(), ErrorKind::Config);
    assert!(database.to_string().contains("16"), "{database}");

    let open_to_all = RedisServer::start();
    let needless = RedisStore::builder(open_to_all.url()).password("hunter2");
    assert_eq!(refused(needless, limit).await.kind(), ErrorKind::Auth);

    let store = at(":hunter2@").database(15).connect().await.expect("the right password");
    assert!(!format!("{store:?} {:?}", store.open()).contains("hunter2"));
    assert_eq!(beat(&store.open()).await, Ok(1));
    let lazy = open(&format!("redis://:wrong@127.0.0.1:{port}"), PATIENT);
    assert_eq!(beat(&lazy).await.map_err(|e| e.kind()), Err(ErrorKind::Auth));
}

#[tokio::test]
async fn nobody_someone_silent_and_something_else_are_told_apart() {
    let limit = Duration::from_millis(500);
    let at = |port: u16| RedisStore::builder(format!("redis://:hunter2@127.0.0.1:{port}"));
    assert_eq!(refused(at(free_port()), limit).await.kind(), ErrorKind::Unreachable);

    let silent = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = silent.local_addr().expect("an address").port();
    assert_eq!(refused(at(port), limit).await.kind(), ErrorKind::Unreachable);

    for (answer, kind) in [("HTTP/1.1 400 Bad Request\r\n\r\n", ErrorKind::Protocol), ("", ErrorKind::Unreachable)] {
        let other = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = other.local_addr().expect("an address").port();
        thread::spawn(move || {
            let (mut client, _) = other.accept().expect("a client");
            let _ = client.read(&mut [0; 1024]);
            let _ = client.write_all(answer.as_bytes());
        });
        assert_eq!(refused(at(port), limit).await.kind(), kind, "{answer:?}");
    }
    assert_eq!(refused(RedisStore::builder("hunter2"), limit).await.kind(), ErrorKind::Config);
    assert_eq!(refused(RedisStore::builder("rediss://:hunter2@localhost"), limit).await.kind(), ErrorKind::Config);
    assert_eq!(refused(at(1), Duration::ZERO).await.kind(), ErrorKind::Config);
}

#[test]
fn connecting_outside_a_runtime_is_an_error_and_no_panic() {
    let mut connecting = std::pin::pin!(RedisStore::connect("redis://localhost"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match connecting.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Err(e)) => assert_eq!(e.kind(), ErrorKind::Config),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_policy_that_evicts_is_warned_about_and_a_user_who_may_not_ask_is_fine() {
    let server = RedisServer::with_options(&["--maxmemory-policy", "allkeys-lru"]);
    let store = RedisStore::connect(server.url()).await.expect("a server");
    assert!(store.warning().is_some_and(|w| w.contains("allkeys-lru")));
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(RedisStore::connect(server.url()).await.expect("a server").warning(), None);

    let acl = |words: &[&str]| assert_eq!(server.cli(&[&["ACL", "SETUSER"], words].concat()), "OK");
    acl(&["small", "on", ">pw", "~tollgate:*", "+eval", "+evalsha", "+time", "+@sortedset", "+pexpire"]);
    acl(&["none", "on", ">pw", "~tollgate:*", "+ping"]);
    acl(&["elsewhere", "on", ">pw", "~other:*", "+@all"]);
    let login = |user: &str| RedisStore::builder(server.url()).username(user).password("pw");
    let small = login("small").connect().await.expect("a user who may run scripts");
    assert_eq!((small.warning(), beat(&small.open()).await), (None, Ok(1)));
    let none = login("none").connect().await.map(drop).map_err(|e| e.kind());
    assert_eq!(none, Err(ErrorKind::NoPermission));
    let elsewhere = login("elsewhere").connect().await.expect("a user of other keys").open();
    assert_eq!(beat(&elsewhere).await.map_err(|e| e.kind()), Err(ErrorKind::NoPermission));
}

// case H-03: connecting takes longer than an answer may.
#[tokio::test]
async fn a_slow_connect_succeeds_within_its_own_time_out() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    proxy.delay_replies(Duration::from_millis(500));
    let store = RedisStore::builder(proxy.url()).response_timeout(HASTY).connect_timeout(PATIENT);
    let store = store.connect().await.expect("slow, not gone");
    assert_eq!(proxy.accepted(), 1);
    let connection = store.open();
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
    tokio::time::sleep(Duration::from_millis(700)).await;
    proxy.delay_replies(Duration::ZERO);
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(proxy.accepted(), 2, "the connect went on behind the call that could not wait");
}

#[tokio::test]
async fn however_many_ask_at_first_one_connection_is_made() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    for round in 1..=3 {
        let calls: Vec<_> = (0..100)
            .map(|_| {
                let connection = connection.clone();
                tokio::spawn(async move { counted(&connection).await })
            })
            .collect();
        let mut numbers = BTreeSet::new();
        for call in calls {
            numbers.insert(call.await.expect("no panic").expect("an answer"));
        }
        assert_eq!(numbers.len(), 100);
        assert_eq!(proxy.accepted(), round);
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_unix_socket_is_as_good_as_a_port() {
    let path = std::env::temp_dir().join(format!("tollgate-{}.sock", std::process::id()));
    let path = path.to_str().expect("a path that is text");
    let mut server = RedisServer::with_options(&["--unixsocket", path]);
    let store = RedisStore::connect(format!("unix://{path}?db=3")).await.expect("a socket");
    let connection = store.open();
    assert_eq!(beat(&connection).await, Ok(1));
    assert_eq!(server.cli(&["-n", "3", "EXISTS", "tollgate:{16.0}:members"]), "1");
    server.kill();
    let gone = RedisStore::connect(format!("unix://{path}")).await.map(drop);
    assert_eq!(gone.map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
}
