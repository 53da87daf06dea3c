//! Copies to a GPU that overlap with compute: a ring buffer of GPU memory for slabs of weights, and the synchronization
//! of the copy stream with the compute stream.
//!
//! The caller decides which slab is copied when, and to which offset of the ring. For every copy it states after which
//! points of the GPU's work the range is free ([`Ring::copy`], [`Ring::point`]), and which work needs the copy
//! ([`Ring::wait`]). The GPU waits for both; the host for neither, except for copies from pageable memory and of slabs that are read
//! for each copy, which threads stage and submit: [`Ring::wait`] returns when that is done.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
mod link;
#[cfg(test)]
mod tests;

use candle_core::Tensor;
use kiln_mempool::{PinnedBlock, PinnedPool};

pub use cuda::{Copy, Point, Ring};
pub use link::LinkSpeed;

use crate::error::Result;

/// A slab of weights in host memory, which is copied to a GPU repeatedly.
pub struct HostSlab(Memory);

#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "copies read it, of which this build has none"))]
enum Memory {
    /// Pinned memory, which the copy engine of a GPU reads directly.
    Pinned(PinnedBlock),
    /// A flat CPU tensor, which is copied through staging buffers.
    Pageable(Tensor),
    /// A flat CPU tensor of this many bytes that is made for each copy into the ring.
    Read(usize, Read),
}

/// Reads a slab: returns a flat CPU tensor.
type Read = Box<dyn Fn() -> std::result::Result<Tensor, Box<dyn std::error::Error + Send + Sync>> + Send + Sync>;

impl HostSlab {
    /// Takes the flat CPU tensor `slab`: into pinned memory of `pool` while that has some left, otherwise as it is.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] for a tensor that is not flat, [`crate::Error::Driver`] where pinning fails for another
    /// reason than missing memory.
    pub fn new(slab: Tensor, pool: Option<&PinnedPool>) -> Result<Self> {
        crate::error::expect_shape("stream", "slab", slab.dims(), &[slab.elem_count()])?;
        let block = match pool.map(|pool| pool.allocate(slab.elem_count() * slab.dtype().size_in_bytes())) {
            Some(Ok(block)) => Some(block),
            Some(Err(error)) if !error.is_out_of_memory() => return Err(crate::Error::Driver(error.to_string())),
            _ => None,
        };
        Ok(Self(match block {
            Some(mut block) => {
                cuda::write_bytes(&slab, &mut block)?;
                Memory::Pinned(block)
            }
            None => Memory::Pageable(slab),
        }))
    }

    /// A slab of `bytes` bytes that has no memory between copies: a thread calls `read`, which returns a flat CPU tensor,
    /// ahead of each copy. All calls must return the same elements.
    pub fn read_anew(
        bytes: usize,
        read: impl Fn() -> std::result::Result<Tensor, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Memory::Read(bytes, Box::new(read)))
    }

    /// Whether it is in pinned memory.
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Memory::Pinned(_))
    }
}
