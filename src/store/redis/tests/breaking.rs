//! What breaks on the way: kills, cuts, freezes, delays, and callers who leave.

use super::*;

// case H-01: killed under fast polling, nothing hangs and nothing panics, and it comes back by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_is_an_error_in_time_and_a_restarted_one_works_again() {
    let mut server = RedisServer::start();
    let connection = open(&server.url(), HASTY);
    let polling = connection.clone();
    let (tell, mut heard) = tokio::sync::watch::channel(0);
    let poller = tokio::spawn(async move {
        let clock = Clock::system();
        let (mut bad, mut longest) = (0, Micros::ZERO);
        while bad < 100 {
            let start = clock.now();
            match beat(&polling).await {
                Ok(_) => tell.send_modify(|good| *good += 1),
                Err(e) => {
                    let kind = e.kind();
                    assert!(matches!(kind, ErrorKind::Unreachable | ErrorKind::Unanswered), "{e}");
                    bad += 1;
                }
            }
            longest = longest.max(clock.now().minus(start));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        longest
    });
    heard.wait_for(|good| *good >= 50).await.expect("answers before the kill");
    server.kill();
    let longest = poller.await.expect("no panic");
    assert!(longest < Micros::from_secs(5), "{longest:?}");
    server.restart();
    assert_eq!(steady(&connection).await, Ok(1));
}

// case H-02: an idle connection that was closed costs the next call nothing.
#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_replaced_without_an_error() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    for round in 1..=20 {
        assert_eq!(counted(&connection).await, Ok(round), "applied once, whatever was tried");
        assert_eq!(i64::from(proxy.accepted()), round);
        proxy.cut();
        if round % 2 == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

// case H-02, and the store's part of A-02: cut before the reply is in doubt, and never sent again from here.
#[tokio::test]
async fn a_cut_before_the_reply_is_unanswered_and_the_next_call_works() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    assert_eq!(counted(&connection).await, Ok(1));
    proxy.cut_before_reply();
    assert_eq!(counted(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unanswered));
    assert_eq!(server.cli_number(&["GET", "count"]), 2);
    assert_eq!(counted(&connection).await, Ok(3));
}

#[tokio::test]
async fn a_refused_connection_is_unreachable_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    assert_eq!(beat(&connection).await, Ok(1));
    proxy.refuse();
    for _ in 0..3 {
        assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
    }
    proxy.resume();
    assert_eq!(beat(&connection).await, Ok(1));
}

// case H-04: what blocks on a connection of its own does not hold up ours.
#[tokio::test]
async fn a_blocking_command_elsewhere_does_not_stall_us() {
    let server = Arc::new(RedisServer::start());
    let connection = open(&server.url(), PATIENT);
    assert_eq!(beat(&connection).await, Ok(1));
    let theirs = Arc::clone(&server);
    let blocked = thread::spawn(move || theirs.cli(&["BLPOP", "list", "0"]));
    while !server.cli(&["INFO", "clients"]).contains("blocked_clients:1") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..50 {
        assert_eq!(beat(&connection).await, Ok(1));
    }
    assert!(!blocked.is_finished(), "all 50 went past it");
    server.cli(&["RPUSH", "list", "x"]);
    let _ = blocked.join();
}

// case H-06: all return in time, the wait for a place included; what nobody waits for is not sent later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_to_a_frozen_server_return_in_time_and_few_ever_run() {
    let server = RedisServer::start();
    let connection = open(&server.url(), HASTY);
    assert_eq!(steady(&connection).await, Ok(1));
    server.freeze();
    let clock = Clock::system();
    let calls: Vec<_> = (0..10_000)
        .map(|_| {
            let (connection, clock) = (connection.clone(), clock.clone());
            tokio::spawn(async move {
                let start = clock.now();
                let answer = counted(&connection).await;
                (answer, clock.now().minus(start))
            })
        })
        .collect();
    for call in calls {
        let (answer, took) = call.await.expect("no panic");
        assert!(answer.is_err());
        assert!(took < Micros::from_secs(5), "{took:?}");
    }
    // A few more rounds: the silent link is given up, and then nothing is sent at all.
    let mut kinds = BTreeSet::new();
    for _ in 0..8 {
        kinds.insert(format!("{:?}", counted(&connection).await.expect_err("frozen").kind()));
    }
    assert!(kinds.contains("Unreachable"), "{kinds:?}");
    server.thaw();
    assert_eq!(steady(&connection).await, Ok(1));
    let ran = server.cli(&["GET", "count"]).parse().unwrap_or(0);
    assert!(ran <= PLACES * 4, "{ran} of 10,008 ran");
}

