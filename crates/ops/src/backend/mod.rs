//! Back ends, and the dispatch of an operator to its kernel.
//!
//! A call of an operator is a value: it implements [`Operator`], which names it and computes its result in candle's
//! primitives, and [`Kernel`] once for each back end. [`run`] picks the back end of the operand's device and launches
//! the kernel. Where there is no kernel, for this device, type or shape, the reference runs. All of it is static: no
//! table, no `dyn`.
//!
//! This module knows no operator. A new back end is a file of this folder with a type that implements [`Backend`], a
//! bound of [`Kernels`], a branch of [`launch`], and an `impl Kernel<..>` in the folder of each operator. An empty
//! `impl` means the reference.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::error::Result;
use crate::output::store;
use crate::stop;
use crate::trace::{self, Work};
pub(crate) use cpu::Cpu;
pub(crate) use cuda::Cuda;

/// A family of kernels: those of the CPU, or those of one kind of accelerator.
pub(crate) trait Backend: Sized {
    /// The back end for a tensor's device and type. `None` for another device, or where its kernels do not run.
    fn of(x: &Tensor) -> Result<Option<Self>>;
}

/// One call of an operator, with operands that have been checked.
pub(crate) trait Operator {
    /// The operator's name in errors and traces.
    fn name(&self) -> &'static str;

    /// The operand whose device and type select the back end.
    fn input(&self) -> &Tensor;

    /// Operands and arithmetic, for a trace.
    fn work(&self) -> Work;

    /// The result in candle's primitives, on the operand's device.
    fn reference(&self) -> Result<Tensor>;
}

/// An operator's kernel for the back end `B`.
pub(crate) trait Kernel<B: Backend>: Operator {
    /// Computes the result, into `out` where that is given. `None` where there is no kernel for these types or shapes.
    fn launch(&self, _backend: &B, _out: Option<&Tensor>) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

/// An operator with an implementation, possibly an empty one, for every back end.
pub(crate) trait Kernels: Kernel<Cpu> + Kernel<Cuda> {}

impl<O: Kernel<Cpu> + Kernel<Cuda>> Kernels for O {}

/// Runs an operator: its kernel, or else its reference. A trace that is being recorded gets an entry.
pub(crate) fn run(operator: &impl Kernels, out: Option<&Tensor>) -> Result<Tensor> {
    let result = || match launch(operator, out)? {
        Some(y) => Ok(y),
        None => store(operator.name(), operator.reference()?, out),
    };
    trace::operator(operator.name(), || operator.work(), result)
}

/// Launches the kernel of the back end that the operand's device has. `None` where there is no such kernel.
///
/// # Errors
/// Errors of the kernel, and [`crate::Error::Stopped`] when the work of this thread should end.
pub(crate) fn launch(operator: &impl Kernels, out: Option<&Tensor>) -> Result<Option<Tensor>> {
    stop::check()?;
    if let Some(cpu) = Cpu::of(operator.input())? {
        let y = operator.launch(&cpu, out);
        // Tasks that have seen the sign have left their part of the result out.
        return stop::check().and(y);
    }
    if let Some(cuda) = Cuda::of(operator.input())? {
        return operator.launch(&cuda, out);
    }
    Ok(None)
}
