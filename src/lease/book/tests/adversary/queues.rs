//! Leaky queues in a hostile world: whatever is lost, late or doubled, those who leave do so one interval apart.

use super::*;

/// One run; the least distance of two departures beyond what the first one cost, in µs, and the longest wait beyond
/// what may wait.
fn run(seed: u64) -> (i64, i64) {
    let dice = &mut Dice(seed);
    let (period, burst) = (dice.pick(&[SECOND, SECOND / 10, SECOND / 3 + 1]), dice.pick(&[1, 2, 5, 20]));
    let numbers = Numbers { algorithm: Algorithm::LeakyQueue, ..numbers(1, period, burst) };
    let mut book = Book::default();
    let mut asked: Vec<(u64, Sync)> = Vec::new();
    let (mut t, mut leave, mut longest) = (100 * SECOND, Vec::new(), i64::MIN);
    for seq in 1..60 {
        let step = dice.pick(&[0, 0, MILLI, 100 * MILLI, SECOND, 5 * SECOND]);
        t += dice.below(step + 1);
        let waits = need(dice.pick(&[1, 1, 1, 2, burst]), 1 + dice.below(4));
        let instance = InstanceId(dice.below(3));
        // Some tell of refunds, or claim to hold: neither makes a place.
        let used = dice.pick(&[0, 0, -3, 2 * (seq as i64 % 2)]);
        let sync = Sync { numbers, instance, seq, need: waits, used, hold: dice.pick(&[0, 0, 4]), ..hello() };
        let slow = dice.pick(&[0, 0, 50 * MILLI, SECOND]);
        for _ in 0..dice.pick(&[0, 1, 1, 1, 2]) {
            asked.push((t + dice.below(slow + 1), sync));
        }
        let mut due: Vec<_> = asked.extract_if(.., |m| m.0 <= t).collect();
        while !due.is_empty() {
            let (_, sync) = due.swap_remove(dice.below(due.len() as u64) as usize);
            let reply = book.apply(&sync, Micros(t));
            for k in 0..reply.given {
                leave.push((t + reply.delay.0 + k * sync.need.cost * period, sync.need.cost));
            }
            if reply.given > 0 {
                longest = longest.max(reply.delay.0 as i64 - (burst * period) as i64);
            }
        }
    }
    leave.sort_unstable();
    let gap = |pair: &[(u64, u64)]| (pair[1].0 - pair[0].0) as i64 - (pair[0].1 * period) as i64;
    (leave.windows(2).map(gap).min().unwrap_or(0), longest)
}

#[test]
fn those_who_leave_a_queue_leave_an_interval_apart() {
    // A delay is rounded up to a whole microsecond: two may be one nearer by that.
    let broken = (0..40_000).find(|seed| {
        let (gap, longest) = run(*seed);
        gap < -1 || longest > 0
    });
    assert_eq!(broken, None);
}
