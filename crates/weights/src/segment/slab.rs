//! The memory of a loaded segment.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use kiln_ops::Weight;
use kiln_ops::portable::{Backend, Memory, PortableTensor, PortableWeight};

use crate::error::Result;

/// The memory of a loaded segment.
pub(crate) struct Slab {
    /// One view for each parameter, all into the same storage.
    pub(crate) views: Vec<View>,
    /// One for each [`Stack`]; `None` for matrices in 8-bit integers or of several types, which are read one by one.
    pub(crate) stacks: Vec<Option<View>>,
    /// The memory of all views, flat.
    pub(crate) memory: Tensor,
    /// Keeps a slab on the CPU known to those that share it.
    pub(crate) held: Option<Arc<Tensor>>,
    /// The copy in the memory of a device that is not candle's, once a network has used it there.
    pub(crate) uploaded: OnceLock<Arc<dyn Memory>>,
}

impl Slab {
    /// The copy of the slab's memory in that of `backend`, which is made by the first call.
    pub(crate) fn uploaded(&self, backend: &Arc<dyn Backend>) -> Result<Arc<dyn Memory>> {
        if let Some(memory) = self.uploaded.get() {
            return Ok(memory.clone());
        }
        let copy = PortableTensor::upload(backend, &self.memory)?.memory().clone();
        Ok(self.uploaded.get_or_init(|| copy).clone())
    }
}

/// The memory of a loaded segment.
pub(crate) struct Contents {
    /// Flat, on the device of the slab.
    pub(crate) memory: Tensor,
    /// See [`Slab::held`].
    pub(crate) held: Option<Arc<Tensor>>,
    /// The added biases by the index of the layer's matrix.
    pub(crate) biases: HashMap<usize, Tensor>,
}

/// Adjacent matrices in the slab that also form one matrix, or vectors that form one vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    /// The index of the first one.
    pub(crate) first: usize,
    /// The number of matrices.
    pub(crate) count: usize,
}

/// A parameter in a slab.
pub(crate) enum View {
    /// A tensor in the checkpoint's layout.
    Tensor(Tensor),
    /// A weight that is packed for a matrix product.
    Weight(Weight),
}

impl View {
    /// The tensor in the memory of `backend`. `slab` has this view.
    pub(crate) fn portable(&self, slab: &Slab, backend: &Arc<dyn Backend>) -> Result<PortableTensor> {
        let tensor = match self {
            Self::Tensor(tensor) => tensor,
            Self::Weight(weight) => weight.tensor(),
        };
        let offset = tensor.layout().start_offset();
        Ok(PortableTensor::new(backend, slab.uploaded(backend)?, tensor.dims(), offset, tensor.dtype()))
    }

    /// The weight in the memory of `backend`. `slab` has this view.
    pub(crate) fn portable_weight(&self, slab: &Slab, backend: &Arc<dyn Backend>) -> Result<PortableWeight> {
        let memory = slab.uploaded(backend)?;
        Ok(match self {
            Self::Tensor(tensor) => {
                PortableWeight::new(backend, memory, tensor.layout().start_offset(), &Weight::plain(tensor)?)?
            }
            Self::Weight(weight) => {
                PortableWeight::new(backend, memory, weight.tensor().layout().start_offset(), weight)?
            }
        })
    }
}
