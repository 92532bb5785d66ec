//! Lists of keys: exact ones in a map, patterns one after the other.
//!
//! An entry is a key, or a pattern where it has a `*` (any bytes, or none) or a `?` (one character). A backslash
//! takes the meaning from a `*`, a `?` or a backslash. Nothing is remembered of the keys that were looked up.

use std::collections::{HashMap, hash_map::Entry as Place};

/// Patterns that one rule may have, over all its lists: each look-up walks them.
pub(crate) const PATTERNS_MAX: usize = 1_000;
/// Exact entries that one rule may have, over all its lists.
pub(crate) const EXACT_MAX: usize = 100_000;
/// The longest entry, in bytes.
pub(crate) const ENTRY_BYTES_MAX: usize = 1_024;

/// One sign of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Byte(u8),
    /// Exactly one character; one byte where the key is no text.
    One,
    /// Any number of characters.
    Any,
}

/// What an entry of a list says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// This key.
    Exact(Box<[u8]>),
    /// Every key that looks so.
    Pattern(Pattern),
}

/// A pattern, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Box<[Sign]>);

impl Entry {
    /// Takes an entry apart.
    ///
    /// # Errors
    /// What is wrong with it: too long, or a backslash that stands before nothing it could escape.
    pub(crate) fn parse(text: &str) -> Result<Entry, String> {
        if text.len() > ENTRY_BYTES_MAX {
            return Err(format!("an entry has at most {ENTRY_BYTES_MAX} bytes, not {}", text.len()));
        }
        let mut signs = Vec::with_capacity(text.len());
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            signs.push(match byte {
                b'*' => Sign::Any,
                b'?' => Sign::One,
                b'\\' => match bytes.next() {
                    Some(escaped @ (b'*' | b'?' | b'\\')) => Sign::Byte(escaped),
                    _ => return Err(format!("{text:?}: a backslash stands before a *, a ? or a backslash")),
                },
                byte => Sign::Byte(byte),
            });
        }
        // Two stars in a row say what one says.
        signs.dedup_by(|a, b| *a == Sign::Any && *b == Sign::Any);
        let exact: Option<Vec<u8>> =
            signs.iter().map(|sign| if let Sign::Byte(b) = sign { Some(*b) } else { None }).collect();
        Ok(match exact {
            Some(key) => Entry::Exact(key.into()),
            None => Entry::Pattern(Pattern(signs.into())),
        })
    }
}

impl Pattern {
    /// Whether the key looks so. At worst the length of the key times that of the pattern; a key that differs
    /// before the first star is told apart at once.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        let (mut sign, mut at) = (0, 0);
        // Where to go on when the last star has to take one character more.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match (self.0.get(sign), key.get(at)) {
                (None, None) => return true,
                (Some(Sign::Any), _) => {
                    sign += 1;
                    star = Some((sign, at));
                    continue;
                }
                (Some(Sign::Byte(wanted)), Some(byte)) if wanted == byte => {
                    (sign, at) = (sign + 1, at + 1);
                    continue;
                }
                (Some(Sign::One), Some(_)) => {
                    (sign, at) = (sign + 1, after_char(key, at));
                    continue;
                }
                _ => {}
            }
            // It does not go on: the last star takes more, if there is one and something left for it.
            let Some((after, from)) = star else { return false };
            if from >= key.len() {
                return false;
            }
            let next = after_char(key, from);
            star = Some((after, next));
            (sign, at) = (after, next);
        }
    }
}

/// Behind the character that starts at `at`; behind the byte where no character does.
fn after_char(key: &[u8], at: usize) -> usize {
    let more = match key.get(at) {
        Some(0xC0..=0xDF) => 1,
        Some(0xE0..=0xEF) => 2,
        Some(0xF0..=0xF7) => 3,
        _ => 0,
    };
    let follows = key.iter().skip(at + 1).take(more).take_while(|byte| (0x80..=0xBF).contains(*byte)).count();
    at + 1 + if follows == more { more } else { 0 }
}

/// Which of a rule's special answers a key gets, by number.
///
/// # Promise
/// An exact entry wins over a pattern; of exact entries and of patterns, the one that was added first.
///
/// # Cost
/// One hash look-up, and then a walk over the patterns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    exact: HashMap<Box<[u8]>, usize>,
    patterns: Vec<(Pattern, usize)>,
}

