//! The time of each operator of a run.
//!
//! [`record`] runs a closure and returns a [`Trace`]: every call of a public operator on this thread, in order, with
//! its shapes, its arithmetic and its memory traffic. An operator that another one calls is counted as part of that
//! one.
//!
//! On the CPU, times are wall-clock times. On a GPU an event is recorded in the stream before and after each operator,
//! and all are read after the run: nothing waits in between, and the times are those of the GPU. They include the time
//! in which the GPU waits for the host to launch kernels. To measure kernels alone, submit other work first, so that
//! the host is ahead. The replay of a graph calls no operator, so it is not traced.
//!
//! On a portable device ([`crate::portable::Backend`]) each operator is waited for. Times are those of the device alone, one after
//! the other.
//!
//! While nothing is recorded, an operator costs one relaxed load more.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;
mod work;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::operation::Cost;
pub(crate) use work::Work;

/// The result of [`record`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// The duration of the whole run in microseconds.
    pub duration: f64,
    /// The operators in the order in which they ran, without nested ones.
    pub operators: Vec<Operator>,
}

/// A call of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// The operator's name.
    pub name: &'static str,
    /// The time from the start of the run to its start, in microseconds.
    pub start: f64,
    /// Its duration in microseconds.
    pub duration: f64,
    /// Its inputs.
    pub operands: Vec<Operand>,
    /// The shape of the result.
    pub result: Vec<usize>,
    /// The type of the result.
    pub dtype: DType,
    /// Its configuration as text, if it has one.
    pub config: Option<String>,
    /// Floating-point operations of its matrix products, where a multiplication and an addition count two; 0 without a
    /// product.
    pub flop: f64,
    /// Memory traffic in bytes: every operand is read once and the result written once.
    pub bytes: f64,
}

/// A tensor that an operator reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Its name in the operator's signature.
    pub name: &'static str,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its type.
    pub dtype: DType,
}

/// The number of threads that record. If it is not 0, operators look at their thread's [`RECORDING`].
static RECORDERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// The calls on this thread so far.
struct Recording {
    device: Device,
    calls: Vec<Call>,
    /// Whether an operator is running, so that nested ones are not recorded.
    inside: bool,
    /// Microseconds that a portable device has computed so far.
    computed: f64,
}

struct Call {
    name: &'static str,
    start: Mark,
    end: Mark,
    work: Work,
    result: Vec<usize>,
    dtype: DType,
}

/// A point in time.
enum Mark {
    Host(Instant),
    /// The time at which a GPU reaches this point of its stream.
    Gpu(cuda::Event),
    /// Microseconds that a portable device has computed.
    Portable(f64),
}

impl Mark {
    /// Now on the CPU. On a GPU, the time when its earlier work is done.
    fn now(device: &Device) -> Result<Self> {
        Ok(cuda::event(device)?.map_or_else(|| Self::Host(Instant::now()), Self::Gpu))
    }

    /// Microseconds from `earlier` to here.
    fn since(&self, earlier: &Self) -> Result<f64> {
        match (self, earlier) {
            (Self::Gpu(end), Self::Gpu(start)) => end.since(start),
            (Self::Portable(end), Self::Portable(start)) => Ok(end - start),
            (Self::Portable(end), _) => Ok(*end),
            (Self::Host(end), Self::Host(start)) => Ok(end.saturating_duration_since(*start).as_secs_f64() * 1e6),
            _ => Ok(0.0), // all marks of a recording are of one device
        }
    }
}

/// Ends the recording of this thread, after a panic too.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        RECORDING.take();
        RECORDERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `run`, whose operators run on `device`, and returns the time of each. A recording inside of another ends the
