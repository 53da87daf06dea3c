//! Copies between two GPUs, ordered by events.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::result;
use candle_core::{Device, Tensor};

use crate::cuda::{address, driver, output};
use crate::error::Result;

/// A copy of `tensor` on another GPU; `None` if one of the two devices is no GPU.
pub(super) fn between(tensor: &Tensor, device: &Device) -> Result<Option<Tensor>> {
    let (Device::Cuda(source), Device::Cuda(target)) = (tensor.device(), device) else { return Ok(None) };
    let tensor = crate::contiguous(tensor)?;
    let copy = output("peer", None, tensor.dims(), tensor.dtype(), &[], target)?;
    let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
    let (reads, writes) = (source.cuda_stream(), target.cuda_stream());
    // The memory of the copy is allocated by `writes`, so that the copy is work of that stream.
    writes.join(&reads).map_err(driver)?;
    let (to, from) = (address(&copy)?, address(&tensor)?);
    let (to_context, from_context) = (writes.context().cu_ctx(), reads.context().cu_ctx());
    writes.context().bind_to_thread().map_err(driver)?;
    // SAFETY: both addresses are those of live tensors with this many bytes, in the contexts of their devices. The stream
    // waits for the writes to `tensor`, and its own stream waits below before it frees or writes it.
    unsafe { result::memcpy_peer_async(to_context, to, from_context, from, bytes, writes.cu_stream()) }
        .map_err(driver)?;
    reads.join(&writes).map_err(driver)?;
    Ok(Some(copy))
}
