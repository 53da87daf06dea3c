//! Status lines for the user.

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

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

/// The format and the amount of messages belong to the process: they are set once, before anything is written.
static JSON: AtomicBool = AtomicBool::new(false);
/// How often `-q` was given.
static QUIET: AtomicU8 = AtomicU8::new(0);

/// Sets the format of all lines that follow.
pub fn set_format(format: LogFormat) {
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Leaves out lines that follow: with 1 progress and other information, with 2 warnings, too.
pub fn set_quiet(times: u8) {
    QUIET.store(times, Ordering::Relaxed);
}

/// Whether lines are written for programs.
pub fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Whether progress and other information are left out.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed) > 0
}

/// Whether warnings are left out.
pub fn is_silent() -> bool {
    QUIET.load(Ordering::Relaxed) > 1
}

/// Writes a line to the error stream. The run continues if the reader is closed (`kiln .. 2>&1 | head`) or a disk is
/// full: `eprintln!` would panic.
pub fn line(text: fmt::Arguments<'_>) {
    if !is_quiet() {
        write("message", "", text);
    }
}

/// Writes a warning to the error stream.
pub fn warning(text: fmt::Arguments<'_>) {
    if !is_silent() {
        write("warning", "warning: ", text);
    }
}

/// Writes an error to the error stream.
pub fn error(text: fmt::Arguments<'_>) {
    write("error", "error: ", text);
}

fn write(event: &str, prefix: &str, text: fmt::Arguments<'_>) {
    let text = text.to_string();
    match is_json() {
        true => object(serde_json::json!({ "event": event, "message": text.trim_start() })),
        false => drop(writeln!(std::io::stderr(), "{prefix}{}", shown(&text))),
    }
}

/// Writes an event of a run for programs; nothing where lines are for people or left out.
pub fn event(event: serde_json::Value) {
    if is_json() && !is_quiet() {
        object(event);
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

/// [`warning`] with a format string.
macro_rules! caution {
    ($($text:tt)*) => { $crate::status::warning(format_args!($($text)*)) };
}
