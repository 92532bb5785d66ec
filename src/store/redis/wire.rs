//! Messages and answers as the script `sync_buckets-n` packs them: one byte of flags, then doubles.
//!
//! Every number of the protocol is whole and below 2^53, so a double carries it exactly. A rate goes as
//! whole tokens a microsecond and a fraction below one, since its count alone may be above 2^53.

use crate::{
    algorithm::Algorithm,
    error::{Error, ErrorKind},
    lease::{Act, EXACT_MAX, Lost, Numbers, Outcome, Reply, Sync, bounded},
    rate::Rate,
    time::Micros,
};

const LOOK: u8 = 1;
const START_FULL: u8 = 2;
/// The kind counts in units of this.
const KIND: u8 = 4;
const ORDER: u8 = 32;
const MESSAGE_BYTES: usize = 1 + 8 + 23 * 8;
/// What a window adds at most: its frame, two times and an order.
const MORE_BYTES: usize = 5 * 8;

const OUTCOME: u8 = 3;
const LOST: u8 = 4;
const NUMBERS: u8 = 8;
const BLOCKED: u8 = 16;
const WINDOW: u8 = 32;
const DELAY: u8 = 64;

/// The message as the script reads it, every field within its bounds.
pub(super) fn pack(sync: &Sync) -> Vec<u8> {
    let s = bounded(sync);
    let (count, period) = (s.numbers.rate.count(), s.numbers.rate.period());
    let windowed = s.numbers.algorithm.is_window();
    // How long to block, or -1 to clear.
    let order = match s.act {
        Act::Sync | Act::Peek => None,
        Act::Clear => Some(-1.0),
        Act::Block(span) => Some(span.0 as f64),
    };
    let on = |flag: u8, is: bool| if is { flag } else { 0 };
    let flags = on(LOOK, s.act == Act::Peek) | on(START_FULL, s.lost == Lost::Full) | on(ORDER, order.is_some());
    let flags = flags | (KIND * kind(s.numbers.algorithm));
    let more = if windowed || order.is_some() { MORE_BYTES } else { 0 };
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES + more);
    bytes.push(flags);
    bytes.extend_from_slice(&s.instance.0.to_le_bytes());
    let mut add = |n: f64| bytes.extend_from_slice(&n.to_le_bytes());
    for n in [
        s.generation,
        s.draw,
        u64::from(s.numbers.revision),
        count / period,
        count % period,
        period,
        s.numbers.burst,
        s.epoch,
        s.seq,
        s.born,
        s.not_after.0,
    ] {
        add(n as f64);
    }
    add(s.used as f64);
    for n in [
        s.hold,
        s.age.0,
        s.need.cost,
        s.need.count,
        s.want,
        s.demand,
        s.span.0,
        s.debt.sum,
        s.debt.acked,
        s.outage.sum,
        s.outage.acked,
    ] {
        add(n as f64);
    }
    if windowed {
        for n in [s.numbers.window, s.numbers.offset, s.window, s.fresh] {
            add(n.0 as f64);
        }
    }
    if let Some(order) = order {
        add(order);
    }
    bytes
}

/// The script's number for an algorithm.
pub(super) const fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::TokenBucket => 0,
        Algorithm::LeakyMeter => 1,
        Algorithm::LeakyQueue => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::SlidingLog => 4,
        Algorithm::SlidingCounter => 5,
    }
}

/// The answer that the script packed about a bucket of this algorithm.
///
/// # Errors
/// `Protocol` when it is none.
pub(super) fn unpack(bytes: &[u8], algorithm: Algorithm) -> Result<Reply, Error> {
    read(bytes, algorithm).ok_or_else(|| Error::new(ErrorKind::Protocol, "the answer of a bucket makes no sense"))
}

fn read(bytes: &[u8], algorithm: Algorithm) -> Option<Reply> {
    let (&flags, rest) = bytes.split_first()?;
    let mut rest = Doubles(rest);
    let outcome = match flags & OUTCOME {
        0 => Outcome::Applied,
        1 => Outcome::Late,
        2 => Outcome::Stale,
        _ => return None,
    };
    let mut reply = Reply {
        outcome,
        epoch: rest.whole()?,
        seq: rest.whole()?,
        generation: 0,
        numbers: None,
        given: 0,
        grant: 0,
        free: 0,
        retry_after: Micros::ZERO,
        now: Micros(rest.whole()?),
        key_ttl: Micros::ZERO,
        lost: flags & LOST != 0,
        blocked: flags & BLOCKED != 0,
        window: Micros::ZERO,
        ends_in: Micros::ZERO,
        delay: Micros::ZERO,
    };
    if outcome == Outcome::Applied {
        reply.generation = rest.whole()?;
        reply.given = rest.whole()?;
        reply.grant = rest.whole()?;
        reply.free = rest.whole()?;
        reply.retry_after = Micros(rest.whole()?);
        reply.key_ttl = Micros(rest.number(TTL_MAX)?);
        if flags & WINDOW != 0 {
            (reply.window, reply.ends_in) = (Micros(rest.whole()?), Micros(rest.whole()?));
        }
        if flags & DELAY != 0 {
            reply.delay = Micros(rest.whole()?);
        }
        if flags & NUMBERS != 0 {
            reply.numbers = Some(rest.numbers(algorithm)?);
        }
    }
    (flags & !(OUTCOME | LOST | NUMBERS | BLOCKED | WINDOW | DELAY) == 0 && rest.0.is_empty()).then_some(reply)
}

