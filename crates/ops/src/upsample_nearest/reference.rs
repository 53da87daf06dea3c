//! Upsampling by candle's index selection.

use candle_core::Tensor;

use crate::error::Result;

pub(super) fn forward(x: &Tensor, rows: &[usize], columns: &[usize]) -> Result<Tensor> {
    let index = |sources: &[usize]| {
        let sources: Vec<u32> = sources.iter().map(|&i| i as u32).collect();
        Tensor::new(sources, x.device())
    };
    Ok(x.index_select(&index(rows)?, 1)?.index_select(&index(columns)?, 2)?)
}
