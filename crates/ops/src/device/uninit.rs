//! Uninitialized tensors.

use candle_core::{DType, Device, Tensor};

use super::cuda;
use crate::cpu::Element;
use crate::error::Result;
use crate::output::write;

const OP: &str = "uninit";

/// A tensor with uninitialized elements, as PyTorch's `torch.empty`, for operators that write all of it part by part.
///
/// # Errors
/// [`crate::Error::DType`] for types that no operator writes, and errors of the pool or the device without memory.
pub fn uninit(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    fn on_cpu<T: Element>(shape: &[usize]) -> Result<Tensor> {
        write::<T>(OP, None, shape, &[], |_| ())
    }
    match device {
        Device::Cpu => dispatch!(OP, "the result", dtype, on_cpu(shape)),
        _ => match cuda::uninit(shape, dtype, device)? {
            Some(tensor) => Ok(tensor),
            None => Ok(Tensor::zeros(shape, dtype, device)?),
        },
    }
}
