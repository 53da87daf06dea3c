//! Tensors without elements: they measure the cost of a network without weights, and for a device that is not present.
//!
//! A [`MetaTensor`] has a shape and a type, like PyTorch's tensors on the device `meta`. A [`MetaDevice`] counts the
//! memory that its tensors would take and the floating-point operations that compute them. A network's `forward`
//! accepts them like tensors ([`crate::TensorLike`]), so bytes and operations come from the code that runs.
//!
//! Weights are not counted, because their segments know their sizes.

mod device;
mod flop;
mod tensor;

use std::rc::Rc;

use candle_core::DType;
use kiln_mempool::Held;

use crate::error::Result;
use crate::tensor::Elementwise;

pub use device::MetaDevice;
pub use flop::FlopCount;
pub use tensor::{MetaMoments, MetaWeight};

/// A tensor's shape and type. It takes memory of its device while it or a clone of it lives, but has no elements.
#[derive(Clone)]
pub struct MetaTensor {
    device: MetaDevice,
    shape: Vec<usize>,
    dtype: DType,
    /// Whether its elements are contiguous.
    contiguous: bool,
    /// `None` for memory that is counted elsewhere.
    held: Option<Rc<Held>>,
}

impl MetaTensor {
    /// The device.
    pub fn device(&self) -> &MetaDevice {
        &self.device
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of a tensor with four dimensions.
    ///
    /// # Errors
    /// [`kiln_ops::Error::Shape`] for another rank.
    pub fn size4(&self) -> Result<[usize; 4]> {
        Elementwise::size4(self)
    }

    /// The number of elements.
    pub fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of its memory in bytes, rounded as in its device's pool. For a view it is the size of the whole tensor.
    pub fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// A new tensor of the same type.
    fn another(&self, shape: &[usize]) -> Self {
        self.device.tensor(shape, self.dtype)
    }
}
