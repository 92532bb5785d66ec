//! `acquire`: who waits, in which order, for how long, and what it costs.
#![cfg(feature = "redis")]
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
#[path = "support/mod.rs"]
mod support;

use gates::{lazy, limited, slow};
use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};
use support::RedisServer;
use tollgate::{Clock, Decision, ErrorKind, Limiter, MemoryStore, Mode, Outage, Rule, Tollgate};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A gate of one local rule on a clock that stands still, and its limiter.
fn local(rule: Rule, clock: &Clock) -> (Tollgate, Limiter) {
    let gate = Tollgate::builder().clock(clock.clone()).rule("r", rule.mode(Mode::Local)).build_local().unwrap();
    let limiter = gate.limiter("r").unwrap();
    (gate, limiter)
}

type Wait = Pin<Box<dyn Future<Output = Result<Decision, tollgate::Error>>>>;

/// Somebody who waits for tokens of "k", and has not been polled yet.
fn waits(limiter: &Limiter, cost: u64, deadline: Duration) -> Wait {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.acquire("k", cost, deadline).await })
}

fn poll(future: &mut Wait, waker: &Waker) -> Option<Result<Decision, tollgate::Error>> {
    match future.as_mut().poll(&mut Context::from_waker(waker)) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_hundred_who_wait_are_served_in_the_order_in_which_they_came_whatever_they_cost() {
    let clock = Clock::manual();
    let (_gate, limiter) = local(Rule::token_bucket(100, SECOND).burst(10), &clock);
    assert!(limiter.check_n("k", 10).await_now().is_allowed());
    let mut waiting: Vec<_> = (0..100_u64).map(|i| Some(waits(&limiter, 1 + i * 7 % 10, HOUR))).collect();
    let (mut served, mut time) = (Vec::new(), 0);
    // The last are polled first: the order is that in which they came into the line.
    for slot in &mut waiting {
        assert!(poll(slot.as_mut().unwrap(), Waker::noop()).is_none());
    }
    while served.len() < 100 {
        for i in (0..100).rev() {
            if let Some(done) = waiting[i].as_mut().and_then(|future| poll(future, Waker::noop())) {
                assert!(done.unwrap().is_allowed());
                served.push(i);
                waiting[i] = None;
            }
        }
        clock.advance(Duration::from_millis(1));
        time += 1;
        assert!(time < 20_000, "{served:?}");
    }
    assert_eq!(served, (0..100).collect::<Vec<_>>());
    // 5.5 tokens each on average, at 100 a second: as long as it takes, and hardly longer.
    assert!((5_400..6_000).contains(&time), "{time}");
}

/// The future's value, which is there at once.
trait Now: Future + Sized {
    fn await_now(self) -> Self::Output {
        match pin!(self).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }
}

impl<F: Future> Now for F {}

#[test]
fn ten_thousand_who_wait_are_woken_once_each_and_the_rest_sleeps() {
    let clock = Clock::manual();
    let (gate, limiter) = local(Rule::token_bucket(1_000, SECOND).burst(100), &clock);
    assert!(limiter.check_n("k", 100).await_now().is_allowed());
    let mut waiting: Vec<_> = (0..10_000).map(|_| (waits(&limiter, 1, HOUR), Arc::<Woken>::default())).collect();
    for (future, woken) in &mut waiting {
        assert!(poll(future, &woken.clone().into()).is_none());
    }
    let (mut wakes, mut polls) = (0, 0);
    for _ in 0..12_000 {
        clock.advance(Duration::from_millis(1));
        // As an executor does: who was woken is polled, and nobody else.
        waiting.retain_mut(|(future, woken)| {
            let count = woken.0.swap(0, Relaxed);
            wakes += count;
            polls += usize::from(count > 0);
            count == 0 || poll(future, &woken.clone().into()).is_none()
        });
        if waiting.is_empty() {
            break;
        }
    }
    assert!(waiting.is_empty(), "{} still wait", waiting.len());
    // One wake to become the first, and one when its tokens are there.
    assert!(wakes <= 2 * 10_000 + 10, "{wakes} wakes");
    let questions = gate.snapshot().local_allowed + gate.snapshot().local_denied;
    assert!(questions <= 2 * 10_000 + 10, "{questions} questions in {polls} polls");
}

#[test]
fn whoever_leaves_in_the_middle_holds_up_nobody_and_costs_nothing() {
    for leaves in 0..5_usize {
        let clock = Clock::manual();
        let (_gate, limiter) = local(Rule::token_bucket(10, SECOND).burst(1), &clock);
        assert!(limiter.check("k").await_now().is_allowed());
        let mut waiting: Vec<_> = (0..5).map(|_| (Some(waits(&limiter, 1, HOUR)), Arc::<Woken>::default())).collect();
        for (future, woken) in &mut waiting {
            assert!(poll(future.as_mut().unwrap(), &woken.clone().into()).is_none());
        }
        waiting[leaves].0 = None;
        let mut served = Vec::new();
        for step in 1..=40 {
            for (i, (slot, woken)) in waiting.iter_mut().enumerate() {
                // Only who was woken looks.
                if woken.0.swap(0, Relaxed) > 0
                    && let Some(future) = slot
                    && poll(future, &woken.clone().into()).is_some()
                {
                    *slot = None;
                    served.push((i, step));
                }
            }
            clock.advance(Duration::from_millis(25));
        }
        let order: Vec<_> = served.iter().map(|(i, _)| *i).collect();
        assert_eq!(order, (0..5).filter(|i| *i != leaves).collect::<Vec<_>>());
        // Four tokens take 400 ms: the one who left took none.
        assert!(served.last().unwrap().1 <= 20, "{served:?}");
    }
}

#[test]
fn the_whole_time_in_line_counts_for_the_deadline() {
    let clock = Clock::manual();
    let (_gate, limiter) = local(Rule::token_bucket(1, HOUR).burst(1), &clock);
    assert!(limiter.check("k").await_now().is_allowed());
    let one = |millis| waits(&limiter, 1, Duration::from_millis(millis));
    let (mut first, mut second) = (one(50), one(30));
    assert!(poll(&mut first, Waker::noop()).is_none() && poll(&mut second, Waker::noop()).is_none());
    clock.advance(Duration::from_millis(30));
    assert!(poll(&mut first, Waker::noop()).is_none());
    let error = poll(&mut second, Waker::noop()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadline);
    assert!(error.to_string().contains("in line for the limit"), "{error}");
    clock.advance(Duration::from_millis(20));
    let error = poll(&mut first, Waker::noop()).unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Deadline && error.to_string().contains("for the limit"), "{error}");
}

