//! What one bucket costs Redis: one script call for 100 buckets, beside one call for each in a pipeline.
//!
//! The same script, the same messages, four instances holding tokens of every bucket. Blocks of both kinds alternate, so
//! that a busy machine hurts both alike; what is compared is the CPU time of the server's main thread, as INFO tells it.
//! The time of the client, which packs and reads the messages, is not in it. Prints a table; exits with an error when
//! the target is missed.
#![allow(missing_docs)]

#[path = "../tests/support/message.rs"]
mod message;
#[path = "../tests/support/redis_server.rs"]
mod redis_server;

use message::{SCRIPT, Sender};
use redis::{Connection, pipe};
use redis_server::RedisServer;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

const BUCKETS: usize = 1_000;
const INSTANCES: usize = 4;
/// Buckets in one call of the batched kind.
const BATCH: usize = 100;
const BLOCKS: usize = 8;
/// Rounds in a block; in each, one instance asks about every bucket.
const ROUNDS: usize = 20;
const TARGET: f64 = 1.5;

#[derive(Clone, Copy, Default)]
struct Cost {
    buckets: usize,
    wall: Duration,
    /// Seconds.
    cpu: f64,
}

struct Bench {
    connection: Connection,
    hash: String,
    names: Vec<String>,
    senders: Vec<Vec<Sender>>,
}

impl Bench {
    /// One instance asks about all buckets, so many in a call. Returns the time from sending to the last answer.
    fn round(&mut self, instance: usize, in_a_call: usize) -> Duration {
        let mut calls = pipe();
        let senders = &mut self.senders[instance];
        for (names, senders) in self.names.chunks(in_a_call).zip(senders.chunks_mut(in_a_call)) {
            calls.cmd("EVALSHA").arg(&self.hash).arg(names.len()).arg(names).arg(0);
            for sender in senders {
                // Ten of fifteen are spent since the last time, and ten more are wanted.
                calls.arg(sender.message(5, 0, 10));
            }
        }
        let start = Instant::now();
        let answers: Vec<Vec<Vec<u8>>> = calls.query(&mut self.connection).expect("answers");
        let took = start.elapsed();
        answers.iter().flatten().zip(senders).for_each(|(answer, sender)| sender.answered(answer));
        took
    }

    fn block(&mut self, server: &RedisServer, in_a_call: usize) -> Cost {
        let before = cpu(server);
        let wall = (0..ROUNDS).map(|round| self.round(round % INSTANCES, in_a_call)).sum();
        Cost { buckets: ROUNDS * BUCKETS, wall, cpu: cpu(server) - before }
    }
}

/// Seconds of CPU that the server's main thread has used.
fn cpu(server: &RedisServer) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    let field = |name: &str| -> Option<f64> {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
    };
    ["used_cpu_user_main_thread", "used_cpu_sys_main_thread"]
        .iter()
        .map(|name| field(name).expect("Redis 7 or later tells its main thread's time"))
        .sum()
}

fn main() -> ExitCode {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).expect("a fair URL");
    let mut connection = client.get_connection().expect("a connection");
    let hash = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(&mut connection).expect("the script");
    let senders = (0..INSTANCES).map(|i| vec![Sender::new(1 + i as u64, 999_999, 1_000_000); BUCKETS]).collect();
    // Of one tag, as the library's batches are.
    let names = (0..BUCKETS).map(|n| format!("tollgate:{{3}}:tb:3:api:{n:016}")).collect();
    let mut bench = Bench { connection, hash, names, senders };
    for instance in 0..INSTANCES {
        bench.round(instance, BATCH);
        bench.round(instance, 1);
    }

    // `cargo test` runs benches too, to see that they work.
    let blocks = if std::env::args().any(|word| word == "--bench") { BLOCKS } else { 1 };
    let mut costs = [Cost::default(); 2];
    for _ in 0..blocks {
        for (cost, in_a_call) in costs.iter_mut().zip([BATCH, 1]) {
            let block = bench.block(&server, in_a_call);
            cost.buckets += block.buckets;
            cost.wall += block.wall;
            cost.cpu += block.cpu;
        }
    }

    println!("sync_buckets-n, {INSTANCES} instances holding each of {BUCKETS} buckets, one connection");
    println!("{:<34}{:>14}{:>18}{:>20}", "", "buckets/s", "Redis CPU µs each", "buckets/s of CPU");
    let names = [format!("one call for {BATCH} buckets"), "one call for each, pipelined".to_owned()];
    for (name, cost) in names.iter().zip(&costs) {
        let count = cost.buckets as f64;
        let (wall, each) = (count / cost.wall.as_secs_f64(), cost.cpu * 1e6 / count);
        println!("{name:<34}{wall:>14.0}{each:>18.2}{:>20.0}", 1e6 / each);
    }
    let [batched, single] = costs.map(|cost| cost.cpu / cost.buckets as f64);
    let ratio = single / batched;
    let met = ratio >= TARGET;
    println!("\nbatched, by Redis CPU: {ratio:.2} x, target {TARGET} x: {}", if met { "met" } else { "MISSED" });
    if met || blocks == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
