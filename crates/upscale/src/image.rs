//! Images on their way into a network and out of it.

use kiln_nn::strips::{Strips, size};
use kiln_nn::{Result, TensorLike};

use crate::error::Error;
use crate::watch::Watch;

/// Runs `f` over the images of `batch` `(b, channels, h, w)`, one after another.
///
/// # Errors
/// [`Error::Input`] where the batch has another shape or no pixels, [`Error::Interrupted`] where `watch` stopped the run;
/// what `f` reports.
pub(crate) fn each<T: TensorLike>(
    batch: &T,
    channels: usize,
    watch: &Watch<'_>,
    f: impl Fn(&T) -> Result<T>,
) -> std::result::Result<T, Error> {
    let one = |i, b, image: &T| {
        watch.image(i, b);
        let result = f(image)?;
        if watch.is_stopped() { Err(Error::Interrupted) } else { Ok(result) }
    };
    match *batch.dims() {
        [1, c, h, w] if c == channels && h * w > 0 => one(0, 1, batch),
        [b, c, h, w] if b > 1 && c == channels && h * w > 0 => {
            let image = |i| one(i, b, &batch.narrow(0, i, 1)?);
            let images = (0..b).map(image).collect::<std::result::Result<Vec<_>, Error>>()?;
            Ok(T::cat(&images.iter().collect::<Vec<_>>(), 0)?)
        }
        _ => Err(Error::Input { expected: format!("(b, {channels}, h, w)"), found: batch.dims().to_vec() }),
    }
}

/// `x` `(1, h, w, c)` with rows and columns added at the end until it has `height` and `width`. They mirror those before the
/// last one, as PyTorch's padding `reflect`; after the first one, which they reach where much is added, they repeat it
/// (`pad_tensor` of spandrel 0.4.2).
pub(crate) fn pad_to<T: TensorLike>(x: &T, [height, width]: [usize; 2]) -> Result<T> {
    let mut x = x.clone();
    for (dim, wanted) in [(1, height), (2, width)] {
        let size = x.dims().get(dim).copied().unwrap_or(0);
        if wanted > size {
            let mirrored = (size..wanted).map(|i| x.narrow(dim, mirror(i, size), 1)).collect::<Result<Vec<_>>>()?;
            let parts: Vec<&T> = std::iter::once(&x).chain(&mirrored).collect();
            x = T::cat(&parts, dim)?;
        }
    }
    Ok(x)
}

/// The index in `0..size` that index `i` from `size` on is mirrored to.
fn mirror(i: usize, size: usize) -> usize {
    (2 * size.saturating_sub(1)).saturating_sub(i)
}

/// All strips as an image `(1, c, h, w)` with values limited to 0..=1. Rows and columns beyond the image are dropped.
/// `before` is the part of the work that was done before, from 0 to 1. Where `watch` stops the run, the rest of the image
/// has no values.
pub(crate) fn collect<T: TensorLike>(
    mut strips: impl Strips<T>,
    [c, h, w]: [usize; 3],
    like: &T,
    (watch, before): (&Watch<'_>, f32),
) -> Result<T> {
    let image = like.new_empty(&[1, c, h, w])?;
    let mut done = 0;
    while let Some(strip) = strips.next()? {
        let [rows, ..] = size(&strip);
        let used = rows.min(h - done);
        if used > 0 {
            let strip = strip.rows(0..used)?.narrow(2, 0, w)?.contiguous()?;
            image.slice_set(&strip.to_channels_first()?.clamp(0.0, 1.0)?, 2, done)?;
        }
        done += used;
        if watch.report(before + (1.0 - before) * done as f32 / h as f32) {
            break;
        }
    }
    Ok(image)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;

    #[test]
    fn padding_mirrors_the_last_rows_and_columns() {
        let x = Tensor::arange(0f32, 15., &Device::Cpu).unwrap().reshape((1, 3, 5, 1)).unwrap();
        let y = pad_to(&x, [4, 8]).unwrap();
        // torch.nn.functional.pad(torch.arange(15.).reshape(1, 1, 3, 5), (0, 3, 0, 1), "reflect")
        let rows = [
            [0., 1., 2., 3., 4., 3., 2., 1.],
            [5., 6., 7., 8., 9., 8., 7., 6.],
            [10., 11., 12., 13., 14., 13., 12., 11.],
        ];
        let expected = [rows[0], rows[1], rows[2], rows[1]].concat();
        assert_eq!(y.dims(), [1, 4, 8, 1]);
        assert_eq!(y.flatten_all().unwrap().to_vec1::<f32>().unwrap(), expected);
        // Smaller than what is added.
        let x = Tensor::new(&[[[[1f32], [2.]]]], &Device::Cpu).unwrap(); // (1, 1, 2, 1)
        let y = pad_to(&x, [4, 4]).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(y, [1., 2., 1., 1.].repeat(4));
    }
}
