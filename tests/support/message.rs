//! One message of the lease protocol about a token bucket, as src/store/redis/lua/sync_buckets-n/1-words.lua describes
//! it, and the part of an answer that a sender must keep: for benches that call the script without the library around it.
#![allow(dead_code, unreachable_pub)]

/// The script's text.
pub const SCRIPT: &str = concat!(
    include_str!("../../src/store/redis/lua/sync_buckets-n/1-words.lua"),
    include_str!("../../src/store/redis/lua/sync_buckets-n/2-numbers.lua"),
    include_str!("../../src/store/redis/lua/sync_buckets-n/3-windows.lua"),
    include_str!("../../src/store/redis/lua/sync_buckets-n/4-apply.lua"),
);

/// What one instance keeps of one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub instance: u64,
    /// Tokens a second, below 1,000,000, and the bucket's burst.
    pub rate: u64,
    pub burst: u64,
    generation: u64,
    seq: u64,
    granted: u64,
}

impl Sender {
    /// A sender that has not asked yet.
    pub fn new(instance: u64, rate: u64, burst: u64) -> Sender {
        Sender { instance, rate, burst, generation: 0, seq: 0, granted: 0 }
    }

    /// The next message: all but `hold` of what was granted is spent, `need` requests of one token wait, and `want`
    /// tokens are asked for to have in hand.
    pub fn message(&mut self, hold: u64, need: u64, want: u64) -> Vec<u8> {
        self.seq += 1;
        let hold = hold.min(self.granted);
        let mut bytes = vec![0];
        bytes.extend_from_slice(&self.instance.to_le_bytes());
        let (draw, revision, epoch, born, not_after, age) = (7, 0, 1, 1, 0, 0);
        let (demand, span) = (1_000_000, 10_250_000);
        for n in
            [self.generation, draw, revision, 0, self.rate, 1_000_000, self.burst, epoch, self.seq, born, not_after]
                .into_iter()
                .chain([self.granted - hold, hold, age, u64::from(need > 0), need, want, demand, span, 0, 0, 0, 0])
        {
            bytes.extend_from_slice(&(n as f64).to_le_bytes());
        }
        bytes
    }

    /// Books the answer. Panics when it is none, or says that nothing was applied.
    pub fn answered(&mut self, bytes: &[u8]) {
        assert!(bytes.len() == 73 && bytes[0] == 0, "not applied: {}", String::from_utf8_lossy(bytes));
        let number = |place: usize| {
            let at = 1 + 8 * place;
            f64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as u64
        };
        self.generation = number(3);
        self.granted += number(5);
    }
}
