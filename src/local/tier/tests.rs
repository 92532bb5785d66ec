use super::*;
use crate::{
    atomic::{AtomicU64, Ordering::Relaxed},
    key::LongKeys,
    local::Look,
};
use std::{thread, time::Duration};

#[derive(Default)]
struct Rings(AtomicU64);

impl Bell for Rings {
    fn ring(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct World {
    tier: Arc<Tier>,
    clock: Clock,
    rings: Arc<Rings>,
}

fn world(keys_max: usize) -> World {
    let (clock, rings) = (Clock::manual(), Arc::new(Rings::default()));
    World { tier: Tier::new(clock.clone(), keys_max, rings.clone()), clock, rings }
}

fn key(text: &str) -> Key<'_> {
    Key::new(text.as_bytes(), LongKeys::Hash).expect("no long keys here")
}

impl World {
    fn cell(&self, text: &str) -> Arc<Cell> {
        self.tier.cell(1, &key(text)).expect("there is room")
    }

    fn end(&self) -> Micros {
        self.clock.now().plus(Micros::from_secs(10))
    }

    fn check(&self, cost: u64) -> Local {
        self.tier.check(1, &key("k"), cost)
    }

    fn allowed(&self, cost: u64) -> bool {
        matches!(self.check(cost), Local::Allowed { .. })
    }
}

#[test]
fn a_key_without_tokens_is_cold_and_calls_the_engine_once() {
    let world = world(10);
    for _ in 0..3 {
        assert!(matches!(world.check(1), Local::Cold(_)));
    }
    assert_eq!(world.rings.0.load(Relaxed), 1);
    let cell = world.tier.next_call().expect("one call");
    assert_eq!((cell.rule(), cell.key_bytes(), cell.is_digest()), (1, &b"k"[..], false));
    assert!(world.tier.next_call().is_none());
    // Called still: the engine is at it.
    assert!(matches!(world.check(1), Local::Cold(_)));
    assert!(world.tier.next_call().is_none());
    cell.uncall();
    assert!(matches!(world.check(1), Local::Cold(_)));
    assert!(world.tier.next_call().is_some());
    assert_eq!(world.rings.0.load(Relaxed), 2);
}

#[test]
fn granted_tokens_are_spent_and_no_more_whether_hot_or_not() {
    for hot in [false, true] {
        let world = world(10);
        let cell = world.cell("k");
        cell.set_hot(hot);
        cell.grant(10, world.end());
        assert!(matches!(world.check(3), Local::Allowed { remaining: 7 }));
        assert_eq!(cell.look().hold, 7);
        assert!(matches!(world.tier.check_cell(&cell, 1), Local::Allowed { remaining: 6 }));
        assert!(matches!(world.check(7), Local::Cold(_)), "hot {hot}");
        assert!(world.allowed(6), "hot {hot}");
        assert!(!world.allowed(1));
        assert_eq!(cell.look().hold, 0);
    }
}

#[test]
fn a_cost_above_the_credit_gathers_credit_and_pool() {
    let world = world(10);
    let cell = world.cell("k");
    cell.set_hot(true);
    cell.grant(300, world.end());
    // The first check lets the cell into the table, the second takes credit.
    assert!(world.allowed(1) && world.allowed(1));
    assert!(cell.look().pool < 298);
    assert!(world.allowed(298));
    assert_eq!(cell.look(), Look::default());
}

#[test]
fn tokens_end_with_their_lease() {
    for hot in [false, true] {
        let world = world(10);
        let cell = world.cell("k");
        cell.set_hot(hot);
        cell.grant(100, world.end());
        assert!(world.allowed(1) && world.allowed(1));
        world.clock.advance(Duration::from_secs(10));
        assert!(!world.allowed(1));
        // A new life: what the thread still has in its hands stays worthless.
        cell.reborn();
        assert_eq!(cell.look().hold, 0);
        cell.grant(0, world.end());
        assert!(!world.allowed(1));
        cell.grant(1, world.end());
        assert!(world.allowed(1));
        assert!(!world.allowed(1));
    }
}

#[test]
fn a_denial_is_told_until_it_is_over_and_only_for_costs_that_large() {
    for hot in [false, true] {
        let world = world(10);
        let cell = world.cell("k");
        cell.set_hot(hot);
        cell.set_free(2);
        cell.deny_until(3, world.clock.now().plus(Micros::from_millis(50)));
        for _ in 0..3 {
            let Local::Denied { wait, remaining } = world.check(3) else { panic!("must be denied") };
            assert_eq!((wait, remaining), (Micros::from_millis(50), 2));
        }
        assert_eq!(cell.look().refused, 9);
        assert!(matches!(world.check(2), Local::Cold(_)));
        assert_eq!(world.tier.counts().denied, 3);
        world.clock.advance(Duration::from_millis(50));
        assert!(matches!(world.check(3), Local::Cold(_)));
        cell.deny_until(1, world.end());
        assert!(matches!(world.check(1), Local::Denied { .. }));
        // Tokens that are here are spent all the same.
        cell.grant(1, world.end());
        assert!(world.allowed(1));
        cell.clear_denial();
        assert!(matches!(world.check(1), Local::Cold(_)));
    }
}

#[test]
fn a_pool_below_its_mark_calls_the_engine() {
    for hot in [false, true] {
        let world = world(10);
        let cell = world.cell("k");
        cell.set_hot(hot);
        cell.grant(1_000, world.end());
        cell.set_low(500);
        while cell.look().pool >= 500 {
            assert!(world.allowed(1));
        }
        assert!(world.tier.next_call().is_some(), "hot {hot}");
    }
}

#[test]
fn a_cost_of_nothing_takes_nothing_and_makes_no_cell() {
    let world = world(10);
    assert!(matches!(world.check(0), Local::Allowed { remaining: u64::MAX }));
    assert_eq!(world.tier.counts().keys, 0);
    let cell = world.cell("k");
    for hot in [false, true] {
        cell.set_hot(hot);
        cell.grant(5, world.end());
        let _ = world.check(1);
        let held = cell.look().hold;
        assert!(matches!(world.check(0), Local::Allowed { .. }));
        assert!(matches!(world.tier.check_cell(&cell, 0), Local::Allowed { .. }));
        assert_eq!(cell.look().hold, held);
    }
}

#[test]
fn at_the_cap_a_new_key_is_told_so_and_the_old_ones_go_on() {
    let world = world(2);
    for text in ["a", "b"] {
        world.cell(text).grant(1, world.end());
    }
    assert!(matches!(world.check(1), Local::Saturated));
    assert_eq!(world.tier.cell(1, &key("k")).err(), Some(Saturated));
    assert!(matches!(world.tier.check(1, &key("a"), 1), Local::Allowed { .. }));
    let counts = world.tier.counts();
    assert_eq!((counts.saturated, counts.keys, counts.admitted), (1, 2, 1));
    let gone = world.cell("a");
    gone.close();
    world.tier.remove(&gone);
    assert!(matches!(world.check(1), Local::Cold(_)));
}

#[test]
fn a_closed_cell_gives_nothing_and_makes_room_for_its_successor() {
    for hot in [false, true] {
        let world = world(1);
        let old = world.cell("k");
        old.set_hot(hot);
        old.grant(100, world.end());
        assert!(world.allowed(1) && world.allowed(1));
        old.close();
        assert!(old.is_closed() && world.tier.find(1, &key("k")).is_none());
        let Local::Cold(new) = world.check(1) else { panic!("nothing was granted") };
        assert!(!Arc::ptr_eq(&old, &new));
        new.grant(1, world.end());
        // By the handle of the closed cell too.
        assert!(matches!(world.tier.check_cell(&old, 1), Local::Allowed { .. }));
        // The old one's removal, coming late, does not touch the new one.
        world.tier.remove(&old);
        assert!(world.tier.find(1, &key("k")).is_some_and(|cell| Arc::ptr_eq(&cell, &new)));
        assert_eq!(world.tier.counts().keys, 1);
    }
}

#[test]
fn a_cell_with_a_handle_is_not_closed_for_being_idle_and_a_closed_one_gets_no_handle() {
    let world = world(1);
    let cell = world.cell("k");
    assert!(cell.pin());
    assert_eq!(cell.pins(), 1);
    assert!(!cell.close_idle());
    cell.unpin();
    cell.unpin();
    assert_eq!(cell.pins(), 0);
    assert!(cell.close_idle() && cell.is_closed());
    assert!(!cell.pin());
}

#[test]
fn rules_gates_and_digests_do_not_share_cells() {
    let world = world(10);
    let long = [7; 2_000];
    let digest = Key::new(&long, LongKeys::Hash).expect("hashed");
    let raw = digest.bytes().to_vec();
    let cells = [
        world.tier.cell(1, &digest).expect("room"),
        world.tier.cell(1, &Key::Raw(&raw)).expect("room"),
        world.tier.cell(2, &digest).expect("room"),
    ];
    cells[0].set_hot(true);
    cells[0].grant(1_000, world.end());
    for _ in 0..3 {
        assert!(matches!(world.tier.check(1, &digest, 1), Local::Allowed { .. }));
        assert!(matches!(world.tier.check(1, &Key::Raw(&raw), 1), Local::Cold(_)));
        assert!(matches!(world.tier.check(2, &digest, 1), Local::Cold(_)));
    }
    // The same key of another gate, in the same thread's table.
    let other = Tier::new(world.clock.clone(), 10, Arc::new(Rings::default()));
    assert!(matches!(other.check(1, &digest, 1), Local::Cold(_)));
}

// Many gates with the same rule and the same keys, in one thread's table: each spends its own tokens only.
#[test]
fn gates_with_the_same_keys_do_not_mix_in_a_threads_table() {
    let worlds: Vec<_> = (0..8).map(|_| world(1_000)).collect();
    let names: Vec<_> = (0..200).map(|n| format!("key {n}")).collect();
    for (n, world) in worlds.iter().enumerate() {
        names.iter().for_each(|name| world.cell(name).grant(n as u64, world.end()));
    }
    for _ in 0..10 {
        for world in &worlds {
            names.iter().for_each(|name| _ = world.tier.check(1, &key(name), 1));
        }
    }
    for (n, world) in worlds.iter().enumerate() {
        assert_eq!(world.tier.counts().admitted, 200 * n as u64);
    }
}

#[test]
fn a_gate_that_goes_leaves_no_cell_in_use_behind() {
    let world = world(10);
    let cell = world.cell("k");
    cell.grant(5, world.end());
    assert!(world.allowed(1) && world.allowed(1));
    drop(world);
    assert!(cell.is_closed());
    // This thread's table has let go of it, or will when it comes by.
    let other = self::world(1_000);
    for n in 0..2_000_000 {
        if Arc::strong_count(&cell) == 1 {
            break;
        }
        let name = format!("key {}", n % 100);
        other.cell(&name).uncall();
        let _ = other.tier.check(1, &key(&name), 1);
    }
    assert_eq!(Arc::strong_count(&cell), 1);
}

// Cells are closed and made anew while threads look them up by their own tables: what a closed cell
// had is spent by nobody afterwards, and every key's present cell gives what it has.
#[test]
fn cells_that_come_and_go_under_the_threads_tables_give_each_token_once() {
    const KEYS: usize = 64;
    let world = world(10_000);
    let names: Vec<_> = (0..KEYS).map(|n| format!("key {n}")).collect();
    let (stop, spent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut granted = 0;
    thread::scope(|scope| {
        for t in 0..3 {
            let (world, names, stop, spent) = (&world, &names, &stop, &spent);
            scope.spawn(move || {
                let mut n = t;
                while !stop.load(Relaxed) {
                    n = (n * 5 + 3) % KEYS;
                    let answer = world.tier.check(1, &key(&names[n]), 1);
                    spent.fetch_add(u64::from(matches!(answer, Local::Allowed { .. })), Relaxed);
                }
            });
        }
        for round in 0..20_000 {
            let cell = world.cell(&names[round % KEYS]);
            cell.grant(3, world.end());
            granted += 3;
            if round % 3 == 0 {
                cell.close();
                world.tier.remove(&cell);
            }
            while world.tier.next_call().is_some_and(|called| {
                called.uncall();
                true
            }) {}
        }
        stop.store(true, Relaxed);
    });
    let left: u64 = names.iter().filter_map(|name| world.tier.find(1, &key(name))).map(|cell| cell.look().hold).sum();
    let spent = spent.load(Relaxed);
    assert!(spent + left <= granted, "{spent} + {left} > {granted}");
    // The table serves the present cells: what is left can be had, by key.
    let more = names
        .iter()
        .map(|name| {
            (0..100_000).take_while(|_| matches!(world.tier.check(1, &key(name), 1), Local::Allowed { .. })).count()
                as u64
        })
        .sum::<u64>();
    assert_eq!(more, left);
}

#[test]
fn a_large_pool_gives_large_credits_that_leave_as_much_to_others() {
    for (pool, at_least, at_most) in [(100, 1, 50), (10_000, 64, 64), (10_000_000, 1_024, 1_024)] {
        let world = world(10);
        let cell = world.cell("k");
        cell.set_hot(true);
        cell.grant(pool, world.end());
        assert!(world.allowed(1) && world.allowed(1));
        let Look { hold, pool, .. } = cell.look();
        let taken = hold - pool + 1;
        assert!((at_least..=at_most).contains(&taken), "{taken}");
    }
}

#[test]
fn hot_keys_that_share_a_place_all_get_their_tokens() {
    let world = world(10_000);
    let names: Vec<_> = (0..2_000).map(|n| format!("key {n}")).collect();
    let cells: Vec<_> = names.iter().map(|name| world.cell(name)).collect();
    for cell in &cells {
        cell.set_hot(true);
        cell.grant(500, world.end());
    }
    for _ in 0..500 {
        for name in &names {
            assert!(matches!(world.tier.check(1, &key(name), 1), Local::Allowed { .. }));
        }
    }
    assert!(cells.iter().all(|cell| cell.look().hold == 0));
    assert_eq!(world.tier.counts().admitted, 2_000 * 500);
}

#[test]
fn a_thread_that_ends_puts_its_credit_and_its_counts_back() {
    let world = world(10);
    let cell = world.cell("k");
    cell.set_hot(true);
    cell.grant(1_000, world.end());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..10 {
                assert!(world.allowed(1));
            }
            assert!(cell.look().pool < 990);
            assert_eq!(cell.look().hold, 990);
            assert_eq!(world.tier.counts().admitted, 10);
        });
    });
    // The scope may end before the thread's table is gone.
    while cell.look().pool != 990 {
        thread::yield_now();
    }
    assert_eq!(cell.look().hold, 990);
    assert_eq!(world.tier.counts().admitted, 10);
}

