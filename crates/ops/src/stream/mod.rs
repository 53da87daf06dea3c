//! Copies to a card beside its computing: a ring of bytes on the card that slabs of weights are copied into, and the
//! order between the stream that copies and the one that computes.
//!
//! Which slab is copied when, and where it lies in the ring, is the caller's to decide. The caller says of every copy
//! after which points of the card's work the bytes are free ([`Ring::copy`], [`Ring::point`]), and before which work
//! they must be there ([`Ring::wait`]). The card keeps both; the host waits for neither.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;
use kiln_mempool::{PinnedBlock, PinnedPool};

pub use cuda::{Copy, Point, Ring};

use crate::error::Result;

/// A slab of weights in host memory, to be copied to a card again and again.
pub struct HostSlab(Memory);

#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "copies read it, of which this build has none"))]
enum Memory {
    /// Page-locked: a card's copy engine reads it by itself.
    Pinned(PinnedBlock),
    /// A flat tensor on the processor; its bytes go through staging buffers.
    Pageable(Tensor),
}

impl HostSlab {
    /// Takes the flat tensor `slab`, which lies on the processor: into page-locked memory of `pool` as long as that has
    /// some, else as it is.
    ///
    /// # Errors
    /// [`crate::Error::Shape`] where it is not flat, [`crate::Error::Driver`] where the driver cannot lock memory for
    /// another reason than that there is none left.
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

    /// Whether it lies in page-locked memory.
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Memory::Pinned(_))
    }
}
