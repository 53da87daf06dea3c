//! Values of every kind of option, for tests that hold for all rows.

use super::row::{OptionKind, OptionRow};
use super::table::Request;

/// Texts that a user may type for the option: the ends of its range, or all its names.
pub(crate) fn samples(row: &OptionRow) -> Vec<String> {
    match row.kind {
        OptionKind::Text | OptionKind::Folder | OptionKind::File => vec!["a".into()],
        OptionKind::Borders => vec!["top=8,left=16".into()],
        OptionKind::Flag | OptionKind::Switch => vec!["on".into(), "false".into()],
        OptionKind::Whole { min, max } => vec![min.to_string(), max.min(1 << 53).to_string()],
        OptionKind::Number { min, max } => vec![min.to_string(), max.to_string()],
        OptionKind::Side { max } => vec![max.to_string()],
        OptionKind::Size => vec!["512x768".into()],
        OptionKind::Seed => vec!["0".into(), u64::MAX.to_string()],
        OptionKind::Offset => vec![i64::MIN.to_string(), "0".into()],
        OptionKind::Choice(names) | OptionKind::Name(names) => names().into_iter().map(String::from).collect(),
        OptionKind::Numbers => vec!["3,2,1".into()],
        OptionKind::Loras => vec!["a.safetensors:0.5;b.safetensors".into()],
    }
}

/// A request with this option alone.
pub(crate) fn request(row: &OptionRow, text: &str) -> Request {
    let mut request = Request::default();
    row.value_mut(&mut request).read(text).unwrap_or_else(|problem| panic!("{}: {text}: {problem}", row.name));
    request
}
