//! Windows in a hostile world: as for buckets, and with refunds, each of a certain admission. The judge knows all that
//! was admitted and not taken back, at its true time, and shares no code with the machines.

use super::*;

/// What else may happen. What it adds at most is what docs/guarantees.md says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// The authority's clock steps back: adds nothing to a log.
    StepBack,
    /// Instances spend ahead of the authority and tell it afterwards: adds what they spend so.
    Debts,
    /// Its memory is wiped: adds what was out (up to a limit), and a limit more where the window begins anew.
    Loss,
    /// An older copy takes over: adds what was let go since it was made, refunds included.
    Failover,
}

/// One admission.
#[derive(Clone, Copy, Debug)]
struct Spent {
    t: u64,
    tokens: u64,
    /// Without asking.
    ahead: bool,
    /// An answer said so, and it had not left.
    taken_back: bool,
    /// Some message that told of its refund was applied.
    told: bool,
}

/// What an instance knows of the window.
#[derive(Clone, Debug, Default)]
struct Seat {
    epoch: u64,
    seq: u64,
    used: i64,
    pool: u64,
    /// When its lease is over, by itself.
    end: u64,
    /// The window of its lease.
    window: u64,
    open: Option<(u64, u64)>,
    sent: u64,
    last_spent: u64,
    generation: u64,
    /// The authority's time as last heard, and when that was.
    there: Option<(u64, u64)>,
    /// Admissions of this epoch, by their place.
    mine: Vec<usize>,
    /// Refunds that no answered message has told yet.
    pending: Vec<usize>,
    /// Spent without asking, in this epoch; and what of it is known to be booked.
    debt: u64,
    debt_acked: u64,
}

struct Hall {
    book: Book,
    slip: Option<Slip>,
    numbers: Numbers,
    lost: Lost,
    epochs: u64,
    seats: Vec<Seat>,
    asked: Vec<(Sync, Vec<usize>)>,
    /// The answer, and the admission that came with it.
    answered: Vec<(Option<Reply>, Option<usize>)>,
    spent: Vec<Spent>,
    /// How far the authority's clock is behind the true time.
    behind: u64,
    /// All that the authority ever granted, gave or took back.
    let_go: u64,
    /// What a trouble has added at most.
    allowed: u64,
}

fn start(numbers: Numbers, t: u64) -> u64 {
    let (length, offset) = (numbers.window.0, numbers.offset.0);
    (t + offset) / length * length - offset
}

impl Hall {
    fn spend(&mut self, i: usize, t: u64, tokens: u64) {
        let seat = &mut self.seats[i];
        let tokens = tokens.min(seat.pool);
        if tokens > 0 {
            seat.pool -= tokens;
            seat.used += tokens as i64;
            seat.last_spent = t;
            seat.mine.push(self.spent.len());
            self.spent.push(Spent { t, tokens, ahead: false, taken_back: false, told: false });
        }
    }

    /// Spends without asking, where it knows to which window that belongs.
    fn go_ahead(&mut self, i: usize, t: u64, tokens: u64) {
        let seat = &mut self.seats[i];
        if self.numbers.algorithm != Algorithm::FixedWindow || t < seat.end {
            seat.debt += tokens;
            seat.last_spent = t;
            self.spent.push(Spent { t, tokens, ahead: true, taken_back: false, told: false });
        }
    }

    fn renew(&mut self, i: usize, t: u64) {
        self.epochs += 1;
        let seat = &mut self.seats[i];
        let (generation, there, last_spent) = (seat.generation, seat.there, seat.last_spent.max(t));
        *seat = Seat { epoch: self.epochs, generation, there, last_spent, ..Seat::default() };
    }

    /// The lease is over by the instance's own clock; at best it spent all of it just before.
    fn over(&mut self, i: usize, t: u64, spent: bool) {
        let seat = &self.seats[i];
        if seat.end == 0 || t < seat.end || (self.slip == Some(Slip::LateExpiry) && seat.pool > 0) {
            return;
        }
        let last = seat.last_spent.max(seat.end - 1);
        if spent {
            self.spend(i, last, u64::MAX);
        }
        self.renew(i, last);
    }

    fn refund(&mut self, dice: &mut Dice, i: usize) {
        let seat = &mut self.seats[i];
        if seat.mine.is_empty() {
            return;
        }
        let place = seat.mine.swap_remove(dice.below(seat.mine.len() as u64) as usize);
        seat.used -= self.spent[place].tokens as i64;
        seat.pending.push(place);
    }

