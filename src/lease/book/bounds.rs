//! No message is trusted: every field is brought within its bounds before anything counts with it.

use super::{NEVER, TOKENS_MAX};
use crate::{
    algorithm::Algorithm,
    lease::message::{Act, EXACT_MAX, Numbers, Sync, Total},
    rate::PERIOD_MAX,
    time::Micros,
};

/// The longest window. With every count below 2^51 the twin's products of the two stay exact.
const WINDOW_MAX: Micros = PERIOD_MAX;

/// The message with every field within its bounds, so that nothing behind this overflows, and the
/// twin's doubles are exact. What means nothing to its algorithm is zero.
pub(crate) fn bounded(sync: &Sync) -> Sync {
    let tokens = |n: u64| n.min(TOKENS_MAX);
    let exact = |n: u64| n.min(EXACT_MAX);
    let total = |t: Total| Total { sum: tokens(t.sum), acked: tokens(t.acked) };
    let mut sync = *sync;
    sync.generation = exact(sync.generation);
    sync.draw = sync.draw.clamp(1, EXACT_MAX);
    sync.numbers = numbers(sync.numbers);
    (sync.epoch, sync.seq, sync.born) = (exact(sync.epoch), exact(sync.seq), exact(sync.born));
    sync.not_after = sync.not_after.min(NEVER);
    sync.used = sync.used.clamp(-(TOKENS_MAX as i64), TOKENS_MAX as i64);
    (sync.hold, sync.want) = (tokens(sync.hold), tokens(sync.want));
    sync.age = sync.age.min(NEVER);
    sync.need.cost = tokens(sync.need.cost);
    // Nobody waits for nothing.
    sync.need.count = if sync.need.cost == 0 { 0 } else { tokens(sync.need.count) };
    sync.demand = sync.demand.clamp(1, TOKENS_MAX);
    sync.span = sync.span.min(NEVER);
    (sync.debt, sync.outage) = (total(sync.debt), total(sync.outage));
    let algorithm = sync.numbers.algorithm;
    if algorithm == Algorithm::LeakyQueue {
        // Nothing is ever lent of it, so nothing is held.
        (sync.hold, sync.want) = (0, 0);
    }
    sync.window = if algorithm == Algorithm::FixedWindow { sync.window.min(NEVER) } else { Micros::ZERO };
    sync.fresh = if algorithm.is_window() { sync.fresh.min(NEVER) } else { Micros::ZERO };
    if let Act::Block(span) = &mut sync.act {
        *span = (*span).min(NEVER);
    }
    sync
}

fn numbers(mut numbers: Numbers) -> Numbers {
    numbers.burst = numbers.burst.clamp(1, TOKENS_MAX);
    if numbers.algorithm.is_window() {
        numbers.window = numbers.window.clamp(Micros(1), WINDOW_MAX);
        numbers.offset = Micros(numbers.offset.0 % numbers.window.0);
    } else {
        (numbers.window, numbers.offset) = (Micros::ZERO, Micros::ZERO);
    }
    numbers
}
