//! The thread pools of operators.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use kiln_mempool::Category;
use kiln_ops::StopSign;
use kiln_request::limits::in_range;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};

use crate::cpu_set::CpuSet;
use crate::error::{Error, Result};
use crate::topology::Topology;

/// More threads than any CPU has are an error of the user.
const MAX_THREADS: usize = 1024;

/// The maximum number of threads for each CPU that this process may use; more would only wait for each other. Images do
/// not depend on the number.
const MOST_PER_CPU: usize = 4;
/// Threads that are left for others if the system refuses some: signals, copies of weights and files use their own.
const LEFT_TO_OTHERS: usize = 3;

/// Whether this process has a pool: the pool that [`start_threads`] builds is rayon's global one.
static STARTED: Mutex<bool> = Mutex::new(false);

/// The number of threads to start if `asked` were requested: the default is one for each core that the scheduler and the
/// control group's quota allow, and the maximum is a multiple of its CPUs. Two threads of one core share the units that
/// multiply, so that the second adds waiting and no speed.
pub fn count(asked: Option<usize>) -> usize {
    bounded(asked, cpus(), Topology::current().cores())
}

/// The number of threads of this process where no other one is asked for: one for each core that it may use.
pub fn usual_threads() -> usize {
    count(None)
}

fn cpus() -> usize {
    // The standard library applies the affinity mask and quotas of control groups, versions 1 and 2, rounded down.
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn bounded(asked: Option<usize>, cpus: usize, cores: usize) -> usize {
    asked.unwrap_or(cpus.min(cores)).clamp(1, cpus.saturating_mul(MOST_PER_CPU))
}

/// Starts the threads of this process for operators, unless they exist: the first call determines the number. Programs call
/// this once. Engines whose [`Setup::threads`](crate::Setup::threads) is `None` share these threads; a library that runs in
/// another program sets a number and leaves the process alone. `None` is one thread for each core that the process may use,
/// and the maximum is four for each CPU. If the system refuses threads (`ulimit -u`, `pids.max` of a control group), there are
/// fewer, with a warning.
///
/// # Errors
/// [`Error::Request`] for an impossible number, [`Error::Device`] if no thread can be started.
pub fn start_threads(asked: Option<usize>) -> Result<()> {
    check(asked)?;
    let mut is_started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_started {
        return Ok(());
    }
    // If another crate has built the global pool, these threads end when their channels close.
    let (n, spawn) = starting(asked, None)?;
    let _ = ThreadPoolBuilder::new().num_threads(n).spawn_handler(spawn).build_global();
    *is_started = true;
    Ok(())
}

/// Checks a number of threads.
///
/// # Errors
/// [`Error::Request`].
pub fn check(asked: Option<usize>) -> Result<()> {
    asked.map(|threads| in_range("threads", threads, 1, MAX_THREADS)).transpose()?;
    Ok(())
}

/// The threads that an engine's operators run on: pools of its own, or the process's.
#[derive(Clone, Default)]
pub struct Threads(Option<Arc<Pools>>);

struct Pools {
    operators: ThreadPool,
    /// Packs weights that are streamed. An operator waits for its weights, and would keep them from a thread of its own pool.
    weights: Arc<ThreadPool>,
}

impl Threads {
    /// Pools of `asked` threads, which end with them, or the process's. The threads of a pool stay on `cpus`.
    ///
    /// # Errors
    /// [`Error::Device`] if no thread can be started.
    pub fn new(asked: Option<usize>, cpus: Option<&CpuSet>) -> Result<Self> {
        let Some(asked) = asked.or(cpus.map(CpuSet::len)) else { return Ok(Self(None)) };
        let pool = || {
            let (n, spawn) = starting(Some(asked), cpus)?;
            let pool = ThreadPoolBuilder::new().num_threads(n).spawn_handler(spawn).build();
            pool.map_err(|error| Error::Device(format!("no thread can be started: {error}")))
        };
        Ok(Self(Some(Arc::new(Pools { operators: pool()?, weights: Arc::new(pool()?) }))))
    }

    /// The threads that pack streamed weights; `None` is the process's pool.
    pub fn of_weights(&self) -> Option<Arc<ThreadPool>> {
        self.0.as_ref().map(|pools| pools.weights.clone())
    }

    /// Does `work` on these threads. Memory counts for the category of the calling thread, whose [`StopSign`] holds.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(pools) = &self.0 else { return work() };
        let (category, sign) = (Category::current(), StopSign::current());
        pools.operators.install(|| {
            let _category = category.scope();
            StopSign::with(sign, work)
        })
    }

    /// Like [`Self::run`], for work that reports to `watch`, which is called on the calling thread and may stop it.
    pub fn run_watched<T: Send, E: Send>(
        &self,
        work: impl FnOnce(&mut dyn FnMut(E) -> ControlFlow<()>) -> T + Send,
        watch: &mut dyn FnMut(E) -> ControlFlow<()>,
    ) -> T {
        let Some(pools) = &self.0 else { return work(watch) };
        let (events, received) = sync_channel(0);
        let (answers, answered) = sync_channel(0);
        let mut result = None;
        pools.operators.in_place_scope(|scope| {
            let result = &mut result;
            let (category, sign) = (Category::current(), StopSign::current());
            scope.spawn(move |_| {
                let _category = category.scope();
                let mut ask = |event: E| match events.send(event) {
                    Ok(()) => answered.recv().unwrap_or(ControlFlow::Break(())),
                    Err(_) => ControlFlow::Break(()),
                };
                *result = Some(StopSign::with(sign, || work(&mut ask)));
            });
            for event in received {
                if answers.send(watch(event)).is_err() {
                    break;
                }
            }
        });
        result.expect("the scope ends after its work, or panics with it")
    }
}

