//! How a key lies in a cell, and how it is looked up by reference with its hash computed once.

use crate::{hash, key::Key};
use std::hash::{BuildHasher, Hash, Hasher};

/// Bytes of a key that need no allocation of their own.
const SHORT_MAX: usize = 22;

/// The bytes of a key as a cell keeps them: 24 bytes, and a box more when they are many.
enum Bytes {
    Short(u8, [u8; SHORT_MAX]),
    Long(Box<[u8]>),
}

/// A rule's key with its hash: what a cell is found by.
pub(super) struct Name {
    hash: u64,
    bytes: Bytes,
    rule: u32,
    digest: bool,
}

impl Name {
    pub(super) fn new(probe: &Probe<'_>) -> Name {
        let bytes = match (u8::try_from(probe.bytes.len()), probe.bytes.len() <= SHORT_MAX) {
            (Ok(len), true) => {
                let mut short = [0; SHORT_MAX];
                short[..probe.bytes.len()].copy_from_slice(probe.bytes);
                Bytes::Short(len, short)
            }
            _ => Bytes::Long(probe.bytes.into()),
        };
        Name { hash: probe.hash, bytes, rule: probe.rule, digest: probe.digest }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            // Never longer than the array: `new` has measured it.
            Bytes::Short(len, short) => short.get(..usize::from(*len)).unwrap_or_default(),
            Bytes::Long(long) => long,
        }
    }

    #[inline]
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    #[inline]
    pub(super) fn probe(&self) -> Probe<'_> {
        Probe { hash: self.hash, rule: self.rule, digest: self.digest, bytes: self.bytes() }
    }
}

/// A key on its way to its cell.
#[derive(Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) hash: u64,
    pub(super) rule: u32,
    pub(super) digest: bool,
    pub(super) bytes: &'a [u8],
}

impl PartialEq for Probe<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.rule == other.rule
            && self.digest == other.digest
            && same(self.bytes, other.bytes)
    }
}

impl Eq for Probe<'_> {}

/// Whether the bytes are the same. Keys are mostly of 8 to 32 bytes: two overlapping words tell, without a call.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    match a.len() {
        len if len != b.len() => false,
        8..=16 => a.first_chunk::<8>() == b.first_chunk::<8>() && a.last_chunk::<8>() == b.last_chunk::<8>(),
        17..=32 => a.first_chunk::<16>() == b.first_chunk::<16>() && a.last_chunk::<16>() == b.last_chunk::<16>(),
        _ => a == b,
    }
}

impl<'a> Probe<'a> {
    #[inline]
    pub(super) fn new(rule: u32, key: &'a Key<'_>) -> Probe<'a> {
        let bytes = key.bytes();
        Probe { hash: hash::local(rule, bytes), rule, digest: key.is_digest(), bytes }
    }
}

/// What lies in a registry: something that knows its own key.
pub(super) trait Keyed {
    fn name(&self) -> &Name;

    /// Whether it is out of use: a look-up that finds it puts a new one in its place.
    fn is_closed(&self) -> bool {
        false
    }
}

/// A probe or a cell, so that a map of cells can be asked with a probe.
pub(super) trait Probed {
    fn probed(&self) -> Probe<'_>;
}

impl Probed for Probe<'_> {
    #[inline]
    fn probed(&self) -> Probe<'_> {
        *self
    }
}

impl PartialEq for dyn Probed + '_ {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.probed() == other.probed()
    }
}

impl Eq for dyn Probed + '_ {}

impl Hash for dyn Probed + '_ {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.probed().hash);
    }
}

/// Hands a hash through that was computed before.
#[derive(Clone, Copy, Default)]
pub(super) struct PassThrough(u64);

impl Hasher for PassThrough {
    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        // Never reached: only `write_u64` is called above.
        self.0 = hash::stable(&[bytes]);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for PassThrough {
    type Hasher = PassThrough;

    #[inline]
    fn build_hasher(&self) -> PassThrough {
        PassThrough(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_only_where_each_is() {
        for len in 0..70_usize {
            let a: Vec<u8> = (0..len).map(|i| i as u8).collect();
            assert!(same(&a, &a.clone()), "{len}");
            assert!(!same(&a, &[&a[..], &[0]].concat()), "{len}");
            for at in 0..len {
                let mut b = a.clone();
                b[at] ^= 1;
                assert!(!same(&a, &b), "{len} at {at}");
            }
        }
    }
}
