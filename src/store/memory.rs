//! The embedded store: the book itself, in this process, shared by all who hold a clone.
//!
//! It has a clock of its own, as a Redis has, so that an engine treats both alike. Answers at once,
//! and never awaits. State whose time is over is forgotten, a little with each call.

use super::op::{Answers, Batch, Beat, Counted, Hit, MEMBER_LIFE};
use crate::{
    atomic::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering::Relaxed},
    clock::Clock,
    error::{Error, ErrorKind},
    key::BucketName,
    lease::{Book, InstanceId, Reply, Sync},
    time::Micros,
};
use dashmap::{DashMap, mapref::entry::Entry};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    fmt,
    sync::PoisonError,
};

mod plain;
#[cfg(feature = "sim")]
mod probe;

#[cfg(feature = "sim")]
pub(crate) use probe::{Saved, Sums};

/// Buckets looked at for their end with each question: above 1, so that forgetting keeps up.
const SWEPT_PER_QUESTION: usize = 2;

/// An authority inside this process. Clones are the same store; gates that hold one share their
/// limits. `MemoryStore::default()` is a new one on the system's clock.
///
/// # Cost
/// About a microsecond per question; memory for each bucket that is not full again.
#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    books: DashMap<BucketName, Book, crate::hash::RandomState>,
    /// When to look at which bucket again: one entry for each book, at or before its end.
    ends: Mutex<BinaryHeap<Reverse<(Micros, BucketName)>>>,
    members: DashMap<BucketName, HashMap<InstanceId, Micros>, crate::hash::RandomState>,
    /// Plain counters: few, and asked for each request, so one lock serves them.
    counters: Mutex<plain::Counters>,
    clock: Clock,
    /// What is added to the clock, modulo 2^64.
    offset: AtomicU64,
    reachable: AtomicBool,
    #[cfg(any(test, feature = "sim"))]
    fault: Mutex<Option<crate::lease::Fault>>,
}

impl MemoryStore {
    /// A new, empty store on this clock.
    #[must_use]
    pub fn with_clock(clock: Clock) -> MemoryStore {
        let offset = clock.calendar().0.wrapping_sub(clock.now().0);
        MemoryStore(Arc::new(Shared {
            books: DashMap::default(),
            ends: Mutex::new(BinaryHeap::new()),
            members: DashMap::default(),
            counters: Mutex::new(plain::Counters::default()),
            clock,
            offset: AtomicU64::new(offset),
            reachable: AtomicBool::new(true),
            #[cfg(any(test, feature = "sim"))]
            fault: Mutex::new(None),
        }))
    }

    /// How many buckets and counters it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.books.len() + self.counters().len()
    }

    /// Whether it remembers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The authority's time.
    fn now(&self) -> Micros {
        // ordering: Relaxed. One number by itself; only tests ever change it.
        Micros(self.0.clock.now().0.wrapping_add(self.0.offset.load(Relaxed)))
    }

    pub(crate) fn sync(&self, batch: &Batch) -> Result<Answers, Error> {
        self.reach()?;
        let now = self.now();
        let mut fresh = Vec::new();
        let mut answers = Vec::with_capacity(batch.questions.len());
        for (name, sync) in &batch.questions {
            let known = self.0.books.get_mut(name).map(|mut book| self.revise(&mut book, sync, now));
            let reply = known.unwrap_or_else(|| match self.0.books.entry(name.clone()) {
                Entry::Occupied(mut at) => self.revise(at.get_mut(), sync, now),
                Entry::Vacant(at) => {
                    let mut book = Book::default();
                    let reply = self.revise(&mut book, sync, now);
                    // A mere look, or a late question, leaves nothing behind.
                    if book.expires_at() > now {
                        fresh.push(Reverse((book.expires_at(), name.clone())));
                        at.insert(book);
                    }
                    reply
                }
            });
            answers.push(Ok(reply));
        }
        self.forget(now, fresh, batch.questions.len().saturating_mul(SWEPT_PER_QUESTION));
        Ok(answers)
    }

    /// Applies a question to a book.
    fn revise(&self, book: &mut Book, sync: &Sync, now: Micros) -> Reply {
        if book.expires_at() <= now {
            // Over, though the sweep has not come by: as if it had. It stays listed.
            *book = Book::default();
        }
        #[cfg(any(test, feature = "sim"))]
        {
            book.fault = *self.0.fault.lock().unwrap_or_else(PoisonError::into_inner);
        }
        book.apply(sync, now)
    }

    /// All its books make this mistake from now on.
    #[cfg(feature = "sim")]
    pub(crate) fn plant(&self, fault: Option<crate::lease::Fault>) {
        *self.0.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// Lists the ends of new books, and drops up to `most` old ones whose end has come.
    fn forget(&self, now: Micros, fresh: Vec<Reverse<(Micros, BucketName)>>, most: usize) {
        let mut due = Vec::new();
        {
            let mut ends = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
            ends.extend(fresh);
            while due.len() < most && ends.peek().is_some_and(|Reverse((end, _))| *end <= now) {
                due.extend(ends.pop().map(|Reverse((_, name))| name));
            }
        }
        // Never both locks at once: a bucket's is taken after the list's is free.
        let mut again = Vec::new();
        for name in due {
            let mut end = None;
            self.0.books.remove_if(&name, |_, book| {
                end = Some(book.expires_at()).filter(|end| *end > now);
                end.is_none()
            });
            again.extend(end.map(|end| Reverse((end, name))));
        }
        if !again.is_empty() {
            self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).extend(again);
        }
    }

    // Twin: src/store/redis/lua/count_plain-1.lua.
    pub(crate) fn count_plain(&self, name: &BucketName, hit: &Hit) -> Result<Counted, Error> {
        self.reach()?;
        let now = self.now();
        Ok(self.counters().count(name, hit, now))
    }

    fn counters(&self) -> MutexGuard<'_, plain::Counters> {
        self.0.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Twin: src/store/redis/lua/beat-1.lua.
    pub(crate) fn beat(&self, name: &BucketName, instance: InstanceId, leave: bool) -> Result<Beat, Error> {
        self.reach()?;
        let now = self.now();
        let mut members = self.0.members.entry(name.clone()).or_default();
        if leave {
            members.remove(&instance);
        } else {
            members.insert(instance, now);
        }
        // Neither the silent nor those of a clock that has been put back since.
        members.retain(|_, at| now.minus(*at) < MEMBER_LIFE && at.minus(now) < MEMBER_LIFE);
        Ok(Beat { members: u32::try_from(members.len()).unwrap_or(u32::MAX), now })
    }

    fn reach(&self) -> Result<(), Error> {
        // ordering: Relaxed. A switch of tests that guards no memory.
        if self.0.reachable.load(Relaxed) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unreachable, "the embedded store was taken down"))
    }
}

