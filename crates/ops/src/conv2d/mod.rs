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
use crate::error::{Error, Result};
use crate::flop;
use crate::operation::{Cost, Elements, Operand, Operation, WeightOperand, expect, refused, sizes};
use crate::packing::Weight;
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;
pub use fused::{Conv2dEpilogue, FusedConv2d, FusedConv2dOp, Slope, fused_conv2d, fused_conv2d_workspace};
use strip::check_strip;
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

/// The operands of [`conv2d`]. `X` is the type of tensors and `W` that of weights.
pub struct Conv2dInputs<'a, X = Tensor, W = Weight> {
    /// The feature map, `(b, h, w, c_in)`.
    pub x: &'a X,
    /// The kernel, `(c_out, kh, kw, c_in)`.
    pub weight: &'a W,
    /// Added to every pixel, `(c_out)`.
    pub bias: Option<&'a X>,
    /// Added to every pixel of an image: the time embedding's projection, `(b, c_out)` or `(1, c_out)`.
    pub image_bias: Option<&'a X>,
    /// Added to the result, of the result's shape.
    pub residual: Option<&'a X>,
}

// Not derived, because a derived implementation would ask the same of `X` and `W`.
impl<X, W> Clone for Conv2dInputs<'_, X, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X, W> Copy for Conv2dInputs<'_, X, W> {}

impl<'a, X: Elements> Conv2dInputs<'a, X, Weight> {
    /// These operands as tensors.
    pub(crate) fn tensors(self) -> Conv2dInputs<'a> {
        let Self { x, weight, bias, image_bias, residual } = self;
        let [bias, image_bias, residual] = [bias, image_bias, residual].map(|x| x.map(X::tensor));
        Conv2dInputs { x: x.tensor(), weight, bias, image_bias, residual }
    }
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

/// [`conv2d`] or [`conv2d_strip`] as a value.
pub struct Conv2dOp<'a, T: Operand = Tensor> {
    /// The operands.
    pub inputs: Conv2dInputs<'a, T, T::Weight>,
    /// The geometry.
    pub config: Conv2d,
    /// The rows of the result, if it is not all of them.
    pub strip: Option<&'a Strip>,
    /// Of the result's shape. With a strip only.
    pub out: Option<&'a T>,
}

impl<T: Operand> Operation<T> for Conv2dOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Conv2d(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let Self { inputs, config, strip, out } = self;
        let shapes = check(inputs, *config, *strip)?;
        expect(OP, "out", *out, &shapes.result())?;
        let Shapes { b, h, w, c_in, kh, kw, .. } = shapes;
        let (dtype, weight) = (inputs.x.dtype(), inputs.weight.shape());
        let workspace = match (inputs.weight.eight_bits(), strip) {
            (Some(kind), None) => kind.workspace([b, h * w, c_in], (kh, kw) == (1, 1) && *config == Conv2d::same(1)),
            _ => {
                let image_bias = inputs.image_bias.is_some();
                conv2d_workspace(target, dtype, [b, h, w, c_in], weight, *config, *strip, image_bias)
            }
        };
        Ok(Cost::new(shapes.result(), dtype).workspace(workspace).flop(flop::of_shapes(shapes)))
    }

    fn out(&self) -> Option<&T> {
        self.out
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let (inputs, out) = (self.inputs.tensors(), self.out.map(T::tensor));
        match self.strip {
            Some(strip) => conv2d_strip(inputs, self.config, strip, out),
            None => conv2d(inputs, self.config, out),
        }
        .map(T::result)
    }
}

/// Checks the operands. With a strip, `x` has the rows that the strip reads.
fn check<X: Operand, W: WeightOperand>(
    inputs: &Conv2dInputs<'_, X, W>,
    config: Conv2d,
    strip: Option<&Strip>,
) -> Result<Shapes> {
    let x @ [b, h, w, c_in] = sizes(OP, "x", inputs.x, "(b, h, w, c_in)")?;
    let weight @ [c_out, kh, kw, c_in_w] = inputs.weight.shape();
    if c_in != c_in_w {
        return Err(refused(OP, "x", format!("(b, h, w, {c_in_w})"), inputs.x));
    }
    if config.stride == 0 {
        return Err(Error::Config { op: OP, message: "the stride is 0, expected at least 1".into() });
    }
    let Some(shapes) = Shapes::of(x, weight, config, strip) else {
        return Err(Error::Config {
            op: OP,
            message: format!("a {kh}x{kw} kernel does not fit into a {h}x{w} input with {config:?}"),
        });
    };
    if let Some(strip) = strip {
        check_strip(strip, config, &shapes, || x.to_vec())?;
    }
    expect(OP, "bias", inputs.bias, &[c_out])?;
    expect(OP, "image_bias", inputs.image_bias.filter(|bias| bias.dims() != [1, c_out]), &[b, c_out])?;
    expect(OP, "residual", inputs.residual, &shapes.result())?;
    Ok(shapes)
}
