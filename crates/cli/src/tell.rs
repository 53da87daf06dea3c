//! Lines for the user.

/// Writes a line to the error stream. Where nobody reads it any more (`kiln .. 2>&1 | head`), or where a disk is full,
/// the run goes on: `eprintln!` would panic.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
