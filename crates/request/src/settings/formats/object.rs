//! The members of a JSON object with a record of the used ones.

use std::collections::BTreeSet;

use kiln_media::{short, shortened};
use serde_json::{Map, Value};

/// An object whose members become a request.
pub(super) struct Object<'a> {
    members: &'a Map<String, Value>,
    used: BTreeSet<&'a str>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Object<'a> {
    /// Uses these members; those in `silent` have no effect here.
    pub(super) fn new(members: &'a Map<String, Value>, silent: &[&'a str]) -> Self {
        Self { members, used: silent.iter().copied().collect(), warnings: Vec::new() }
    }

    /// A member as it is.
    pub(super) fn get(&mut self, name: &'a str) -> Option<&'a Value> {
        self.used.insert(name);
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// A text, unless it is empty.
    pub(super) fn text(&mut self, name: &'a str) -> Option<&'a str> {
        self.read(name, |value| value.as_str()).filter(|text| !text.is_empty())
    }

    /// A number, which some programs write as text.
    pub(super) fn number(&mut self, name: &'a str) -> Option<f64> {
        let number = |value: &Value| match value {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        self.read(name, number).filter(|number: &f64| number.is_finite())
    }

    /// A whole number of at least 0.
    pub(super) fn whole(&mut self, name: &'a str) -> Option<u64> {
        self.read(name, whole)
    }

    /// A field that is a count.
    pub(super) fn count(&mut self, name: &'a str) -> Option<usize> {
        self.whole(name).and_then(|number| usize::try_from(number).ok())
    }

    fn read<T>(&mut self, name: &'a str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.get(name)?;
        let found = read(value);
        if found.is_none() {
            self.warnings.push(format!("{name}: {} is ignored: unknown to Kiln", short(value)));
        }
        found
    }

    /// Names every unused member with a value.
    pub(super) fn finish(mut self) -> Vec<String> {
        let left =
            self.members.iter().filter(|(name, value)| !self.used.contains(name.as_str()) && says_something(value));
        let warnings = left
            .map(|(name, value)| format!("{}: {} is ignored: its meaning is unknown", shortened(name), short(value)));
        let warnings: Vec<String> = warnings.collect();
        self.warnings.extend(warnings);
        self.warnings
    }
}

/// A whole number in any JSON notation.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        value => value.as_u64().or_else(|| {
            let number = value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..9.0e15).contains(number))?;
            Some(number as u64)
        }),
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty() && !text.eq_ignore_ascii_case("none"),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => true,
    }
}
