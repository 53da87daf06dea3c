//! The rotary embeddings of image and text tokens.
//!
//! A token has a position on three axes: a text token is at (0, 0, 0), a token of the image at (0, row, column), one of reference
//! `k` at (1 + k, row, column).

use kiln_network::Inputs;
use kiln_nn::{Result, RopeTables, TensorLike};

use super::dims::{FluxDims, THETA};
use crate::rotary::{self, Along, Rotary, USUAL};

/// The tokens of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The number of the image: 0 for the one that is denoised.
    pub(crate) index: usize,
    /// Rows of tokens.
    pub(crate) height: usize,
    /// Columns of tokens.
    pub(crate) width: usize,
}

impl Grid {
    /// The number of tokens.
    pub(crate) fn tokens(self) -> usize {
        self.height * self.width
    }

    /// One more than the largest number of a position.
    fn end(self) -> usize {
        self.height.max(self.width).max(self.index + 1)
    }
}

/// `inputs` with the table, made once for all steps.
pub(super) fn prepare<T: TensorLike>(inputs: Inputs<T>, dims: &FluxDims) -> Result<Inputs<T>> {
    axes(dims).prepare(inputs, USUAL)
}

fn axes(dims: &FluxDims) -> Rotary<3> {
    Rotary { axes: dims.axes, theta: THETA }
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
    let axes = axes(dims);
    let needed = grids.iter().map(|grid| grid.end()).max().unwrap_or(1);
    let table = axes.table_for(prepared, needed, like)?;
    let mut parts = Vec::with_capacity(grids.len() + 1);
    for Grid { index, height, width } in grids {
        let places = [Along::All(*index), Along::Rows, Along::Columns(0)];
        parts.push(axes.of_grid(&table, (0, &places), [*height, *width])?);
    }
    parts.push(axes.of_grid(&table, (0, &[Along::All(0); 3]), [1, text])?);
    rotary::joined(&parts)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_network::slots::CONTEXT;

    use super::*;
    use crate::flux::FluxConfig;
    use crate::rotary::{in_f32, prepared};

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