    fn ask(&mut self, dice: &mut Dice, i: usize, t: u64, need: Need, want: u64) -> usize {
        let (numbers, behind) = (self.numbers, self.behind);
        let seat = &mut self.seats[i];
        seat.seq += 1;
        (seat.open, seat.sent) = (Some((seat.epoch, seat.seq)), t);
        let guess = seat.there.map_or(0, |(there, heard)| start(numbers, there + (t - heard)));
        let window = if seat.end > t { seat.window } else { dice.pick(&[0, guess]) };
        let fresh = seat.pending.iter().map(|p| self.spent[*p].t - behind).min().unwrap_or(0);
        let sync = Sync {
            generation: seat.generation,
            draw: 1 + t,
            numbers,
            instance: InstanceId(i as u64),
            epoch: seat.epoch,
            seq: seat.seq,
            used: seat.used,
            hold: seat.pool,
            age: Micros(t - seat.last_spent),
            need,
            want,
            demand: 10 + dice.below(1_000),
            span: Micros(TTL + TTL / 50),
            window: Micros(window),
            fresh: Micros(fresh),
            born: seat.epoch,
            debt: Total { sum: seat.debt, acked: seat.debt_acked },
            lost: self.lost,
            ..hello()
        };
        self.asked.push((sync, seat.pending.clone()));
        self.asked.len() - 1
    }

    fn arrive(&mut self, question: usize, t: u64) -> usize {
        let (sync, told) = self.asked[question].clone();
        let now = t - self.behind;
        let reply = self.book.apply(&sync, Micros(now));
        let mut came = None;
        if reply.outcome == Outcome::Applied {
            let fair = match self.numbers.algorithm {
                Algorithm::SlidingLog => sync.fresh.0 + self.numbers.window.0 > now,
                _ => sync.fresh.0 >= start(self.numbers, now),
            };
            for place in told {
                let spent = &mut self.spent[place];
                if !spent.told && fair {
                    spent.taken_back = true;
                    self.let_go += spent.tokens;
                }
                spent.told = true;
            }
        }
        self.let_go += reply.grant + reply.given * sync.need.cost;
        if reply.given > 0 {
            came = Some(self.spent.len());
            let tokens = reply.given * sync.need.cost;
            self.spent.push(Spent { t, tokens, ahead: false, taken_back: false, told: false });
        }
        self.answered.push((Some(reply).filter(|r| r.outcome == Outcome::Applied), came));
        self.answered.len() - 1
    }

    fn hear(&mut self, i: usize, arrival: usize, t: u64) {
        let (Some(reply), came) = self.answered[arrival] else { return };
        let late = self.slip == Some(Slip::LateReply);
        let seat = &mut self.seats[i];
        if seat.open != Some((reply.epoch, reply.seq)) && !late {
            return;
        }
        if seat.open == Some((reply.epoch, reply.seq)) {
            let told =
                self.asked.iter().find(|(s, _)| (s.instance.0 as usize, s.epoch, s.seq) == (i, reply.epoch, reply.seq));
            if let Some((sync, told)) = told {
                seat.pending.retain(|p| !told.contains(p));
                seat.debt_acked = sync.debt.sum;
            }
        }
        seat.open = None;
        seat.generation = reply.generation;
        seat.there = Some((reply.now.0, t));
        seat.mine.extend(came.filter(|p| !self.spent[*p].told));
        let fixed = self.numbers.algorithm == Algorithm::FixedWindow;
        let mut end = seat.sent + TTL;
        if fixed {
            end = end.min(seat.sent + reply.ends_in.0);
        }
        let old_lives = seat.pool == 0 || t < seat.end;
        if (t < end && old_lives) || matches!(self.slip, Some(Slip::LateReply | Slip::LateExpiry)) {
            if fixed && seat.window != reply.window.0 && seat.pool > 0 {
                return; // cannot be while its own lease lives
            }
            seat.pool += reply.grant;
            (seat.end, seat.window) = (end, reply.window.0);
        }
    }

    /// By how much the promise is broken; zero when it is kept.
    fn judge(&mut self) -> u64 {
        let mut events: Vec<_> = self.spent.iter().filter(|s| !s.taken_back).map(|s| (s.t, s.tokens)).collect();
        events.sort_unstable();
        let ahead = self.spent.iter().filter(|s| s.ahead).map(|s| s.tokens).sum::<u64>();
        self.excess(&events).saturating_sub(self.allowed + ahead)
    }

