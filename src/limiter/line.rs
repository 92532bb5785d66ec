//! Who waits for a key stands in line: one line for each rule and key of a gate, first come first served.
//!
//! Only the head of a line may ask for tokens, so a crowd costs no more questions than one, and whoever leaves, served
//! or not, wakes exactly the next. Everything about a line is decided under one lock; wakers are called outside of it.

use crate::{
    atomic::{Mutex, MutexGuard},
    hash,
    key::Key,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::poll_fn,
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
};

/// Lines of different keys seldom share a lock.
const SHARDS: usize = 16;

/// Whose line it is. A rule's name, since its number may change when rules are replaced.
#[derive(PartialEq, Eq, Hash)]
struct Spot {
    rule: &'static str,
    digest: bool,
    key: Box<[u8]>,
}

/// By ticket: who waits, and how to wake whoever has been told to.
#[derive(Default)]
struct Line {
    last: u64,
    waiting: BTreeMap<u64, Option<Waker>>,
}

type Shard = HashMap<Arc<Spot>, Line>;

/// All lines of one gate. A line is there only while somebody waits in it.
pub(crate) struct Lines {
    shards: [Mutex<Shard>; SHARDS],
    /// The most lines in one shard.
    most: usize,
}

/// A place in a line. Dropping it gives it up, and wakes the next where it was the head.
pub(super) struct Seat {
    lines: Arc<Lines>,
    shard: usize,
    spot: Arc<Spot>,
    ticket: u64,
}