/// Starts as many threads as `asked`, or as the system allows, which stay on `on`: their number, and what gives each its task.
fn starting(
    asked: Option<usize>,
    on: Option<&CpuSet>,
) -> Result<(usize, impl FnMut(ThreadBuilder) -> io::Result<()> + use<>)> {
    let wanted = count(asked);
    if let Some(asked) = asked.filter(|asked| *asked > wanted) {
        tracing::warn!("{asked} threads are too many for {} CPUs; starting {wanted}", cpus());
    }
    let started = Started::some(wanted, on, &|| None);
    let n = started.threads.len();
    if let Some(error) = &started.refused {
        if n == 0 {
            let limits = "raise the limit of processes (ulimit -u), or pids.max of the control group";
            return Err(Error::Device(format!("no thread can be started: {error}; {limits}")));
        }
        tracing::warn!("the system refuses more threads ({error}); running {n} of {wanted}");
    }
    let mut threads = started.threads.into_iter();
    let spawn = move |thread| {
        let sender = threads.next().ok_or_else(|| io::Error::other("more threads than requested"))?;
        sender.send(thread).map_err(|_| io::Error::other("a thread ended early"))
    };
    Ok((n, spawn))
}

/// Threads that wait for their task. rayon's pool cannot be built again after the system refused a thread, so the
/// threads are started first.
struct Started {
    threads: Vec<SyncSender<ThreadBuilder>>,
    /// The reason for fewer threads than requested.
    refused: Option<io::Error>,
}

impl Started {
    /// Starts `wanted` threads, or as many as the system allows less a reserve for others, which stay on `on`. `fault`
    /// refuses a thread in tests.
    fn some(wanted: usize, on: Option<&CpuSet>, fault: &dyn Fn() -> Option<io::Error>) -> Self {
        let mut threads = Vec::new();
        let start = |i: usize| {
            fault().map_or(Ok(()), Err)?;
            let (sender, receiver) = sync_channel::<ThreadBuilder>(1);
            let on = on.cloned();
            let work = move || {
                on.iter().for_each(stay_on);
                receiver.recv().into_iter().for_each(ThreadBuilder::run);
            };
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

/// Keeps the current thread on some CPUs. Memory that it writes first is then in their NUMA node. Where the system
/// refuses, the thread runs anywhere, with a warning.
#[cfg(target_os = "linux")]
fn stay_on(cpus: &CpuSet) {
    use rustix::thread::{CpuSet as Mask, sched_setaffinity};
    let mut mask = Mask::new();
    cpus.iter().filter(|cpu| *cpu < Mask::MAX_CPU).for_each(|cpu| mask.set(cpu));
    if let Err(error) = sched_setaffinity(None, &mask) {
        tracing::warn!("a thread cannot be kept on the CPUs {cpus}: {error}");
    }
}

/// Other systems describe no nodes, so that no thread is kept on some CPUs.
#[cfg(not(target_os = "linux"))]
fn stay_on(_: &CpuSet) {}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_number_of_threads_is_bounded_by_the_cpus() {
        assert_eq!([None, Some(1), Some(3), Some(1024)].map(|asked| bounded(asked, 2, 2)), [2, 1, 3, 8]);
        assert_eq!(bounded(None, 1, 1), 1);
        assert!(count(None) >= 1);
    }

    #[test]
    fn the_usual_number_is_that_of_the_cores_within_the_quota() {
        assert_eq!((bounded(None, 16, 8), bounded(Some(16), 16, 8), bounded(None, 4, 8)), (8, 16, 4));
        assert_eq!(usual_threads(), count(None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_stay_on_their_cpus() {
        let one: CpuSet = Topology::current().nodes()[0].first().into_iter().collect();
        let allowed = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(str::trim));
            list.map(String::from)
        };
        let threads = Threads::new(None, Some(&one)).unwrap();
        assert_eq!(threads.run(|| (allowed(), rayon::current_num_threads())), (Some(one.to_string()), 1));
    }

    #[test]
    fn an_engine_has_threads_of_its_own() {
        let three = Threads::new(Some(3), None).unwrap();
        let inside = three.run(|| (rayon::current_num_threads(), std::thread::current().name().map(String::from)));
        assert_eq!(inside.0, count(Some(3)));
        assert!(inside.1.is_some_and(|name| name.starts_with("kiln-")));
        let one = Threads::new(Some(1), None).unwrap();
        assert_eq!(one.run(|| three.run(rayon::current_num_threads)), count(Some(3)));
        assert_eq!(Threads::default().run(|| std::thread::current().id()), std::thread::current().id());
        let weights = Category::Weights.scope();
        assert_eq!(one.run(Category::current), Category::Weights);
        drop(weights);
        assert_eq!(one.run(Category::current), Category::current());
    }

    #[test]
    fn work_on_other_threads_reports_to_the_caller() {
        for threads in [Threads::default(), Threads::new(Some(2), None).unwrap()] {
            let caller = std::thread::current().id();
            let mut seen = Vec::new();
            let made = threads.run_watched(|tell| (0..5).take_while(|i| tell(*i).is_continue()).count(), &mut |i| {
                assert_eq!(std::thread::current().id(), caller);
                seen.push(i);
                if i == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!((made, seen), (3, vec![0, 1, 2, 3]));
        }
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
            let Started { threads, refused } = Started::some(wanted, None, &fault);
            (threads.len(), refused.is_some())
        };
        assert_eq!(started(8, 4), (4, false));
        assert_eq!(started(7, 8), (4, true));
        assert_eq!(started(2, 8), (1, true));
        assert_eq!(started(0, 8), (0, true));
    }
}
