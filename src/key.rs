//! Keys as users give them, and the names of buckets in the authority.
//!
//! A name is `PREFIX:{TAGS.TAG}:KIND:LENGTH:RULE:FORM:KEY`. Only the last part is the user's free bytes, and the
//! rule before it is length-delimited, so no two buckets share a name. The first braces are ours, so
//! braces in a key never choose a slot.

use crate::{
    error::{Error, ErrorKind},
    hash,
};
use sha2::{Digest, Sha256};
use std::ops::Deref;

/// Keys of more bytes than this are hashed or refused, by the gate's choice: [`LongKeys`].
pub const KEY_BYTES_MAX: usize = 1_024;

/// What is done with a key of more than [`KEY_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LongKeys {
    /// Its SHA-256 stands for it. The default.
    #[default]
    Hash,
    /// The check is refused, with [`ErrorKind::BadKey`] as its trouble.
    Refuse,
}

/// A key as it is looked up: the user's bytes, or the digest of too many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'a> {
    Raw(&'a [u8]),
    Digest([u8; 32]),
}

impl<'a> Key<'a> {
    /// The key of these bytes; `None` where it is too long and long keys are refused.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], long: LongKeys) -> Option<Key<'a>> {
        if bytes.len() <= KEY_BYTES_MAX {
            return Some(Key::Raw(bytes));
        }
        match long {
            LongKeys::Hash => Some(Key::Digest(Sha256::digest(bytes).into())),
            LongKeys::Refuse => None,
        }
    }

    /// The key of a cell, which keeps a digest's bytes as they are.
    pub(crate) fn stored(bytes: &'a [u8], digest: bool) -> Key<'a> {
        match bytes.try_into() {
            Ok(digested) if digest => Key::Digest(digested),
            _ => Key::Raw(bytes),
        }
    }

    /// The bytes that stand for it. A raw key may have the same bytes as a digest:
    /// [`is_digest`](Key::is_digest) tells them apart.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Key::Raw(bytes) => bytes,
            Key::Digest(digest) => digest,
        }
    }

    #[inline]
    pub(crate) fn is_digest(&self) -> bool {
        matches!(self, Key::Digest(_))
    }
}

/// A bucket's name in the authority: the whole Redis key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BucketName(Box<[u8]>);

impl BucketName {
    /// The name of these bytes.
    pub(crate) fn from_bytes(bytes: impl Into<Box<[u8]>>) -> BucketName {
        BucketName(bytes.into())
    }
}

impl Deref for BucketName {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Prefix and number of tags: what makes the names of one gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySpace {
    prefix: String,
    tags: u16,
}

impl KeySpace {
    /// A space of names with this prefix, spread over this many hash tags.
    ///
    /// # Errors
    /// A prefix that is empty, longer than 128 bytes or has a brace, white space or a control
    /// character in it; no tags or more than 16,384.
    pub(crate) fn new(prefix: &str, tags: u16) -> Result<KeySpace, Error> {
        let bad = |c: char| c == '{' || c == '}' || c.is_whitespace() || c.is_control();
        if prefix.is_empty() || prefix.len() > 128 || prefix.contains(bad) {
            let message = "key prefix: 1 to 128 bytes without braces, white space or control characters";
            return Err(Error::new(ErrorKind::Config, message));
        }
        if tags == 0 || tags > 16_384 {
            return Err(Error::new(ErrorKind::Config, format!("tags: 1 to 16,384, not {tags}")));
        }
        Ok(KeySpace { prefix: prefix.to_owned(), tags })
    }

    /// The tag and the name of the bucket that `kind` (an algorithm), `rule` and `key` make.
    pub(crate) fn bucket(&self, kind: &str, rule: &str, key: &[u8], digest: bool) -> (u16, BucketName) {
        let tag = self.tag(kind, rule, key);
        let form = if digest { 'h' } else { 'r' };
        let mut name = self.tagged(tag);
        name.push_str(&format!(":{kind}:{}:{rule}:{form}:", rule.len()));
        let mut name = name.into_bytes();
        name.extend_from_slice(key);
        (tag, BucketName(name.into()))
    }

    /// The tag of a bucket: the same on every instance.
    pub(crate) fn tag(&self, kind: &str, rule: &str, key: &[u8]) -> u16 {
        // The remainder is below `tags`, so it fits.
        (hash::stable(&[kind.as_bytes(), rule.as_bytes(), key]) % u64::from(self.tags)) as u16
    }

    /// The name of the one key in which the gate's members are counted.
    pub(crate) fn members(&self) -> (u16, BucketName) {
        (0, BucketName((self.tagged(0) + ":members").into_bytes().into()))
    }

    fn tagged(&self, tag: u16) -> String {
        format!("{}:{{{}.{tag}}}", self.prefix, self.tags)
    }
}

impl Default for KeySpace {
    fn default() -> KeySpace {
        KeySpace { prefix: "tollgate".to_owned(), tags: 16 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_buckets_share_a_name() {
        let space = KeySpace::default();
        let rules = ["a", "a:b", "1:a", "", "a:1", "{x}"];
        let keys: [&[u8]; 8] = [b"", b"a", b"b", b"a:b", b"{a}", b"a b\n", b"1:a:r:", &[0, 255]];
        let mut names = std::collections::HashSet::new();
        for rule in rules {
            for key in keys {
                for digest in [false, true] {
                    assert!(names.insert(space.bucket("tb", rule, key, digest).1), "{rule} {key:?}");
                }
            }
        }
    }

    #[test]
    fn the_first_braces_of_a_name_are_ours() {
        let (tag, name) = KeySpace::default().bucket("tb", "r", b"{other}", false);
        let text = String::from_utf8_lossy(&name).into_owned();
        assert!(text.starts_with(&format!("tollgate:{{16.{tag}}}:tb:1:r:r:")), "{text}");
    }

    #[test]
    fn a_key_at_the_limit_is_raw_and_one_above_is_hashed_or_refused() {
        let (fits, long) = (vec![7; KEY_BYTES_MAX], vec![7; KEY_BYTES_MAX + 1]);
        assert_eq!(Key::new(&fits, LongKeys::Refuse), Some(Key::Raw(&fits)));
        assert_eq!(Key::new(&long, LongKeys::Refuse), None);
        assert!(Key::new(&long, LongKeys::Hash).is_some_and(|k| k.is_digest()));
    }

    #[test]
    fn a_prefix_that_would_break_names_is_refused() {
        for bad in ["", "a{b", "a}b", "a b", "a\nb", &"x".repeat(129)] {
            assert!(KeySpace::new(bad, 16).is_err(), "{bad:?}");
        }
        assert!(KeySpace::new("shop:limits", 0).is_err());
        assert!(KeySpace::new("shop:limits", 16).is_ok());
    }
}