#[test]
fn a_key_that_cooled_gives_its_credit_back_at_the_next_check() {
    let world = world(10);
    let cell = world.cell("k");
    cell.set_hot(true);
    cell.grant(400, world.end());
    assert!(world.allowed(1) && world.allowed(1));
    let Look { hold, pool, .. } = cell.look();
    cell.set_hot(false);
    // Credit that is there is spent first.
    for _ in 0..=hold - pool {
        assert!(world.allowed(1));
    }
    assert_eq!(cell.look().pool, cell.look().hold);
}

// Tokens granted are tokens spent and held, over millions of checks from several threads while the
// engine grants, empties and looks. And no look is ever too low: what it says was spent was asked for.
#[test]
fn no_token_is_lost_or_doubled_between_threads() {
    const CHECKS: u64 = 500_000;
    let world = world(10);
    let cell = world.cell("k");
    cell.set_hot(true);
    cell.grant(0, world.end());
    let asked = AtomicU64::new(0);
    let (mut granted, mut spent) = (0_u64, 0_u64);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|n| {
                let (world, cell, asked) = (&world, &cell, &asked);
                scope.spawn(move || {
                    let mut spent = 0;
                    for i in 0..CHECKS {
                        let cost = 1 + (i + n) % 3;
                        asked.fetch_add(cost, Relaxed);
                        let answer = if n % 2 == 0 { world.check(cost) } else { world.tier.check_cell(cell, cost) };
                        spent += if matches!(answer, Local::Allowed { .. }) { cost } else { 0 };
                    }
                    spent
                })
            })
            .collect();
        let mut rounds = 0_u64;
        while threads.iter().any(|thread| !thread.is_finished()) {
            rounds += 1;
            granted += 1_000;
            cell.grant(1_000, world.end());
            let hold = cell.look().hold;
            assert!(granted.saturating_sub(hold) <= asked.load(Relaxed), "round {rounds}");
            if rounds.is_multiple_of(16) {
                granted -= cell.empty_pool();
            }
            cell.set_hot(rounds % 64 < 56);
            while world.tier.next_call().is_some_and(|called| {
                called.uncall();
                true
            }) {}
            if granted > asked.load(Relaxed) + 100_000 {
                thread::yield_now();
            }
        }
        spent = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    });
    while cell.look().hold != cell.look().pool {
        thread::yield_now();
    }
    assert_eq!(granted, spent + cell.look().hold);
    assert!(spent > 0);
}

