//! The layout of plain keys: how the name of a counter is made that other programs count on too.
//!
//! Only names: which window is the present one, and what is counted, others know.

use super::terms::intern;
use crate::{algorithm::Frame, time::Micros};

/// The longest layout, in bytes.
const TEMPLATE_BYTES_MAX: usize = 256;
const SECOND: u64 = 1_000_000;

/// A checked layout. Its text is kept once for the life of the process, as names of rules are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    text: &'static str,
    /// A key means one window of the clock; else its window begins with its first hit.
    dated: bool,
}

/// One piece of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'t> {
    Text(&'t str),
    Key,
    /// The number of the window, counted since 1970.
    Index,
    /// When the window began, in whole seconds since 1970.
    Start,
}

impl Template {
    /// Checks a layout for windows that lie so.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn new(text: &str, frame: Frame) -> Result<Template, String> {
        if text.is_empty() || text.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("a layout of 1 to {TEMPLATE_BYTES_MAX} bytes, not {}", text.len()));
        }
        if text.contains(char::is_control) {
            return Err("a layout has no control characters".to_owned());
        }
        let (mut keys, mut dated) = (0, false);
        for piece in pieces(text) {
            match piece.map_err(|what| format!("{text:?}: {what}"))? {
                Piece::Text(_) => {}
                Piece::Key => keys += 1,
                Piece::Index => dated = true,
                Piece::Start => {
                    if !frame.length().0.is_multiple_of(SECOND) {
                        return Err(format!(
                            "{text:?}: {{start}} is in whole seconds, so the window must be, too; {{index}} has no such need"
                        ));
                    }
                    dated = true;
                }
            }
        }
        if keys == 0 {
            return Err(format!("{text:?}: without {{key}} all keys would share one counter"));
        }
        Ok(Template { text: intern(text), dated })
    }

    /// Whether a name means one window of the clock.
    pub(crate) const fn is_dated(self) -> bool {
        self.dated
    }

    /// The counter's name for this key, in the window that began then.
    pub(crate) fn name(self, key: &[u8], frame: Frame, start: Micros) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.text.len() + key.len() + 16);
        // It was checked: nothing in it is wrong.
        for piece in pieces(self.text).flatten() {
            match piece {
                Piece::Text(text) => name.extend_from_slice(text.as_bytes()),
                Piece::Key => name.extend_from_slice(key),
                Piece::Index => name.extend_from_slice(frame.number(start).to_string().as_bytes()),
                Piece::Start => name.extend_from_slice((start.0 / SECOND).to_string().as_bytes()),
            }
        }
        name
    }
}

/// Takes a layout apart.
fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, String>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, next) = match first(rest) {
            Ok((piece, next)) => (Ok(piece), next),
            Err(what) => (Err(what), ""),
        };
        rest = next;
        Some(piece)
    })
}

