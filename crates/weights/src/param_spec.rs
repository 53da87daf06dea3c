//! Parameters as a network declares them, and in which types a slab has them.

use std::fmt;

use candle_core::DType;
use kiln_ops::{MatrixType, Packing};

/// Parameters in a slab start at multiples of this many bytes: what CUDA's widest copies and loads like.
pub(crate) const ALIGNMENT: usize = 256;

/// In which types a slab has its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabType {
    /// The type of all that is no matrix of a linear layer: f32, f16 or bf16.
    pub dtype: DType,
    /// How the matrices of linear layers are stored whose rows this type can hold; the others are of `dtype`, and all of
    /// them where this is `None`.
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

/// A parameter as a network declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// The full name in the checkpoint.
    pub key: String,
    /// The shape in the checkpoint. A file's shape may have trailing dimensions of 1 more: a 1x1 convolution is a
    /// linear layer, and files have either.
    pub shape: Vec<usize>,
    /// The layout in the slab.
    pub packing: Packing,
}

impl ParamSpec {
    /// How many elements it has in the checkpoint.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// How many elements it takes in the slab where it has the elements' type there.
    pub fn packed_elements(&self) -> usize {
        self.packing.elements(&self.shape)
    }

    /// How the rows of the matrix that it is are stored in a slab of this type: `None` where it has the elements' type.
    pub fn rows(&self, slab: SlabType) -> Option<StoredRows> {
        match (slab.matrices, self.packing, self.shape.as_slice()) {
            (Some(kind), Packing::Linear, &[n, k]) => {
                kind.row_bytes(k).map(|row_bytes| StoredRows { kind, n, k, row_bytes })
            }
            _ => None,
        }
    }

    /// Bytes that it takes in a slab of this type, before they are aligned.
    pub(crate) fn bytes(&self, slab: SlabType) -> usize {
        match self.rows(slab) {
            Some(rows) => rows.n * rows.row_bytes,
            None => self.packed_elements() * slab.dtype.size_in_bytes(),
        }
    }
}

/// A matrix `(n, k)` whose rows have a type of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRows {
    /// That type.
    pub kind: MatrixType,
    /// How many rows there are.
    pub n: usize,
    /// How many numbers are in each.
    pub k: usize,
    /// How many bytes each takes.
    pub row_bytes: usize,
}
