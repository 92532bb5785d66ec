//! What happened in the two runs of the protocol's first model that broke an earlier draft of the
//! refill: times in µs, and who did what. Messages and arrivals count from 0.

use super::Step::{self, Arrive, Ask, Forget, Hear, Over};

/// One run, as a table.
pub(super) struct Trace {
    /// Tokens a second.
    pub(super) rate: u64,
    pub(super) burst: u64,
    pub(super) cells: usize,
    pub(super) steps: &'static [(u64, Step)],
}

/// Seed 89283 of the model.
#[rustfmt::skip]
pub(super) const SEED_89283: Trace = Trace {
    rate: 10,
    burst: 2,
    cells: 3,
    steps: &[
        (131548, Forget(2)), (143276, Ask(0, 1, 0, 483)), (143276, Ask(0, 1, 100, 795)), (143276, Arrive(1)),
        (1052205, Ask(0, 1, 100, 118)), (1052205, Arrive(2)), (1052205, Hear(0)), (1052205, Arrive(0)),
        (1086750, Ask(2, 0, 1, 309)), (1463590, Hear(1)), (1463590, Arrive(3)), (1463602, Ask(2, 1, 0, 436)),
        (1463602, Hear(3)), (1463602, Forget(2)), (1463602, Forget(2)), (2111900, Over(0, true)),
        (2111900, Arrive(4)), (2112478, Ask(2, 1, 5, 545)), (2112478, Arrive(5)), (2112478, Hear(4)),
        (2154677, Forget(0)), (2154677, Hear(5)), (2155504, Forget(1)), (2337664, Ask(0, 1, 5, 1001)),
        (2917054, Ask(2, 1, 0, 724)), (2917054, Arrive(7)), (2917054, Ask(2, 0, 5, 210)), (2985462, Forget(1)),
        (2985462, Arrive(8)), (2985462, Hear(6)), (2986522, Ask(0, 0, 5, 930)), (2986522, Hear(7)),
        (2986522, Ask(1, 0, 0, 923)), (2997011, Forget(0)), (3659188, Ask(2, 0, 100, 379)), (3659188, Arrive(11)),
        (3659188, Arrive(8)), (3661833, Ask(0, 1, 1, 470)), (3661833, Ask(1, 0, 0, 157)), (4325805, Over(2, false)),
        (4325805, Forget(2)), (4325805, Hear(8)), (4332690, Ask(1, 0, 0, 306)), (4618649, Forget(1)),
        (4965251, Arrive(9)), (4965251, Ask(1, 0, 100, 398)), (4965251, Hear(10)), (5070333, Forget(1)),
        (5070333, Arrive(15)), (5070333, Arrive(15)), (5070333, Forget(0)), (5070333, Hear(11)),
        (5289468, Ask(1, 1, 0, 578)), (5289468, Arrive(16)), (5289468, Forget(1)), (5329462, Arrive(13)),
        (6055975, Forget(2)), (6055975, Hear(13)), (6055975, Arrive(11)), (6055975, Arrive(12)), (6056602, Hear(16)),
    ],
};

/// Seed 93734 of the model.
#[rustfmt::skip]
pub(super) const SEED_93734: Trace = Trace {
    rate: 10,
    burst: 20,
    cells: 2,
    steps: &[
        (0, Ask(0, 0, 0, 963)), (237132, Ask(1, 0, 5, 152)), (237132, Arrive(0)), (237139, Ask(1, 0, 100, 691)),
        (326872, Arrive(1)), (326872, Arrive(2)), (326872, Hear(0)), (326872, Ask(0, 1, 5, 458)), (326872, Hear(2)),
        (326872, Hear(1)), (557178, Ask(0, 1, 100, 752)), (557178, Arrive(3)), (1373575, Over(1, true)),
        (1373575, Arrive(4)), (1373575, Hear(3)), (1379350, Hear(4)), (1510948, Ask(1, 0, 1, 356)),
        (1817265, Over(0, true)), (1817265, Forget(1)), (2069633, Arrive(5)), (2243122, Ask(1, 0, 100, 851)),
        (2243122, Hear(5)), (3010615, Forget(0)), (3518312, Forget(0)), (3769403, Ask(0, 0, 0, 735)),
        (5367231, Forget(0)), (5367231, Arrive(7)), (5583595, Ask(0, 0, 1, 302)), (5583595, Hear(6)),
        (5583595, Ask(1, 0, 100, 325)), (5606464, Arrive(9)), (6153274, Hear(7)), (6660344, Over(1, true)),
        (6865056, Forget(0)), (8420036, Forget(1)), (8420036, Forget(0)), (8420036, Ask(1, 0, 100, 788)),
        (8659369, Ask(0, 0, 1, 127)), (8661604, Ask(1, 1, 5, 536)), (8661604, Arrive(12)),
        (8661604, Ask(0, 0, 100, 505)), (8661604, Arrive(13)), (8661604, Ask(1, 0, 100, 613)), (9562268, Forget(1)),
        (9562268, Arrive(14)), (9562268, Arrive(10)), (9562268, Hear(9)), (9568370, Ask(0, 0, 5, 761)),
        (10151215, Over(0, false)), (10151215, Ask(0, 0, 100, 152)), (10151215, Arrive(13)), (10151215, Hear(10)),
        (10151215, Arrive(15)), (10152191, Forget(0)), (10707924, Ask(1, 1, 1, 145)), (10707924, Arrive(16)),
        (10707924, Hear(13)), (11294533, Hear(14)), (11294533, Arrive(14)), (11294533, Arrive(17)),
        (11380534, Forget(1)), (11380534, Hear(15)), (11380534, Hear(16)), (11525356, Ask(1, 0, 100, 972)),
        (11594094, Arrive(18)), (11757854, Forget(1)), (11757854, Hear(17)), (11758841, Forget(0)),
    ],
};
