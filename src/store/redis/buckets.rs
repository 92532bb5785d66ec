//! Questions about buckets on their way to the script, and its answers on their way back.
//!
//! One script call carries a whole batch. A bucket that fails takes no other with it.

use super::{
    connection::Connection,
    fault,
    script::{Call, Script},
    wire,
};
use crate::{
    algorithm::Algorithm,
    error::{Error, ErrorKind},
    lease::Reply,
    store::op::{Answers, Batch},
};
use redis::Value;

/// With this byte begins the answer of a bucket that failed; the script's words follow.
const FAILED: u8 = b'E';

impl Connection {
    /// Asks about all buckets of a batch; each question is applied at most once.
    pub(crate) async fn sync(&self, batch: &Batch) -> Result<Answers, Error> {
        if batch.questions.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = Call::default();
        // No time is told: the server's own clock decides.
        call.args.push(b"0".to_vec());
        for (name, sync) in &batch.questions {
            call.keys.push(name);
            call.args.push(wire::pack(sync));
        }
        let reply = self.call(Script::sync_buckets(), &call).await?;
        let answers = match reply {
            Value::Array(parts) if parts.len() == batch.questions.len() => parts,
            _ => return Err(Error::new(ErrorKind::Protocol, "the answer of a batch has the wrong shape")),
        };
        let answers: Answers = answers
            .iter()
            .zip(&batch.questions)
            .map(|(part, (_, sync))| answer(part, sync.numbers.algorithm))
            .collect();
        if let Some(Err(refusal)) = answers.iter().find(|a| matches!(a, Err(e) if e.kind() == ErrorKind::ReadOnly)) {
            self.refused_inside(refusal.kind());
        }
        Ok(answers)
    }
}

fn answer(part: &Value, algorithm: Algorithm) -> Result<Reply, Error> {
    match part {
        Value::BulkString(bytes) => match bytes.split_first() {
            Some((&FAILED, words)) => Err(fault::of_bucket(&String::from_utf8_lossy(words))),
            _ => wire::unpack(bytes, algorithm),
        },
        // A reply that fails as a whole within an array, which some servers make of a script's error.
        Value::ServerError(error) => Err(fault::refusal(error.code(), error.details().unwrap_or_default())),
        _ => Err(Error::new(ErrorKind::Protocol, "the answer of a bucket has the wrong shape")),
    }
}
