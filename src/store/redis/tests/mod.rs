//! The road to Redis against real servers, and against a proxy that misbehaves.
//!
//! Where a count of what was applied is needed, a script that counts stands in for the real ones.

use super::{
    connection::{Connection, PLACES},
    script::{Call, Script},
    *,
};
use crate::{key::BucketName, lease::InstanceId, time::Micros};
use ::redis::Value;
use std::{collections::BTreeSet, thread};
use support::{Proxy, RedisServer, free_port};

mod breaking;
mod buckets;
mod connecting;
mod plain;
mod scripts;
mod state;
#[path = "../../../../tests/support/mod.rs"]
mod support;
mod twin;
mod windows;

const PATIENT: Duration = Duration::from_secs(20);
const HASTY: Duration = Duration::from_millis(200);

fn count() -> Script {
    Script::new("return redis.call('INCR', KEYS[1])")
}

async fn counted(connection: &Connection) -> Result<i64, Error> {
    let call = Call { keys: vec![b"count"], args: Vec::new() };
    match connection.call(&count(), &call).await? {
        Value::Int(n) => Ok(n),
        other => panic!("{other:?}"),
    }
}

fn open(url: &str, response: Duration) -> Connection {
    RedisStore::builder(url).response_timeout(response).lazy().expect("a fair URL").open()
}

fn members() -> BucketName {
    BucketName::from_bytes(*b"tollgate:{16.0}:members")
}

async fn beat(connection: &Connection) -> Result<u32, Error> {
    connection.beat(&members(), InstanceId(1), false).await.map(|beat| beat.members)
}

/// The first answer that is no time-out or lost link.
async fn steady(connection: &Connection) -> Result<u32, Error> {
    for _ in 0..100 {
        match beat(connection).await {
            Err(e) if matches!(e.kind(), ErrorKind::Unreachable | ErrorKind::Unanswered) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            other => return other,
        }
    }
    beat(connection).await
}