#[test]
fn what_no_waiting_helps_fails_at_once_and_what_needs_none_does_not_wait() {
    let clock = Clock::manual();
    let rule = Rule::token_bucket(1, HOUR).burst(2).mode(Mode::Local);
    let gate = Tollgate::builder()
        .clock(clock)
        .rule("r", rule)
        .keys_max(1)
        .long_keys(tollgate::LongKeys::Refuse)
        .build_local()
        .unwrap();
    let limiter = gate.limiter("r").unwrap();
    let kind = |result: Result<_, tollgate::Error>| result.map(|_: Decision| ()).unwrap_err().kind();
    assert_eq!(kind(limiter.acquire("k", 3, HOUR).await_now()), ErrorKind::NeverFits);
    assert_eq!(kind(limiter.acquire([0; 2_000], 1, HOUR).await_now()), ErrorKind::BadKey);
    assert!(limiter.acquire("k", 2, Duration::ZERO).await_now().unwrap().is_allowed());
    assert_eq!(kind(limiter.acquire("another", 1, HOUR).await_now()), ErrorKind::Saturated);
    assert_eq!(kind(limiter.acquire("k", 1, Duration::ZERO).await_now()), ErrorKind::Deadline);
    assert!(limiter.acquire("k", 0, Duration::ZERO).await_now().unwrap().is_allowed());
    assert_eq!(kind(limiter.key("k").acquire(1, Duration::ZERO).await_now()), ErrorKind::Deadline);
}

/// An executor of the most trivial kind: parks the thread until it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

#[test]
fn it_needs_no_runtime() {
    let gate = block_on(Tollgate::builder().rule("r", Rule::token_bucket(200, SECOND).burst(1)).build()).unwrap();
    let limiter = gate.limiter("r").unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || (0..5).all(|_| block_on(limiter.acquire("k", 1, 20 * SECOND)).is_ok()))
        })
        .collect();
    let start = Instant::now();
    assert!(threads.into_iter().all(|t| t.join().unwrap()));
    assert!(start.elapsed() >= Duration::from_millis(90), "20 tokens, 5 ms each, but for the first");
    block_on(gate.shutdown()).unwrap();
}

