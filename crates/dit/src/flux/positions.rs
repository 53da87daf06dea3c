//! The rotary embeddings of image and text tokens.
//!
//! A token has a position on three axes: a text token is at (0, 0, 0), a token of the image at (0, row, column), one of reference
//! `k` at (1 + k, row, column). The tables of all tokens are made on the device of one table with the angles of the first
//! numbers, since a recorded step takes nothing from the host.

use candle_core::Tensor;
use kiln_network::{Inputs, Slot};
use kiln_nn::{Result, RopeTables, TensorLike};

use super::dims::{FluxDims, THETA};
use super::packing::join_tokens;

/// The table, `(2, n, head_dim / 2)` in f32: cosines, then sines.
const POSITIONS: Slot = Slot::shared("rotary positions").keeping_dtype();
/// The rows of a table that serves images of any usual size: 8,192 x 8,192 pixels.
const USUAL: usize = 512;

/// The tokens of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    /// The number of the image: 0 for the one that is denoised.
    pub(super) index: usize,
    /// Rows of tokens.
    pub(super) height: usize,
    /// Columns of tokens.
    pub(super) width: usize,
}

impl Grid {
    /// The number of tokens.
    pub(super) fn tokens(self) -> usize {
        self.height * self.width
    }

    /// One more than the largest number of a position.
    fn end(self) -> usize {
        self.height.max(self.width).max(self.index + 1)
    }
}

/// `inputs` with the table, made once for all steps.
pub(super) fn prepare<T: TensorLike>(mut inputs: Inputs<T>, dims: &FluxDims) -> Result<Inputs<T>> {
    if inputs.get(POSITIONS).is_some() {
        return Ok(inputs);
    }
    let like = inputs.tensors().next().map(in_f32).transpose()?;
    if let Some(like) = like {
        inputs.add(POSITIONS, 0, like.new_constant(&table(dims, USUAL)?)?);
    }
    Ok(inputs)
}

/// The table among `inputs`, if it has the angles of all tokens.
pub(super) fn prepared<T: TensorLike>(inputs: &Inputs<T>) -> Option<T> {
    inputs.get(POSITIONS).cloned()
}

/// One number in f32 on the device of `x`.
pub(super) fn in_f32<T: TensorLike>(x: &T) -> Result<T> {
    let mut one = x.clone();
    for dim in 0..x.dims().len() {
        one = one.narrow(dim, 0, 1)?;
    }
    one.contiguous()?.to_dtype(candle_core::DType::F32)
}

/// The tables of image tokens, then of `text` text tokens. `prepared` is a table from [`prepare`]; without one, or if it is too
/// small, the angles come from the host. `like` is a tensor in f32.
pub(super) fn tables<T: TensorLike>(
    prepared: Option<&T>,
    dims: &FluxDims,
    grids: &[Grid],
    text: usize,
    like: &T,
) -> Result<RopeTables<T>> {
    let needed = grids.iter().map(|grid| grid.end()).max().unwrap_or(1);
    let fits = prepared.filter(|table| table.dims().get(1).is_some_and(|rows| *rows >= needed));
    let table = match fits {
        Some(table) => table.clone(),
        None => like.new_constant(&table(dims, needed)?)?,
    };
    let half = dims.head_dim / 2;
    let zero = table.narrow(1, 0, 1)?.contiguous()?.reshape(&[2, 1, 1, half])?;
    let mut all = zero.upsample_nearest((text, 1), None)?.reshape(&[2, text, half])?;
    for grid in grids.iter().rev() {
        all = join_tokens(&of_grid(&table, dims, *grid)?, &all)?;
    }
    let [_, tokens, _] = all.size3()?;
    let [cos, sin] = [0, 1].map(|i| all.narrow(0, i, 1)?.reshape(&[tokens, half]));
    Ok(RopeTables { cos: cos?, sin: sin? })
}

/// Cosines and sines of the numbers up to `count` on every axis.
fn table(dims: &FluxDims, count: usize) -> Result<Tensor> {
    let positions: Vec<[f64; 3]> = (0..count).map(|i| [i as f64; 3]).collect();
    let RopeTables { cos, sin } = RopeTables::new(&positions, dims.axes, THETA)?;
    Ok(Tensor::stack(&[cos, sin], 0)?)
}

/// The rows of `table` for the tokens of an image, `(2, tokens, head_dim / 2)`.
fn of_grid<T: TensorLike>(table: &T, dims: &FluxDims, grid: Grid) -> Result<T> {
    let Grid { index, height, width } = grid;
    let mut before = 0;
    // The numbers of an axis from `start` on, `(2, rows, columns, channels / 2)`, for every token.
    let mut axis = |channels: usize, start: usize, [rows, columns]: [usize; 2]| -> Result<T> {
        let part = table.narrow(1, start, rows * columns)?.narrow(2, before, channels / 2)?.contiguous()?;
        before += channels / 2;
        part.reshape(&[2, rows, columns, channels / 2])?.upsample_nearest((height, width), None)
    };
    let [of_index, of_row, of_column] = dims.axes;
    let first = axis(of_index, index, [1, 1])?.concat_channels(&axis(of_row, 0, [height, 1])?)?;
    let all = first.concat_channels(&axis(of_column, 0, [1, width])?)?;
    all.reshape(&[2, grid.tokens(), dims.head_dim / 2])
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use kiln_network::slots::CONTEXT;

    use super::*;
    use crate::flux::FluxConfig;

    #[test]
    fn tables_are_those_of_all_positions() {
        let dims = FluxConfig::from_json(
            r#"{"attention_head_dim": 16, "num_attention_heads": 1, "axes_dims_rope": [4, 6, 6]}"#,
        );
        let dims = dims.unwrap().dims;
        let (image, reference) = (Grid { index: 0, height: 3, width: 5 }, Grid { index: 2, height: 4, width: 2 });
        let of = |grid: Grid| {
            let (index, width) = (grid.index, grid.width);
            (0..grid.tokens()).map(move |i| [index as f64, (i / width) as f64, (i % width) as f64])
        };
        let positions: Vec<_> = of(image).chain(of(reference)).chain([[0.0; 3]; 2]).collect();
        let expected = RopeTables::new(&positions, dims.axes, THETA).unwrap();
        let one = Tensor::zeros((1, 7, 8), DType::BF16, &Device::Cpu).unwrap();
        let inputs = prepare(Inputs::new().with(CONTEXT, one.clone()), &dims).unwrap();
        let table = prepared(&inputs).unwrap();
        assert_eq!((table.dims(), table.dtype()), (&[2, USUAL, 8][..], DType::F32));
        let like = in_f32(&one).unwrap();
        let small = table.narrow(1, 0, 4).unwrap();
        for table in [Some(&table), Some(&small), None] {
            let found = tables(table, &dims, &[image, reference], 2, &like).unwrap();
            for (found, expected) in [(&found.cos, &expected.cos), (&found.sin, &expected.sin)] {
                assert_eq!(found.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
            }
        }
    }
}