// The same over many lives of the lease: what dies with one is never spent from the next.
#[test]
fn no_generation_spends_more_than_it_was_granted() {
    let world = world(10);
    let cell = world.cell("k");
    cell.set_hot(true);
    let (granted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut spent = 0_u64;
                    while !stop.load(Relaxed) {
                        spent += u64::from(world.allowed(1));
                    }
                    spent
                })
            })
            .collect();
        for life in 0..3_000_u64 {
            cell.reborn();
            let tokens = 1 + life % 300;
            granted.fetch_add(tokens, Relaxed);
            cell.grant(tokens, world.end());
            for _ in 0..life % 50 {
                std::hint::spin_loop();
            }
            assert!(cell.look().pool <= tokens);
        }
        stop.store(true, Relaxed);
        let spent: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        assert!(spent <= granted.load(Relaxed), "{spent}");
    });
}

#[test]
fn concurrent_first_checks_of_one_key_make_one_cell_and_the_cap_holds() {
    let world = world(100);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..2_000 {
                    let name = format!("key {}", n % 150);
                    let _ = world.tier.check(1, &key(&name), 1);
                }
            });
        }
    });
    assert!(world.tier.counts().keys <= 100);
    let mut called = 0;
    while let Some(cell) = world.tier.next_call() {
        called += 1;
        assert!(world.tier.find(1, &Key::Raw(cell.key_bytes())).is_some_and(|there| Arc::ptr_eq(&there, &cell)));
    }
    assert_eq!(called, world.tier.counts().keys);
}

