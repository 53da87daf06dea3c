//! Products of bytes together with the operator before them.
//!
//! A kernel rounds what the operator makes, so that it is never in memory in another type. Each function is the product of the
//! operator's result, but for one difference: that result is not rounded to the type of the activations in between, and the scale
//! of a normalized map follows from the parameters of its group norm instead of from its values.

use candle_core::{D, Tensor};

use super::activated::Activated;
use super::source::Source;
use super::{ByteNumber, W8Weight, reference};
use crate::backend::{self, Operator};
use crate::conv2d::{Conv2d, Conv2dInputs};
use crate::error::{Error, Result, expect_shape};
use crate::flop;
use crate::group_norm::GroupNorm;
use crate::packing::Weight;
use crate::trace::Work;

/// A linear layer of [`crate::layer_norm`]: `x` `(.., k)`, `norm` gamma, beta `(k)` and epsilon, a weight in bytes `(n, k)`, `bias`
/// `(n)`, `residual` and the result `(.., n)`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit, [`Error::Config`] for a weight that is not in bytes.
pub fn normed_linear(
    x: &Tensor,
    (gamma, beta, eps): (&Tensor, &Tensor, f64),
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    const OP: &str = "normed_linear";
    let k = x.dim(D::Minus1)?;
    expect_shape(OP, "gamma", gamma.dims(), &[k])?;
    expect_shape(OP, "beta", beta.dims(), &[k])?;
    layer(OP, Source::LayerNorm { x, gamma, beta, eps }, k, weight, bias, residual)
}

/// A linear layer of [`crate::geglu`]: `x` `(.., 2 k)`, the others as for [`normed_linear`].
///
/// # Errors
/// See [`normed_linear`].
pub fn geglu_linear(x: &Tensor, weight: &Weight, bias: Option<&Tensor>, residual: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "geglu_linear";
    let width = x.dim(D::Minus1)?;
    if width % 2 != 0 {
        return Err(Error::Shape { op: OP, operand: "x", expected: "(.., 2 k)".into(), found: x.dims().to_vec() });
    }
    layer(OP, Source::Geglu(x), width / 2, weight, bias, residual)
}

/// A linear layer of an activation: `input` of `k` channels, the others as for [`normed_linear`].
///
/// # Errors
/// See [`normed_linear`].
pub fn activation_linear(
    input: Activated<&Tensor>,
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    const OP: &str = "activation_linear";
    let k = input.shape(OP)?.last().copied().unwrap_or(1);
    layer(OP, Source::Activated(input), k, weight, bias, residual)
}

/// A convolution of [`crate::group_norm`] with the operands of [`crate::conv2d`], whose `x` is normalized by gamma and beta `(c_in)`.
/// The kernel is larger than one pixel, the stride is 1, and the size stays. The weight is in e4m3: the scale of a normalized map
/// leaves too few digits for integers.
///
/// # Errors
/// See [`normed_linear`].
pub fn normed_conv2d(
    inputs: Conv2dInputs<'_>,
    (gamma, beta, norm): (&Tensor, &Tensor, GroupNorm),
    config: Conv2d,
) -> Result<Tensor> {
    const OP: &str = "normed_conv2d";
    let (b, h, w, c) = inputs.x.dims4()?;
    let [n, kh, kw, c_in] = inputs.weight.shape();
    if check_weight(OP, inputs.weight, c)? != ByteNumber::E4m3 {
        return Err(Error::Config { op: OP, message: "the weight is in integers, expected e4m3".into() });
    }
    let keeps_size = config.stride == 1 && config.output_size(h, kh) == Some(h) && config.output_size(w, kw) == Some(w);
    if !keeps_size || kh * kw == 1 || norm.num_groups == 0 || !c.is_multiple_of(norm.num_groups) {
        let message = format!("a {kh}x{kw} kernel with {config:?} and {norm:?}, expected a window that keeps the size");
        return Err(Error::Config { op: OP, message });
    }
    expect_shape(OP, "gamma", gamma.dims(), &[c_in])?;
    expect_shape(OP, "beta", beta.dims(), &[c_in])?;
    for (name, tensor, shape) in [("bias", inputs.bias, vec![n]), ("residual", inputs.residual, vec![b, h, w, n])] {
        tensor.map_or(Ok(()), |tensor| expect_shape(OP, name, tensor.dims(), &shape))?;
    }
    if let Some(bias) = inputs.image_bias.filter(|bias| bias.dims() != [1, n]) {
        expect_shape(OP, "image_bias", bias.dims(), &[b, n])?;
    }
    let Conv2dInputs { x, weight, bias, image_bias, residual } = inputs;
    let source = Source::GroupNorm { x, gamma, beta, config: norm };
    let addends = [bias, image_bias, residual];
    let call = Call { op: OP, source, input: [b, h, w, c], weight, addends, config };
    backend::run(&call, None)
}

fn layer(
    op: &'static str,
    source: Source<'_>,
    k: usize,
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    check_weight(op, weight, k)?;
    let [n, kh, kw, _] = weight.shape();
    if kh * kw != 1 {
        return Err(Error::Config { op, message: "the weight is a convolution's, expected (n, k)".into() });
    }
    let mut shape = source.input().dims().to_vec();
    shape.pop();
    let rows = shape.iter().product();
    shape.push(n);
    bias.map_or(Ok(()), |bias| expect_shape(op, "bias", bias.dims(), &[n]))?;
    residual.map_or(Ok(()), |residual| expect_shape(op, "residual", residual.dims(), &shape))?;
    let (addends, config) = ([bias, None, residual], Conv2d::same(1));
    backend::run(&Call { op, source, input: [1, 1, rows, k], weight, addends, config }, None)
}

fn check_weight(op: &'static str, weight: &Weight, channels: usize) -> Result<ByteNumber> {
    let Some(W8Weight { number, .. }) = weight.as_w8() else {
        return Err(Error::Config { op, message: "the weight is not in bytes, expected one that is".into() });
    };
    let shape @ [.., c] = weight.shape();
    if c != channels {
        return Err(Error::Shape {
            op,
            operand: "weight",
            expected: format!("(.., {channels})"),
            found: shape.to_vec(),
        });
    }
    Ok(*number)
}

/// A product with what comes before it.
pub(super) struct Call<'a> {
    pub(super) op: &'static str,
    pub(super) source: Source<'a>,
    /// `(b, h, w, c)` of the product's input; `(1, 1, rows, k)` for a linear layer.
    pub(super) input: [usize; 4],
    pub(super) weight: &'a Weight,
    /// Bias, bias of each image, residual.
    pub(super) addends: [Option<&'a Tensor>; 3],
    pub(super) config: Conv2d,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn input(&self) -> &Tensor {
        self.source.input()
    }

    fn work(&self) -> Work {
        let [b, h, w, _] = self.input;
        let [n, kh, kw, c] = self.weight.shape();
        let [bias, image_bias, residual] = self.addends;
        let operands = Work::new(&[("x", self.source.input())]).weight(self.weight).and("bias", bias);
        let operands = operands.and("image_bias", image_bias).and("residual", residual);
        operands.flop(flop::linear_flop(b * h * w, [n, kh * kw * c]))
    }

    fn reference(&self) -> Result<Tensor> {
        let Self { source, weight, addends: [bias, image_bias, residual], config, .. } = *self;
        match source {
            Source::GroupNorm { x, .. } => {
                let inputs = Conv2dInputs { x, weight, bias, image_bias, residual };
                reference::convolution(source, inputs, config)
            }
            _ => reference::linear_layer(source, weight, bias, residual),
        }
    }
}

impl backend::Kernel<backend::Cpu> for Call<'_> {}
