//! The result of an operator: a new tensor, or one that the caller passes.

use std::cell::RefCell;
use std::marker::PhantomData;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use kiln_mempool::HostPool;

use crate::cpu::Element;
use crate::error::{Error, Result, expect_shape};

/// Runs `kernel` on the memory of the result, a slice with the elements of `shape` in row-major order, and returns it.
///
/// The slice is uninitialized memory, so a kernel writes every element. `inputs` are the operands that the kernel
/// reads: `out` must not share memory with any of them.
pub(crate) fn write<T: Element>(
    op: &'static str,
    out: Option<&Tensor>,
    shape: &[usize],
    inputs: &[&Tensor],
    kernel: impl FnOnce(&mut [T]),
) -> Result<Tensor> {
    let Some(out) = out else {
        let mut values = uninit_vec::<T>(shape.iter().product())?;
        kernel(&mut values);
        return Ok(Tensor::from_vec(values, shape, &Device::Cpu)?);
    };
    check_out(op, out, shape, T::DTYPE, inputs)?;
    out.inplace_op1(&Write { op, kernel: RefCell::new(Some(kernel)), element: PhantomData::<T> })?;
    Ok(out.clone())
}

/// A vector with arbitrary elements. Clearing memory that a kernel overwrites would be an extra pass.
///
/// In tests the elements are NaN, so that an element that a kernel forgets is noticed.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(test, debug_assertions, miri))))]
fn uninit_vec<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut values = HostPool::vector::<T>(len)?;
    // SAFETY: uninitialized memory may not be read as numbers, whatever it holds. The empty assembly takes the address
    // and promises nothing, so to the compiler it may have written everything that the address reaches, and the values
    // are what the memory holds. They do not change from one read to the next (an allocator may not unmap or clear
    // memory that is allocated), and every bit pattern is a valid `T` (f32, f16 and bf16, the types that implement
    // `Element`). The vector has capacity for `len` elements.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags));
        values.set_len(len);
    }
    Ok(values)
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(test, debug_assertions, miri)))))]
fn uninit_vec<T: Element>(len: usize) -> Result<Vec<T>> {
    let mut values = HostPool::vector::<T>(len)?;
    values.resize(len, T::from_f32(if cfg!(any(test, debug_assertions)) { f32::NAN } else { 0.0 }));
    Ok(values)
}

/// Returns `result`, or copies it into `out`. For results of candle's own operators.
pub(crate) fn store(op: &'static str, result: Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let Some(out) = out else { return Ok(result) };
    check_out(op, out, result.dims(), result.dtype(), &[&result])?;
    out.slice_set(&crate::contiguous(&result)?, 0, 0)?;
    Ok(out.clone())
}

/// An error for an output that a kernel cannot write: of another shape or type, not contiguous, or with an input's
/// memory.
pub(crate) fn check_out(
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
    kernel: RefCell<Option<K>>, // candle passes operators by shared reference; a kernel runs once
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
            None => candle_core::bail!("{}: `out` has an unexpected storage type", self.op),
        }
        Ok(())
    }
}
