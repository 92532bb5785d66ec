use crate::worlds::{self, SHARED};
use std::io::Write;
#[test]
fn survey() {
    let n: u64 = std::env::var("N").map_or(100, |t| t.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for &(kind, mode) in SHARED {
        if !format!("{kind:?} {mode:?}").contains(&only) {
            continue;
        }
        let (mut bad, mut adm, mut first) = (0, 0, None);
        let start = std::time::Instant::now();
        for seed in 0..n {
            if !only.is_empty() {
                write!(std::io::stderr(), "{seed} ").unwrap();
            }
            let report = worlds::hostile(seed, kind, mode).build().unwrap().run();
            adm += report.admitted();
            if !report.holds() {
                bad += 1;
                if first.is_none() {
                    first = Some(report.to_string());
                }
            }
        }
        println!(
            "{kind:?} {mode:?}: {bad} of {n} bad, {} tokens each, {:.1} ms each {}",
            adm / n,
            start.elapsed().as_secs_f64() * 1e3 / n as f64,
            first.unwrap_or_default()
        );
    }
}
