//! Whether the system gives the server its threads.

use std::io;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The longest time until the system counts threads that have ended no more.
const LONGEST: Duration = Duration::from_secs(2);
/// The time between two counts.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Starts `count` threads at once and ends them. The runtime of the answers cannot do without its threads: it panics and waits
/// for ever if it does not get them.
///
/// # Errors
/// The system's error for the first thread that it refuses.
pub(crate) fn check_threads(count: usize) -> io::Result<()> {
    probe(count, |_| Builder::new())
}

fn probe(count: usize, builder: impl Fn(usize) -> Builder) -> io::Result<()> {
    let before = running();
    let mut threads = Vec::with_capacity(count);
    for number in 0..count {
        let (go, wait) = channel::<()>();
        // It ends when its sender is dropped, here or where the next thread is refused.
        let thread = builder(number).name("probe".into()).spawn(move || wait.recv().is_ok())?;
        threads.push((go, thread));
    }
    for (go, thread) in threads {
        drop(go);
        thread.join().map_err(|_| io::Error::other("a thread has failed"))?;
    }
    // A thread that was joined may count for a moment.
    let start = Instant::now();
    while running() > before && start.elapsed() < LONGEST {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The threads of this process, where the system says so.
fn running() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_the_system_refuses_is_an_error() {
        assert!(check_threads(8).is_ok());
        let no_memory = |number| if number < 3 { Builder::new() } else { Builder::new().stack_size(1 << 60) };
        assert!(probe(8, no_memory).is_err());
        assert!(check_threads(1).is_ok(), "the first three have ended");
    }
}
