//! A convolution of maps that lie side by side in the channels, with scaling, additions and an activation before the
//! result is rounded.

#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use super::strip::check_strip;
use super::{Conv2d, OP, Shapes, Strip, conv2d_workspace, cpu, reference};
use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::flop;
use crate::operation::{Cost, Elements, Operand, Operation, WeightOperand, expect};
use crate::packing::Weight;
use crate::portable;
use crate::trace::Work;
use crate::workspace::{Target, Workspace};

/// A piecewise linear activation: `x` where `x > 0`, else the slope times `x`.
pub enum Slope<'a, X = Tensor> {
    /// The values as they are.
    Linear,
    /// One slope for all channels: LeakyReLU, and ReLU with the slope 0.
    Constant(f32),
    /// A slope for each channel, `(c_out)`: PReLU.
    Channels(&'a X),
}

// Not derived, because a derived implementation would ask the same of `X`.
impl<X> Clone for Slope<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Slope<'_, X> {}

/// The operations on the sums of a convolution before they are rounded.
pub struct Conv2dEpilogue<'a, X = Tensor> {
    /// The sums and the bias are multiplied by this.
    pub scale: f32,
    /// Maps of the result's shape that are added, and their factors.
    pub addends: [Option<(f32, &'a X)>; 2],
    /// Applied last.
    pub slope: Slope<'a, X>,
}

impl<X> Clone for Conv2dEpilogue<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Conv2dEpilogue<'_, X> {}

impl<X> Default for Conv2dEpilogue<'_, X> {
    fn default() -> Self {
        Self { scale: 1.0, addends: [None; 2], slope: Slope::Linear }
    }
}

/// The operands of [`fused_conv2d`]. `X` is the type of tensors and `W` that of weights.
pub struct FusedConv2d<'a, X = Tensor, W = Weight> {
    /// At least one feature map `(b, h, w, c_i)`. Their channels follow one another.
    pub parts: &'a [&'a X],
    /// The kernel, `(c_out, kh, kw, sum of c_i)`.
    pub weight: &'a W,
    /// Added to every pixel, `(c_out)`.
    pub bias: Option<&'a X>,
    /// The operations after the sums.
    pub epilogue: Conv2dEpilogue<'a, X>,
}

impl<X, W> Clone for FusedConv2d<'_, X, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X, W> Copy for FusedConv2d<'_, X, W> {}

/// `y = slope(scale (conv2d(cat(parts)) + bias) + factor_0 addend_0 + factor_1 addend_1)`, `(b, h_out, w_out, c_out)`.
/// With a strip, the parts have the rows [`Strip::input_rows`] of the maps and the result has `strip.rows`.
///
/// On the CPU nothing is concatenated, and the sums have the bits that [`crate::conv2d`] gives for the concatenated map.
/// GPUs concatenate the parts, and one kernel follows the convolution, whose result has been rounded.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit, [`Error::Config`] for a kernel or a strip that does not fit.
pub fn fused_conv2d(
    inputs: FusedConv2d<'_>,
    config: Conv2d,
    strip: Option<&Strip>,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let (Some(first), shapes) = (inputs.parts.first(), check(&inputs, config, strip)?) else {
        return Err(Error::Config { op: OP, message: "there are no feature maps, expected at least one".into() });
    };
    backend::run(&FusedCall { first, inputs, config, strip, shapes }, out)
}

/// Memory of [`fused_conv2d`] besides operands and result, for parts `(b, h, w, channels)`, all of `dtype`: on GPUs the
/// concatenated map and what [`crate::conv2d`] takes.
pub fn fused_conv2d_workspace(
    target: Target,
    dtype: DType,
    [b, h, w]: [usize; 3],
    channels: &[usize],
    (weight, config, strip): ([usize; 4], Conv2d, Option<&Strip>),
) -> Workspace {
    let x = [b, h, w, channels.iter().sum()];
    if Shapes::of(x, weight, config, strip).is_none() {
        return Workspace::default(); // an error when it runs
    }
    if !target.is_gpu() {
        let aligned = cpu::are_aligned(channels.iter().copied());
        return if aligned {
            conv2d_workspace(target, dtype, x, weight, config, strip, false)
        } else {
            Workspace::default()
        };
    }
    let joined = if channels.len() > 1 { x.iter().product::<usize>() * dtype.size_in_bytes() } else { 0 };
    let Workspace { call, kept } = conv2d_workspace(target, dtype, x, weight, config, strip, false);
    Workspace { call: call + joined, kept }
}

/// A call whose operands have been checked.
pub(super) struct FusedCall<'a> {
    /// The first part.
    first: &'a Tensor,
    pub(super) inputs: FusedConv2d<'a>,
    pub(super) config: Conv2d,
    strip: Option<&'a Strip>,
    pub(super) shapes: Shapes,
}

