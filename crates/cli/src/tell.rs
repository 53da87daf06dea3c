//! Lines for the user.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::terminal::{shown, shown_json};

/// How lines on the error stream are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// A JSON object a line, for programs.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("expected text or json".into()),
        }
    }
}

/// The format is the process's: it is set once, before anything is written.
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets the format of all lines that follow.
pub fn set_format(format: LogFormat) {
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Whether lines are written for programs.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes a line to the error stream. Where nobody reads it any more (`kiln .. 2>&1 | head`), or where a disk is full,
/// the run goes on: `eprintln!` would panic.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    match is_json() {
        true => object(serde_json::json!({ "message": text.trim_start() })),
        false => drop(writeln!(std::io::stderr(), "{}", shown(&text))),
    }
}

/// Writes an object to the error stream, in a line.
pub fn object(object: serde_json::Value) {
    let _ = writeln!(std::io::stderr(), "{}", shown_json(&object.to_string()));
}

/// [`line`] with a format string.
macro_rules! tell {
    ($($text:tt)*) => { $crate::tell::line(format_args!($($text)*)) };
}