/// For tests of your own: an authority that fails, forgets, or has a bad clock, without a server.
impl MemoryStore {
    /// With `false` every question fails as `Unreachable`, as if the server were gone; state is kept.
    pub fn set_reachable(&self, reachable: bool) {
        // ordering: Relaxed, as in `reach`.
        self.0.reachable.store(reachable, Relaxed);
    }

    /// Forgets all buckets and members, as FLUSHALL does.
    pub fn wipe(&self) {
        // In this order: a bucket that is made meanwhile may leave an end without a bucket, which is
        // dropped when it comes, and never the other way round.
        self.0.ends.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.0.books.clear();
        *self.counters() = plain::Counters::default();
        self.0.members.clear();
    }

    /// Steps the authority's clock by this many microseconds, forward or (below zero) back.
    pub fn step_clock(&self, micros: i64) {
        // ordering: Relaxed, as in `now`. Modulo 2^64, so that a step back is an addition too.
        self.0.offset.fetch_add(micros as u64, Relaxed);
    }
}

impl Default for MemoryStore {
    /// A new, empty store on the system's clock.
    fn default() -> MemoryStore {
        MemoryStore::with_clock(Clock::system())
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("buckets", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lease::{Act, Lost, Need, Numbers, Total},
        rate::Rate,
    };

    fn name(n: u64) -> BucketName {
        BucketName::from_bytes(n.to_be_bytes())
    }

    /// Asks for `cost` at once, of a bucket of 10 that gets 10 a second.
    fn ask(seq: u64, cost: u64) -> Sync {
        Sync {
            generation: 0,
            draw: 7,
            numbers: Numbers::bucket(0, Rate::per_micros(10, Micros::from_secs(1)).expect("a rate"), 10),
            instance: InstanceId(1),
            epoch: 1,
            seq,
            born: 1,
            not_after: Micros::ZERO,
            used: 0,
            hold: 0,
            age: Micros::ZERO,
            need: Need { cost, count: 1 },
            want: 0,
            demand: 1,
            span: Micros::from_secs(1),
            debt: Total::default(),
            outage: Total::default(),
            lost: Lost::Empty,
            window: Micros::ZERO,
            fresh: Micros::ZERO,
            act: Act::Sync,
        }
    }

    fn given(store: &MemoryStore, n: u64, sync: Sync) -> u64 {
        let batch = Batch { tag: 0, questions: vec![(name(n), sync)] };
        let answers = store.sync(&batch).expect("in reach");
        answers[0].as_ref().expect("an answer").given
    }

    #[test]
    fn clones_share_one_bucket_and_others_do_not() {
        let store = MemoryStore::with_clock(Clock::manual());
        assert_eq!(given(&store, 1, ask(1, 8)), 1);
        assert_eq!(given(&store.clone(), 1, ask(2, 8)), 0);
        assert_eq!(given(&MemoryStore::with_clock(Clock::manual()), 1, ask(3, 8)), 1);
    }

    #[test]
    fn a_bucket_is_forgotten_when_its_time_is_over_and_each_call_does_little() {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        for n in 0..1_000 {
            given(&store, n, ask(1, 1));
        }
        assert_eq!(store.len(), 1_000);
        clock.advance(Micros::from_secs(3_600));
        given(&store, 5_000, ask(1, 1));
        assert_eq!(store.len(), 1_001 - SWEPT_PER_QUESTION);
        for seq in 2..600 {
            given(&store, 5_000, ask(seq, 1));
        }
        assert_eq!(store.len(), 1);
        assert!(store.0.ends.lock().expect("no panic").len() <= 1);
    }

    #[test]
    fn a_bucket_that_is_asked_again_and_again_stays_and_is_listed_once() {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        let mut passed = 0;
        for seq in 1..=1_000 {
            passed += given(&store, 1, ask(seq, 1));
            clock.advance(Micros::from_millis(50));
        }
        // 10 at first, and 10 a second for 50 s less the last step.
        assert!((505..=510).contains(&passed), "{passed}");
        assert_eq!((store.len(), store.0.ends.lock().expect("no panic").len()), (1, 1));
    }

    #[test]
    fn a_state_whose_time_is_over_counts_for_nothing_though_nobody_swept_it() {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        assert_eq!(given(&store, 1, ask(9, 10)), 1);
        clock.advance(Micros::from_secs(3_600));
        // An order that the old record would call stale.
        assert_eq!(given(&store, 1, ask(1, 10)), 1);
        assert_eq!((store.len(), store.0.ends.lock().expect("no panic").len()), (1, 1));
    }

    #[test]
    fn a_look_leaves_nothing_behind() {
        let store = MemoryStore::with_clock(Clock::manual());
        given(&store, 1, Sync { act: Act::Peek, ..ask(1, 1) });
        given(&store, 2, Sync { not_after: Micros(1), ..ask(1, 1) });
        assert!(store.is_empty());
    }

    #[test]
    fn a_store_that_was_taken_down_refuses_and_keeps_its_state() {
        let store = MemoryStore::with_clock(Clock::manual());
        assert_eq!(given(&store, 1, ask(1, 10)), 1);
        store.set_reachable(false);
        let batch = Batch { tag: 0, questions: vec![(name(1), ask(2, 1))] };
        assert_eq!(store.sync(&batch).map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
        let beat = store.beat(&name(0), InstanceId(1), false);
        assert_eq!(beat.map_err(|e| e.kind()), Err(ErrorKind::Unreachable));
        store.set_reachable(true);
        assert_eq!(given(&store, 1, ask(3, 1)), 0);
        store.wipe();
        assert!(store.is_empty());
        assert_eq!(given(&store, 1, ask(4, 10)), 1);
    }

    #[test]
    fn members_come_go_and_fall_silent_on_the_stores_own_clock() {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        let beat = |instance, leave| store.beat(&name(0), InstanceId(instance), leave).expect("in reach");
        assert_eq!((beat(1, false).members, beat(2, false).members, beat(2, true).members), (1, 2, 1));
        let before = beat(2, false).now;
        clock.advance(Micros::from_secs(4));
        assert_eq!((beat(2, false).members, beat(2, false).now), (2, before.plus(Micros::from_secs(4))));
        clock.advance(Micros::from_secs(1));
        assert_eq!(beat(2, false).members, 1);
        store.step_clock(-60_000_000);
        assert_eq!(beat(1, false).members, 1, "a beat from the future does not count");
        assert_eq!(beat(1, false).now.plus(Micros::from_secs(55)), before);
    }

    #[test]
    fn threads_that_ask_and_forget_at_once_lose_no_bucket_and_leave_none() {
        let clock = Clock::manual();
        let store = MemoryStore::with_clock(clock.clone());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (store, clock) = (&store, &clock);
                scope.spawn(move || {
                    for round in 0..2_000 {
                        let sync = Sync { instance: InstanceId(thread + 1), ..ask(round + 1, 1) };
                        given(store, round % 17, sync);
                        clock.advance(Micros::from_secs(10));
                    }
                });
            }
        });
        assert_eq!(store.len(), store.0.ends.lock().expect("no panic").len());
        clock.advance(Micros::from_secs(3_600));
        for seq in 1..=20 {
            given(&store, 1_000, ask(seq, 1));
        }
        assert_eq!(store.len(), 1);
    }
}
