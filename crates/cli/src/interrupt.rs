//! Stopping between steps.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C (and a termination signal) asks the run to stop at the next step; a second one ends the process.
pub fn listen() {
    let handler = || {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\nstopping after this step; once more to stop at once");
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the run at once: {error}");
    }
}

/// Whether to go on.
pub fn proceed() -> ControlFlow<()> {
    if STOP.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
