//! Batches of buckets through the real script: what one takes, what fails alone, what is left behind.

use super::*;
use crate::{
    lease::{Act, Lost, Need, Numbers, Outcome, Reply, Sync, Total},
    rate::Rate,
    store::{Answers, Batch, MemoryStore, Store},
};

/// Buckets of 1,000 that get 1 token an hour: what is missing was taken.
const BURST: u64 = 1_000;

fn name(n: u64) -> BucketName {
    BucketName::from_bytes(format!("tollgate:{{16.3}}:tb:3:api:r:{n}").into_bytes())
}

fn text(n: u64) -> String {
    String::from_utf8(name(n).to_vec()).expect("text")
}

/// `instance` has `count` requests of one token each, in its message `seq`.
fn need(instance: u64, seq: u64, count: u64) -> Sync {
    Sync {
        generation: 0,
        draw: 77,
        numbers: Numbers::bucket(0, Rate::per_micros(1, Micros::from_secs(3_600)).expect("a rate"), BURST),
        instance: InstanceId(instance),
        epoch: 1,
        seq,
        born: 1,
        not_after: Micros::ZERO,
        used: 0,
        hold: 0,
        age: Micros::ZERO,
        need: Need { cost: 1, count },
        want: 0,
        demand: 1,
        span: Micros::from_secs(10),
        debt: Total::default(),
        outage: Total::default(),
        lost: Lost::Empty,
        window: Micros::ZERO,
        fresh: Micros::ZERO,
        act: Act::Sync,
    }
}

fn batch(questions: impl IntoIterator<Item = (u64, Sync)>) -> Batch {
    Batch { tag: 3, questions: questions.into_iter().map(|(n, sync)| (name(n), sync)).collect() }
}

async fn one(connection: &Connection, n: u64, sync: Sync) -> Result<Reply, Error> {
    let mut answers = connection.sync(&batch([(n, sync)])).await?;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

async fn free(connection: &Connection, n: u64) -> u64 {
    one(connection, n, Sync { act: Act::Peek, ..need(99, 1, 1) }).await.expect("a look").free
}

fn kinds(answers: &Answers) -> Vec<Result<u64, ErrorKind>> {
    answers.iter().map(|a| a.as_ref().map(|r| r.given).map_err(Error::kind)).collect()
}

#[tokio::test]
async fn both_stores_answer_a_batch_and_a_heartbeat_alike() {
    let server = RedisServer::start();
    let redis = RedisStore::connect(server.url()).await.expect("a server");
    for store in [Store::from(MemoryStore::default()), Store::from(redis)] {
        let road = store.open();
        assert_eq!(road.sync(&batch([])).await, Ok(Vec::new()), "{store:?}");
        let first = road.sync(&batch([(1, need(1, 1, 900)), (2, need(1, 1, 1))])).await.expect("an answer");
        assert_eq!(kinds(&first), [Ok(900), Ok(1)], "{store:?}");
        let second = road.sync(&batch([(2, need(1, 2, 1)), (1, need(2, 1, 900))])).await.expect("an answer");
        assert_eq!(kinds(&second), [Ok(1), Ok(100)], "{store:?}");
        let reply = second[1].as_ref().expect("an answer");
        assert!(reply.retry_after > Micros::from_secs(3_000), "{store:?}: {reply:?}");
        assert!(reply.now > Micros::from_secs(1_000_000_000), "{store:?}: {reply:?}");
        let members = members();
        assert_eq!(road.beat(&members, InstanceId(1), false).await.map(|b| b.members), Ok(1), "{store:?}");
        assert_eq!(road.beat(&members, InstanceId(2), false).await.map(|b| b.members), Ok(2), "{store:?}");
        assert_eq!(road.beat(&members, InstanceId(1), true).await.map(|b| b.members), Ok(1), "{store:?}");
    }
}

// case H-10: one bucket's key holds something else; the others are granted, once.
#[tokio::test]
async fn a_bucket_that_fails_takes_no_other_with_it() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    server.cli(&["SET", &text(2), "not ours"]);
    server.cli(&["HSET", &text(3), "h", "no header"]);
    let asked = batch((1..=4).map(|n| (n, need(1, 1, 10))));
    let answers = connection.sync(&asked).await.expect("a batch");
    let want = [Ok(10), Err(ErrorKind::WrongType), Err(ErrorKind::WrongType), Ok(10)];
    assert_eq!(kinds(&answers), want);
    assert_eq!((free(&connection, 1).await, free(&connection, 4).await), (BURST - 10, BURST - 10));
    assert_eq!(server.cli(&["GET", &text(2)]), "not ours");
    assert_eq!(server.cli(&["HGET", &text(3), "h"]), "no header");
}

// cases H-11, H-12: 50 batches meet a server that has just forgotten the script.
#[tokio::test]
async fn batches_that_meet_a_forgotten_script_are_applied_once_each() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    for round in 1..=5 {
        server.cli(&["SCRIPT", "FLUSH"]);
        let calls: Vec<_> = (1..=50)
            .map(|instance| {
                let connection = connection.clone();
                tokio::spawn(async move { one(&connection, 1, need(instance, round, 1)).await })
            })
            .collect();
        for call in calls {
            let reply = call.await.expect("no panic").expect("an answer");
            assert_eq!((reply.outcome, reply.given), (Outcome::Applied, 1));
        }
        assert_eq!(free(&connection, 1).await, BURST - 50 * round);
    }
}