/// outer one.
///
/// # Errors
/// The error of `run`, and [`crate::Error::Driver`] where the times of a GPU cannot be read.
pub fn record<T, E: From<crate::Error>>(device: &Device, run: impl FnOnce() -> Result<T, E>) -> Result<(T, Trace), E> {
    RECORDERS.fetch_add(1, Ordering::Relaxed);
    let guard = Guard;
    RECORDING.set(Some(Recording { device: device.clone(), calls: Vec::new(), inside: false, computed: 0.0 }));
    let start = Mark::now(device)?;
    let result = run()?;
    let recording = RECORDING.take();
    let portable = recording.as_ref().map(|recording| recording.computed).filter(|&computed| computed > 0.0);
    let end = portable.map_or_else(|| Mark::now(device), |computed| Ok(Mark::Portable(computed)))?;
    let calls = recording.map(|recording| recording.calls).unwrap_or_default();
    drop(guard);
    device.synchronize().map_err(crate::Error::from)?;
    let operators = calls.into_iter().map(|call| call.finish(&start)).collect::<Result<_>>()?;
    Ok((result, Trace { duration: end.since(&start)?, operators }))
}

impl Call {
    fn finish(self, origin: &Mark) -> Result<Operator> {
        let (start, end) = (self.start.since(origin)?, self.end.since(origin)?);
        let Work { operands, config, flop } = self.work;
        let written = self.result.iter().product::<usize>() * self.dtype.size_in_bytes();
        let read =
            operands.iter().map(|operand| operand.shape.iter().product::<usize>() * operand.dtype.size_in_bytes());
        let bytes = (written + read.sum::<usize>()) as f64;
        let Self { name, result, dtype, .. } = self;
        Ok(Operator { name, start, duration: end - start, operands, result, dtype, config, flop, bytes })
    }
}

/// Runs an operator. `work` is called only where the operator is recorded.
pub(crate) fn operator(
    name: &'static str,
    work: impl FnOnce() -> Work,
    run: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    if RECORDERS.load(Ordering::Relaxed) == 0 {
        return run();
    }
    let Some(device) = enter() else { return run() };
    let result = recorded(name, &device, work, run);
    RECORDING.with_borrow_mut(|recording| {
        if let Some(recording) = recording {
            recording.inside = false;
        }
    });
    result
}

/// Runs an operator of a portable device, whose result has `shape` and `dtype`.
pub(crate) fn portable(
    name: &'static str,
    cost: &Cost,
    backend: &dyn crate::portable::Backend,
    mut run: impl FnMut() -> Result<()>,
) -> Result<()> {
    if RECORDERS.load(Ordering::Relaxed) == 0 || enter().is_none() {
        return run();
    }
    let computed = backend.timed(&mut run);
    RECORDING.with_borrow_mut(|recording| {
        let Some(recording) = recording else { return };
        recording.inside = false;
        let Ok(seconds) = &computed else { return };
        let start = recording.computed;
        recording.computed += seconds * 1e6;
        let (start, end) = (Mark::Portable(start), Mark::Portable(recording.computed));
        let work = Work::new(&[]).flop(cost.flop);
        recording.calls.push(Call { name, start, end, work, result: cost.shape.clone(), dtype: cost.dtype });
    });
    computed.map(|_| ())
}

/// Begins an operator, if this thread records and no operator is running.
fn enter() -> Option<Device> {
    RECORDING.with_borrow_mut(|recording| {
        let recording = recording.as_mut().filter(|recording| !recording.inside)?;
        recording.inside = true;
        Some(recording.device.clone())
    })
}

fn recorded(
    name: &'static str,
    device: &Device,
    work: impl FnOnce() -> Work,
    run: impl FnOnce() -> Result<Tensor>,
) -> Result<Tensor> {
    let work = work();
    let start = Mark::now(device)?;
    let y = run()?;
    let end = Mark::now(device)?;
    let call = Call { name, start, end, work, result: y.dims().to_vec(), dtype: y.dtype() };
    RECORDING.with_borrow_mut(|recording| {
        if let Some(recording) = recording {
            recording.calls.push(call);
        }
    });
    Ok(y)
}
