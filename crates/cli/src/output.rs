//! The output stream. A closed reader (`kiln inspect .. | head`) is not an error. Any other failure, such as a full
//! disk, is stored: the run continues and fails at its end.

use std::io::{ErrorKind, Result, Write, stdout};
use std::sync::{Mutex, PoisonError};

use crate::terminal::{shown, shown_json};

/// The first failure.
static FAILURE: Mutex<Option<std::io::Error>> = Mutex::new(None);

/// Prints text.
pub fn print(text: &str) {
    print_bytes(shown(text).as_bytes());
}

/// Prints a value as JSON.
pub fn print_json(value: &serde_json::Value) {
    print_bytes(shown_json(&format!("{value:#}\n")).as_bytes());
}

/// Prints output that contains no foreign text.
pub fn print_bytes(bytes: &[u8]) {
    if let Err(error) = written(|| stdout().write_all(bytes)) {
        FAILURE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Writes to the output stream and flushes it.
///
/// # Errors
/// The system's error, except for a closed reader.
pub fn written(write: impl FnOnce() -> Result<()>) -> Result<()> {
    match write().and_then(|()| stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// The first failure, if there is one.
pub fn failure() -> Option<std::io::Error> {
    FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take()
}