#[test]
fn cold_credit_is_bounded_in_each_span_and_booked_as_debt() {
    let world = world(10);
    let (cell, ttl) = (world.cell("k"), Micros::from_secs(10));
    let credit = |cost| cell.cold_credit(cost, 5, ttl, world.clock.now());
    assert!(credit(3) && !credit(3) && credit(2) && !credit(1));
    assert_eq!(cell.debt(), 5);
    world.clock.advance(Duration::from_millis(9_999));
    assert!(!credit(1));
    world.clock.advance(Duration::from_millis(1));
    assert!(credit(5) && !credit(u64::MAX));
    assert_eq!((cell.debt(), cell.outage()), (10, 0));
    cell.add_outage(4);
    assert_eq!(cell.outage(), 4);
}

#[test]
fn a_cell_takes_less_than_150_bytes_with_its_counts() {
    // Two counts of its Arc beside it; the registry's entry is a pointer and a byte.
    assert!(size_of::<Cell>() + 16 <= 136, "{}", size_of::<Cell>());
}

#[test]
fn many_small_refusals_are_demand_and_nobody_s_cost() {
    let world = world(10);
    let cell = world.tier.cell(0, &key("k")).expect("room");
    let slot = cell.add_slot();
    (0..1_000).for_each(|_| slot.refuse(1));
    cell.drop_slot(&slot);
    assert_eq!((cell.look().refused, cell.take_costly()), (1_000, 0));
    cell.refuse(7);
    assert_eq!(cell.take_costly(), 7);
}
