//! The memory of a loaded segment.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Tensor;
use kiln_ops::Weight;
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};

use crate::error::Result;

/// The memory of a loaded segment.
pub(crate) struct Slab {
    /// One view for each parameter, all into the same storage.
    pub(crate) views: Vec<View>,
    /// One for each [`Stack`]; `None` for matrices in 8-bit integers or of several types, which are read one by one.
    pub(crate) stacks: Vec<Option<View>>,
    /// The memory of all views, flat; `None` if it is that of a device that is not candle's.
    pub(crate) memory: Option<Tensor>,
    /// Keeps a slab on the CPU known to those that share it.
    pub(crate) held: Option<Arc<Tensor>>,
}

impl Slab {
    /// This slab in the memory of `backend`. That of the host is free afterwards.
    pub(crate) fn upload(self, backend: &Arc<dyn Backend>) -> Result<Self> {
        let Some(memory) = &self.memory else { return Ok(self) };
        let uploaded = PortableTensor::upload(backend, memory)?;
        let view = |view: &View| view.upload(&uploaded);
        let views = self.views.iter().map(view).collect::<Result<_>>()?;
        let stacks = self.stacks.iter().map(|stack| stack.as_ref().map(view).transpose()).collect::<Result<_>>()?;
        Ok(Self { views, stacks, memory: None, held: None })
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
    /// A tensor in the memory of a device that is not candle's.
    UploadedTensor(PortableTensor),
    /// A weight in the memory of a device that is not candle's.
    UploadedWeight(PortableWeight),
}

impl View {
    /// This view of a slab whose copy is `memory`.
    fn upload(&self, memory: &PortableTensor) -> Result<Self> {
        let backend = memory.backend();
        Ok(match self {
            Self::Tensor(tensor) => {
                let offset = tensor.layout().start_offset();
                let memory = memory.memory().clone();
                Self::UploadedTensor(PortableTensor::new(backend, memory, tensor.dims(), offset, tensor.dtype()))
            }
            Self::Weight(weight) => {
                let offset = weight.tensor().layout().start_offset();
                Self::UploadedWeight(PortableWeight::new(backend, memory.memory().clone(), offset, weight)?)
            }
            Self::UploadedTensor(tensor) => Self::UploadedTensor(tensor.clone()),
            Self::UploadedWeight(weight) => Self::UploadedWeight(weight.clone()),
        })
    }

    /// The tensor in the memory of candle's device, or a copy in host memory.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        Ok(match self {
            Self::Tensor(tensor) => tensor.clone(),
            Self::Weight(weight) => weight.tensor().clone(),
            Self::UploadedTensor(tensor) => tensor.download()?,
            Self::UploadedWeight(weight) => weight.tensor().download()?,
        })
    }

    /// The weight in the memory of candle's device, or a copy in host memory.
    pub(crate) fn weight(&self) -> Result<Weight> {
        Ok(match self {
            Self::Weight(weight) => weight.clone(),
            Self::UploadedWeight(weight) => weight.download()?,
            Self::Tensor(_) | Self::UploadedTensor(_) => Weight::plain(&self.tensor()?)?,
        })
    }

    /// The tensor in the memory of `backend`: a copy if it is in host memory.
    pub(crate) fn portable(&self, backend: &Arc<dyn Backend>) -> Result<PortableTensor> {
        Ok(match self {
            Self::UploadedTensor(tensor) => tensor.clone(),
            Self::UploadedWeight(weight) => weight.tensor().clone(),
            Self::Tensor(_) | Self::Weight(_) => PortableTensor::upload(backend, &self.tensor()?)?,
        })
    }

    /// The weight in the memory of `backend`: a copy if it is in host memory.
    pub(crate) fn portable_weight(&self, backend: &Arc<dyn Backend>) -> Result<PortableWeight> {
        Ok(match self {
            Self::UploadedWeight(weight) => weight.clone(),
            Self::UploadedTensor(tensor) => PortableWeight::plain(tensor)?,
            Self::Tensor(_) | Self::Weight(_) => {
                let weight = self.weight()?;
                let memory = PortableTensor::upload(backend, weight.tensor())?.memory().clone();
                PortableWeight::new(backend, memory, 0, &weight)?
            }
        })
    }
}
