//! A table of vectors.

use candle_core::{Device, Tensor};
use kiln_weights::{Packing, Param, ParamBuilder};

use crate::error::{Error, Result};

/// A table whose rows are looked up by index: tokens, positions.
pub struct Embedding {
    weight: Param,
    rows: usize,
}

impl Embedding {
    /// Declares `weight` `(rows, channels)`.
    pub fn new(p: &ParamBuilder<'_>, rows: usize, channels: usize) -> Self {
        Self { weight: p.param("weight", &[rows, channels], Packing::AsStored), rows }
    }

    /// The rows `indices`, `(indices.len(), channels)`, on the device where the table is.
    ///
    /// # Errors
    /// [`Error::Index`] where an index is outside of the table.
    pub fn forward(&self, indices: &[u32]) -> Result<Tensor> {
        if let Some(&index) = indices.iter().find(|&&index| index as usize >= self.rows) {
            return Err(Error::Index { index: index as usize, rows: self.rows });
        }
        let table = self.weight.tensor()?;
        let indices = Tensor::new(indices, &Device::Cpu)?.to_device(table.device())?;
        Ok(table.index_select(&indices, 0)?)
    }
}
