//! Parameters of a segment, as the layers that were built with them hold them.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{EightBits, MatrixType, Weight};

use super::slab::View;
use super::{Cell, RowSource};
use crate::error::{Error, Result};
use crate::table::read_rows;

/// One parameter of a segment: an index into the current slab.
#[derive(Clone)]
pub struct Param {
    pub(super) cell: Arc<Cell>,
    pub(super) index: usize,
    pub(super) shape: Arc<[usize]>,
}

impl Param {
    /// The shape in the checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The name of its segment.
    pub fn segment(&self) -> &str {
        &self.cell.name
    }

    /// A parameter with the packing [`Packing::AsStored`](crate::Packing::AsStored), as a view into the slab.
    ///
    /// # Errors
    /// [`Error::NotLoaded`](crate::Error::NotLoaded) if the segment has no weights.
    pub fn tensor(&self) -> Result<Tensor> {
        self.view(View::tensor)
    }

    /// The rows `indices` of a table `(rows, channels)` in host memory, `(indices.len(), channels)`: from the slab, or read from the
    /// source if the table has no slab. The bits are the same. The caller has checked the indices.
    ///
    /// # Errors
    /// [`Error::NotLoaded`](crate::Error::NotLoaded) if the segment has no weights; errors of the source.
    pub fn rows(&self, indices: &[u32]) -> Result<Tensor> {
        let rows = self.cell.rows.read().clone();
        match rows {
            Some(RowSource { source, dtype, params }) => {
                let Some(param) = params.get(self.index) else { return Err(Error::NotLoaded(self.cell.name.clone())) };
                read_rows(source.as_ref(), &param.key, &self.shape, indices, dtype)
            }
            None => {
                let indices = Tensor::new(indices, &Device::Cpu)?;
                Ok(self.tensor()?.index_select(&indices, 0)?)
            }
        }
    }

    /// A parameter that is the matrix of a product, as a view into the slab, with its observer ([`crate::Segments::observe`]).
    ///
    /// # Errors
    /// [`Error::NotLoaded`](crate::Error::NotLoaded) if the segment has no weights.
    pub fn weight(&self) -> Result<Weight> {
        let weight = self.view(View::weight)?;
        let observer = self.cell.observers.read().get(&self.index).cloned();
        Ok(match observer {
            Some(observer) => weight.observed(observer),
            None => weight,
        })
    }

    /// How its layer is computed in 8 bits; `None` if it is not.
    pub fn eight_bits(&self) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&self.index).map(|layer| layer.kind)
    }

    /// The type in which its matrix stays as its file stores it; `None` if it does not.
    pub fn kept(&self) -> Option<MatrixType> {
        self.cell.kept.read().get(&self.index).copied()
    }

    /// The added bias of the linear layer with this matrix, which has no bias of its own.
    pub fn added_bias(&self) -> Option<Tensor> {
        self.cell.added_biases.read().get(&self.index).cloned()
    }

    /// [`Self::tensor`] in the memory of `backend`, a copy unless [`load`](crate::load()) put it there.
    ///
    /// # Errors
    /// The errors of [`Self::tensor`], and [`kiln_ops::Error::Backend`] if it is in host memory and the device has no memory for it.
    pub fn portable(&self, backend: &Arc<dyn Backend>) -> Result<PortableTensor> {
        self.view(|view| view.portable(backend))
    }

    /// [`Self::weight`] in the memory of `backend`.
    ///
    /// # Errors
    /// The errors of [`Self::portable`], and [`kiln_ops::Error::Config`] for a weight that is packed for another device.
    pub fn portable_weight(&self, backend: &Arc<dyn Backend>) -> Result<PortableWeight> {
        self.view(|view| view.portable_weight(backend))
    }

    fn view<T>(&self, get: impl FnOnce(&View) -> Result<T>) -> Result<T> {
        self.cell.with(|slab| slab.views.get(self.index).map(get))?
    }
}

/// The matrices of several linear layers with the same input as one matrix in a segment's slab, or their biases as one vector.
#[derive(Clone)]
pub struct StackedParam {
    pub(super) cell: Arc<Cell>,
    pub(super) index: usize,
    /// The index of the first parameter.
    pub(super) first: usize,
    /// The number of parameters.
    pub(super) count: usize,
    pub(super) shape: Arc<[usize]>,
}

impl StackedParam {
    /// The shape `(layers * n, k)`, or `(layers * n)` of biases.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The name of its segment.
    pub fn segment(&self) -> &str {
        &self.cell.name
    }

    /// How the layers are computed in 8 bits; `None` where they are not.
    pub fn eight_bits(&self) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&self.first).map(|layer| layer.kind)
    }

    /// The type in which the matrices stay as their file stores them; `None` if they do not, or if they have several.
    pub fn kept(&self) -> Option<MatrixType> {
        self.cell.kept.read().get(&self.first).copied().filter(|_| self.is_uniform())
    }

    /// Whether all matrices stay as they are stored in one type, or none does. Others are no one matrix.
    pub fn is_uniform(&self) -> bool {
        let kept = self.cell.kept.read();
        (self.first..self.first + self.count).all(|i| kept.get(&i) == kept.get(&self.first))
    }

    /// `(layers * n, k)`, a view into the slab.
    ///
    /// # Errors
    /// [`Error::NotLoaded`](crate::Error::NotLoaded) if the segment has no weights, or the matrices have several types.
    pub fn weight(&self) -> Result<Weight> {
        self.view(View::weight)
    }

    /// `(layers * n)` of biases, a view into the slab.
    ///
    /// # Errors
    /// [`Error::NotLoaded`](crate::Error::NotLoaded) if the segment has no weights.
    pub fn tensor(&self) -> Result<Tensor> {
        self.view(View::tensor)
    }

    /// [`Self::tensor`] in the memory of `backend`, a copy unless [`load`](crate::load()) put it there.
    ///
    /// # Errors
    /// See [`Param::portable`].
    pub fn portable(&self, backend: &Arc<dyn Backend>) -> Result<PortableTensor> {
        self.view(|view| view.portable(backend))
    }

    /// [`Self::weight`] in the memory of `backend`.
    ///
    /// # Errors
    /// See [`Param::portable_weight`].
    pub fn portable_weight(&self, backend: &Arc<dyn Backend>) -> Result<PortableWeight> {
        self.view(|view| view.portable_weight(backend))
    }

    fn view<T>(&self, get: impl FnOnce(&View) -> Result<T>) -> Result<T> {
        self.cell.with(|slab| slab.stacks.get(self.index).and_then(Option::as_ref).map(get))?
    }
}
