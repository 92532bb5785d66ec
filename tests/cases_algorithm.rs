//! Named cases of limits, clocks, rounding and costs, through the public face: that limiter, engine and store
//! together answer what the algorithm alone does. Scenarios are tables; each runs in every mode for which it
//! holds, on a clock that stands still between its rows, and some against a real server too.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used)]

#[path = "support/gates.rs"]
mod gates;
mod support;
#[path = "support/tables.rs"]
mod tables;

use gates::lazy;
use std::time::{Duration, Instant};
use support::RedisServer;
use tables::{
    ASKING, HOUR, Left, MINUTE, MODES, Never, No, PATIENCE, Row, SECOND, Wait, World, Yes, answer, gate, run, run_on,
};
use tollgate::{Clock, ErrorKind, Mode, Outage, Rule, Tollgate};

// case C-01: who is behind gives nobody a second refill. Time is the store's; an instance's own plays no part.
#[tokio::test]
async fn an_instance_whose_clock_is_behind_refills_nothing() {
    for mode in ASKING {
        let rule = || Rule::token_bucket(2, SECOND).burst(4).mode(mode);
        let mut ahead = World::new(rule()).await;
        ahead.go_to(10_000);
        let behind = gate(&Clock::manual(), &ahead.store, rule()).await.limiter("r").unwrap();
        assert_eq!(ahead.passes(5).await, 4, "{mode:?}");
        assert!(!answer(&behind, 1).await.is_allowed(), "{mode:?}");
        // Not half a second has passed.
        for _ in 0..5 {
            assert!(!ahead.check(1).await.is_allowed(), "{mode:?}");
        }
    }
}

// case C-03: at 10,000 a second 30 ms bring 300, not nothing and not a second's worth.
#[tokio::test]
async fn tokens_of_a_fast_rate_come_by_the_millisecond() {
    let rule = Rule::token_bucket(10_000, SECOND).burst(1_000);
    let rows = [(0, 1_000, Yes), (0, 1_000, No), (30, 290, Yes), (30, 200, No), (50, 190, Yes)];
    run("C-03", &MODES, rule, &rows).await;
}

// case C-04: parts of a token are kept, and count in the wait.
#[tokio::test]
async fn a_part_of_a_token_is_kept_from_check_to_check() {
    let rows = [(0, 10, Yes), (1_900, 1, Yes), (2_025, 1, Yes), (2_025, 1, Wait(975))];
    run("C-04 a second", &MODES, Rule::token_bucket(1, SECOND).burst(10), &rows).await;
    let rows = [(0, 5, Yes), (59_000, 1, Wait(1_000)), (60_025, 1, Yes), (60_025, 1, No)];
    run("C-04 a minute", &MODES, Rule::token_bucket(5, 5 * MINUTE), &rows).await;
}

// case C-05: a hit does not put off the refill.
#[tokio::test]
async fn steady_hits_do_not_stop_the_refill() {
    let rule = Rule::token_bucket(10, 30 * SECOND);
    let rows: Vec<Row> =
        [9, 8, 7, 7, 6, 5, 5, 4, 3, 3].iter().zip(0..).map(|(left, s)| (s * 1_000, 1, Left(*left))).collect();
    run("C-05", &[Mode::Local, Mode::Exact], rule, &rows).await;
}

// case C-06: after the burst one in a third of a second, and never three in a row again.
#[tokio::test]
async fn after_the_burst_one_passes_in_each_interval() {
    for mode in MODES {
        let mut world = World::new(Rule::token_bucket(3, SECOND).mode(mode)).await;
        let mut passed = Vec::new();
        for n in 0..30 {
            world.go_to(n * 100);
            if world.check(1).await.is_allowed() {
                passed.push(n);
            }
        }
        assert_eq!(passed[..3], [0, 1, 2], "{mode:?}");
        assert!(passed[3..].windows(2).all(|two| two[1] - two[0] >= 3), "{mode:?}: {passed:?}");
        assert!((9..=11).contains(&passed.len()), "{mode:?}: {passed:?}");
    }
}

// case C-08: what is left counts the time that has passed.
#[tokio::test]
async fn a_look_counts_the_time_that_has_passed() {
    for mode in MODES {
        let mut world = World::new(Rule::token_bucket(5, SECOND).mode(mode)).await;
        assert!(world.check(5).await.is_allowed());
        assert_eq!(world.left().await, 0, "{mode:?}");
        world.go_to(400);
        assert_eq!(world.left().await, 2, "{mode:?}");
    }
}

