//! Where an operator's result goes: into a new tensor, or into one that the caller made before.

use std::cell::RefCell;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Tensor};
use half::{bf16, f16};

use crate::error::{Error, Result, expect_shape};

/// Runs `kernel` on the result's memory, a slice of `shape`'s element count in row-major order, and gives the result.
///
/// The kernel computes in f32. For f16 and bf16 results it fills a scratch block that is rounded once at the end.
/// Without `out` the slice starts as zeros; with `out` it holds whatever the tensor held, so a kernel writes every
/// element. `inputs` are the operands that the kernel reads: `out` must not share memory with any of them.
pub(crate) fn write_cpu(
    op: &'static str,
    out: Option<&Tensor>,
    shape: &[usize],
    dtype: DType,
    inputs: &[&Tensor],
    kernel: impl FnOnce(&mut [f32]),
) -> Result<Tensor> {
    let Some(out) = out else {
        let mut values = vec![0f32; shape.iter().product()];
        kernel(&mut values);
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu)?;
        return Ok(tensor.to_dtype(dtype)?);
    };
    check_out(op, out, shape, dtype)?;
    if inputs.iter().any(|input| same_storage(input, out)) {
        return Err(Error::Out { op, problem: "shares memory with an input; give it a tensor of its own" });
    }
    out.inplace_op1(&Write { op, kernel: RefCell::new(Some(kernel)) })?;
    Ok(out.clone())
}

/// Gives `result`, or copies it into `out`: for the paths that are made of candle's own operators.
pub(crate) fn store(op: &'static str, result: Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let Some(out) = out else { return Ok(result) };
    check_out(op, out, result.dims(), result.dtype())?;
    if same_storage(&result, out) {
        return Err(Error::Out { op, problem: "shares memory with an input; give it a tensor of its own" });
    }
    out.slice_set(&result.contiguous()?, 0, 0)?;
    Ok(out.clone())
}

fn check_out(op: &'static str, out: &Tensor, shape: &[usize], dtype: DType) -> Result<()> {
    expect_shape(op, "out", out.dims(), shape)?;
    if out.dtype() != dtype {
        return Err(Error::DType { op, operand: "out", expected: dtype, found: out.dtype() });
    }
    if !out.is_contiguous() {
        return Err(Error::Out { op, problem: "is not contiguous" });
    }
    Ok(())
}

fn same_storage(a: &Tensor, b: &Tensor) -> bool {
    let (a, _) = a.storage_and_layout();
    let (b, _) = b.storage_and_layout();
    std::ptr::eq(&*a, &*b)
}

struct Write<K> {
    op: &'static str,
    kernel: RefCell<Option<K>>, // candle hands ops out by shared reference; a kernel runs once
}

impl<K: FnOnce(&mut [f32])> InplaceOp1 for Write<K> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("{}: `out` is not contiguous", self.op)
        };
        let Some(kernel) = self.kernel.borrow_mut().take() else {
            candle_core::bail!("{}: the kernel ran already", self.op)
        };
        match storage {
            CpuStorage::F32(values) => kernel(&mut values[start..end]),
            CpuStorage::F16(values) => rounded(kernel, &mut values[start..end], f16::from_f32),
            CpuStorage::BF16(values) => rounded(kernel, &mut values[start..end], bf16::from_f32),
            other => candle_core::bail!("{}: `out` is {:?}, expected f32, f16 or bf16", self.op, dtype_of(other)),
        }
        Ok(())
    }
}

fn rounded<T>(kernel: impl FnOnce(&mut [f32]), out: &mut [T], round: impl Fn(f32) -> T) {
    let mut values = vec![0f32; out.len()];
    kernel(&mut values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = round(value);
    }
}

fn dtype_of(storage: &CpuStorage) -> DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}
