//! A convolution of a strip: some rows of the result, from the rows of the input that they depend on.

use std::ops::Range;

use candle_core::Tensor;

use super::{Call, Conv2d, Conv2dInputs, OP, Shapes, check};
use crate::backend;
use crate::error::{Error, Result};

/// Strips begin at a multiple of this, since the CPU computes up to four rows at a time.
pub const STRIP_ROWS: usize = 4;

/// Rows of a convolution's result, and the height of its input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// Rows of the whole input.
    pub height: usize,
    /// Rows of the result. They begin at a multiple of [`STRIP_ROWS`].
    pub rows: Range<usize>,
}

impl Strip {
    /// The rows of the input that the strip reads, for a kernel of `kh` rows.
    pub fn input_rows(&self, config: Conv2d, kh: usize) -> Range<usize> {
        let Conv2d { stride, pad_before, .. } = config;
        let first = (self.rows.start * stride).saturating_sub(pad_before);
        let last = (self.rows.end.saturating_sub(1) * stride + kh).saturating_sub(pad_before);
        first..last.clamp(first, self.height.max(first))
    }
}

/// Rows `strip.rows` of the result of [`crate::conv2d`] for a whole map, as `(b, rows, w_out, c_out)`: with the same
/// bits on the CPU. On GPUs they differ in rounding, since libraries choose their algorithms by the strip's shape.
///
/// `inputs.x` has the rows [`Strip::input_rows`] of the map, `(b, rows, w, c_in)`, and `inputs.residual` the strip's
/// shape.
///
/// # Errors
/// [`Error::Config`] for a strip that begins at another row than a multiple of [`STRIP_ROWS`] or ends outside of the result; otherwise as
/// [`crate::conv2d`].
pub fn conv2d_strip(inputs: Conv2dInputs<'_>, config: Conv2d, strip: &Strip, out: Option<&Tensor>) -> Result<Tensor> {
    let shapes = check(&inputs, config, Some(strip))?;
    backend::run(&Call { inputs, config, shapes }, out)
}

/// Refuses a strip that a convolution cannot compute, or an input that does not have the rows that the strip reads.
pub(super) fn check_strip(
    strip: &Strip,
    config: Conv2d,
    shapes: &Shapes,
    found: impl FnOnce() -> Vec<usize>,
) -> Result<()> {
    let Strip { height, rows } = strip;
    if rows.is_empty() || !rows.start.is_multiple_of(STRIP_ROWS) || rows.end > shapes.map_rows {
        let message = format!(
            "rows {rows:?} of {} are not a valid strip; expected rows that begin at a multiple of {STRIP_ROWS} and end in \
             the result",
            shapes.map_rows
        );
        return Err(Error::Config { op: OP, message });
    }
    let read = strip.input_rows(config, shapes.kh);
    if shapes.h != read.len() {
        let expected = format!("(b, {}, w, c_in): rows {read:?} of {height}", read.len());
        return Err(Error::Shape { op: OP, operand: "x", expected, found: found() });
    }
    Ok(())
}
