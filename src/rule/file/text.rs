//! The small words of a file of rules: times, offsets, and where in a text something stands.

use std::time::Duration;

/// A time such as `10s`, `100ms` or `1h 30m`.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("a time such as \"10s\", \"100ms\" or \"1h 30m\" (us, ms, s, m, h, d), not {}", shown(text));
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let letters = after.find(|c: char| c.is_ascii_digit() || c.is_whitespace()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
        let part = match unit {
            "us" | "µs" => Some(Duration::from_micros(number)),
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            "m" | "min" => seconds(60),
            "h" => seconds(3_600),
            "d" => seconds(86_400),
            _ => None,
        };
        sum = part.and_then(|part| sum.checked_add(part)).ok_or_else(wrong)?;
        rest = after.trim_start();
    }
    Ok(sum)
}

/// Longer texts are cut short in messages: a name of a rule never is.
const SHOWN_MAX: usize = 128;

/// As much of it as belongs into a message.
pub(super) fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN_MAX).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{:?}", start + dots)
}

/// An offset such as `+05:30`, in seconds.
pub(super) fn offset(text: &str) -> Option<i32> {
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |text: &str, below: i32| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number: &i32| digits && *number < below)
    };
    Some(sign * (number(hours, 24)? * 3_600 + number(minutes, 60)? * 60))
}

/// The line and the column of a byte of the text, both from 1; columns are characters.
pub(super) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.char_indices().take_while(|(start, _)| *start < at);
    before.fold((1, 1), |(line, column), (_, c)| if c == '\n' { (line + 1, 1) } else { (line, column + 1) })
}

/// The known word that somebody may have meant.
pub(super) fn meant<'w>(given: &str, known: &[&'w str]) -> Option<&'w str> {
    let distance = |word: &&&str| distance(given, word);
    let nearest = known.iter().min_by_key(distance)?;
    (distance(&nearest) <= nearest.len().div_ceil(3)).then_some(*nearest)
}

/// How many letters have to be put in, taken out or changed. (Levenshtein; Wagner and Fischer.)
fn distance(a: &str, b: &str) -> usize {
    // A word that is far too long is far enough.
    if a.len() > 64 {
        return a.len();
    }
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (place, y) in row.iter_mut().skip(1).zip(b.chars()) {
            let above = *place;
            left = (diagonal + usize::from(x != y)).min(above + 1).min(left + 1);
            (diagonal, *place) = (above, left);
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_numbers_with_units() {
        let table = [
            ("10s", Some(Duration::from_secs(10))),
            ("100ms", Some(Duration::from_millis(100))),
            ("250us", Some(Duration::from_micros(250))),
            ("250µs", Some(Duration::from_micros(250))),
            ("1h 30m", Some(Duration::from_secs(5_400))),
            ("1h30min", Some(Duration::from_secs(5_400))),
            (" 1d ", Some(Duration::from_secs(86_400))),
            ("0s", Some(Duration::ZERO)),
            ("", None),
            (" ", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("1w", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
            ("18446744073709551615s 1s", None),
            ("１s", None),
        ];
        for (text, right) in table {
            assert_eq!(duration(text).ok(), right, "{text:?}");
        }
    }

    #[test]
    fn offsets_are_hours_and_minutes_with_a_sign() {
        let table =
            [("+05:30", Some(19_800)), ("-08:00", Some(-28_800)), ("+00:00", Some(0)), ("-23:59", Some(-86_340))];
        let bad =
            ["05:30", "+5:30", "+24:00", "+05:60", "+0530", "+05:3", "", "+", "++1:00", "+é:00"].map(|bad| (bad, None));
        for (text, right) in table.into_iter().chain(bad) {
            assert_eq!(offset(text), right, "{text:?}");
        }
    }

    #[test]
    fn a_position_counts_lines_and_characters_from_one() {
        let text = "a\nübc\n";
        let right = [(0, (1, 1)), (1, (1, 2)), (2, (2, 1)), (4, (2, 2)), (6, (2, 4)), (7, (3, 1)), (99, (3, 1))];
        for (at, position_of) in right {
            assert_eq!(position(text, at), position_of, "{at}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_recognised_and_nonsense_is_not() {
        let known = ["burst", "limit", "lease_ttl"];
        for (given, right) in [
            ("brust", Some("burst")),
            ("bust", Some("burst")),
            ("limits", Some("limit")),
            ("leasettl", Some("lease_ttl")),
            ("xyz", None),
        ] {
            assert_eq!(meant(given, &known), right, "{given}");
        }
        assert_eq!(meant("x", &[]), None);
    }
}
