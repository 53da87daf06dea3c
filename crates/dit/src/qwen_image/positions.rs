//! The rotary embeddings of image and text tokens.
//!
//! A token of the image is at (0, row, column), counted from the center: an image of `h` rows has those from `-(h - h / 2)` to
//! `h / 2 - 1`. Text token `i` is at `m + i` on all three axes, if `m` is half the longer side of the image (diffusers'
//! `QwenEmbedRope`).

use candle_core::Tensor;
use kiln_network::Inputs;
use kiln_nn::{Result, RopeTables, TensorLike};

use crate::flux::FluxDims;
use crate::flux::dims::THETA;
use crate::rotary::{self, Along, Rotary};

/// The numbers below 0 in a table that serves images of any usual size: 512 tokens along each side.
const BELOW: usize = 256;
/// The numbers from 0 on in that table: those of the text begin at most at 256, and a text has at most 1,024 tokens.
const FROM_ZERO: usize = 1280;

/// `inputs` with the table, made once for all steps.
pub(super) fn prepare<T: TensorLike>(inputs: Inputs<T>, dims: &FluxDims) -> Result<Inputs<T>> {
    let axes = axes(dims);
    axes.prepare_with(inputs, || axes.table_from(BELOW, FROM_ZERO))
}

fn axes(dims: &FluxDims) -> Rotary<3> {
    Rotary { axes: dims.axes, theta: THETA }
}

/// The tables of the tokens of an image of `[height, width]` tokens, then of `text` text tokens. `prepared` is a table from
/// [`prepare`]; without one, or if it is too small, the angles come from the host. `like` is a tensor in f32.
pub(super) fn tables<T: TensorLike>(
    prepared: Option<T>,
    dims: &FluxDims,
    [height, width]: [usize; 2],
    text: usize,
    like: &T,
) -> Result<RopeTables<T>> {
    let axes = axes(dims);
    let before = |size: usize| size - size / 2;
    let (first, half) = (before(height).max(before(width)), (height / 2).max(width / 2));
    let fits = first <= BELOW && half + text <= FROM_ZERO;
    let (table, zero) = match prepared.filter(|_| fits) {
        Some(table) => (table, BELOW),
        None => {
            let table: Tensor = axes.table_from(first, half + text)?;
            (like.new_constant(&table)?, first)
        }
    };
    let places = [Along::All(zero), Along::RowsFrom(zero - before(height)), Along::Columns(zero - before(width))];
    let image = axes.of_grid(&table, (0, &places), [height, width])?;
    let text = axes.of_grid(&table, (0, &[Along::Columns(zero + half); 3]), [1, text])?;
    rotary::joined(&[image, text])
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use kiln_network::slots::CONTEXT;

    use super::*;
    use crate::qwen_image::QwenImageConfig;
    use crate::rotary::prepared;

    #[test]
    fn tables_are_those_of_all_positions() {
        let json = r#"{"attention_head_dim": 16, "num_attention_heads": 1, "axes_dims_rope": [4, 6, 6]}"#;
        let dims = QwenImageConfig::from_json(json).unwrap().dims;
        let image = (0..15).map(|i| [0.0, (i / 5) as f64 - 2.0, (i % 5) as f64 - 3.0]);
        let positions: Vec<_> = image.chain((0..4).map(|i| [2.0 + i as f64; 3])).collect();
        let expected = RopeTables::new(&positions, dims.axes, THETA).unwrap();
        let like = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let inputs = prepare(Inputs::new().with(CONTEXT, like.clone()), &dims).unwrap();
        for table in [prepared(&inputs), None] {
            let found = tables(table, &dims, [3, 5], 4, &like).unwrap();
            for (found, expected) in [(&found.cos, &expected.cos), (&found.sin, &expected.sin)] {
                assert_eq!(found.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
            }
        }
        let long = tables(prepared(&inputs), &dims, [3, 5], 2 * FROM_ZERO, &like).unwrap();
        assert_eq!(long.cos.dims(), [15 + 2 * FROM_ZERO, 8], "a table that is too small is not used");
    }
}
