//! How long each operator of a run takes.
//!
//! [`record`] runs something and gives a [`Trace`]: every call of a public operator on this thread, in order, with its
//! shapes, its arithmetic and the bytes that it has to move. An operator that another one calls is part of that one.
//!
//! On the processor times are the clock's. On a card an event is put into the stream before and after each operator,
//! and all are read when the run is over: nothing waits in between, and a time is what the card took. Where the card
//! waits for the host to launch kernels, that is part of it too; a caller who wants kernels alone gives the card other
//! work first, so that the host is ahead. A graph that is replayed calls no operator, so nothing of it is traced.
//!
//! Where nobody records, an operator pays for one relaxed load.

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
pub(crate) use work::Work;

/// What [`record`] saw.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// How long the whole run took, in microseconds.
    pub duration: f64,
    /// The operators in the order in which they ran, none during another.
    pub operators: Vec<Operator>,
}

/// A call of an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// The operator's name.
    pub name: &'static str,
    /// When it began, in microseconds after the run did.
    pub start: f64,
    /// How long it took, in microseconds.
    pub duration: f64,
    /// What it read.
    pub operands: Vec<Operand>,
    /// The shape of what it wrote.
    pub result: Vec<usize>,
    /// The type of what it wrote.
    pub dtype: DType,
    /// Its configuration, where it has one, for a reader.
    pub config: Option<String>,
    /// Floating-point operations of its products of matrices, a multiplication and an addition each; 0 where it has no
    /// product.
    pub flop: f64,
    /// Bytes that it has to move: every operand read once and the result written once.
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

/// How many threads record. More than none sends operators to [`RECORDING`], which knows whether theirs does.
static RECORDERS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

/// What was seen so far on this thread.
struct Recording {
    device: Device,
    calls: Vec<Call>,
    /// Whether an operator runs, so that those that it calls are not seen.
    inside: bool,
}

struct Call {
    name: &'static str,
    start: Mark,
    end: Mark,
    work: Work,
    result: Vec<usize>,
    dtype: DType,
}

/// A moment.
enum Mark {
    Host(Instant),
    /// When a card came to this place of its stream.
    Card(cuda::Event),
}

impl Mark {
    /// Now on the processor; on a card when it has done what it was given before.
    fn now(device: &Device) -> Result<Self> {
        Ok(cuda::event(device)?.map_or_else(|| Self::Host(Instant::now()), Self::Card))
    }

    /// Microseconds from `earlier` to here.
    fn since(&self, earlier: &Self) -> Result<f64> {
        match (self, earlier) {
            (Self::Card(end), Self::Card(start)) => end.since(start),
            (Self::Host(end), Self::Host(start)) => Ok(end.saturating_duration_since(*start).as_secs_f64() * 1e6),
            _ => Ok(0.0), // all marks of a recording are of one device
        }
    }
}

/// Ends the recording of this thread, whatever happens.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        RECORDING.take();
        RECORDERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Does `run`, whose operators run on `device`, and tells how long each took. Of a recording inside of another, the
/// outer one sees nothing from then on.
///
/// # Errors
/// What `run` reports, and [`crate::Error::Driver`] where a card's times cannot be had.
pub fn record<T, E: From<crate::Error>>(device: &Device, run: impl FnOnce() -> Result<T, E>) -> Result<(T, Trace), E> {
    RECORDERS.fetch_add(1, Ordering::Relaxed);
    let guard = Guard;
    RECORDING.set(Some(Recording { device: device.clone(), calls: Vec::new(), inside: false }));
    let start = Mark::now(device)?;
    let result = run()?;
    let end = Mark::now(device)?;
    let calls = RECORDING.take().map(|recording| recording.calls).unwrap_or_default();
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

/// Runs an operator, whose `work` is asked for where it is recorded.
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

/// Begins an operator where this thread records and none runs.
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
