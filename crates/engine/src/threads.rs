//! The thread pool of operators.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use rayon::{ThreadBuilder, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// The maximum number of threads for each CPU that this process may use; more would only wait for each other. Images do
/// not depend on the number.
const MOST_PER_CPU: usize = 4;
/// Threads that are left for others if the system refuses some: signals, copies of weights and files use their own.
const LEFT_TO_OTHERS: usize = 3;

/// Whether this process has a pool, because rayon's pool is global.
static STARTED: Mutex<bool> = Mutex::new(false);

/// The number of threads to start if `asked` were requested: the default is one for each CPU that the scheduler and the
/// control group's quota allow, and the maximum is a multiple of that.
pub(crate) fn count(asked: Option<usize>) -> usize {
    bounded(asked, cpus())
}

fn cpus() -> usize {
    // The standard library applies the affinity mask and quotas of control groups, versions 1 and 2, rounded down.
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn bounded(asked: Option<usize>, cpus: usize) -> usize {
    asked.unwrap_or(cpus).clamp(1, cpus.saturating_mul(MOST_PER_CPU))
}

/// Starts the threads of this process unless they exist: the first call determines the number. If the system refuses
/// threads (`ulimit -u`, `pids.max` of a control group), there are fewer, with a warning.
///
/// # Errors
/// [`Error::Device`] if no thread can be started.
pub(crate) fn start(asked: Option<usize>) -> Result<()> {
    let mut is_started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_started {
        return Ok(());
    }
    let wanted = count(asked);
    if let Some(asked) = asked.filter(|asked| *asked > wanted) {
        tracing::warn!("{asked} threads are too many for {} CPUs; starting {wanted}", cpus());
    }
    let started = Started::some(wanted, &|| None);
    let n = started.threads.len();
    if let Some(error) = &started.refused {
        if n == 0 {
            let limits = "raise the limit of processes (ulimit -u), or pids.max of the control group";
            return Err(Error::Device(format!("no thread can be started: {error}; {limits}")));
        }
        tracing::warn!("the system refuses more threads ({error}); running {n} of {wanted}");
    }
    let mut threads = started.threads.into_iter();
    let pool = ThreadPoolBuilder::new().num_threads(n).spawn_handler(|thread| {
        let sender = threads.next().ok_or_else(|| io::Error::other("more threads than requested"))?;
        sender.send(thread).map_err(|_| io::Error::other("a thread ended early"))
    });
    // If another crate has built the global pool, these threads end when their channels close.
    let _ = pool.build_global();
    *is_started = true;
    Ok(())
}

/// Threads that wait for their task. rayon's pool cannot be built again after the system refused a thread, so the
/// threads are started first.
struct Started {
    threads: Vec<SyncSender<ThreadBuilder>>,
    /// The reason for fewer threads than requested.
    refused: Option<io::Error>,
}

impl Started {
    /// Starts `wanted` threads, or as many as the system allows less a reserve for others. `fault` refuses a thread in
    /// tests.
    fn some(wanted: usize, fault: &dyn Fn() -> Option<io::Error>) -> Self {
        let mut threads = Vec::new();
        let start = |i: usize| {
            fault().map_or(Ok(()), Err)?;
            let (sender, receiver) = sync_channel::<ThreadBuilder>(1);
            let work = move || receiver.recv().into_iter().for_each(ThreadBuilder::run);
            Builder::new().name(format!("kiln-{i}")).spawn(work).map(|_| sender)
        };
        for i in 0..wanted {
            match start(i) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    threads.truncate(threads.len().saturating_sub(LEFT_TO_OTHERS).max(1));
                    return Self { threads, refused: Some(error) };
                }
            }
        }
        Self { threads, refused: None }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_number_of_threads_is_bounded_by_the_cpus() {
        assert_eq!([None, Some(1), Some(3), Some(1024)].map(|asked| bounded(asked, 2)), [2, 1, 3, 8]);
        assert_eq!(bounded(None, 1), 1);
        assert!(count(None) >= 1);
    }

    #[test]
    fn fewer_threads_run_where_the_system_refuses_some() {
        let started = |given: usize, wanted| {
            let left = Cell::new(given);
            let fault = || match left.get() {
                0 => Some(io::Error::from(io::ErrorKind::WouldBlock)),
                n => {
                    left.set(n - 1);
                    None
                }
            };
            let Started { threads, refused } = Started::some(wanted, &fault);
            (threads.len(), refused.is_some())
        };
        assert_eq!(started(8, 4), (4, false));
        assert_eq!(started(7, 8), (4, true));
        assert_eq!(started(2, 8), (1, true));
        assert_eq!(started(0, 8), (0, true));
    }
}
