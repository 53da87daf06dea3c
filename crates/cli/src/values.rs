//! Values of flags: numbers, sizes, names.

use std::str::FromStr;

use crate::flags::with_flags;

/// A count; the request, which knows the model, checks its bounds.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number of at least 0".into())
}

/// A count that is not 0.
pub(crate) fn parse_positive(text: &str) -> Result<usize, String> {
    parse_count(text).ok().filter(|count| *count > 0).ok_or_else(|| "expected a whole number of at least 1".into())
}

pub(crate) fn parse_number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "expected a number".into())
}

pub(crate) fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let size = text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    size.ok_or_else(|| "expected width and height in pixels, as in 512x768".into())
}

/// A value of the engine, whose messages name fields; here they name flags.
pub(crate) fn parse_as<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| with_flags(&error.to_string()))
}