/// The first piece of what is not empty, and what comes after it.
fn first(text: &str) -> Result<(Piece<'_>, &str), String> {
    let brace = text.find(['{', '}']).unwrap_or(text.len());
    if brace > 0 {
        let (plain, rest) = text.split_at(brace);
        return Ok((Piece::Text(plain), rest));
    }
    if let Some(rest) = text.strip_prefix("{{").or_else(|| text.strip_prefix("}}")) {
        return Ok((Piece::Text(&text[..1]), rest)); // a brace is one byte
    }
    let Some(inner) = text.strip_prefix('{') else {
        return Err("a } that closes nothing; a brace itself is }}".to_owned());
    };
    let Some((name, rest)) = inner.split_once('}') else {
        return Err("a { that nothing closes; a brace itself is {{".to_owned());
    };
    let piece = match name {
        "key" => Piece::Key,
        "index" => Piece::Index,
        "start" => Piece::Start,
        _ => return Err(format!("{{key}}, {{index}} or {{start}}, not {:?}", format!("{{{name}}}"))),
    };
    Ok((piece, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Frame = Frame::new(Micros::from_secs(60), Micros::ZERO);

    fn name(text: &str, key: &[u8], frame: Frame, at: u64) -> String {
        let template = Template::new(text, frame).expect("a fair layout");
        String::from_utf8(template.name(key, frame, frame.start(Micros::from_secs(at)))).expect("text")
    }

    #[test]
    fn a_layout_names_the_key_and_the_window() {
        let table = [
            ("rate:user:{key}:{index}", "rate:user:42:28333350"),
            ("rate:{key}:{start}", "rate:42:1700001000"),
            ("rate:{key}", "rate:42"),
            ("{{{key}}}:{start}", "{42}:1700001000"),
            ("{{{{{key}}}}}{{", "{{42}}{"),
            ("{key}{key}", "4242"),
            ("{{key}}{key}", "{key}42"),
            ("限:{key}", "限:42"),
        ];
        for (text, right) in table {
            assert_eq!(name(text, b"42", MINUTE, 1_700_001_059), right, "{text}");
        }
        assert_eq!(name("{key}:{index}", b"{index}", MINUTE, 60), "{index}:1", "a key is never taken for a layout");
        let days = Frame::new(Micros::from_secs(86_400), Micros::from_secs(7_200));
        assert_eq!(name("{key}:{start}", b"k", days, 86_400 * 3 - 7_200), "k:252000", "a day begins at its offset");
        assert_eq!(name("{key}:{index}", b"k", days, 86_400 * 3 - 7_200), "k:3");
        assert_eq!(name("{key}:{index}", b"k", days, 86_400 * 3 - 7_201), "k:2");
    }

    #[test]
    fn a_layout_that_means_no_window_begins_with_its_first_hit() {
        for (text, dated) in
            [("{key}", false), ("{key}{index}", true), ("{start}{key}", true), ("{{index}}{key}", false)]
        {
            assert_eq!(Template::new(text, MINUTE).map(Template::is_dated), Ok(dated), "{text}");
        }
    }

    #[test]
    fn a_wrong_layout_says_what_is_wrong() {
        let long = "x".repeat(TEMPLATE_BYTES_MAX) + "{key}";
        let table = [
            ("", "1 to 256 bytes"),
            (&*long, "1 to 256 bytes"),
            ("rate:{index}", "without {key}"),
            ("rate", "without {key}"),
            ("{{key}}", "without {key}"),
            ("{key}:{user}", "not \"{user}\""),
            ("{key}:{}", "not \"{}\""),
            ("{key}:{ index}", "not \"{ index}\""),
            ("{key}:{index", "nothing closes"),
            ("{key}{", "nothing closes"),
            ("{key}:index}", "closes nothing"),
            ("{key}}", "closes nothing"),
            ("{key\n}", "control"),
        ];
        for (text, what) in table {
            let error = Template::new(text, MINUTE).expect_err(text);
            assert!(error.contains(what), "{text:?}: {error}");
        }
        let part = Frame::new(Micros::from_millis(1_500), Micros::ZERO);
        assert!(Template::new("{key}:{start}", part).expect_err("no whole seconds").contains("whole seconds"));
        assert!(Template::new("{key}:{index}", part).is_ok() && Template::new("{key}", part).is_ok());
    }

    proptest! {
        #[test]
        fn no_layout_makes_it_panic_and_no_two_keys_of_a_window_share_a_name(
            text in "[a{}ékeyindxstar]{0,12}(\\{key\\})?[a:]?(\\{index\\})?", one in "[a:1]{0,3}", two in "[a:1]{0,3}",
        ) {
            if let Ok(template) = Template::new(&text, MINUTE) {
                let names = [&one, &two].map(|key| template.name(key.as_bytes(), MINUTE, Micros::from_secs(60)));
                prop_assert_eq!(names[0] == names[1], one == two, "{:?}", text);
            }
        }
    }
}
