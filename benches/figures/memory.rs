//! What a key costs that nobody asks: 1,000,000 of them, by the process's resident memory.

use crate::Report;
use std::{fs, time::Duration};
use tollgate::{KeyHandle, Limiter, MemoryStore, Mode, Rule, Tollgate};

const KEYS: u64 = 1_000_000;
const TARGET: u64 = 250;

pub(crate) async fn measure(report: &mut Report) {
    println!("\nmemory: {KEYS} keys of 16 bytes in the local tier, kept by handles");
    let rule = Rule::token_bucket(100, Duration::from_secs(1));
    let gate = Tollgate::builder()
        .store(MemoryStore::default())
        .rule("leased", rule.clone())
        .rule("local", rule.mode(Mode::Local))
        .keys_max(2 * KEYS as usize)
        .build()
        .await
        .expect("a gate");
    // A handle keeps its key in the registry. That of a `Local` rule keeps none, so the difference is the key's part.
    let (handles, without) = keep(&gate.limiter("local").expect("a rule"));
    let (more, with) = keep(&gate.limiter("leased").expect("a rule"));
    assert_eq!((gate.snapshot().keys, handles.len() + more.len()), (KEYS, 2 * KEYS as usize));
    let each = with.saturating_sub(without) / KEYS;
    println!("with its handle {} bytes, the handle alone {} bytes", with / KEYS, without / KEYS);
    report.figure("idle key", &format!("{each} bytes"), "at most 250 bytes", each <= TARGET);
}

/// Handles to all keys, and how much the process grew.
fn keep(limiter: &Limiter) -> (Vec<KeyHandle>, u64) {
    let mut handles = Vec::with_capacity(KEYS as usize);
    let before = resident();
    handles.extend((0..KEYS).map(|n| limiter.key(format!("user:{n:011}"))));
    (handles, resident() - before)
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident size");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kib * 1_024
}
