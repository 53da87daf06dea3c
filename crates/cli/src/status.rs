//! Status lines for the user.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::terminal::{shown, shown_json};

/// The format of lines on the error stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object on each line, for programs.
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

/// The format belongs to the process: it is set once, before anything is written.
static JSON: AtomicBool = AtomicBool::new(false);

/// Sets the format of all lines that follow.
pub fn set_format(format: LogFormat) {
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Whether lines are written for programs.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes a line to the error stream. The run continues if the reader is closed (`kiln .. 2>&1 | head`) or a disk is
/// full: `eprintln!` would panic.
pub fn line(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    match is_json() {
        true => object(serde_json::json!({ "message": text.trim_start() })),
        false => drop(writeln!(std::io::stderr(), "{}", shown(&text))),
    }
}

/// Writes an object to the error stream on one line.
pub fn object(object: serde_json::Value) {
    let _ = writeln!(std::io::stderr(), "{}", shown_json(&object.to_string()));
}

/// [`line`] with a format string.
macro_rules! tell {
    ($($text:tt)*) => { $crate::status::line(format_args!($($text)*)) };
}
