//! The bound of each mode, while everything but the authority's memory fails.

use crate::{
    seeds,
    worlds::{self, LOCAL, SHARED},
};

/// Seeds for each algorithm in each mode.
pub(crate) const EACH: u64 = 200;

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

#[test]
fn each_instance_of_a_local_rule_keeps_the_bound_by_itself() {
    let test = "each_instance_of_a_local_rule_keeps_the_bound_by_itself";
    for &(kind, mode) in LOCAL {
        let mut admitted = 0;
        let tried = seeds::each(test, EACH / 2, |seed| {
            let report = worlds::holds(worlds::hostile(seed, kind, mode)).map_err(|e| format!("{kind:?}: {e}"))?;
            let asked: u64 = report.places.iter().map(|place| place.syncs).sum();
            admitted += report.admitted();
            if asked == 0 { Ok(()) } else { Err(format!("{kind:?}: {asked} questions: {report}")) }
        });
        assert!(!seeds::all_are_tried() || admitted / tried > 100, "{kind:?}: {admitted} in {tried} worlds");
    }
}
