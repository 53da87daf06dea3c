//! Stopping between steps.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);
/// Held while a file is written: an end of the process would leave half of it.
static WRITING: Mutex<()> = Mutex::new(());

/// From now on Ctrl-C (and a termination signal) asks the run to stop at the next step; a second one ends the process.
pub fn listen() {
    listen_and_say("stopping after this step");
}

/// The same, with other words for what the first one does.
pub fn listen_and_say(first: &'static str) {
    let handler = move || {
        if STOP.swap(true, Ordering::SeqCst) {
            let _whole = WRITING.lock();
            std::process::exit(130);
        }
        tell!("\n{first}; once more to stop at once");
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the run at once: {error}");
    }
}

/// Writes a file; even a second signal waits for its end. It does not where the file is a stream, which may wait for its
/// reader for ever.
pub fn whole<T>(is_stream: bool, write: impl FnOnce() -> T) -> T {
    let _writing = (!is_stream).then(|| WRITING.lock());
    write()
}

/// Whether to go on.
pub fn proceed() -> ControlFlow<()> {
    if STOP.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
