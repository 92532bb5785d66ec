//! Two hashes: a quick one for maps in this process, a stable one that all instances agree on.

pub(crate) use foldhash::fast::RandomState;
use foldhash::fast::SeedableRandomState;
use std::{hash::BuildHasher, sync::OnceLock};

static SEED: OnceLock<SeedableRandomState> = OnceLock::new();

/// Has [`local`] give the same hashes in every run, if nobody has asked it before. For simulated worlds, which are
/// to be replayed; never where keys come from clients.
#[cfg(feature = "sim")]
pub(crate) fn settle() {
    _ = SEED.set(SeedableRandomState::fixed());
}

/// The hash of a key within a rule, for maps of this process only: seeded anew each run, so that no
/// client can choose keys that collide.
#[inline]
pub(crate) fn local(rule: u32, key: &[u8]) -> u64 {
    let hash = SEED.get_or_init(SeedableRandomState::random).hash_one(key);
    // A rule's number moves its keys elsewhere: the odd constant spreads small numbers over all bits.
    hash ^ u64::from(rule).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// FNV-1a, 64 bits: the same on every machine and in every version, since it decides which tag a
/// bucket's key carries. (Fowler, Noll, Vo; public domain.)
#[must_use]
pub(crate) fn stable(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for part in parts {
        // The length first, so that ("a", "bc") and ("ab", "c") differ.
        for byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    hash
}

/// 64 bits from the operating system: an instance's id.
///
/// # Errors
/// When the system has no randomness to give.
pub(crate) fn random() -> Result<u64, String> {
    getrandom::u64().map_err(|e| format!("no randomness from the system: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stable_hash_never_changes_and_parts_do_not_run_together() {
        assert_eq!(stable(&[]), 0xCBF2_9CE4_8422_2325);
        assert_eq!(stable(&[b"api", b"user:42"]), 11_420_132_415_521_834_258);
        assert_ne!(stable(&[b"a", b"bc"]), stable(&[b"ab", b"c"]));
    }
}
