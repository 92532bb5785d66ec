//! Models of tokens in flight: several limits in one decision.

use super::*;

impl Model {
    /// Draws as a check of several limits does, at a time before the end of any lease.
    fn draw(&self, cost: u64) -> Option<u64> {
        let lease = self.purse.lease();
        (lease.is_live(Micros(1)) && self.purse.draw(&self.moves, lease.generation(), cost).is_ok())
            .then(|| lease.generation())
    }

    /// Commits what was drawn, if its lease still lives; else it goes back.
    fn commit(&self, generation: u64, cost: u64) -> bool {
        let lease = self.purse.lease();
        let lives = lease.generation() == generation && lease.is_live(Micros(1));
        if lives {
            self.meant.fetch_add(cost, Relaxed);
            self.purse.land(&self.moves, cost);
        } else {
            self.purse.restore(&self.moves, generation, cost);
        }
        lives
    }
}

#[test]
fn loom_no_look_finds_less_than_is_held_while_tokens_fly_and_come_back() {
    explore(4, || {
        let model = Model::with(6);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || {
                    if let Some(generation) = model.draw(2) {
                        model.purse.restore(&model.moves, generation, 2);
                    }
                })
            })
            .collect();
        // Nobody spends: all six are held at every moment.
        assert!(model.hold() >= 6);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(model.hold(), 6);
    });
}

#[test]
fn loom_a_flight_beside_a_thread_with_credit_is_held_until_it_lands() {
    explore(3, || {
        let model = Model::with(8);
        let checks = {
            let model = model.clone();
            thread::spawn(move || {
                let slot = model.moves.add_slot();
                let spent = u64::from(model.check(&slot, 1).is_some());
                model.leave(&slot);
                spent
            })
        };
        let flies = {
            let model = model.clone();
            thread::spawn(move || model.draw(3).map_or(0, |generation| 3 * u64::from(model.commit(generation, 3))))
        };
        let hold = model.hold();
        assert!(8_u64.saturating_sub(hold) <= model.meant.load(Acquire), "{hold}");
        let spent = checks.join().unwrap() + flies.join().unwrap();
        assert_eq!(spent + model.hold(), 8);
    });
}

#[test]
fn loom_tokens_in_flight_are_not_revived_by_the_next_lease() {
    explore(3, || {
        let model = Model::with(4);
        let flies = {
            let model = model.clone();
            thread::spawn(move || {
                let mut spent = [0; 2];
                for back in [true, false] {
                    if let Some(generation) = model.draw(2) {
                        if back {
                            model.purse.restore(&model.moves, generation, 2);
                        } else if model.commit(generation, 2) {
                            spent[generation as usize] += 2;
                        }
                    }
                }
                spent
            })
        };
        model.purse.reborn();
        model.purse.set_end(LIVE);
        model.purse.grant(3);
        let early = model.hold();
        let spent = flies.join().unwrap();
        assert!(spent[0] <= 4, "{spent:?}");
        // Not one token more than was granted to the new generation, and not one lost.
        assert_eq!(model.hold() + spent[1], 3, "{spent:?}");
        assert!(early >= model.hold());
    });
}

#[test]
fn loom_two_limits_are_spent_together_or_not_at_all() {
    explore(3, || {
        let limits = [Model::with(2), Model::with(1)];
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let limits = limits.clone();
                thread::spawn(move || {
                    let first = limits[0].draw(1);
                    let second = limits[1].draw(1);
                    match (first, second) {
                        (Some(a), Some(b)) => limits[0].commit(a, 1) && limits[1].commit(b, 1),
                        _ => {
                            for (limit, drawn) in limits.iter().zip([first, second]) {
                                drawn.inspect(|g| limit.purse.restore(&limit.moves, *g, 1));
                            }
                            false
                        }
                    }
                })
            })
            .collect();
        let holds = [limits[0].hold(), limits[1].hold()];
        let passed = threads.into_iter().map(|t| u64::from(t.join().unwrap())).sum::<u64>();
        assert_eq!(passed, 1, "one fits both, and nobody is refused for another's put-back alone");
        assert!(holds[0] >= 1 && limits[0].hold() == 1 && limits[1].hold() == 0, "{holds:?}");
    });
}

/// A flight that is announced once the tokens have left the pool.
#[test]
#[should_panic(expected = "lost sight")]
fn loom_a_flight_that_is_announced_late_is_lost() {
    explore(4, || {
        let model = Model::with(4);
        let flies = {
            let model = model.clone();
            thread::spawn(move || {
                let mut seen = model.purse.pool.load(Relaxed);
                model.purse.take_exactly(&mut seen, 0, 2);
                model.moves.started.fetch_add(2, Relaxed);
                model.purse.restore(&model.moves, 0, 2);
            })
        };
        assert!(model.hold() >= 4, "lost sight");
        flies.join().unwrap();
    });
}
