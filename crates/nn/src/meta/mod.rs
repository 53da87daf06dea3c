//! Tensors without elements: what a network costs, before it has weights and on a device that is not here.
//!
//! A [`MetaTensor`] knows its shape and its type, as PyTorch's tensors on the device `meta` do, and a [`MetaDevice`]
//! counts the memory that its tensors would hold and the floating-point operations that made them. A network's `forward`
//! takes these as it takes tensors ([`crate::TensorLike`]), so bytes and operations come from the code that runs.
//!
//! Weights are not counted: their segments know their bytes.

mod checks;
mod device;
mod flop;
mod operators;

use std::rc::Rc;

use candle_core::DType;
use kiln_mempool::Held;

pub use device::MetaDevice;
pub use flop::FlopCount;
pub use operators::MetaWeight;

/// A tensor's shape and type. It holds memory of its device while it or a clone of it lives, but no elements.
#[derive(Clone)]
pub struct MetaTensor {
    device: MetaDevice,
    shape: Vec<usize>,
    dtype: DType,
    /// Whether its elements have no gaps between them.
    contiguous: bool,
    /// `None` for what is counted elsewhere.
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

    /// How many elements it has.
    pub fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes that it holds, as its device's pool rounds them; those of the whole tensor for a part of one.
    pub fn bytes(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.bytes())
    }

    /// A new tensor of the same type.
    fn another(&self, shape: &[usize]) -> Self {
        self.device.tensor(shape, self.dtype)
    }

    /// A new tensor with another last size.
    fn with_channels(&self, channels: usize) -> Self {
        let outer = self.shape.split_last().map_or(&[][..], |(_, outer)| outer);
        self.another(&[outer, &[channels]].concat())
    }

    /// The last size.
    fn channels(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }
}
