//! The parameters that a network declares, and their types in a slab.

use std::fmt;

use candle_core::DType;
use kiln_ops::{ByteNumber, EightBits, MatrixType, Packing, W8Matrix};

/// The alignment of parameters in a slab, in bytes: that of CUDA's widest copies and loads.
pub(crate) const ALIGNMENT: usize = 256;

/// The types of the parameters in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabType {
    /// The type of all parameters except the matrices of linear layers: f32, f16 or bf16.
    pub dtype: DType,
    /// The type of those matrices of linear layers whose rows it supports. The others have type `dtype`, and all of
    /// them do if this is `None`, except for those that stay as they are stored ([`crate::Segments::keep_stored`]).
    pub matrices: Option<MatrixType>,
}

impl From<DType> for SlabType {
    fn from(dtype: DType) -> Self {
        Self { dtype, matrices: None }
    }
}

impl fmt::Display for SlabType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.matrices {
            Some(matrices) => write!(f, "{:?} with matrices in {matrices}", self.dtype),
            None => write!(f, "{:?}", self.dtype),
        }
    }
}

/// A parameter that a network declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// The full name in the checkpoint.
    pub key: String,
    /// The shape in the checkpoint. A file's shape may have additional trailing dimensions of 1: a 1x1 convolution is a
    /// linear layer, and files contain either. For the matrix `(n, k)` of a linear layer it may be that of a kernel with `n` outputs
    /// of `k` elements each.
    pub shape: Vec<usize>,
    /// The layout in the slab.
    pub packing: Packing,
    /// The 8-bit formats in which the layer of this weight may be computed.
    pub in_8_bits: &'static [EightBits],
}

impl ParamSpec {
    /// The number of elements in the checkpoint.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The number of elements in the slab, if it has the elements' type there.
    pub fn packed_elements(&self) -> usize {
        self.packing.elements(&self.shape)
    }

    /// Its memory as a weight in such bytes with a scale for each row. `None` if it cannot be one.
    pub(crate) fn w8(&self, number: ByteNumber) -> Option<W8Matrix> {
        W8Matrix::of(number, self.packing, &self.shape)
    }

    /// The stored rows of the parameter as a matrix in a slab of these types. `None` if it has the elements' type.
    pub fn rows(&self, slab: SlabType) -> Option<StoredRows> {
        self.rows_of(slab.matrices?)
    }
}

/// A matrix `(n, k)` whose rows have their own type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRows {
    /// The type of the rows.
    pub kind: MatrixType,
    /// The number of rows.
    pub n: usize,
    /// The number of elements in each row.
    pub k: usize,
    /// The number of bytes of each row.
    pub row_bytes: usize,
}
