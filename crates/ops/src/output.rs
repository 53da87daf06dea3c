//! Where an operator's result goes: into a new tensor, or into one that the caller made before.

use std::cell::RefCell;
use std::marker::PhantomData;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use kiln_mempool::HostPool;

use crate::cpu::Element;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::error::{Error, Result, expect_shape};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;

/// Runs `kernel` on the result's memory, a slice of `shape`'s element count in row-major order, and gives the result.
///
/// The slice holds whatever its memory held, so a kernel writes every element. `inputs` are the operands that the
/// kernel reads: `out` must not share memory with any of them.
pub(crate) fn write<T: Element>(
    op: &'static str,
    out: Option<&Tensor>,
    shape: &[usize],
    inputs: &[&Tensor],
    kernel: impl FnOnce(&mut [T]),
) -> Result<Tensor> {
    let Some(out) = out else {
        let mut values = uncleared::<T>(shape.iter().product())?;
        kernel(&mut values);
        return Ok(Tensor::from_vec(values, shape, &Device::Cpu)?);
    };
    check_given(op, out, shape, T::DTYPE, inputs)?;
    out.inplace_op1(&Write { op, kernel: RefCell::new(Some(kernel)), element: PhantomData::<T> })?;
    Ok(out.clone())
}

/// A vector whose elements have any values: clearing what a kernel writes anyway would be a pass over memory for
/// nothing.
///
/// In tests they are not numbers, so that an element that a kernel forgets is seen.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(test, debug_assertions, miri))))]
fn uncleared<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut values = HostPool::vector::<T>(len)?;
    // SAFETY: memory that nobody wrote may not be read as numbers, whatever it holds. The empty assembly gets the
    // address and promises nothing, so for the compiler it has written all that the address reaches, and what it wrote
    // is what the memory holds: it stays the same from one read to the next (an allocator may not take memory back, or
    // have the kernel do so, while it is lent out), and every bit pattern is a number of type `T` (f32, f16 and bf16,
    // the types that implement `Element`). The vector has room for `len` elements.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags));
        values.set_len(len);
    }
    Ok(values)
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(test, debug_assertions, miri)))))]
fn uncleared<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut values = HostPool::vector::<T>(len)?;
    values.resize(len, T::from_f32(if cfg!(any(test, debug_assertions)) { f32::NAN } else { 0.0 }));
    Ok(values)
}

/// A tensor whose memory holds anything, for operators to write all of it: what is written part by part needs no
/// clearing before.
///
/// # Errors
/// [`Error::DType`] for types that no operator writes.
pub fn unwritten(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    fn on_the_processor<T: Element>(shape: &[usize]) -> Result<Tensor> {
        write::<T>("unwritten", None, shape, &[], |_| ())
    }
    match device {
        Device::Cpu => dispatch!("unwritten", "the result", dtype, on_the_processor(shape)),
        _ => match cuda::unwritten(shape, dtype, device)? {
            Some(tensor) => Ok(tensor),
            None => Ok(Tensor::zeros(shape, dtype, device)?),
        },
    }
}

/// Gives `result`, or copies it into `out`: for the paths that are made of candle's own operators.
pub(crate) fn store(op: &'static str, result: Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let Some(out) = out else { return Ok(result) };
    check_given(op, out, result.dims(), result.dtype(), &[&result])?;
    out.slice_set(&result.contiguous()?, 0, 0)?;
    Ok(out.clone())
}

/// Refuses an output that a kernel cannot write to: of another shape or type, with gaps, or with memory of an input.
pub(crate) fn check_given(
    op: &'static str,
    out: &Tensor,
    shape: &[usize],
    dtype: DType,
    inputs: &[&Tensor],
) -> Result<()> {
    expect_shape(op, "out", out.dims(), shape)?;
    if out.dtype() != dtype {
        return Err(Error::DType { op, operand: "out", expected: dtype, found: out.dtype() });
    }
    if !out.is_contiguous() {
        return Err(Error::Out { op, problem: "is not contiguous" });
    }
    if inputs.iter().any(|input| same_storage(input, out)) {
        return Err(Error::Out { op, problem: "shares memory with an input; give it a tensor of its own" });
    }
    Ok(())
}

fn same_storage(a: &Tensor, b: &Tensor) -> bool {
    let (a, _) = a.storage_and_layout();
    let (b, _) = b.storage_and_layout();
    std::ptr::eq(&*a, &*b)
}

struct Write<T, K> {
    op: &'static str,
    kernel: RefCell<Option<K>>, // candle hands ops out by shared reference; a kernel runs once
    element: PhantomData<T>,
}

impl<T: Element, K: FnOnce(&mut [T])> InplaceOp1 for Write<T, K> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (Some((start, end)), Some(kernel)) = (layout.contiguous_offsets(), self.kernel.borrow_mut().take()) else {
            candle_core::bail!("{}: `out` is not contiguous", self.op)
        };
        match T::slice_mut(storage) {
            Some(values) => kernel(&mut values[start..end]),
            None => candle_core::bail!("{}: `out` has another type than it says", self.op),
        }
        Ok(())
    }
}
