use super::*;
use crate::{
    key::{Key, LongKeys},
    local::keyed::{Name, Probe},
};

const GATE: u32 = 7;

fn cell(n: usize) -> (Spot, Arc<Cell>) {
    let text = format!("key {n}");
    let key = Key::new(text.as_bytes(), LongKeys::Hash).expect("short");
    let probe = Probe::new(1, &key);
    (Spot::new(probe.hash, GATE), Arc::new(Cell::new(Name::new(&probe), GATE)))
}

fn cells(count: usize) -> Vec<(Spot, Arc<Cell>)> {
    (0..count).map(cell).collect()
}

fn finds(near: &mut Near, spot: Spot, cell: &Arc<Cell>) -> bool {
    near.find(spot, |there| std::ptr::eq(there, Arc::as_ptr(cell))).is_some()
}

/// As a check does: looks, and brings in what it does not find and is wanted.
fn meet(near: &mut Near, spot: Spot, cell: &Arc<Cell>) -> bool {
    let found = finds(near, spot, cell);
    if !found && near.wants(spot) {
        near.put(spot, cell.clone());
    }
    found
}

#[test]
fn a_table_grows_with_its_cells_and_keeps_them_all_on_the_way() {
    let (mut near, cells) = (Near::new(), cells(CELLS_MAX / 2));
    let mut met = 0;
    while near.sets.len() < 1 << LAST {
        let before = (near.sets.len(), near.len());
        for (spot, cell) in &cells {
            meet(&mut near, *spot, cell);
        }
        assert!(near.len() >= before.1, "growing loses nothing");
        met += 1;
        assert!(met < 1_000, "it must grow while cells are crowded: {before:?}");
    }
    // Half full: next to all are found, and each one where it belongs.
    (0..100).for_each(|_| cells.iter().for_each(|(spot, cell)| _ = meet(&mut near, *spot, cell)));
    let found = cells.iter().filter(|(spot, cell)| finds(&mut near, *spot, cell)).count();
    assert!(found * 100 >= cells.len() * 95, "{found} of {}", cells.len());
    assert!(near.len() <= cells.len());
}

#[test]
fn more_cells_than_places_stay_within_the_bound() {
    let mut near = Near::new();
    let cells = cells(CELLS_MAX * 3);
    for _ in 0..30 {
        cells.iter().for_each(|(spot, cell)| _ = meet(&mut near, *spot, cell));
    }
    assert_eq!(near.sets.len(), 1 << LAST);
    assert!(near.len() <= CELLS_MAX);
    // What is here is counted once here, and once by its owner.
    let kept = cells.iter().filter(|(_, cell)| Arc::strong_count(cell) > 1).count();
    assert_eq!(kept, near.len());
    drop(near);
    assert!(cells.iter().all(|(_, cell)| Arc::strong_count(cell) == 1));
}

#[test]
fn few_cells_never_make_a_large_table() {
    let mut near = Near::new();
    // Ten that want the same set.
    let crowd: Vec<_> = (0..10).map(|n| (Spot(3 << KEPT | n), cell(n as usize).1)).collect();
    for _ in 0..10_000 {
        crowd.iter().for_each(|(spot, cell)| _ = meet(&mut near, *spot, cell));
    }
    assert_eq!((near.sets.len(), near.len()), (1 << FIRST, WAYS));
}

#[test]
fn closed_cells_are_let_go_by_looking_at_others() {
    let (mut near, cells) = (Near::new(), cells(400));
    cells.iter().for_each(|(spot, cell)| _ = meet(&mut near, *spot, cell));
    let (open, closed) = cells.split_at(1);
    closed.iter().for_each(|(_, cell)| cell.close());
    let places = near.sets.len() * WAYS;
    for _ in 0..(places + 1) * SWEEP as usize * 2 {
        finds(&mut near, open[0].0, &open[0].1);
    }
    assert!(closed.iter().all(|(_, cell)| Arc::strong_count(cell) == 1));
    assert_eq!(near.len(), 1);
}

#[test]
fn a_spot_of_another_gate_is_another_spot() {
    let same = (0..1_000_u64).filter(|n| {
        let hash = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Spot::new(hash, 1).0 == Spot::new(hash, 2).0
    });
    assert_eq!(same.count(), 0);
}
