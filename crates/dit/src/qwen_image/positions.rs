//! The rotary embeddings of image and text tokens.
//!
//! A token of the image is at (0, row, column), counted from the center: an image of `h` rows has those from `-(h - h / 2)` to
//! `h / 2 - 1`. A token of reference `k` is at (1 + k, row, column). Text token `i` is at `m + i` on all three axes, if `m` is half the
//! longest side of all images (diffusers' `QwenEmbedRope`).

use candle_core::Tensor;
use kiln_network::Inputs;
use kiln_nn::{Result, RopeTables, TensorLike};

use crate::flux::FluxDims;
use crate::flux::dims::THETA;
use crate::flux::positions::Grid;
use crate::rotary::{self, Along, Rotary};

/// The numbers below 0 in a table that serves images of any usual size: 512 tokens along each side.
const BELOW: usize = 256;
/// The numbers from 0 on in that table: those of the text begin at most at 256. A text with images has some thousand tokens.
const FROM_ZERO: usize = 4096;

/// `inputs` with the table, made once for all steps.
pub(super) fn prepare<T: TensorLike>(inputs: Inputs<T>, dims: &FluxDims) -> Result<Inputs<T>> {
    let axes = axes(dims);
    axes.prepare_with(inputs, || axes.table_from(BELOW, FROM_ZERO))
}

fn axes(dims: &FluxDims) -> Rotary<3> {
    Rotary { axes: dims.axes, theta: THETA }
}

/// The tables of the tokens of images, then of `text` text tokens. `prepared` is a table from
/// [`prepare`]; without one, or if it is too small, the angles come from the host. `like` is a tensor in f32.
pub(super) fn tables<T: TensorLike>(
    prepared: Option<T>,
    dims: &FluxDims,
    images: &[Grid],
    text: usize,
    like: &T,
) -> Result<RopeTables<T>> {
    let axes = axes(dims);
    let before = |size: usize| size - size / 2;
    let largest = |side: &dyn Fn(&Grid) -> usize| images.iter().map(side).max().unwrap_or(0);
    let first = largest(&|image| before(image.height).max(before(image.width)));
    let half = largest(&|image| (image.height / 2).max(image.width / 2));
    let end = (half + text).max(largest(&|image| image.index + 1));
    let fits = first <= BELOW && end <= FROM_ZERO;
    let (table, zero) = match prepared.filter(|_| fits) {
        Some(table) => (table, BELOW),
        None => {
            let table: Tensor = axes.table_from(first, end)?;
            (like.new_constant(&table)?, first)
        }
    };
    let of_image = |image: &Grid| {
        let (rows, columns) = (zero - before(image.height), zero - before(image.width));
        let places = [Along::All(zero + image.index), Along::RowsFrom(rows), Along::Columns(columns)];
        axes.of_grid(&table, (0, &places), [image.height, image.width])
    };
    let mut parts = images.iter().map(of_image).collect::<Result<Vec<T>>>()?;
    parts.push(axes.of_grid(&table, (0, &[Along::Columns(zero + half); 3]), [1, text])?);
    rotary::joined(&parts)
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
        let reference = (0..12).map(|i| [1.0, (i / 2) as f64 - 3.0, (i % 2) as f64 - 1.0]);
        let positions: Vec<_> = image.chain(reference).chain((0..4).map(|i| [3.0 + i as f64; 3])).collect();
        let images = [(0, 3, 5), (1, 6, 2)].map(|(index, height, width)| Grid { index, height, width });
        let expected = RopeTables::new(&positions, dims.axes, THETA).unwrap();
        let like = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let inputs = prepare(Inputs::new().with(CONTEXT, like.clone()), &dims).unwrap();
        for table in [prepared(&inputs), None] {
            let found = tables(table, &dims, &images, 4, &like).unwrap();
            for (found, expected) in [(&found.cos, &expected.cos), (&found.sin, &expected.sin)] {
                assert_eq!(found.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
            }
        }
        let long = tables(prepared(&inputs), &dims, &images, 2 * FROM_ZERO, &like).unwrap();
        assert_eq!(long.cos.dims(), [27 + 2 * FROM_ZERO, 8], "a table that is too small is not used");
    }
}
