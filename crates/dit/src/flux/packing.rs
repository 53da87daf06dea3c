//! Latents as tokens, one for each square of 2 x 2, and back.
//!
//! A permutation of many dimensions is a few transposes: these have kernels on every device, which a recorded step may launch.

use kiln_nn::{Result, TensorLike};

use super::dims::{PATCH, SQUARE};

/// `x` `(b, c, 2 h, 2 w)` to tokens `(b, h * w, 4 c)`, row by row: channel `4 c + 2 dy + dx` is that of the pixel `(dy, dx)` of the
/// square (diffusers' `_pack_latents`).
pub(crate) fn pack<T: TensorLike>(x: &T) -> Result<T> {
    let [b, c, height, width] = x.size4()?;
    let (h, w) = (height / PATCH, width / PATCH);
    let y = x.to_channels_last()?; // (b, h, dy, w, dx, c)
    let y = transpose(&y, [b * h, PATCH, w * PATCH * c])?; // (b, h, w, dx, c, dy)
    let y = transpose(&y, [b * h * w, PATCH, c * PATCH])?; // (b, h, w, c, dy, dx)
    y.reshape(&[b, h * w, SQUARE * c])
}

/// The inverse of [`pack`] for `(h, w)` tokens: `x` `(b, h * w, 4 c)` to `(b, c, 2 h, 2 w)`.
pub(crate) fn unpack<T: TensorLike>(x: &T, (h, w): (usize, usize)) -> Result<T> {
    let [b, _, packed] = x.size3()?;
    let c = packed / SQUARE;
    let y = transpose(x, [b * h * w, c * PATCH, PATCH])?; // (b, h, w, dx, c, dy)
    let y = transpose(&y, [b * h, w * PATCH * c, PATCH])?; // (b, h, dy, w, dx, c)
    y.reshape(&[b, h * PATCH, w * PATCH, c])?.to_channels_first()
}

/// `x`, in whatever shape, as `(b, rows, columns)` to `(b, columns, 1, rows)`.
fn transpose<T: TensorLike>(x: &T, [b, rows, columns]: [usize; 3]) -> Result<T> {
    x.reshape(&[b, rows, columns, 1])?.to_channels_last()
}

/// `a` `(b, c, h, w)` and `b` `(b, e, h, w)` as `(b, c + e, h, w)`.
pub(crate) fn join_channels<T: TensorLike>(a: &T, b: &T) -> Result<T> {
    let ([n, c, h, w], [_, e, ..]) = (a.size4()?, b.size4()?);
    let joined = a.reshape(&[n, c * h * w])?.concat_channels(&b.reshape(&[n, e * h * w])?)?;
    joined.reshape(&[n, c + e, h, w])
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_nn::Operators;

    use super::*;

    fn counted(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>() as u32;
        let values = Tensor::arange(0, count, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        Tensor::reshape(&values, shape).unwrap()
    }

    #[test]
    fn tokens_are_squares_with_channels_first() {
        let x = counted(&[2, 3, 4, 6]);
        let packed = pack(&x).unwrap();
        assert_eq!(packed.dims(), [2, 6, 12]);
        let expected = x.to_channels_last().unwrap().pixel_unshuffle(2).unwrap().reshape((2, 6, 12)).unwrap();
        assert_eq!(packed.to_vec3::<f32>().unwrap(), expected.to_vec3::<f32>().unwrap());
        let found = unpack(&packed, (2, 3)).unwrap();
        assert_eq!(found.dims(), x.dims());
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&found), values(&x));
    }

    #[test]
    fn channels_are_joined() {
        let (a, b) = (counted(&[2, 1, 2, 2]), counted(&[2, 2, 2, 2]));
        let found = join_channels(&a, &b).unwrap();
        let expected = Tensor::cat(&[&a, &b], 1).unwrap();
        let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!((found.dims(), values(&found)), (expected.dims(), values(&expected)));
    }
}