impl Operator for FusedCall<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.first
    }

    fn work(&self) -> Work {
        let FusedConv2d { parts, weight, bias, epilogue } = self.inputs;
        let mut work = parts.iter().fold(Work::new(&[]), |work, part| work.and("x", Some(part)));
        work = work.weight(weight).and("bias", bias);
        for (_, addend) in epilogue.addends.into_iter().flatten() {
            work = work.and("addend", Some(addend));
        }
        work.config(self.config).flop(flop::of_shapes(self.shapes))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::fused(self.inputs, self.config, self.strip)
    }
}

/// [`fused_conv2d`] as a value.
pub struct FusedConv2dOp<'a, T: Operand = Tensor> {
    /// The operands.
    pub inputs: FusedConv2d<'a, T, T::Weight>,
    /// The geometry.
    pub config: Conv2d,
    /// The rows of the result, if it is not all of them.
    pub strip: Option<&'a Strip>,
    /// Of the result's shape.
    pub out: Option<&'a T>,
}

impl<T: Operand> Operation<T> for FusedConv2dOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::FusedConv2d(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let Self { inputs: FusedConv2d { parts, weight, .. }, config, strip, out } = self;
        let shapes = check(&self.inputs, *config, *strip)?;
        expect(OP, "out", *out, &shapes.result())?;
        let dtype = parts.first().map_or(DType::F32, |part| part.dtype());
        let channels: Vec<usize> = parts.iter().filter_map(|part| part.dims().last().copied()).collect();
        let map = [shapes.b, shapes.h, shapes.w];
        let workspace = fused_conv2d_workspace(target, dtype, map, &channels, (weight.shape(), *config, *strip));
        Ok(Cost::new(shapes.result(), dtype).workspace(workspace).flop(flop::of_shapes(shapes)))
    }

    fn out(&self) -> Option<&T> {
        self.out
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let FusedConv2d { parts, weight, bias, epilogue: Conv2dEpilogue { scale, addends, slope } } = self.inputs;
        let parts: Vec<&Tensor> = parts.iter().map(|part| part.tensor()).collect();
        let addends = addends.map(|addend| addend.map(|(factor, addend)| (factor, addend.tensor())));
        let slope = match slope {
            Slope::Linear => Slope::Linear,
            Slope::Constant(slope) => Slope::Constant(slope),
            Slope::Channels(slopes) => Slope::Channels(slopes.tensor()),
        };
        let epilogue = Conv2dEpilogue { scale, addends, slope };
        let inputs = FusedConv2d { parts: &parts, weight, bias: bias.map(T::tensor), epilogue };
        fused_conv2d(inputs, self.config, self.strip, self.out.map(T::tensor)).map(T::result)
    }
}

fn check<X: Operand, W: WeightOperand>(
    inputs: &FusedConv2d<'_, X, W>,
    config: Conv2d,
    strip: Option<&Strip>,
) -> Result<Shapes> {
    let FusedConv2d { parts, weight, bias, epilogue } = inputs;
    let weight @ [c_out, kh, kw, c_in] = weight.shape();
    let outer = parts.first().and_then(|part| part.dims().split_last().map(|(_, outer)| outer.to_vec()));
    let mut found = 0;
    for part in *parts {
        match part.dims() {
            [b, h, w, c] if outer.as_deref() == Some(&[*b, *h, *w]) => found += c,
            dims => {
                let expected = format!("(b, h, w, c) with the same b, h and w in all parts: {outer:?}");
                return Err(Error::Shape { op: OP, operand: "x", expected, found: dims.to_vec() });
            }
        }
    }
    let Some(&[b, h, w]) = outer.as_deref() else {
        return Err(Error::Config { op: OP, message: "there are no feature maps, expected at least one".into() });
    };
    let x = [b, h, w, found];
    if found != c_in {
        let expected = format!("(b, h, w, {c_in}) in all parts together");
        return Err(Error::Shape { op: OP, operand: "x", expected, found: x.to_vec() });
    }
    if config.stride == 0 {
        return Err(Error::Config { op: OP, message: "the stride is 0, expected at least 1".into() });
    }
    let Some(shapes) = Shapes::of(x, weight, config, strip) else {
        let message = format!("a {kh}x{kw} kernel does not fit into a {h}x{w} input with {config:?}");
        return Err(Error::Config { op: OP, message });
    };
    if let Some(strip) = strip {
        check_strip(strip, config, &shapes, || x.to_vec())?;
    }
    expect(OP, "bias", *bias, &[c_out])?;
    for (_, addend) in epilogue.addends.into_iter().flatten() {
        expect(OP, "addend", Some(addend), &shapes.result())?;
    }
    if let Slope::Channels(slopes) = epilogue.slope {
        expect(OP, "slope", Some(slopes), &[c_out])?;
    }
    Ok(shapes)
}