impl Lists {
    /// Adds an entry; `false` where this very key was there before, which keeps its answer.
    pub(crate) fn add(&mut self, entry: Entry, answer: usize) -> bool {
        match entry {
            Entry::Exact(key) => match self.exact.entry(key) {
                Place::Occupied(_) => return false,
                Place::Vacant(place) => _ = place.insert(answer),
            },
            Entry::Pattern(pattern) => {
                if self.patterns.iter().any(|(there, _)| *there == pattern) {
                    return false;
                }
                self.patterns.push((pattern, answer));
            }
        }
        true
    }

    /// The number of the key's answer; `None` where no entry is about it.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        let exact = self.exact.get(key).copied();
        exact.or_else(|| self.patterns.iter().find(|(pattern, _)| pattern.matches(key)).map(|(_, answer)| *answer))
    }

    pub(crate) fn exact(&self) -> usize {
        self.exact.len()
    }

    pub(crate) fn patterns(&self) -> usize {
        self.patterns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, key: impl AsRef<[u8]>) -> bool {
        match Entry::parse(pattern).expect("a fair entry") {
            Entry::Exact(exact) => *exact == *key.as_ref(),
            Entry::Pattern(pattern) => pattern.matches(key.as_ref()),
        }
    }

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        let table = [
            ("*", "", true),
            ("*", "anything", true),
            ("vip-*", "vip-", true),
            ("vip-*", "vip-7", true),
            ("vip-*", "vip", false),
            ("vip-*", "a vip-7", false),
            ("*.example", "a.example", true),
            ("*.example", "a.example.org", false),
            ("a*b*c", "a--b--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a**b", "ab", true),
            ("user-?", "user-1", true),
            ("user-?", "user-", false),
            ("user-?", "user-12", false),
            ("?", "é", true),
            ("??", "é", false),
            ("*??", "限", false),
            ("*?", "限", true),
            ("?*?", "限流", true),
            ("", "", true),
            ("", "a", false),
            (r"a\*b", "a*b", true),
            (r"a\*b", "axb", false),
            (r"a\?*", "a?b", true),
            (r"a\\*", r"a\b", true),
        ];
        for (pattern, key, right) in table {
            assert_eq!(matches(pattern, key), right, "{pattern:?} {key:?}");
        }
        assert!(matches("a?b", [b'a', 0xFF, b'b']) && matches("*b", [0xE9, b'b']), "keys that are no text");
    }

    #[test]
    fn a_backslash_before_anything_else_is_an_error_that_shows_the_entry() {
        for bad in [r"\", r"a\", r"a\b"] {
            let error = Entry::parse(bad).expect_err("nothing to escape");
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
        assert!(Entry::parse(&"x".repeat(ENTRY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn an_exact_entry_wins_over_a_pattern_and_then_the_first_one() {
        let mut lists = Lists::default();
        for (answer, entry) in ["a*", "ab*", "abc", "*"].into_iter().enumerate() {
            assert!(lists.add(Entry::parse(entry).expect("a fair entry"), answer));
        }
        assert!(!lists.add(Entry::parse("abc").expect("a fair entry"), 9), "twice");
        assert_eq!([lists.find(b"abc"), lists.find(b"abd"), lists.find(b"x")], [Some(2), Some(0), Some(3)]);
        assert_eq!(Lists::default().find(b"abc"), None);
    }

    /// The same by plain recursion over characters.
    fn naive(pattern: &[char], key: &[char]) -> bool {
        match (pattern.first(), key.first()) {
            (None, None) => true,
            (Some('*'), _) => naive(&pattern[1..], key) || (!key.is_empty() && naive(pattern, &key[1..])),
            (Some('?'), Some(_)) => naive(&pattern[1..], &key[1..]),
            (Some(a), Some(b)) if a == b => naive(&pattern[1..], &key[1..]),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_plain_recursion_says(pattern in "[aé限*?]{0,7}", key in "[aé限b]{0,9}") {
            let (p, k): (Vec<char>, Vec<char>) = (pattern.chars().collect(), key.chars().collect());
            prop_assert_eq!(matches(&pattern, &key), naive(&p, &k), "{:?} {:?}", pattern, key);
        }

        #[test]
        fn no_entry_and_no_key_is_too_odd(pattern in any::<String>(), key in any::<Vec<u8>>()) {
            if let Ok(Entry::Pattern(pattern)) = Entry::parse(&pattern) {
                let _ = pattern.matches(&key);
            }
        }
    }
}