impl Lines {
    /// Room for about this many lines; each may be of any length.
    pub(crate) fn new(keys_max: usize) -> Arc<Lines> {
        Arc::new(Lines { shards: std::array::from_fn(|_| Mutex::default()), most: keys_max.div_ceil(SHARDS) })
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, Shard> {
        // Only ever made by a remainder of its length.
        self.shards[at % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last place in this line; `None` where there are too many lines.
    pub(super) fn enter(self: &Arc<Lines>, rule: &'static str, key: &Key<'_>) -> Option<Seat> {
        // Other bits than those that the maps of the shards use do not matter: these hash by themselves.
        let shard = (hash::local(0, key.bytes()) % SHARDS as u64) as usize;
        let new = Arc::new(Spot { rule, digest: key.is_digest(), key: key.bytes().into() });
        let mut lines = self.shard(shard);
        let room = lines.len() < self.most;
        let spot = lines.get_key_value(&new).map_or_else(|| new.clone(), |(there, _)| there.clone());
        if !room && Arc::ptr_eq(&spot, &new) {
            return None;
        }
        let line = lines.entry(spot.clone()).or_default();
        line.last += 1;
        let ticket = line.last;
        line.waiting.insert(ticket, None);
        drop(lines);
        Some(Seat { lines: self.clone(), shard, spot, ticket })
    }

    /// Lines in which somebody waits.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        (0..SHARDS).map(|at| self.shard(at).len()).sum()
    }
}

impl Seat {
    /// Ready as soon as this is the head of the line, and from then on.
    pub(super) async fn turn(&self) {
        poll_fn(|context| self.poll_turn(context)).await;
    }

    /// Whether this is the head of the line.
    pub(super) fn is_first(&self) -> bool {
        self.poll_turn(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn poll_turn(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut lines = self.lines.shard(self.shard);
        // A seat's line and place are there as long as the seat is.
        let Some(line) = lines.get_mut(&self.spot) else { return Poll::Ready(()) };
        if line.waiting.first_key_value().is_none_or(|(first, _)| *first == self.ticket) {
            return Poll::Ready(());
        }
        let old = line.waiting.insert(self.ticket, Some(context.waker().clone()));
        drop(lines);
        drop(old); // somebody else's code: not under the lock
        Poll::Pending
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut lines = self.lines.shard(self.shard);
        let Some(line) = lines.get_mut(&self.spot) else { return };
        let headed = line.waiting.first_key_value().is_some_and(|(first, _)| *first == self.ticket);
        let own = line.waiting.remove(&self.ticket);
        // The next is told once: its waker is taken. One that has not looked yet will see for itself.
        let next = line.waiting.first_entry().filter(|_| headed).and_then(|mut next| next.get_mut().take());
        if line.waiting.is_empty() {
            lines.remove(&self.spot);
        }
        drop(lines);
        drop(own);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("most", &self.most).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use crate::atomic::{AtomicU64, Ordering::Relaxed};
    use std::{pin::pin, task::Wake};

    const KEY: Key<'_> = Key::Raw(b"k");

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn poll(seat: &Seat, woken: &Arc<Woken>) -> bool {
        let waker = woken.clone().into();
        pin!(seat.turn()).poll(&mut Context::from_waker(&waker)).is_ready()
    }

    /// What one of those who wait may do next.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        Enter,
        Poll,
        Leave,
    }

    /// One who waits: its seat, how often it was woken and polled, and when it came.
    #[derive(Default)]
    struct One {
        seat: Option<Seat>,
        woken: Arc<Woken>,
        /// Wakes that it has seen by looking.
        seen: u64,
        /// It looked and was told to wait.
        waits: bool,
        came: usize,
    }

    /// Runs these steps and says what is wrong with the line after each.
    fn run(steps: &[(usize, Step)]) {
        let lines = Lines::new(100);
        let mut ones: [One; 3] = Default::default();
        for (time, (who, step)) in steps.iter().enumerate() {
            let one = &mut ones[*who];
            match step {
                Step::Enter => {
                    one.seat = lines.enter("r", &KEY);
                    one.came = time;
                }
                Step::Poll => {
                    one.seen = one.woken.0.load(Relaxed);
                    let seat = one.seat.as_ref().expect("entered");
                    one.waits = !poll(seat, &one.woken);
                }
                Step::Leave => {
                    one.seat = None;
                    one.waits = false;
                }
            }
            let head = ones.iter().filter(|one| one.seat.is_some()).min_by_key(|one| one.came).map(|one| one.came);
            for one in ones.iter().filter(|one| one.seat.is_some()) {
                let woken = one.woken.0.load(Relaxed) > one.seen;
                if Some(one.came) == head {
                    assert!(!one.waits || woken, "the head sleeps for ever: {steps:?} at {time}");
                } else {
                    assert!(one.waits || one.seen == one.woken.0.load(Relaxed), "{steps:?} at {time}");
                    assert!(!(one.waits && woken), "one was woken before its turn: {steps:?} at {time}");
                }
            }
            assert_eq!(lines.len(), usize::from(head.is_some()), "{steps:?} at {time}");
        }
    }

    /// Every order in which three come, look up to three times each and leave at any point.
    #[test]
    fn in_every_order_of_steps_the_head_is_awake_and_nobody_else_is_woken() {
        fn go(steps: &mut Vec<(usize, Step)>, state: [u8; 3], runs: &mut u32) {
            let mut ended = true;
            for who in 0..3 {
                let next: &[(Step, u8)] = match state[who] {
                    0 => &[(Step::Enter, 1)],
                    looks @ 1..=3 => &[(Step::Poll, looks + 1), (Step::Leave, 9)],
                    4 => &[(Step::Leave, 9)],
                    _ => &[],
                };
                // Who comes first is called the first: the others are the same by another name.
                if state[who] == 0 && who > 0 && state[who - 1] == 0 {
                    continue;
                }
                for (step, then) in next {
                    ended = false;
                    let mut state = state;
                    state[who] = *then;
                    steps.push((who, *step));
                    go(steps, state, runs);
                    steps.pop();
                }
            }
            if ended {
                *runs += 1;
                run(steps);
            }
        }
        let mut runs = 0;
        go(&mut Vec::new(), [0; 3], &mut runs);
        assert!(runs > 10_000, "{runs}");
    }

    #[test]
    fn lines_of_different_rules_and_keys_are_apart_and_gone_when_empty() {
        let lines = Lines::new(1_000);
        let nobody = Arc::<Woken>::default();
        let keys = [Key::Raw(b"a"), Key::Raw(b"b"), Key::Digest([7; 32]), Key::Raw(&[7; 32])];
        let seats: Vec<_> = ["r", "s"]
            .into_iter()
            .flat_map(|rule| keys.iter().map(move |key| (rule, key)))
            .map(|(rule, key)| lines.enter(rule, key).expect("room"))
            .collect();
        assert!(seats.iter().all(|seat| poll(seat, &nobody)));
        assert_eq!(lines.len(), 8);
        drop(seats);
        assert_eq!(lines.len(), 0);
    }

    #[test]
    fn there_are_no_more_lines_than_there_may_be_and_each_may_be_long() {
        let lines = Lines::new(SHARDS);
        let keys: Vec<_> = (0..1_000_u32).map(u32::to_be_bytes).collect();
        let seats: Vec<_> = keys.iter().filter_map(|key| lines.enter("r", &Key::Raw(key))).collect();
        assert_eq!(seats.len(), SHARDS);
        let first = &seats[0].spot.key;
        let behind: Vec<_> = (0..1_000).filter_map(|_| lines.enter("r", &Key::Raw(first))).collect();
        assert_eq!(behind.len(), 1_000);
    }
}