#[tokio::test]
async fn it_works_in_every_mode_on_one_thread_of_tokio() {
    for mode in [Mode::Local, Mode::Leased, Mode::Exact] {
        let rule = Rule::token_bucket(100, SECOND).burst(2).mode(mode).deadline(5 * SECOND);
        let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..12)
            .map(|i| {
                let (limiter, served) = (limiter.clone(), served.clone());
                tokio::spawn(async move {
                    assert!(limiter.acquire("k", 1 + i % 2, 20 * SECOND).await.unwrap().is_allowed());
                    served.lock().unwrap().push(i);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), (0..12).collect::<Vec<_>>(), "{mode:?}");
    }
}

#[tokio::test]
async fn two_instances_that_wait_all_the_time_get_what_one_bucket_gives() {
    for mode in [Mode::Leased, Mode::Exact] {
        let store = MemoryStore::default();
        let rule = Rule::token_bucket(500, SECOND).burst(50).mode(mode).outage(Outage::Deny).deadline(5 * SECOND);
        let (a, first) = limited(store.clone(), rule.clone()).await;
        let (b, second) = limited(store, rule).await;
        // The limiter's own clock: two clocks of one machine differ by some millionths.
        let clock = Clock::system();
        let start = clock.now();
        let served = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = [first, second]
            .into_iter()
            .flat_map(|limiter| (0..20).map(move |_| limiter.clone()))
            .map(|limiter| {
                let (served, clock) = (served.clone(), clock.clone());
                tokio::spawn(async move {
                    while clock.now().minus(start) < SECOND.into() {
                        if limiter.acquire("k", 1, SECOND).await.is_ok() {
                            served.fetch_add(1, Relaxed);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let most = 50.0 + 500.0 * clock.now().minus(start).as_secs_f64();
        let served = served.load(Relaxed);
        assert!(served as f64 <= most, "{mode:?}: {served} of {most}");
        assert!(served as f64 >= most / 3.0, "{mode:?}: {served} of {most}");
        // The heads alone ask: far fewer questions than a crowd would.
        let syncs = a.snapshot().syncs + b.snapshot().syncs;
        assert!(syncs <= 4 * served as u64 + 1_000, "{mode:?}: {syncs} for {served}");
    }
}

#[tokio::test]
async fn a_crowd_that_waits_asks_the_store_no_more_than_one_would() {
    let rule = slow(1).mode(Mode::Exact);
    let (gate, limiter) = limited(MemoryStore::default(), rule).await;
    assert!(limiter.check("k").await.is_allowed());
    let before = gate.snapshot().syncs;
    let tasks: Vec<_> = (0..10_000)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("k", 1, Duration::from_millis(300)).await })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap_err().kind(), ErrorKind::Deadline);
    }
    let syncs = gate.snapshot().syncs - before;
    assert!(syncs <= 20, "{syncs} questions");
}

// case H-06: each returns by its own deadline, the time in line included, whatever the store does.
#[tokio::test]
async fn of_a_frozen_store_everybody_who_waits_returns_in_time() {
    let server = RedisServer::start();
    let rule = slow(100_000).mode(Mode::Exact).outage(Outage::Deny).deadline(Duration::from_millis(50));
    let (gate, limiter) = limited(lazy(&server.url()), rule).await;
    assert!(limiter.acquire("k", 1, 5 * SECOND).await.unwrap().is_allowed());
    server.freeze();
    let start = Instant::now();
    let tasks: Vec<_> = (0..10_000)
        .map(|i| {
            let limiter = limiter.clone();
            let deadline = Duration::from_millis(100 + i % 100);
            tokio::spawn(async move {
                let began = Instant::now();
                let result = limiter.acquire(format!("k{}", i % 10), 1, deadline).await;
                (result, began.elapsed(), deadline)
            })
        })
        .collect();
    for task in tasks {
        let (result, took, deadline) = task.await.unwrap();
        let error = result.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Deadline | ErrorKind::Unanswered | ErrorKind::Unreachable),
            "{error:?}"
        );
        // A machine that does other things too runs a task late; the time itself is told by the first lines.
        assert!(took >= deadline - Duration::from_millis(5) && took < deadline + 5 * SECOND, "{took:?}");
    }
    assert!(start.elapsed() < 10 * SECOND);
    server.thaw();
    assert!(gate.snapshot().syncs < 2_000, "{}", gate.snapshot().syncs);
}

#[tokio::test]
async fn while_the_store_is_away_it_is_tried_until_the_deadline_and_its_kind_is_told() {
    let rule = slow(10).mode(Mode::Exact).outage(Outage::Deny).deadline(Duration::from_millis(20));
    let port = support::free_port();
    let (_gate, limiter) = limited(lazy(&format!("redis://127.0.0.1:{port}")), rule).await;
    let start = Instant::now();
    let error = limiter.acquire("k", 1, Duration::from_millis(200)).await.unwrap_err();
    assert!(start.elapsed() >= Duration::from_millis(190));
    assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unanswered | ErrorKind::Deadline), "{error}");
    assert!(error.to_string().contains("for the store"), "{error}");
}