// case H-07: a reply that nobody waits for any more never reaches another call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_many_abandoned_calls_every_reply_still_finds_its_call() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    let echo = Script::new("return ARGV[1]");
    let ask = async |word: String| {
        let call = Call { keys: Vec::new(), args: vec![word.clone().into_bytes()] };
        match connection.call(&echo, &call).await {
            Ok(Value::BulkString(bytes)) => assert_eq!(bytes, word.as_bytes()),
            other => panic!("{other:?}"),
        }
    };
    ask("warm".to_owned()).await;
    proxy.delay_replies(Duration::from_millis(1));
    let mut dice = 7_u64;
    let (mut calls, mut abandoned) = (0, 0);
    // How many are abandoned is a matter of how busy the machine is.
    while calls < 1_000 || abandoned < 100 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let patience = Duration::from_micros((dice >> 33) % 2_000);
        let doomed = tokio::time::timeout(patience, ask(format!("doomed {calls}")));
        let (end, ()) = tokio::join!(doomed, ask(format!("kept {calls}")));
        abandoned += usize::from(end.is_err());
        calls += 1;
        assert!(calls < 100_000, "{abandoned} abandoned");
    }
    assert_eq!(proxy.accepted(), 1, "one connection all along");
}

#[tokio::test]
async fn a_time_out_leaves_the_connection_and_many_in_a_row_replace_it() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), HASTY);
    assert_eq!(steady(&connection).await, Ok(1));
    proxy.freeze();
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unanswered));
    proxy.resume();
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(proxy.accepted(), 1, "one time-out is no reason to leave");

    proxy.freeze();
    let mut kinds = Vec::new();
    for _ in 0..6 {
        kinds.extend(beat(&connection).await.err().map(|e| e.kind()));
    }
    assert_eq!(kinds[..2], [ErrorKind::Unanswered, ErrorKind::Unanswered]);
    assert_eq!(kinds[4..], [ErrorKind::Unreachable, ErrorKind::Unreachable]);
    proxy.resume();
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(proxy.accepted(), 2);
}

// case A-03: the answer takes longer than we wait: in doubt, and never sent twice.
#[tokio::test]
async fn a_slow_reply_is_unanswered_and_applied_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), HASTY);
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(counted(&connection).await, Ok(1));
    proxy.delay_replies(Duration::from_millis(250));
    assert_eq!(counted(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unanswered));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.cli_number(&["GET", "count"]), 2);
    proxy.delay_replies(Duration::ZERO);
    assert_eq!(counted(&connection).await, Ok(3), "the late reply went to nobody");
}

// case A-22, the store's part: Redis is not there yet when the road is opened.
#[tokio::test]
async fn a_lazy_store_works_as_soon_as_its_server_is_there() {
    let mut server = RedisServer::start();
    server.kill();
    let connection = open(&server.url(), PATIENT);
    for _ in 0..3 {
        assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
    }
    server.restart();
    assert_eq!(beat(&connection).await, Ok(1));
}

#[tokio::test]
async fn a_server_that_became_read_only_is_dialled_anew() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), PATIENT);
    assert_eq!(beat(&connection).await, Ok(1));
    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    // Its name may lead to another server by now; but not at each refusal, which could be a storm.
    let mut refusals = 0;
    while proxy.accepted() < 3 {
        assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::ReadOnly));
        refusals += 1;
    }
    assert!(refusals > 3, "{refusals}");
}
