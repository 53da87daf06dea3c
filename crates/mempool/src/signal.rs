//! The signal that the system sends for a file that outgrows its limit.
#![allow(unsafe_code)]

/// Has a write beyond the limit of a file's size (`ulimit -f`) fail with an error, as on a full disk. Without this the
/// system ends the process with `SIGXFSZ`, and what it was writing is left behind. Python does the same.
pub fn ignore_file_size_signal() {
    // SAFETY: the disposition is the constant that the system defines for ignoring a signal, so that no code of ours
    // runs as a handler, and the signal's number is valid.
    #[cfg(unix)]
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
