//! The bound of each mode, while everything but the authority's memory fails.

use crate::{
    seeds,
    worlds::{self, SHARED},
};

/// Seeds for each algorithm in each mode.
const EACH: u64 = 300;

#[test]
fn no_fault_of_the_network_and_no_crash_breaks_the_bound() {
    let mut admitted = 0;
    for &(kind, mode) in SHARED {
        let tried = seeds::each("no_fault_of_the_network_and_no_crash_breaks_the_bound", EACH, |seed| {
            let report =
                worlds::holds(worlds::hostile(seed, kind, mode)).map_err(|e| format!("{kind:?} {mode:?}: {e}"))?;
            admitted += report.admitted();
            Ok(())
        });
        let each = admitted / tried;
        assert!(!seeds::all_are_tried() || each > 100, "{kind:?} {mode:?}: {each} tokens a world: nothing was tried");
    }
}
