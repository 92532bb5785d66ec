//! An `Exact` check that nobody disturbs, beside the same script called by hand on one connection.

use crate::{
    Report, gates,
    message::{SCRIPT, Sender},
    redis_server::RedisServer,
};
use std::time::{Duration, Instant};
use tollgate::{Mode, Rule};

/// Blocks of both kinds alternate, so that a busy machine hurts both alike.
const BLOCKS: usize = 40;
const CALLS: usize = 100;
const TARGET: f64 = 2.0;

pub(crate) fn measure(report: &mut Report) {
    println!("\nexact: one check after the other, one key, {} of each kind", BLOCKS * CALLS);
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rule = Rule::token_bucket(900_000, Duration::from_secs(1)).mode(Mode::Exact).deadline(Duration::from_secs(1));
    let gates = runtime.block_on(gates(&server, 1, "exact", &[("exact".to_owned(), rule)]));
    let limiter = gates[0].limiter("exact").expect("a rule");

    let client = redis::Client::open(server.url()).expect("a fair URL");
    // The same client as the library's, and as plain as can be: two ways to call it by hand.
    let mut shared = runtime.block_on(client.get_multiplexed_async_connection()).expect("a connection");
    let mut plain = client.get_connection().expect("a connection");
    let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut plain).expect("the script");
    let command = |sender: &mut Sender| {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&hash).arg(1).arg("exact:{0}:bare").arg(0).arg(sender.message(0, 1, 0));
        command
    };
    let mut sender = Sender::new(1, 900_000, 900_000);
    let mut times: [Vec<Duration>; 4] = Default::default();
    for block in 0..=BLOCKS {
        let mut kinds: [Vec<Duration>; 4] = Default::default();
        runtime.block_on(async {
            for _ in 0..CALLS {
                let command = command(&mut sender);
                let start = Instant::now();
                let answer: Vec<Vec<u8>> = command.query_async(&mut shared).await.expect("an answer");
                kinds[0].push(start.elapsed());
                sender.answered(&answer[0]);
            }
            for _ in 0..CALLS {
                let start = Instant::now();
                let decision = limiter.check("key").await;
                kinds[1].push(start.elapsed());
                assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
            }
        });
        for _ in 0..CALLS {
            let command = command(&mut sender);
            let start = Instant::now();
            let answer: Vec<Vec<u8>> = command.query(&mut plain).expect("an answer");
            kinds[2].push(start.elapsed());
            sender.answered(&answer[0]);
        }
        for _ in 0..CALLS {
            let start = Instant::now();
            let decision = limiter.check_blocking("key");
            kinds[3].push(start.elapsed());
            assert!(decision.is_allowed() && decision.trouble().is_none(), "{decision:?}");
        }
        if block > 0 {
            times.iter_mut().zip(kinds).for_each(|(all, more)| all.extend(more)); // the first warms up
        }
    }
    let names = [
        "bare EVALSHA, shared tokio connection",
        "check().await",
        "bare EVALSHA, blocking connection",
        "check_blocking",
    ];
    for (name, times) in names.iter().zip(&mut times) {
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
        println!("{name:<40} p50 {:>7.1} µs   p10 {:>7.1} µs   p99 {:>7.1} µs", at(50), at(10), at(99));
    }
    let p50 = |kind: usize| times[kind][times[kind].len() / 2].as_secs_f64();
    let ratio = p50(1) / p50(0);
    let target = "at most 1.5 x, 2.0 x is acceptable";
    report.figure("Exact check, p50, to the same call by hand", &format!("{ratio:.2} x"), target, ratio <= TARGET);
    println!("check_blocking to a blocking call by hand: {:.2} x", p50(3) / p50(2));
    let _ = runtime.block_on(gates[0].shutdown());
}
