//! One table of a file of rules, asked field by field.

use super::text::{self, shown};
use std::time::Duration;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// What is wrong, and at which byte of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) at: usize,
    pub(super) what: String,
}

/// A table, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Fields<'d> {
    /// The rule, in words.
    whose: String,
    pub(super) table: &'d DeTable<'d>,
    /// Where the table begins.
    pub(super) at: usize,
}

/// What a value is, in words.
pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

impl<'d> Fields<'d> {
    pub(super) fn new(whose: &str, table: &'d DeTable<'d>, at: usize) -> Fields<'d> {
        Fields { whose: whose.to_owned(), table, at }
    }

    fn get(&self, name: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table.iter().find(|(key, _)| **key.get_ref() == *name).map(|(_, value)| value)
    }

    /// Where the field's value stands.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.get(name).map(|value| value.span().start)
    }

    /// Where an entry of a list stands.
    pub(super) fn entry(&self, name: &str, entry: usize) -> Option<usize> {
        self.get(name)?.get_ref().as_array()?.get(entry).map(|value| value.span().start)
    }

    /// This is wrong with the field.
    pub(super) fn wrong(&self, name: &str, what: &str) -> Wrong {
        Wrong { at: self.place(name).unwrap_or(self.at), what: format!("{}: {name}: {what}", self.whose) }
    }

    /// The field is not there and should be.
    pub(super) fn missing(&self, name: &str, what: &str) -> Wrong {
        Wrong { at: self.at, what: format!("{}: {name}: is missing; {what}", self.whose) }
    }

    fn other(&self, name: &str, wanted: &str, given: &DeValue<'_>) -> Wrong {
        self.wrong(name, &format!("{wanted}, not {}", kind(given)))
    }

    /// There are only fields of these names.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), Wrong> {
        let strange = self.table.iter().map(|(key, _)| key).filter(|key| !known.contains(&&**key.get_ref()));
        // The first in the file, so that the answer is the same each time.
        let Some(key) = strange.min_by_key(|key| key.span().start) else { return Ok(()) };
        let name = shown(key.get_ref());
        let hint = text::meant(key.get_ref(), known);
        let hint = hint.map_or_else(|| "there are".to_owned(), |word| format!("perhaps {word:?}? There are"));
        let what = format!("{}: no field {name}; {hint}: {}", self.whose, known.join(", "));
        Err(Wrong { at: key.span().start, what })
    }

    /// None of these fields is there.
    pub(super) fn none_of(&self, names: &[&str], why: &str) -> Result<(), Wrong> {
        match names.iter().find(|name| self.get(name).is_some()) {
            Some(name) => Err(self.wrong(name, why)),
            None => Ok(()),
        }
    }

    pub(super) fn whole(&self, name: &str) -> Result<Option<u64>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let DeValue::Integer(number) = value.get_ref() else {
            return Err(self.other(name, "a whole number", value.get_ref()));
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.wrong(name, &format!("a whole number from 0, not {}", shown(number.as_str())))),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'d str>, Wrong> {
        match self.get(name).map(|value| value.get_ref()) {
            None => Ok(None),
            Some(DeValue::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.other(name, "a string", other)),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, Wrong> {
        match self.get(name).map(|value| value.get_ref()) {
            None => Ok(None),
            Some(DeValue::Boolean(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.other(name, "true or false", other)),
        }
    }

    pub(super) fn span(&self, name: &str) -> Result<Option<Duration>, Wrong> {
        match self.get(name).map(|value| value.get_ref()) {
            None => Ok(None),
            Some(DeValue::String(given)) => match text::duration(given) {
                Ok(span) => Ok(Some(span)),
                Err(what) => Err(self.wrong(name, &what)),
            },
            Some(other) => Err(self.other(name, "a time in quotes, such as \"10s\"", other)),
        }
    }

    pub(super) fn offset(&self, name: &str) -> Result<Option<i32>, Wrong> {
        let wanted = "an offset such as \"+05:30\", or seconds";
        match self.get(name).map(|value| value.get_ref()) {
            None => Ok(None),
            Some(DeValue::String(given)) => match text::offset(given) {
                Some(seconds) => Ok(Some(seconds)),
                None => Err(self.wrong(name, &format!("{wanted}, not {}", shown(given)))),
            },
            Some(DeValue::Integer(number)) => match i32::from_str_radix(number.as_str(), number.radix()) {
                Ok(seconds) => Ok(Some(seconds)),
                Err(_) => Err(self.wrong(name, &format!("{wanted}, not {}", shown(number.as_str())))),
            },
            Some(other) => Err(self.other(name, wanted, other)),
        }
    }

    /// One of these words.
    pub(super) fn choice<T: Copy>(&self, name: &str, choices: &[(&str, T)]) -> Result<Option<T>, Wrong> {
        let Some(given) = self.text(name)? else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == given) {
            Some((_, choice)) => Ok(Some(*choice)),
            None => {
                let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.wrong(name, &format!("one of {}, not {}", words.join(", "), shown(given))))
            }
        }
    }

    /// A list of strings; an empty one where there is none.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let wanted = "a list of strings";
        let Some(values) = value.get_ref().as_array() else { return Err(self.other(name, wanted, value.get_ref())) };
        let text = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            other => Err(Wrong { at: value.span().start, ..self.other(name, wanted, other) }),
        };
        values.iter().map(text).collect()
    }

    /// A table within this one.
    pub(super) fn table(&self, name: &str) -> Result<Option<Fields<'d>>, Wrong> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.get_ref() {
                DeValue::Table(table) => Ok(Some(Fields::new(&self.whose, table, value.span().start))),
                other => Err(self.other(name, "a table", other)),
            },
        }
    }

    /// A list of tables; an empty one where there is none.
    pub(super) fn tables(&self, name: &str) -> Result<Vec<Fields<'d>>, Wrong> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let wanted = format!("a list of tables: [[...{name}]]");
        let Some(values) = value.get_ref().as_array() else { return Err(self.other(name, &wanted, value.get_ref())) };
        let table = |value: &'d Spanned<DeValue<'d>>| match value.get_ref() {
            DeValue::Table(table) => Ok(Fields::new(&format!("{}: {name}", self.whose), table, value.span().start)),
            other => Err(Wrong { at: value.span().start, ..self.other(name, &wanted, other) }),
        };
        values.iter().map(table).collect()
    }
}
