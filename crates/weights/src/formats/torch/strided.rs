//! Tensors that are not contiguous: views that were transposed before they were saved.

use std::ops::Range;

use super::values::TensorView;

/// The memory layout of a tensor's elements.
#[derive(Debug)]
pub(super) enum Layout {
    /// Row-major and contiguous, as the reader needs them.
    RowMajor,
    /// Not contiguous: strides and the size of an element in bytes.
    Strided { strides: Vec<usize>, size: usize },
}

/// The range of a view's elements of `size` bytes in a storage of `length` bytes, and their layout. A range outside of
/// the storage, or more elements than the storage has, is an error.
pub(super) fn layout(view: &TensorView, size: usize, length: usize) -> Result<(Range<usize>, Layout), String> {
    let impossible =
        || format!("has shape {:?} and strides {:?}, which its storage does not contain", view.shape, view.strides);
    let elements = view.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).ok_or_else(impossible)?;
    let start = view.offset.checked_mul(size).filter(|&start| start <= length).ok_or_else(impossible)?;
    if elements == 0 {
        return Ok((start..start, Layout::RowMajor));
    }
    let dims = || view.shape.iter().zip(&view.strides);
    let last = dims().try_fold(0usize, |at, (&dim, &stride)| at.checked_add((dim - 1).checked_mul(stride)?));
    let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size)?.checked_add(start));
    let end = end.filter(|&end| end <= length).ok_or_else(impossible)?;
    // A stride of 0 repeats elements, so that few bytes could claim to be many.
    if elements.checked_mul(size).is_none_or(|bytes| bytes > length) {
        return Err(impossible());
    }
    let mut expected = 1;
    let row_major = dims().rev().all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected *= dim;
        fits
    });
    let layout = if row_major { Layout::RowMajor } else { Layout::Strided { strides: view.strides.clone(), size } };
    Ok((start..end, layout))
}

/// The elements in row-major order. `bytes` begins with the first one.
pub(super) fn gather(bytes: &[u8], shape: &[usize], strides: &[usize], size: usize) -> Vec<u8> {
    let elements: usize = shape.iter().product();
    let mut out = Vec::with_capacity(elements * size);
    let mut index = vec![0; shape.len()];
    for _ in 0..elements {
        let at: usize = index.iter().zip(strides).map(|(i, stride)| i * stride).sum::<usize>() * size;
        out.extend_from_slice(&bytes[at..at + size]); // `layout` has checked the last one
        for (i, dim) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *dim {
                break;
            }
            *i = 0;
        }
    }
    out
}
