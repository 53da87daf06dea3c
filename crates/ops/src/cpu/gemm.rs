//! The matrix product, through the `gemm` crate, behind bounds that are checked.
#![allow(unsafe_code)]

use gemm::Parallelism;

/// A matrix of f32 in a slice: element `(row, column)` is `values[row * row_stride + column * column_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows that lie `row_stride` elements apart, each contiguous.
    pub(crate) fn rows(values: &'a [f32], row_stride: usize) -> Self {
        Self { values, row_stride, column_stride: 1 }
    }

    /// The transpose: what were rows are columns.
    pub(crate) fn transposed(self) -> Self {
        Self { values: self.values, row_stride: self.column_stride, column_stride: self.row_stride }
    }

    /// How many elements of the slice a `(rows, columns)` matrix reaches.
    fn reach(&self, rows: usize, columns: usize) -> usize {
        reach(rows, columns, self.row_stride, self.column_stride)
    }
}

fn reach(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> usize {
    if rows == 0 || columns == 0 { 0 } else { (rows - 1) * row_stride + (columns - 1) * column_stride + 1 }
}

/// `out = scale * a b` with `a` `(m, k)`, `b` `(k, n)` and `out` `(m, n)`, whose rows lie `out_stride` apart.
///
/// Runs on the calling thread: callers split the work, at places that depend on shapes alone. The crate picks its kernel by
/// the whole shape, so an element's last bits may change with `m`.
/// Panics where a slice is too short for its matrix.
pub(crate) fn matmul(
    (m, n, k): (usize, usize, usize),
    scale: f32,
    a: Matrix<'_>,
    b: Matrix<'_>,
    out: &mut [f32],
    out_stride: usize,
) {
    assert!(a.reach(m, k) <= a.values.len(), "matmul: `a` is shorter than its matrix");
    assert!(b.reach(k, n) <= b.values.len(), "matmul: `b` is shorter than its matrix");
    assert!(reach(m, n, out_stride, 1) <= out.len(), "matmul: `out` is shorter than its matrix");
    assert!(out_stride >= n, "matmul: the rows of `out` overlap");
    // SAFETY: the assertions above hold every address that gemm computes from these strides inside the three slices;
    // `out` is borrowed mutably, so it overlaps neither operand, and its rows do not overlap each other. `read_dst`
    // is false, so `out` is only written.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            false,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            0f32,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
