//! Named cases of what is reported afterwards, where a part of the report fails.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
mod support;

use gates::{lazy, until};
use std::time::Duration;
use support::RedisServer;
use tollgate::{Limiter, Mode, Outage, Rule, Tollgate};

/// A gate of one tag, so that all keys are told in one message.
async fn limited(server: &RedisServer, rule: &Rule) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().store(lazy(&server.url())).tags(1).rule("r", rule.clone()).build().await.unwrap();
    let limiter = gate.limiter("r").unwrap();
    (gate, limiter)
}

async fn until_left(limiter: &Limiter, key: &str, want: u64) {
    for _ in 0..4_000 {
        if limiter.peek(key).await.remaining() == want {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{key}: {:?}, not {want}", limiter.peek(key).await);
}

// case A-12: of two keys that are told together one fails. What was booked of the other is not told again, and what was
// not booked of this one is told once, when it can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_report_that_fails_half_way_each_half_is_booked_once() {
    let long = Duration::from_secs(300 * 86_400);
    for rule in [Rule::fixed_window(1_000, long), Rule::sliding_log(1_000, long), Rule::token_bucket(1_000, long)] {
        let server = RedisServer::start();
        let rule = rule.mode(Mode::Buffered).delta_max(100).deadline(Duration::from_secs(5));
        let rule = rule.outage(Outage::Deny).overload(Outage::Deny);
        let (one, limiter) = limited(&server, &rule).await;
        let (_other, seen) = limited(&server, &rule).await;
        let keys = || server.cli(&["KEYS", "*:1:r:*"]).lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(limiter.check("good").await.is_allowed());
        until("the first is booked", || keys().len() == 1).await;
        let good = keys();
        assert!(limiter.check("bad").await.is_allowed());
        until("the second is booked", || keys().len() == 2).await;
        let bad = keys().into_iter().find(|key| !good.contains(key)).unwrap();
        until_left(&seen, "bad", 999).await;

        server.cli(&["RENAME", &bad, "aside"]);
        server.cli(&["SET", &bad, "something else"]);
        let mut owed = 0;
        for _ in 0..10 {
            assert!(limiter.check("good").await.is_allowed(), "{rule:?}");
            owed += u64::from(limiter.check("bad").await.is_allowed());
        }
        assert!(owed > 0, "{rule:?}");
        until("one of them fails", || one.snapshot().bucket_errors > 0).await;
        until_left(&seen, "good", 989).await;

        server.cli(&["DEL", &bad]);
        server.cli(&["RENAME", "aside", &bad]);
        one.shutdown().await.expect("all is told");
        // Told once, both: nothing comes after this.
        until_left(&seen, "good", 989).await;
        until_left(&seen, "bad", 999 - owed).await;
    }
}