#[tokio::test]
async fn a_gate_that_shuts_down_ends_the_wait() {
    let (gate, limiter) = limited(MemoryStore::default(), slow(1).mode(Mode::Exact)).await;
    assert!(limiter.check("k").await.is_allowed());
    let waits = tokio::spawn(async move { limiter.acquire("k", 1, HOUR).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.shutdown().await.unwrap();
    assert_eq!(waits.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test]
async fn from_a_leaky_queue_those_who_wait_leave_at_a_constant_rate() {
    // 50 a second: one each 20 ms. Six may wait.
    let rule = Rule::leaky_queue(50, SECOND).burst(6).deadline(5 * SECOND).outage(Outage::Deny);
    let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
    let clock = Clock::system();
    let start = clock.now();
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            tokio::spawn(async move {
                let decision = limiter.acquire("k", 1, 20 * SECOND).await.unwrap();
                (clock.now().minus(start), decision.delay())
            })
        })
        .collect();
    let mut left = Vec::new();
    for task in tasks {
        left.push(task.await.unwrap());
    }
    for (i, (at, _)) in left.iter().enumerate() {
        // Nobody leaves before its time, however busy the machine is.
        assert!(at.0 + 1_000 >= i as u64 * 20_000, "{i}: {left:?}");
    }
    assert!(left.iter().any(|(_, delay)| *delay > Duration::ZERO), "{left:?}");
}

#[tokio::test]
async fn a_turn_in_a_leaky_queue_that_comes_too_late_is_refused_at_once() {
    let rule = Rule::leaky_queue(1, 10 * SECOND).burst(6).deadline(5 * SECOND).outage(Outage::Deny);
    let (_gate, limiter) = limited(MemoryStore::default(), rule).await;
    assert!(limiter.acquire("k", 1, 5 * SECOND).await.unwrap().is_allowed());
    assert!(limiter.check("k").await.delay() > Duration::from_millis(500));
    let start = Instant::now();
    let error = limiter.acquire("k", 1, 12 * SECOND).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Deadline && error.to_string().contains("turn to leave"), "{error}");
    assert!(start.elapsed() < 6 * SECOND, "it did not wait for it");
}

#[tokio::test]
async fn who_waits_for_a_window_is_let_in_when_it_has_room() {
    let window = Duration::from_millis(200);
    let rules = [
        Rule::fixed_window(3, window),
        Rule::sliding_log(3, window),
        Rule::sliding_counter(3, window),
        Rule::leaky_bucket(15, SECOND).burst(3),
    ];
    for (rule, mode) in rules.iter().flat_map(|r| [Mode::Leased, Mode::Exact, Mode::Buffered].map(|m| (r, m))) {
        let rule = rule.clone().mode(mode).deadline(5 * SECOND).outage(Outage::Deny);
        let (_gate, limiter) = limited(MemoryStore::default(), rule.clone()).await;
        let start = Instant::now();
        for _ in 0..9 {
            assert!(limiter.acquire("k", 1, 20 * SECOND).await.unwrap().is_allowed(), "{rule:?}");
        }
        // Three windows, of which the first may end at once; a buffered instance may be one token ahead.
        assert!(start.elapsed() >= Duration::from_millis(190), "{rule:?}: {:?}", start.elapsed());
        assert!(start.elapsed() < 10 * SECOND, "{rule:?}: {:?}", start.elapsed());
    }
}
