//! What the limiter must reach on a real Redis, measured and checked: `cargo bench --bench figures`.
//!
//! Words after `--` choose parts: `admitted` (and `1`, `4`, `16`: for so many instances), `keys`, `exact`, `memory`; none
//! means all. Takes some minutes. Each part
//! starts a Redis of its own, prints a table, and says of each figure whether it is met; the command fails when one is
//! missed. On a machine that does other things too, shares and times suffer; the bound never may.
#![allow(missing_docs)]

mod admitted;
mod exact;
mod keys;
mod memory;
#[path = "../../tests/support/message.rs"]
mod message;
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;

use redis_server::RedisServer;
use std::process::ExitCode;
use tollgate::{RedisStore, Rule, Tollgate};

/// What was found out.
#[derive(Default)]
struct Report {
    missed: u32,
}

impl Report {
    /// Prints one figure beside its target.
    fn figure(&mut self, name: &str, value: &str, target: &str, met: bool) {
        self.missed += u32::from(!met);
        println!("{name}: {value} (target: {target}): {}", if met { "met" } else { "MISSED" });
    }
}

/// So many instances with the same rules on one server.
async fn gates(server: &RedisServer, count: usize, prefix: &str, rules: &[(String, Rule)]) -> Vec<Tollgate> {
    let store = RedisStore::connect(server.url()).await.expect("the server");
    let mut gates = Vec::new();
    for _ in 0..count {
        let mut gate = Tollgate::builder().store(store.clone()).key_prefix(prefix);
        for (name, rule) in rules {
            gate = gate.rule(name, rule.clone());
        }
        gates.push(gate.build().await.expect("a gate"));
    }
    gates
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        return ExitCode::SUCCESS; // `cargo test` runs benches too: there is nothing quick to show here
    }
    let chosen = |part: &str| {
        let mut parts = words.iter().filter(|word| !word.starts_with('-')).peekable();
        parts.peek().is_none() || parts.any(|word| word == part)
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let mut report = Report::default();
    // First, while the process is small.
    if chosen("memory") {
        runtime.block_on(memory::measure(&mut report));
    }
    if chosen("exact") {
        exact::measure(&mut report);
    }
    if chosen("keys") {
        runtime.block_on(keys::measure(&mut report));
    }
    if chosen("admitted") {
        let counts: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
        runtime.block_on(admitted::measure(&mut report, &counts));
    }
    println!("\n{}", if report.missed == 0 { "all met".to_owned() } else { format!("{} missed", report.missed) });
    if report.missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