// case H-13
#[tokio::test]
async fn a_batch_after_a_restart_is_answered() {
    let mut server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    assert_eq!(one(&connection, 1, need(1, 1, 7)).await.map(|r| r.given), Ok(7));
    server.restart();
    assert_eq!(one(&connection, 1, need(1, 2, 7)).await.map(|r| r.given), Ok(7));
    assert_eq!(free(&connection, 1).await, BURST - 7);
}

// case A-03: the answer is late; the same question again changes nothing.
#[tokio::test]
async fn a_question_whose_answer_was_late_takes_its_tokens_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let connection = open(&proxy.url(), HASTY);
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(one(&connection, 1, need(1, 1, 1)).await.map(|r| r.given), Ok(1));
    proxy.delay_replies(Duration::from_millis(250));
    for _ in 0..3 {
        let late = one(&connection, 1, need(1, 2, 10)).await;
        assert_eq!(late.map_err(|e| e.kind()), Err(ErrorKind::Unanswered));
    }
    proxy.delay_replies(Duration::ZERO);
    assert_eq!(steady(&connection).await, Ok(1));
    let patient = open(&server.url(), PATIENT);
    assert_eq!(one(&patient, 1, need(1, 2, 10)).await.map(|r| r.outcome), Ok(Outcome::Stale));
    assert_eq!(free(&patient, 1).await, BURST - 11);
}

// case B-02: one script per key, the TTL with the write; and a key found without one gets one.
#[tokio::test]
async fn every_bucket_has_a_ttl_after_its_first_question_and_again_after_losing_it() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    let hour = 3_600_000;
    for seq in 1..=2 {
        let reply = one(&connection, 1, need(1, seq, 7)).await.expect("an answer");
        let ttl = server.cli_number(&["PTTL", &text(1)]);
        assert!((6 * hour..=15 * hour).contains(&ttl), "{ttl}");
        assert!(reply.key_ttl.as_millis().abs_diff(ttl.unsigned_abs()) < 60_000, "{reply:?} {ttl}");
        server.cli(&["PERSIST", &text(1)]);
    }
    assert_eq!(server.calls("expire"), 0, "no second command that could come first, or never");
}

// case B-16: out of memory is its own error, and leaves nothing half-written.
#[tokio::test]
async fn a_server_without_memory_refuses_each_bucket_and_leaves_none_half_written() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    assert_eq!(one(&connection, 1, need(1, 1, 10)).await.map(|r| r.given), Ok(10));
    let before = server.cli(&["HGETALL", &text(1)]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let asked = batch([(1, need(1, 2, 10)), (2, need(1, 1, 10))]);
    match connection.sync(&asked).await {
        Ok(answers) => assert_eq!(kinds(&answers), [Err(ErrorKind::OutOfMemory), Err(ErrorKind::OutOfMemory)]),
        Err(whole) => assert_eq!(whole.kind(), ErrorKind::OutOfMemory),
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(server.cli(&["HGETALL", &text(1)]), before);
    assert_eq!(server.cli(&["EXISTS", &text(2)]), "0");
    assert_eq!(kinds(&connection.sync(&asked).await.expect("memory again")), [Ok(10), Ok(10)]);
}

// case A-26: read-only, busy and forbidden are refusals of a server that is there.
#[tokio::test]
async fn a_replica_and_a_user_without_rights_are_told_apart() {
    let server = RedisServer::start();
    let connection = open(&server.url(), PATIENT);
    assert_eq!(one(&connection, 1, need(1, 1, 10)).await.map(|r| r.given), Ok(10));
    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let refused = one(&connection, 1, need(1, 2, 10)).await;
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::ReadOnly));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(one(&connection, 1, need(1, 2, 10)).await.map(|r| r.given), Ok(10));

    server.cli(&["ACL", "SETUSER", "elsewhere", "on", ">pw", "~other:*", "+@all"]);
    let elsewhere = RedisStore::builder(server.url()).username("elsewhere").password("pw").response_timeout(PATIENT);
    let refused = one(&elsewhere.lazy().expect("settings").open(), 1, need(1, 3, 10)).await;
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::NoPermission));
}

// case H-06: a question that a frozen server finds when it wakes is dead by then.
#[tokio::test]
async fn a_question_that_waited_in_a_frozen_server_takes_nothing_when_it_wakes() {
    let server = RedisServer::start();
    let connection = open(&server.url(), HASTY);
    assert_eq!(steady(&connection).await, Ok(1));
    let known = connection.beat(&members(), InstanceId(1), false).await.expect("an answer");
    assert_eq!(free(&connection, 1).await, BURST);
    server.freeze();
    let until = known.now.plus(HASTY.into());
    let lost = one(&connection, 1, Sync { not_after: until, ..need(1, 1, 10) }).await;
    assert_eq!(lost.map_err(|e| e.kind()), Err(ErrorKind::Unanswered));
    server.thaw();
    assert_eq!(steady(&connection).await, Ok(1));
    assert_eq!(server.cli(&["EXISTS", &text(1)]), "0");
}
