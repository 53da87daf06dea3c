//! A table of vectors.

use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::{Error, Result};
use crate::tensor::TensorLike;

/// A table whose rows are selected by index: tokens, positions.
pub struct Embedding {
    weight: Param,
    rows: usize,
}

impl Embedding {
    /// Declares `weight` `(rows, channels)`.
    pub fn new(p: &ParamBuilder<'_>, rows: usize, channels: usize) -> Self {
        Self { weight: p.param("weight", &[rows, channels], Packing::AsStored), rows }
    }

    /// The rows `indices`, `(indices.len(), channels)`, in the memory of `device`'s host, where the table is.
    ///
    /// # Errors
    /// [`Error::Index`] if an index is outside the table.
    pub fn forward<T: TensorLike>(&self, indices: &[u32], device: &T::Device) -> Result<T> {
        if let Some(&index) = indices.iter().find(|&&index| index as usize >= self.rows) {
            return Err(Error::Index { index: index as usize, rows: self.rows });
        }
        T::table_rows(&self.weight, indices, device)
    }

    /// The first `rows` rows, `(rows, channels)`: a view of the table.
    ///
    /// # Errors
    /// The error of [`TensorLike::narrow`] if there are fewer.
    pub fn first_rows<T: TensorLike>(&self, rows: usize, device: &T::Device) -> Result<T> {
        T::table(&self.weight, device)?.narrow(0, 0, rows)
    }
}
