//! Values of flags: numbers, sizes, names.

use std::error::Error;
use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};

use crate::flags::with_flags;

/// The types of weights and activations.
pub(crate) const DTYPES: &[&str] = &["auto", "f32", "bf16", "f16"];

/// A parser with names that shells complete. It decides alone which texts are values: some have more names than these.
#[derive(Debug, Clone)]
pub(crate) struct Named<P> {
    parser: P,
    names: Vec<&'static str>,
}

impl<P> Named<P> {
    /// `parser`, with `names` for shells.
    pub(crate) fn new(parser: P, names: Vec<&'static str>) -> Self {
        Self { parser, names }
    }
}

impl<P: TypedValueParser> TypedValueParser for Named<P> {
    type Value = P::Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Self::Value, clap::Error> {
        self.parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

/// The parser of a type that is read from text.
pub(crate) type FromText<T> = fn(&str) -> Result<T, <T as FromStr>::Err>;

/// The parser of a type that is read from text, with names that shells complete.
pub(crate) fn named<T>(names: &'static [&'static str]) -> Named<FromText<T>>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    Named::new(T::from_str, names.to_vec())
}

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
