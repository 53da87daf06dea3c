//! Views as kernels read them: with five dimensions.

use kiln_ops::portable::PortableTensor;
use kiln_ops::{Error, Operand, Result};

/// Dimensions of a kernel.
const RANK: usize = 5;

/// Sizes, and the strides of several views, with neighbors joined that follow one another in all of them.
pub(crate) struct Shape<const N: usize> {
    pub(crate) dims: [usize; RANK],
    pub(crate) strides: [[usize; RANK]; N],
}

impl<const N: usize> Shape<N> {
    /// `strides` has those of each view, one for each size.
    pub(crate) fn new(dims: &[usize], strides: [&[usize]; N]) -> Result<Self> {
        let mut joined: Vec<(usize, [usize; N])> = Vec::new();
        for (i, &size) in dims.iter().enumerate().filter(|(_, size)| **size != 1) {
            let own = strides.map(|strides| strides[i]);
            match joined.last_mut() {
                Some((last, steps)) if steps.iter().zip(own).all(|(step, own)| *step == own * size) => {
                    (*last, *steps) = (*last * size, own);
                }
                _ => joined.push((size, own)),
            }
        }
        if joined.len() > RANK {
            return Err(Error::Backend(format!("a view {dims:?} has more than {RANK} dimensions that are apart")));
        }
        let missing = RANK - joined.len();
        let mut shape = Self { dims: [1; RANK], strides: [[0; RANK]; N] };
        for (i, (size, own)) in joined.into_iter().enumerate() {
            shape.dims[missing + i] = size;
            for (strides, step) in shape.strides.iter_mut().zip(own) {
                strides[missing + i] = step;
            }
        }
        Ok(shape)
    }
}

/// The strides of `b` as it is repeated to the shape of `a`.
pub(crate) fn repeated(a: &PortableTensor, b: &PortableTensor) -> Vec<usize> {
    let missing = a.dims().len() - b.dims().len();
    let own = b.dims().iter().zip(b.strides()).map(|(&size, &stride)| if size == 1 { 0 } else { stride });
    std::iter::repeat_n(0, missing).chain(own).collect()
}

/// Rows `(b, s, c)` of a view whose channels follow one another.
pub(crate) struct Rows<'a> {
    pub(crate) tensor: std::borrow::Cow<'a, PortableTensor>,
    pub(crate) image: usize,
    pub(crate) row: usize,
}

impl<'a> Rows<'a> {
    /// Of `x` `(b, s, c)`: a view if its channels follow one another, else a copy.
    pub(crate) fn of(x: &'a PortableTensor) -> Result<Self> {
        let tensor = match x.strides() {
            [_, _, 1] => std::borrow::Cow::Borrowed(x),
            _ => std::borrow::Cow::Owned(x.copy()?),
        };
        let (image, row) = match *tensor.strides() {
            [image, row, _] => (image, row),
            _ => return Err(Error::Backend(format!("a view {:?} is not (b, s, c)", x.dims()))),
        };
        Ok(Self { tensor, image, row })
    }
}