// case C-09: burst and refill add up in a period, as the bound says; half of both keeps any minute below the
// number.
#[tokio::test]
async fn a_minute_admits_burst_and_refill_and_not_more() {
    for (count, most) in [(1_200, 2_400), (600, 1_200)] {
        for mode in MODES {
            let rule = Rule::token_bucket(count, MINUTE).mode(mode);
            let mut world = World::new(rule).await;
            assert_eq!(world.limiter.bound().over(MINUTE, 1), most);
            let mut passed = 0;
            for s in 0..60 {
                world.go_to(s * 1_000);
                passed += world.passes(u64::MAX).await;
            }
            assert!(passed <= most && passed * 100 >= most * 97, "{mode:?}: {passed} of {most}");
        }
    }
}

// case C-10: the wait is for one token, not for the whole burst.
#[tokio::test]
async fn the_wait_is_until_the_next_token() {
    let rows = [(0, 1, Yes), (0, 1, Yes), (0, 1, Yes), (0, 1, Wait(1_000)), (1_025, 1, Yes), (1_025, 1, No)];
    run("C-10", &MODES, Rule::token_bucket(1, SECOND).burst(3), &rows).await;
}

// case C-12: while time stands still exactly the limit passes, and what is left falls by one.
#[tokio::test]
async fn on_a_clock_that_stands_still_exactly_the_limit_passes() {
    for (count, per) in [(6_000, SECOND), (1_000, MINUTE)] {
        let mut rows: Vec<Row> = (0..count).rev().map(|left| (0, 1, Left(left))).collect();
        rows.push((0, 1, No));
        // Not `Leased`, where a question may wait for its turn until time goes on.
        run("C-12", &[Mode::Local, Mode::Exact], Rule::token_bucket(count, per), &rows).await;
    }
}

// case C-13: more than a thousand a second is an everyday rate.
#[tokio::test]
async fn rates_above_a_thousand_a_second_count_exactly() {
    for count in [1_500, 2_000] {
        let tenth = count / 10;
        let rows = [(0, count, Left(0)), (110, tenth, Yes), (110, tenth, No), (220, tenth, Yes)];
        run("C-13", &MODES, Rule::token_bucket(count, SECOND), &rows).await;
    }
}

// case C-14, case C-17: a limit or a period of 0 is an error of the settings, before anybody is asked.
#[tokio::test]
async fn a_limit_of_nothing_is_an_error_before_the_store_is_asked() {
    let server = RedisServer::start();
    for mode in MODES {
        for rule in [Rule::token_bucket(0, MINUTE), Rule::token_bucket(1_000, Duration::ZERO)] {
            let builder = Tollgate::builder().store(lazy(&server.url())).rule("login", rule.mode(mode));
            let error = builder.build().await.expect_err("no such limit");
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("\"login\": rate"), "{error}");
        }
    }
    assert_eq!(server.calls("evalsha") + server.calls("eval") + server.calls("script|load"), 0);
    assert_eq!(server.cli(&["DBSIZE"]), "0");
}

// case C-16: the count falls one by one, however large it and the clock's numbers are.
// case C-19: costs are what is counted. case C-20: a cost above the limit is never let through.
// case C-21: what is refused takes nothing.
#[tokio::test]
async fn costs_add_up_and_refused_ones_count_for_nothing() {
    let million = [(0, 1, Left(999_999)), (0, 1, Left(999_998)), (0, 1, Left(999_997))];
    let mixed = [(0, 6, Yes), (0, 5, No), (0, 4, Yes), (0, 1, No)];
    let above = [(0, 5, Left(5)), (0, 100, Never), (0, 11, Never), (0, 5, Left(0)), (0, 1, No), (0, 11, Never)];
    let refused = [(0, 8, Left(2)), (0, 5, No), (0, 1_000_000, Never), (0, 5, No), (0, 2, Left(0)), (0, 1, No)];
    let tables: [(&str, u64, &[Row]); 4] =
        [("C-16", 1_000_000, &million), ("C-19", 10, &mixed), ("C-20", 10, &above), ("C-21", 10, &refused)];
    let server = RedisServer::start();
    for (case, burst, rows) in tables {
        let rule = Rule::token_bucket(burst.min(100), HOUR).burst(burst);
        run(case, &MODES, Rule::token_bucket(burst, HOUR), rows).await;
        run_on(&server, case, rule, rows).await;
    }
    // No key lives much longer than it takes to fill (an hour), or than a lease and what follows it.
    for key in server.cli(&["KEYS", "C-21*tb*"]).lines() {
        let ttl = server.cli_number(&["PTTL", key]);
        assert!(ttl > 0 && ttl <= 3_700_000, "{key}: {ttl}");
    }
}

