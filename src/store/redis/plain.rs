//! Hits on plain counters on their way to the script, and its answers on their way back.

use super::{
    connection::Connection,
    script::{Call, Script},
};
use crate::{
    error::{Error, ErrorKind},
    key::BucketName,
    store::op::{Counted, Hit},
    time::Micros,
};
use redis::Value;

impl Connection {
    /// Counts a hit, all of it or nothing, at most once.
    pub(crate) async fn count_plain(&self, name: &BucketName, hit: &Hit) -> Result<Counted, Error> {
        let numbers = [hit.frame.length().0, hit.frame.offset().0, hit.start.0];
        let words = [hit.limit.to_string(), hit.cost.to_string()].into_iter().chain(numbers.map(|n| n.to_string()));
        let call = Call { keys: vec![name], args: words.map(String::into_bytes).collect() };
        let reply = self.call(Script::count_plain(), &call).await?;
        read(&reply).ok_or_else(|| Error::new(ErrorKind::Protocol, "the answer of a counter makes no sense"))
    }
}

fn read(reply: &Value) -> Option<Counted> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(outcome), Value::BulkString(count), Value::Int(ends_in), Value::Int(now)] = &parts[..] else {
        return None;
    };
    let count = std::str::from_utf8(count).ok()?.parse().ok()?;
    let (ends_in, now) = (Micros(u64::try_from(*ends_in).ok()?), Micros(u64::try_from(*now).ok()?));
    match outcome {
        0 => Some(Counted::Refused { count, ends_in, now }),
        1 => Some(Counted::Taken { count, ends_in, now }),
        2 => Some(Counted::OtherWindow { now }),
        _ => None,
    }
}
