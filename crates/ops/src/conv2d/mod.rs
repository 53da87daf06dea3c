//! Two-dimensional convolution with fused additions of bias, time embedding and residual.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod fused;
mod reference;
mod strip;
#[cfg(test)]
mod tests;
mod workspace;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::flop;
use crate::packing::Weight;
use crate::trace::Work;
pub use fused::{Conv2dEpilogue, FusedConv2d, Slope, fused_conv2d, fused_conv2d_workspace};
pub use strip::{STRIP_ROWS, Strip, conv2d_strip};
pub use workspace::conv2d_workspace;

const OP: &str = "conv2d";

/// The geometry of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2d {
    /// The distance between neighboring windows, in both directions.
    pub stride: usize,
    /// Rows of zeros above and columns of zeros on the left.
    pub pad_before: usize,
    /// Rows of zeros below and columns of zeros on the right.
    pub pad_after: usize,
}

impl Conv2d {
    /// Stride 1 and the padding that keeps the size for an odd `kernel_size`.
    pub fn same(kernel_size: usize) -> Self {
        Self { stride: 1, pad_before: kernel_size / 2, pad_after: kernel_size / 2 }
    }

    /// The output's extent for an input's extent in the same direction, or `None` where the kernel does not fit.
    pub fn output_size(&self, size: usize, kernel_size: usize) -> Option<usize> {
        let padded = size + self.pad_before + self.pad_after;
        padded.checked_sub(kernel_size).map(|room| room / self.stride + 1)
    }
}

/// The operands of [`conv2d`].
#[derive(Clone, Copy)]
pub struct Conv2dInputs<'a> {
    /// The feature map, `(b, h, w, c_in)`.
    pub x: &'a Tensor,
    /// The kernel, `(c_out, kh, kw, c_in)`.
    pub weight: &'a Weight,
    /// Added to every pixel, `(c_out)`.
    pub bias: Option<&'a Tensor>,
    /// Added to every pixel of an image: the time embedding's projection, `(b, c_out)` or `(1, c_out)`.
    pub image_bias: Option<&'a Tensor>,
    /// Added to the result, of the result's shape.
    pub residual: Option<&'a Tensor>,
}

/// The shapes of a convolution that has been checked, of a whole map or of a strip.
#[derive(Clone, Copy)]
pub(crate) struct Shapes {
    pub(crate) b: usize,
    h: usize,
    w: usize,
    pub(crate) c_in: usize,
    pub(crate) kh: usize,
    pub(crate) kw: usize,
    pub(crate) h_out: usize,
    pub(crate) w_out: usize,
    pub(crate) c_out: usize,
    /// Rows of zeros above `x`: those of the configuration, unless `x` begins inside of the map.
    pad_top: usize,
    /// Rows of zeros below `x`.
    pad_bottom: usize,
    /// Rows of the whole result. The choice of the algorithm depends on them, so that a strip has the same bits as the
    /// whole map.
    map_rows: usize,
}

impl Shapes {
    /// `x` `(b, h, w, c_in)` and a weight `(c_out, kh, kw, c_in)`; `None` where the kernel does not fit.
    pub(crate) fn of(
        [b, h, w, c_in]: [usize; 4],
        [c_out, kh, kw, _]: [usize; 4],
        config: Conv2d,
        strip: Option<&Strip>,
    ) -> Option<Self> {
        let map_rows = config.output_size(strip.map_or(h, |strip| strip.height), kh)?;
        let w_out = config.output_size(w, kw)?;
        let Conv2d { stride, pad_before, pad_after } = config;
        let (h_out, pad_top, pad_bottom) = match strip {
            Some(Strip { rows, .. }) => {
                let above = pad_before.saturating_sub(rows.start * stride);
                let read = (rows.len().max(1) - 1) * stride + kh;
                (rows.len(), above, read.saturating_sub(above + h))
            }
            None => (map_rows, pad_before, pad_after),
        };
        Some(Self { b, h, w, c_in, kh, kw, h_out, w_out, c_out, pad_top, pad_bottom, map_rows })
    }

    /// The result's shape.
    fn result(&self) -> [usize; 4] {
        [self.b, self.h_out, self.w_out, self.c_out]
    }
}

/// `y[b, i, j, o] = sum over (di, dj, c) of x[b, s i + di - p, s j + dj - p, c] weight[o, di, dj, c]`
/// `+ bias[o] + image_bias[b, o] + residual[b, i, j, o]`, as `(b, h_out, w_out, c_out)`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit, [`Error::Config`] where the kernel is larger than the padded input; those
/// of the weight's observer ([`Weight::observed`]).
pub fn conv2d(inputs: Conv2dInputs<'_>, config: Conv2d, out: Option<&Tensor>) -> Result<Tensor> {
    let shapes = check(&inputs, config, None)?;
    let weight = &*inputs.weight.observe(inputs.x, Some(config))?;
    let inputs = Conv2dInputs { weight, ..inputs };
    backend::run(&Call { inputs, config, shapes }, out)
}

struct Call<'a> {
    inputs: Conv2dInputs<'a>,
    config: Conv2d,
    shapes: Shapes,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.inputs.x
    }

    fn work(&self) -> Work {
        let Conv2dInputs { x, weight, bias, image_bias, residual } = self.inputs;
        let operands = Work::new(&[("x", x)]).weight(weight).and("bias", bias).and("image_bias", image_bias);
        operands.and("residual", residual).config(self.config).flop(flop::of_shapes(self.shapes))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.inputs, self.config, self.shapes)
    }
}

fn check(inputs: &Conv2dInputs<'_>, config: Conv2d, strip: Option<&Strip>) -> Result<Shapes> {
    let shape_error = |operand, expected: &str, found: &Tensor| Error::Shape {
        op: OP,
        operand,
        expected: expected.to_string(),
        found: found.dims().to_vec(),
    };
    let (b, h, w, c_in) = inputs.x.dims4().map_err(|_| shape_error("x", "(b, h, w, c_in)", inputs.x))?;
    let weight @ [c_out, kh, kw, c_in_w] = inputs.weight.shape();
    if c_in != c_in_w {
        return Err(shape_error("x", &format!("(b, h, w, {c_in_w})"), inputs.x));
    }
    if config.stride == 0 {
        return Err(Error::Config { op: OP, message: "the stride is 0, expected at least 1".into() });
    }
    let Some(shapes) = Shapes::of([b, h, w, c_in], weight, config, strip) else {
        return Err(Error::Config {
            op: OP,
            message: format!("a {kh}x{kw} kernel does not fit into a {h}x{w} input with {config:?}"),
        });
    };
    if let Some(bias) = inputs.bias {
        expect_shape(OP, "bias", bias.dims(), &[c_out])?;
    }
    if let Some(image_bias) = inputs.image_bias
        && image_bias.dims() != [1, c_out]
    {
        expect_shape(OP, "image_bias", image_bias.dims(), &[b, c_out])?;
    }
    if let Some(residual) = inputs.residual {
        expect_shape(OP, "residual", residual.dims(), &shapes.result())?;
    }
    Ok(shapes)
}
