//! What scripts do on a real server: applied once whatever it forgets, and each refusal told apart.

use super::*;

#[tokio::test]
async fn a_heartbeat_counts_those_who_beat_and_drops_who_leaves_or_falls_silent() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    let name = members();
    for (instance, leave, want) in [(1, false, 1), (2, false, 2), (1, false, 2), (2, true, 1), (3, true, 1)] {
        let beat = connection.beat(&name, InstanceId(instance), leave).await.expect("an answer");
        assert_eq!(beat.members, want, "{instance} {leave}");
        let secs = server.cli(&["TIME"]).lines().next().and_then(|s| s.parse().ok()).unwrap_or(0);
        assert!(Micros::from_secs(secs + 1).minus(beat.now) < Micros::from_secs(60), "{beat:?}");
    }
    let ttl = server.cli_number(&["PTTL", "tollgate:{16.0}:members"]);
    assert!((1..=5_000).contains(&ttl), "{ttl}");
    // One that was heard long ago, and one from a time that the clock has left again.
    server.cli(&["ZADD", "tollgate:{16.0}:members", "1000000", "old", "9e15", "new"]);
    assert_eq!(beat(&connection).await, Ok(1));
    // case B-02: one script per key, so nothing can come between a write and its TTL.
    assert_eq!(server.calls("expire") + server.calls("set"), 0);
    assert_eq!(connection.beat(&name, InstanceId(1), true).await.map(|b| b.members), Ok(0));
    assert_eq!(server.cli(&["EXISTS", "tollgate:{16.0}:members"]), "0");
}

// cases H-11, H-12: the server forgets its scripts in the middle of a pipeline.
#[tokio::test]
async fn calls_that_meet_a_forgotten_script_are_applied_once_and_only_they_are_sent_again() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    assert_eq!(counted(&connection).await, Ok(1));
    assert_eq!(counted(&connection).await, Ok(2));
    assert_eq!(server.calls("eval"), 1, "the text goes out once");
    server.cli(&["SCRIPT", "FLUSH"]);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move { counted(&connection).await })
        })
        .collect();
    let mut numbers = BTreeSet::new();
    for call in calls {
        numbers.insert(call.await.expect("no panic").expect("an answer"));
    }
    assert_eq!(numbers, (3..=52).collect());
    assert_eq!(server.cli_number(&["GET", "count"]), 52);
    let (hash, text) = (server.calls("evalsha"), server.calls("eval"));
    assert_eq!(hash, 50);
    assert!((1..=50).contains(&text), "{text}");
}

// case H-12: the same all the time, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_again_and_again_under_load_are_applied_once_each() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let connection = connection.clone();
            tokio::spawn(async move {
                let mut numbers = Vec::new();
                for _ in 0..500 {
                    numbers.push(counted(&connection).await.expect("an answer"));
                }
                numbers
            })
        })
        .collect();
    while workers.iter().any(|w| !w.is_finished()) {
        server.cli(&["SCRIPT", "FLUSH"]);
    }
    let mut numbers = BTreeSet::new();
    for worker in workers {
        let theirs = worker.await.expect("no panic");
        assert!(theirs.is_sorted(), "a worker's calls keep their order");
        numbers.extend(theirs);
    }
    assert_eq!(numbers, (1..=4_000).collect());
}

// case H-13: a restarted server knows no script.
#[tokio::test]
async fn the_next_call_after_a_restart_succeeds() {
    let mut server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    for _ in 0..3 {
        assert_eq!(counted(&connection).await, Ok(1));
        assert_eq!(counted(&connection).await, Ok(2));
        server.restart();
    }
    assert_eq!(beat(&connection).await, Ok(1));
}

// case A-26: a server that is up but refuses is not a server that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_refusal_of_a_server_has_its_kind() {
    let server = Arc::new(RedisServer::with_options(&["--busy-reply-threshold", "20"]));
    let connection = open(&server.url(), PATIENT);
    assert_eq!(beat(&connection).await, Ok(1));

    let theirs = Arc::clone(&server);
    let busy = thread::spawn(move || theirs.cli(&["EVAL", "while true do end", "0"]));
    while !server.cli(&["PING"]).contains("BUSY") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::Overloaded));
    server.cli(&["SCRIPT", "KILL"]);
    let _ = busy.join();
    assert_eq!(beat(&connection).await, Ok(1));

    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::OutOfMemory));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);

    server.cli(&["SET", "tollgate:{16.0}:members", "not a set"]);
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::WrongType));
    server.cli(&["DEL", "tollgate:{16.0}:members"]);

    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::ReadOnly));
    server.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    assert_eq!(beat(&connection).await.map_err(|e| e.kind()), Err(ErrorKind::ReadOnly));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(beat(&connection).await, Ok(1));
}
