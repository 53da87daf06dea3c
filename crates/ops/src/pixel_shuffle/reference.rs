//! Permutations in candle's primitives.

use candle_core::Tensor;

use super::Sizes;
use crate::error::Result;

pub(super) fn forward(x: &Tensor, sizes: Sizes, shuffle: bool) -> Result<Tensor> {
    let Sizes { b, h, w, c, factor } = sizes;
    Ok(if shuffle {
        let x = x.reshape((b, h, w, c, factor, factor))?;
        x.permute([0, 1, 4, 2, 5, 3])?.reshape(&sizes.many_pixels())?
    } else {
        let x = x.reshape((b, h, factor, w, factor, c))?;
        x.permute([0, 1, 3, 5, 2, 4])?.reshape(&sizes.few_pixels())?
    })
}
