//! Copies to pinned memory, in the order of the device's stream.
#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};

use candle_core::cuda::cudarc::driver::result;
use candle_core::{DType, Device, Tensor};
use kiln_mempool::{PinnedBlock, PinnedConfig, PinnedPool};

use crate::cuda::{address, driver};
use crate::error::Result;
use crate::marker::Marker;

/// The most bytes that copies under way pin for each GPU: the latents of more images than any queue has.
const MOST_PINNED: usize = 64 << 20;

/// The pinned memory of each GPU that copies were made from.
static POOLS: Mutex<Vec<(usize, PinnedPool)>> = Mutex::new(Vec::new());

/// A copy that a GPU makes.
pub(super) struct Copy {
    block: PinnedBlock,
    end: Marker,
    shape: Vec<usize>,
    dtype: DType,
}

impl Copy {
    /// Starts the copy of a tensor on a GPU; `None` for other devices, and without pinned memory.
    pub(super) fn start(tensor: &Tensor) -> Result<Option<Self>> {
        let Device::Cuda(device) = tensor.device() else { return Ok(None) };
        let stream = device.cuda_stream();
        let tensor = crate::contiguous(tensor)?;
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let Some(mut block) = pinned(stream.context().ordinal(), bytes) else { return Ok(None) };
        let from = address(&tensor)?;
        stream.context().bind_to_thread().map_err(driver)?;
        // SAFETY: the tensor has this many bytes, and its memory is freed in the order of the stream. The block is not read, freed or
        // used again before the copy has ended: `wait` and `drop` wait for that, and so does the error below.
        unsafe { result::memcpy_dtoh_async(&mut block[..], from, stream.cu_stream()) }.map_err(driver)?;
        let end = Marker::record(tensor.device()).transpose();
        let Some(Ok(end)) = end else {
            stream.synchronize().map_err(driver)?;
            return Ok(None);
        };
        let (shape, dtype) = (tensor.dims().to_vec(), tensor.dtype());
        Ok(Some(Self { block, end, shape, dtype }))
    }

    /// The copy, once it has ended.
    pub(super) fn wait(self) -> Result<Tensor> {
        self.end.wait()?;
        Ok(Tensor::from_raw_buffer(&self.block, self.dtype, &self.shape, &Device::Cpu)?)
    }
}

impl Drop for Copy {
    /// The pool gives the block to others next.
    fn drop(&mut self) {
        if let Err(error) = self.end.wait() {
            tracing::warn!("a copy to the host: {error}");
        }
    }
}

/// Pinned memory; `None` if the system gives none.
fn pinned(ordinal: usize, bytes: usize) -> Option<PinnedBlock> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if !pools.iter().any(|(of, _)| *of == ordinal) {
        pools.push((ordinal, PinnedPool::new(ordinal, PinnedConfig::with_cap(MOST_PINNED)).ok()?));
    }
    let (_, pool) = pools.iter().find(|(of, _)| *of == ordinal)?;
    pool.allocate(bytes).ok()
}
