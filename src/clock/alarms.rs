//! Alarms: wakers that a clock wakes at a time. Needs no runtime; the clock's own ticking thread rings them.

use crate::time::Micros;
use std::{
    collections::BTreeMap,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use super::Clock;

/// So many are taken out under one lock; then they are woken, and then come the next.
const AT_ONCE: usize = 256;

/// All alarms of one clock: one entry each, gone when it has rung or its owner has.
#[derive(Default)]
pub(super) struct Alarms {
    set: Mutex<Set>,
    /// When the first is due, or earlier; [`Micros::MAX`] where there is none.
    next: Next,
}

struct Next(AtomicU64);

impl Default for Next {
    fn default() -> Next {
        Next(AtomicU64::new(u64::MAX))
    }
}

#[derive(Default)]
struct Set {
    last: u64,
    /// By time, and among equals in the order in which they were set.
    wakers: BTreeMap<(Micros, u64), Waker>,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the ticking thread, which does not lock, when to look. The caller holds the lock.
    fn tell(&self, set: &Set) {
        let first = set.wakers.first_key_value().map_or(Micros::MAX, |((at, _), _)| *at);
        // ordering: Relaxed. A stale one costs a look too many, or one tick.
        self.next.0.store(first.0, Relaxed);
    }

    fn set(&self, at: Micros, waker: Waker) -> u64 {
        let mut set = self.lock();
        set.last += 1;
        let id = set.last;
        set.wakers.insert((at, id), waker);
        self.tell(&set);
        id
    }

    /// Has another waker woken, if this alarm has not rung yet; says whether.
    fn renew(&self, key: (Micros, u64), waker: &Waker) -> bool {
        let mut set = self.lock();
        let Some(there) = set.wakers.get_mut(&key) else { return false };
        let old = if there.will_wake(waker) { None } else { Some(std::mem::replace(there, waker.clone())) };
        drop(set);
        // Somebody else's code may run here: not under the lock.
        drop(old);
        true
    }

    fn remove(&self, key: (Micros, u64)) {
        let mut set = self.lock();
        let old = set.wakers.remove(&key);
        self.tell(&set);
        drop(set);
        drop(old); // as in `renew`
    }

    /// Whether [`ring`](Alarms::ring) may have something to do. One load.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        self.next.0.load(Relaxed) <= now.0
    }

    /// Wakes all whose time has come.
    pub(super) fn ring(&self, now: Micros) {
        loop {
            let mut set = self.lock();
            let mut due = Vec::new();
            while due.len() < AT_ONCE
                && let Some(first) = set.wakers.first_entry()
                && first.key().0 <= now
            {
                due.push(first.remove());
            }
            self.tell(&set);
            drop(set);
            if due.is_empty() {
                return;
            }
            for waker in due {
                // Somebody else's code: its panic must not end the clock's thread.
                _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().wakers.len()
    }
}

/// A waker that is woken once at a time. Dropping it takes the waker out.
#[must_use = "an alarm that is dropped does not ring"]
pub(crate) struct Alarm {
    clock: Clock,
    key: (Micros, u64),
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.clock.face.alarms.remove(self.key);
    }
}

/// See [`Clock::sleep_until`].
#[must_use = "a future sleeps only while it is polled"]
pub(crate) struct Sleep {
    clock: Clock,
    at: Micros,
    alarm: Option<Alarm>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.at {
            self.alarm = None;
            return Poll::Ready(());
        }
        let set = self.alarm.as_ref().is_some_and(|alarm| self.clock.face.alarms.renew(alarm.key, context.waker()));
        if !set {
            self.alarm = Some(self.clock.arm(self.at, context.waker().clone()));
            // The time may have come between the look and the alarm; then nobody rings it.
            if self.clock.now() >= self.at {
                self.alarm = None;
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Clock {
    /// Sleeps until the clock shows `at`, and about a millisecond longer at most. A manual clock wakes its sleepers
    /// when it is advanced.
    ///
    /// # Cost
    /// An entry in a tree under a lock while it sleeps; nothing but a look at the clock when the time has come already.
    ///
    /// # Cancel safety
    /// Dropping it takes the entry out.
    pub(crate) fn sleep_until(&self, at: Micros) -> Sleep {
        Sleep { clock: self.clone(), at, alarm: None }
    }

    /// Has the waker woken when the clock shows `at`, at once where it does already; by the clock's thread, or by
    /// who advances a manual clock. It must be quick.
    pub(crate) fn alarm(&self, at: Micros, waker: Waker) -> Alarm {
        let alarm = self.arm(at, waker);
        let now = self.now();
        if now >= at {
            self.face.alarms.ring(now);
        }
        alarm
    }

    fn arm(&self, at: Micros, waker: Waker) -> Alarm {
        self.keep_ticking();
        Alarm { key: (at, self.face.alarms.set(at, waker)), clock: self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        pin::pin,
        sync::{Arc, atomic::AtomicUsize, mpsc},
        task::Wake,
        thread,
        time::Duration,
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    fn woken() -> (Arc<Woken>, Waker) {
        let woken = Arc::<Woken>::default();
        (woken.clone(), woken.into())
    }

    #[test]
    fn a_sleeper_wakes_when_a_manual_clock_is_advanced_and_not_before() {
        let clock = Clock::manual();
        let (woken, waker) = woken();
        let mut context = Context::from_waker(&waker);
        let mut sleep = pin!(clock.sleep_until(clock.now().plus(Micros(10))));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        clock.advance(Micros(9));
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        assert_eq!((woken.0.load(Relaxed), clock.face.alarms.len()), (0, 1));
        clock.advance(Micros(1));
        assert_eq!((woken.0.load(Relaxed), clock.face.alarms.len()), (1, 0));
        assert!(sleep.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_sleeper_that_is_dropped_leaves_nothing_behind() {
        let clock = Clock::manual();
        let (woken, waker) = woken();
        for _ in 0..1_000 {
            let mut sleep = pin!(clock.sleep_until(clock.now().plus(Micros(10))));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(clock.face.alarms.len(), 0);
        clock.advance(Micros(10));
        assert_eq!(woken.0.load(Relaxed), 0);
    }

    #[test]
    fn a_sleeper_that_moves_to_another_task_wakes_the_last() {
        let clock = Clock::manual();
        let ((first, old), (second, new)) = (woken(), woken());
        let mut sleep = pin!(clock.sleep_until(clock.now().plus(Micros(10))));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&old)).is_pending());
        assert!(sleep.as_mut().poll(&mut Context::from_waker(&new)).is_pending());
        clock.advance(Micros(10));
        assert_eq!((first.0.load(Relaxed), second.0.load(Relaxed)), (0, 1));
    }

    #[test]
    fn an_alarm_rings_once_at_its_time_and_at_once_where_that_is_over() {
        let clock = Clock::manual();
        let (count, waker) = woken();
        let past = clock.alarm(clock.now(), waker.clone());
        assert_eq!(count.0.load(Relaxed), 1);
        let later = clock.alarm(clock.now().plus(Micros(5)), waker.clone());
        drop(clock.alarm(clock.now().plus(Micros(5)), waker));
        clock.advance(Micros(100));
        clock.advance(Micros(100));
        assert_eq!(count.0.load(Relaxed), 2);
        drop((past, later));
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_waking() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("planted");
            }
        }
        let clock = Clock::manual();
        let (count, waker) = woken();
        let at = clock.now().plus(Micros(5));
        let alarms = [clock.alarm(at, Arc::new(Panics).into()), clock.alarm(at, waker)];
        clock.advance(Micros(5));
        assert_eq!(count.0.load(Relaxed), 1);
        drop(alarms);
    }

    #[test]
    fn the_system_clock_wakes_its_sleepers_by_itself() {
        struct Sends(mpsc::Sender<()>);
        impl Wake for Sends {
            fn wake(self: Arc<Self>) {
                _ = self.0.send(());
            }
        }
        let clock = Clock::system();
        let (sender, receiver) = mpsc::channel();
        let at = clock.now().plus(Micros::from_millis(3));
        let alarm = clock.alarm(at, Arc::new(Sends(sender)).into());
        // Real time, wide margin.
        assert!(receiver.recv_timeout(Duration::from_secs(20)).is_ok());
        assert!(clock.now() >= at);
        drop(alarm);
    }

    #[test]
    fn sleepers_of_many_threads_all_wake() {
        let clock = Clock::manual();
        let (count, waker) = woken();
        let mut alarms = Vec::new();
        for at in 0..1_000 {
            alarms.push(clock.alarm(clock.now().plus(Micros(1 + at % 10)), waker.clone()));
        }
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let clock = clock.clone();
                thread::spawn(move || (0..5).for_each(|_| clock.advance(Micros(1))))
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap_or_default());
        assert_eq!(count.0.load(Relaxed), 1_000);
    }
}
