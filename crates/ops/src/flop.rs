//! Floating-point operations of the operators, from shapes alone.
//!
//! Counted are products of matrices and kernels: convolutions, linear layers, and both products of attention. A
//! multiplication and its addition are two operations. Normalizations, activations and softmax are some tenths of a
//! percent more and are left out, as is usual in the literature. Traces and plans count with the same functions.

use crate::conv2d::{Conv2d, Shapes, Strip};

/// Operations of a product of `m` rows and `n` columns over `k`.
fn product(m: usize, n: usize, k: usize) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64
}

/// Operations of [`crate::linear`] for `rows` rows of `k` channels to `n` channels.
pub fn linear_flop(rows: usize, [n, k]: [usize; 2]) -> f64 {
    product(rows, n, k)
}

/// Operations of [`crate::attention`] for queries `(b, s, c)` and `t` keys: scores, and sums of values. A causal mask
/// saves nothing.
pub fn attention_flop([b, s, c]: [usize; 3], t: usize) -> f64 {
    product(b * s, t, c) + product(b * s, c, t)
}

/// Operations of [`crate::conv2d`] for `x` `(b, h, w, c_in)` and a weight `(c_out, kh, kw, c_in)`; with a strip `h` counts
/// the rows that it reads. 0 where the kernel does not fit.
pub fn conv2d_flop(x: [usize; 4], weight: [usize; 4], config: Conv2d, strip: Option<&Strip>) -> f64 {
    Shapes::of(x, weight, config, strip).map_or(0.0, of_shapes)
}

/// Operations of a convolution that has been checked.
pub(crate) fn of_shapes(Shapes { b, c_in, kh, kw, h_out, w_out, c_out, .. }: Shapes) -> f64 {
    product(b * h_out * w_out, c_out, kh * kw * c_in)
}