// case C-26: after any idle time a bucket is exactly full.
#[tokio::test]
async fn after_half_a_day_or_a_century_a_bucket_is_exactly_full() {
    for mode in MODES {
        for idle in [12 * HOUR, 100 * 366 * 24 * HOUR] {
            let mut world = World::new(Rule::token_bucket(10, MINUTE).mode(mode)).await;
            assert_eq!(world.passes(1_000).await, 10, "{mode:?}");
            world.clock.advance(idle);
            assert_eq!(world.left().await, 10, "{mode:?} after {idle:?}");
            assert_eq!(world.passes(1_000).await, 10, "{mode:?} after {idle:?}");
        }
    }
}

// case C-28: a step of the store's clock locks nobody out; one forward gives the refill of the step at most, and
// the clock of a `Local` rule has no steps.
#[tokio::test]
async fn a_stepping_clock_locks_nobody_out() {
    for mode in ASKING {
        let mut world = World::new(Rule::token_bucket(10, MINUTE).mode(mode)).await;
        assert_eq!(world.passes(3).await, 3);
        world.store.step_clock(-11_000_000);
        assert_eq!(world.passes(1_000).await, 7, "{mode:?}: what was there, and nothing more");
        world.go_to(world.at_ms + 7_000);
        assert!(world.check(1).await.is_allowed(), "{mode:?}: refill goes on after the step");
        assert!(!world.check(1).await.is_allowed());
        world.go_to(world.at_ms + 2_000);
        world.store.step_clock(11_000_000);
        assert!(world.passes(1_000).await <= 3, "{mode:?}");
    }
}

// case C-30: at the end of the clock's line nothing panics and nobody gets more than there is.
#[tokio::test]
async fn a_clock_at_the_end_of_its_range_gives_no_more_than_the_burst() {
    for mode in MODES {
        let world = World::new(Rule::token_bucket(10, MINUTE).mode(mode).outage(Outage::Deny)).await;
        world.clock.advance(tollgate::Micros::MAX);
        let mut passed = 0;
        for _ in 0..100 {
            passed += u64::from(answer(&world.limiter, 1).await.is_allowed());
        }
        assert!(passed <= 10, "{mode:?}: {passed}");
        assert!(mode != Mode::Local || passed == 10, "{passed}");
        let _ = world.gate.snapshot();
    }
}

// case C-34, case C-36: Retry-After is a whole number of at least 1, and who waits for so long is let in.
#[tokio::test]
async fn who_obeys_retry_after_is_let_in() {
    for mode in MODES {
        for asked_ms in [300, 9_500, 9_900] {
            let mut world = World::new(Rule::token_bucket(1, 10 * SECOND).mode(mode)).await;
            assert!(world.check(1).await.is_allowed());
            world.go_to(asked_ms);
            let no = world.check(1).await;
            let secs = no.retry_after_secs().expect("a wait");
            assert!(!no.is_allowed() && (1..=10).contains(&secs), "{mode:?}: {secs}");
            world.go_to(asked_ms + secs * 1_000);
            assert!(world.check(1).await.is_allowed(), "{mode:?}: {secs} s after {asked_ms} ms");
        }
    }
}

// case C-37: "4000 per second" with a burst of 8000 lets 20,000 through in 3 s of demand above it, and not 8,000.
#[tokio::test]
async fn four_thousand_a_second_let_twenty_thousand_through_in_three_seconds() {
    for mode in MODES {
        let mut world = World::new(Rule::token_bucket(4_000, SECOND).burst(8_000).mode(mode)).await;
        let mut passed = 0;
        for n in 0..150 {
            world.go_to(n * 20);
            while world.check(40).await.is_allowed() {
                passed += 40;
            }
        }
        assert!((19_400..=20_000).contains(&passed), "{mode:?}: {passed}");
    }
}

// case C-39: a cost of 0 tells how things are, and changes nothing.
#[tokio::test]
async fn a_cost_of_nothing_is_a_look_in_every_mode() {
    for mode in MODES {
        let mut world = World::new(Rule::token_bucket(3, HOUR).mode(mode)).await;
        for left in (0..3).rev() {
            assert!(world.check(1).await.is_allowed());
            for _ in 0..5 {
                let look = answer(&world.limiter, 0).await;
                assert_eq!((look.is_allowed(), look.remaining()), (left > 0, left), "{mode:?}");
            }
        }
        let (start, no) = (Instant::now(), answer(&world.limiter, 0).await);
        assert!(!no.is_allowed() && no.retry_after().is_some(), "{mode:?}: {no:?}");
        assert!(start.elapsed() < PATIENCE);
        assert!(!world.check(1).await.is_allowed());
    }
}