    /// The most that is above the limit anywhere.
    fn excess(&self, events: &[(u64, u64)]) -> u64 {
        let (limit, length) = (self.numbers.burst, self.numbers.window.0);
        let over = |sum: u64, most: u64| sum.saturating_sub(most);
        let in_span = |from: u64| -> u64 {
            events.iter().filter(|(t, _)| *t >= from && *t < from + length).map(|(_, n)| n).sum()
        };
        match self.numbers.algorithm {
            Algorithm::FixedWindow => {
                let window = |t: u64| start(self.numbers, t);
                let total =
                    |from: u64| -> u64 { events.iter().filter(|(t, _)| window(*t) == from).map(|(_, n)| n).sum() };
                events.iter().map(|(t, _)| over(total(window(*t)), limit)).max().unwrap_or(0)
            }
            Algorithm::SlidingLog => events.iter().map(|(t, _)| over(in_span(*t), limit)).max().unwrap_or(0),
            _ => {
                // One central counter, which sees all this as it happens.
                let mut worst = 0;
                for (place, (t, _)) in events.iter().enumerate() {
                    let begin = start(self.numbers, *t);
                    let (mut now, mut before) = (0, 0);
                    for (earlier, tokens) in &events[..=place] {
                        if *earlier >= begin {
                            now += tokens;
                        } else if *earlier + length >= begin {
                            before += tokens;
                        }
                    }
                    worst = worst.max(over(now + (before * (length - (t - begin))).div_ceil(length), limit));
                }
                worst.max(events.iter().map(|(t, _)| over(in_span(*t), 2 * limit - 1)).max().unwrap_or(0))
            }
        }
    }
}

/// One run by chance; by how much the promise is broken.
fn run(algorithm: Algorithm, seed: u64, fault: Option<Fault>, slip: Option<Slip>, trouble: Trouble) -> u64 {
    let dice = &mut Dice(seed);
    let (cells, limit) = (1 + dice.below(3) as usize, dice.pick(&[1, 2, 5, 20]));
    let length = dice.pick(&[SECOND / 5, SECOND, 2 * SECOND, 5 * SECOND]);
    let fixed = algorithm == Algorithm::FixedWindow;
    let offset = Micros(if fixed { dice.below(length) } else { 0 });
    let numbers = Numbers { algorithm, window: Micros(length), offset, ..numbers(limit, length, limit) };
    let seats = (1..=cells as u64).map(|epoch| Seat { epoch, last_spent: 50 * SECOND, ..Seat::default() }).collect();
    let mut hall = Hall {
        book: Book { fault, ..Book::default() },
        slip,
        numbers,
        lost: dice.pick(&[Lost::Empty, Lost::Empty, Lost::Full]),
        epochs: cells as u64,
        seats,
        asked: Vec::with_capacity(32),
        answered: Vec::with_capacity(32),
        spent: Vec::with_capacity(64),
        behind: 0,
        let_go: 0,
        allowed: 0,
    };
    let mut copy = (hall.book.clone(), 0);
    let mut net: Vec<(u64, bool, usize, usize)> = Vec::with_capacity(32);
    let (mut t, mut due) = (100 * SECOND, Vec::with_capacity(16));
    for _ in 0..20 + dice.below(101) {
        let step = dice.pick(&[0, 0, MILLI, 10 * MILLI, 100 * MILLI, 300 * MILLI, 700 * MILLI, 1_050 * MILLI, length]);
        t += dice.below(step);
        for i in 0..cells {
            let spent = dice.percent(70);
            hall.over(i, t, spent);
        }
        let (i, x) = (dice.below(cells as u64) as usize, dice.below(100));
        let pool = hall.seats[i].pool;
        if x < 38 {
            let some = 1 + dice.below(limit);
            let mut waits = dice.pick(&[Need::default(), need(1, 1), need(some, 1 + some % 2)]);
            if pool >= waits.cost {
                waits = Need::default();
            } else {
                hall.seats[i].pool = 0; // gives back what is too small, with the question
            }
            let want = dice.pick(&[0, 1, 5, 100]);
            let question = hall.ask(dice, i, t, waits, want);
            for _ in 0..dice.pick(&[0, 1, 1, 1, 1, 2]) {
                let slow = dice.pick(&[0, 0, MILLI, 50 * MILLI, 500 * MILLI, 2_500 * MILLI]);
                net.push((t + dice.below(slow), false, question, i));
            }
        } else if x < 62 && pool > 0 {
            let tokens = dice.pick(&[1, pool]);
            hall.spend(i, t, tokens);
        } else if x < 65 {
            if slip == Some(Slip::CellReborn) {
                let old = hall.seats[i].clone();
                hall.seats[i] = Seat { epoch: old.epoch, seq: old.seq, last_spent: t, ..Seat::default() };
            } else {
                hall.renew(i, t);
            }
        } else if x < 72 {
            hall.refund(dice, i);
        } else if x < 75 {
            match trouble {
                Trouble::StepBack => {
                    let most = dice.pick(&[SECOND, 10 * SECOND]);
                    hall.behind += dice.below(most).min(t - hall.behind - 60 * SECOND);
                }
                Trouble::Debts => {
                    let tokens = 1 + dice.below(3);
                    hall.go_ahead(i, t, tokens);
                }
                Trouble::Loss if hall.book.header().is_some() => {
                    hall.book = Book { fault, ..Book::default() };
                    let unknown = hall.seats.iter().any(|s| s.generation == 0);
                    // So may a question be that was asked before its sender knew the window.
                    let old = net.iter().any(|m| !m.1 && hall.asked[m.2].0.generation == 0);
                    hall.allowed += limit * if hall.lost == Lost::Full || unknown || old { 2 } else { 1 };
                }
                Trouble::Failover if dice.percent(70) => copy = (hall.book.clone(), hall.let_go),
                Trouble::Failover if copy.0.header().is_some() => {
                    hall.allowed += hall.let_go - copy.1;
                    hall.book = copy.0.clone();
                }
                _ => {}
            }
        }
        due.extend(net.extract_if(.., |m| m.0 <= t));
        while !due.is_empty() {
            let (_, answer, number, i) = due.swap_remove(dice.below(due.len() as u64) as usize);
            if answer {
                hall.hear(i, number, t);
                continue;
            }
            let arrival = hall.arrive(number, t);
            if dice.percent(85) {
                let slow = dice.pick(&[0, 0, 10 * MILLI, 300 * MILLI]);
                net.push((t + dice.below(slow), true, arrival, i));
            }
        }
    }
    hall.judge()
}

