//! Tokens joined, divided and repeated.
//!
//! A permutation of many dimensions is a few transposes: these have kernels on every device, which a recorded step may launch.

use kiln_nn::{Result, TensorLike};

/// Tokens `a` `(b, s, c)` and `b` `(b, t, c)` as `(b, s + t, c)`.
pub(crate) fn join_tokens<T: TensorLike>(a: &T, b: &T) -> Result<T> {
    let ([n, s, c], [_, t, _]) = (a.size3()?, b.size3()?);
    let joined = a.reshape(&[n, s * c])?.concat_channels(&b.reshape(&[n, t * c])?)?;
    joined.reshape(&[n, s + t, c])
}

/// `len` tokens of `x` `(b, s, c)` from `start` on: a view if there is one image, else a copy.
pub(crate) fn tokens<T: TensorLike>(x: &T, start: usize, len: usize) -> Result<T> {
    x.narrow(1, start, len)?.contiguous()
}

/// `x` with `rows` rows: `x` `(1, ..)` is repeated.
pub(crate) fn repeated<T: TensorLike>(x: T, rows: usize) -> Result<T> {
    match x.dims().first() {
        Some(&1) if rows > 1 => T::cat(&vec![&x; rows], 0),
        _ => Ok(x),
    }
}

/// A map `(b, 2 h, 2 w, c)` as patches `(b, h * w, 4 c)`, row by row, each of two rows of pixels with channels last.
pub(crate) fn patchify<T: TensorLike>(x: &T) -> Result<T> {
    let [b, height, width, c] = x.size4()?;
    let (h, w) = (height / 2, width / 2);
    let lines = x.reshape(&[b * h, 2, width * c])?;
    let [top, bottom] = [0, 1].map(|i| lines.narrow(1, i, 1)?.contiguous()?.reshape(&[b * h, w, 2 * c]));
    top?.concat_channels(&bottom?)?.reshape(&[b, h * w, 4 * c])
}

/// Patches `(b, n, f f c)` of `size` rows and columns, each of `f` rows of pixels with channels last, as a map
/// `(b, rows f, columns f, c)`.
pub(crate) fn unpatchify<T: TensorLike>(patches: &T, [rows, columns]: [usize; 2], f: usize) -> Result<T> {
    let [b, _, depth] = patches.size3()?;
    let line = depth / f.max(1);
    let patches = patches.reshape(&[b * rows, columns, depth])?;
    // Row `i` of all patches of a line of tokens is a line of pixels.
    let lines =
        (0..f).map(|i| patches.narrow(2, i * line, line)?.contiguous()?.reshape(&[b * rows, 1, columns * line]));
    let lines = lines.collect::<Result<Vec<T>>>()?;
    let map = T::cat(&lines.iter().collect::<Vec<_>>(), 1)?;
    map.reshape(&[b, rows * f, columns * f, line / f.max(1)])
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

    fn values(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn patches_have_channels_last() {
        let x = counted(&[2, 3, 4, 6]).to_channels_last().unwrap();
        let patches = patchify(&x).unwrap();
        assert_eq!(patches.dims(), [2, 6, 12]);
        let second: Vec<f32> =
            patches.narrow(1, 1, 1).unwrap().narrow(0, 0, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        // Pixels (0, 2), (0, 3), (1, 2) and (1, 3), three channels each.
        assert_eq!(second, [2.0, 26.0, 50.0, 3.0, 27.0, 51.0, 8.0, 32.0, 56.0, 9.0, 33.0, 57.0]);
        assert_eq!(values(&unpatchify(&patches, [2, 3], 2).unwrap()), values(&x));
    }

    #[test]
    fn tokens_are_joined_and_divided() {
        let (a, b) = (counted(&[2, 3, 4]), counted(&[2, 1, 4]));
        let found = join_tokens(&a, &b).unwrap();
        assert_eq!(values(&found), values(&Tensor::cat(&[&a, &b], 1).unwrap()));
        assert_eq!(values(&tokens(&found, 3, 1).unwrap()), values(&b));
        assert_eq!(repeated(counted(&[1, 2]), 3).unwrap().dims(), [3, 2]);
    }
}