/// A time to live is rounded up to whole milliseconds, past the end of the exact numbers.
const TTL_MAX: u64 = EXACT_MAX + 1_000;

/// Doubles that are left to read.
pub(super) struct Doubles<'a>(pub(super) &'a [u8]);

impl Doubles<'_> {
    pub(super) fn next(&mut self) -> Option<f64> {
        let (first, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(f64::from_le_bytes(*first))
    }

    /// A whole number from 0 to 2^53.
    pub(super) fn whole(&mut self) -> Option<u64> {
        self.number(EXACT_MAX)
    }

    fn number(&mut self, max: u64) -> Option<u64> {
        let n = self.next()?;
        (n >= 0.0 && n <= max as f64 && n.fract() == 0.0).then_some(n as u64)
    }

    /// Whole tokens a microsecond, the part of one, and the period.
    pub(super) fn rate(&mut self) -> Option<Rate> {
        let (whole, part, period) = (self.whole()?, self.whole()?, self.whole()?);
        let count = whole.checked_mul(period)?.checked_add(part)?;
        Rate::per_micros(count, Micros(period)).ok()
    }

    /// The numbers of a rule.
    fn numbers(&mut self, algorithm: Algorithm) -> Option<Numbers> {
        let revision = u32::try_from(self.whole()?).ok()?;
        let mut numbers = Numbers { algorithm, ..Numbers::bucket(revision, self.rate()?, self.whole()?) };
        if algorithm.is_window() {
            (numbers.window, numbers.offset) = (Micros(self.whole()?), Micros(self.whole()?));
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_carries_what_its_algorithm_adds() {
        let packed = |flags: u8, numbers: usize| {
            [vec![flags], [7.0f64; 18][..numbers].iter().flat_map(|n| n.to_le_bytes()).collect()].concat()
        };
        let reply = unpack(&packed(16 + 32, 11), Algorithm::FixedWindow).expect("a fair answer");
        assert_eq!((reply.blocked, reply.window, reply.ends_in), (true, Micros(7), Micros(7)));
        let reply = unpack(&packed(64, 10), Algorithm::LeakyQueue).expect("a fair answer");
        assert_eq!((reply.blocked, reply.delay), (false, Micros(7)));
        let mut newer = packed(8, 16);
        newer[1 + 11 * 8..1 + 12 * 8].copy_from_slice(&0.0f64.to_le_bytes());
        let reply = unpack(&newer, Algorithm::SlidingLog).expect("a fair answer");
        assert_eq!(reply.numbers.map(|n| (n.algorithm, n.window)), Some((Algorithm::SlidingLog, Micros(7))));
        assert!(unpack(&newer, Algorithm::TokenBucket).is_err(), "too long for a bucket");
    }

    #[test]
    fn an_answer_that_makes_no_sense_is_an_error() {
        let fine: Vec<u8> = [vec![0], [7.0f64; 9].iter().flat_map(|n| n.to_le_bytes()).collect()].concat();
        let unpack = |bytes: &[u8]| unpack(bytes, Algorithm::TokenBucket);
        assert_eq!(unpack(&fine).map(|r| (r.outcome, r.given)), Ok((Outcome::Applied, 7)));
        let with = |place: usize, n: f64| {
            let mut bytes = fine.clone();
            bytes[1 + 8 * place..9 + 8 * place].copy_from_slice(&n.to_le_bytes());
            bytes
        };
        let mut flagged = fine.clone();
        flagged[0] = 8;
        let longer = [fine.clone(), vec![0]].concat();
        let unknown = [vec![128], fine[1..].to_vec()].concat();
        for bad in [vec![], vec![0], vec![3], fine[..72].to_vec(), longer, flagged, unknown] {
            assert_eq!(unpack(&bad).map_err(|e| e.kind()), Err(ErrorKind::Protocol), "{bad:?}");
        }
        for n in [-1.0, 0.5, f64::NAN, f64::INFINITY, 1e18] {
            assert!(unpack(&with(4, n)).is_err(), "{n}");
        }
    }
}
