//! Interrupting a run.

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_engine::StopSign;

static STOP: AtomicBool = AtomicBool::new(false);
/// Locked while a file is written, because an exit would leave it incomplete.
static WRITING: Mutex<()> = Mutex::new(());

/// After this call, Ctrl-C (and a termination signal) stops the run; a second one ends the process.
pub fn listen() {
    listen_with_message("stopping");
}

/// Like [`listen`], with another message for the first signal.
pub fn listen_with_message(first: &'static str) {
    let handler = move || {
        if STOP.swap(true, Ordering::SeqCst) {
            let _whole = WRITING.lock();
            std::process::exit(130);
        }
        tell!("\n{first}; press again to stop immediately");
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C will end the run immediately: {error}");
    }
}

/// For a server: the first signal calls `first`, the second one `second`. A third one ends the process.
#[cfg(feature = "serve")]
pub fn listen_twice(first: impl Fn() + Send + 'static, second: impl Fn() + Send + 'static) {
    let mut signals = 0;
    let handler = move || {
        signals += 1;
        match signals {
            1 => first(),
            2 => second(),
            _ => std::process::exit(130),
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("signals will end the server immediately: {error}");
    }
}

/// Writes a file; a second signal waits until it is complete. This does not apply to a stream, which may wait for its
/// reader forever.
pub fn whole<T>(is_stream: bool, write: impl FnOnce() -> T) -> T {
    let _writing = (!is_stream).then(|| WRITING.lock());
    write()
}

/// Returns `Break` after a signal.
pub fn proceed() -> ControlFlow<()> {
    if is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Does `work`, whose networks end in the middle of their layers after a signal.
pub fn stoppable<T>(work: impl FnOnce() -> T) -> T {
    StopSign::new(is_stopping).during(work)
}

fn is_stopping() -> bool {
    STOP.load(Ordering::SeqCst)
}