const RUNS: u64 = 60_000;

fn holds(algorithm: Algorithm, runs: u64, trouble: Trouble) {
    let half = |from: u64| {
        let over = move |seed| (seed, run(algorithm, seed, None, None, trouble));
        move || (from..from + runs / 2).map(over).find(|(_, over)| *over > 0)
    };
    let other = std::thread::spawn(half(runs / 2));
    assert_eq!((half(0)(), other.join().expect("the other half")), (None, None), "{algorithm:?} {trouble:?}");
}

#[test]
fn no_fixed_window_ever_holds_more_than_its_limit() {
    holds(Algorithm::FixedWindow, RUNS, Trouble::None);
}

#[test]
fn no_span_of_a_logs_length_ever_holds_more_than_its_limit() {
    holds(Algorithm::SlidingLog, RUNS, Trouble::None);
}

#[test]
fn a_counter_admits_only_what_one_central_counter_would() {
    holds(Algorithm::SlidingCounter, RUNS, Trouble::None);
}

// case C-28: a log's entries move along with the clock. (A fixed window and a counter begin their windows anew.)
#[test]
fn a_clock_that_steps_back_adds_nothing_to_a_log() {
    holds(Algorithm::SlidingLog, RUNS / 2, Trouble::StepBack);
}

const KINDS: [Algorithm; 3] = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::SlidingCounter];

#[test]
fn spending_ahead_adds_to_a_window_what_was_spent_ahead_and_no_more() {
    KINDS.into_iter().for_each(|kind| holds(kind, RUNS / 3, Trouble::Debts));
}

#[test]
fn a_loss_of_state_adds_to_a_window_what_is_documented_and_no_more() {
    KINDS.into_iter().for_each(|kind| holds(kind, RUNS / 3, Trouble::Loss));
}

#[test]
fn a_failover_to_an_older_copy_adds_to_a_window_what_was_let_go_since() {
    KINDS.into_iter().for_each(|kind| holds(kind, RUNS / 3, Trouble::Failover));
}

#[test]
fn every_fault_planted_in_windows_is_caught() {
    let (fixed, log) = (&KINDS[..1], &KINDS[1..2]);
    let faults: [(Fault, &[Algorithm]); 7] = [
        (Fault::ForgetOutstanding, &KINDS),
        (Fault::ForgetEnded, &KINDS),
        (Fault::CountEarly, &KINDS[1..]),
        (Fault::LeaseOutlivesWindow, fixed),
        (Fault::NetRefunds, log),
        (Fault::RefundStale, &KINDS),
        (Fault::RefundNewest, log),
    ];
    let faults = faults.iter().flat_map(|(f, kinds)| kinds.iter().map(|k| (*k, Some(*f), None)));
    let slips = [Slip::LateReply, Slip::LateExpiry, Slip::CellReborn].map(|s| (log[0], None, Some(s)));
    for (kind, fault, slip) in faults.chain(slips) {
        let caught = (0..RUNS).find(|seed| run(kind, *seed, fault, slip, Trouble::None) > 0);
        println!("{kind:?} {fault:?} {slip:?}: first caught in run {caught:?}");
        assert!(caught.is_some(), "{kind:?} {fault:?} {slip:?}");
    }
}
