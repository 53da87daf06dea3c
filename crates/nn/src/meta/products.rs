//! Convolutions and linear layers of tensors without elements: the shapes of their operands, their workspace and their
//! arithmetic.

use kiln_ops::{
    Conv2d, EightBits, Error as OpsError, FusedConv2d, Slope, Strip, Workspace, conv2d_flop, conv2d_workspace,
    fp8_workspace, fused_conv2d_workspace, int8_workspace, linear_flop, linear_workspace,
};
use kiln_weights::{Param, StackedParam};

use super::MetaTensor;
use super::checks::{expect, refused};
use crate::error::Result;
use crate::tensor::TensorLike;

/// The shape of a product's parameter: `(c_out, kh, kw, c_in)`, or `(n, 1, 1, k)` for a linear layer; and its format where
/// it is in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaWeight([usize; 4], Option<EightBits>);

impl MetaWeight {
    /// The parameter of a convolution or of a linear layer.
    ///
    /// # Errors
    /// For parameters with neither two nor four dimensions.
    pub(super) fn of(param: &Param) -> Result<Self> {
        match *param.shape() {
            [n, k] => Ok(Self([n, 1, 1, k], param.eight_bits())),
            [c_out, c_in, kh, kw] => Ok(Self([c_out, kh, kw, c_in], param.eight_bits())),
            _ => Err(refused("weight", "param", "(n, k) or (c_out, c_in, kh, kw)", param.shape())),
        }
    }

    /// The matrix that those of several linear layers form.
    pub(super) fn of_stack(param: &StackedParam) -> Self {
        let [n, k] = param.shape();
        Self([n, 1, 1, k], param.eight_bits())
    }
}

impl MetaTensor {
    /// A convolution of this feature map `(b, h, w, c_in)`.
    pub(super) fn convolution(
        &self,
        &MetaWeight(weight, in_8_bits): &MetaWeight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self> {
        let x @ [b, h, w, c_in] = self.size4()?;
        let [c_out, kh, kw, _] = weight;
        let shape = output_shape(x, weight, bias, config, None)?;
        if let Some(image_bias) = image_bias.filter(|bias| bias.shape != [1, c_out] && bias.shape != [b, c_out]) {
            return Err(refused("conv2d", "image_bias", &format!("{:?}", [b, c_out]), &image_bias.shape));
        }
        expect("conv2d", "residual", residual, &shape)?;
        let y = self.another(&shape);
        let (target, image_bias) = (self.device.target(), image_bias.is_some());
        self.device.takes(match in_8_bits {
            Some(kind) => workspace_of(kind, [b, h * w, c_in], (kh, kw) == (1, 1) && config == Conv2d::same(1)),
            None => conv2d_workspace(target, self.dtype, x, weight, config, None, image_bias),
        });
        self.device.computes(conv2d_flop(x, weight, config, None));
        Ok(y)
    }

    /// The rows of a convolution that a strip has; this feature map has the rows that they need.
    pub(super) fn convolution_of_strip(
        &self,
        &MetaWeight(weight, _): &MetaWeight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        (config, strip): (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self> {
        let x = self.size4()?;
        let shape = output_shape(x, weight, bias, config, Some(strip))?;
        expect("conv2d", "residual", residual, &shape)?;
        expect("conv2d", "out", out, &shape)?;
        let y = out.cloned().unwrap_or_else(|| self.another(&shape));
        self.device.takes(conv2d_workspace(self.device.target(), self.dtype, x, weight, config, Some(strip), false));
        self.device.computes(conv2d_flop(x, weight, config, Some(strip)));
        Ok(y)
    }

    /// A convolution of feature maps that count as one, with what follows it.
    pub(super) fn fused_convolution(
        FusedConv2d { parts, weight: &MetaWeight(weight, _), bias, epilogue }: FusedConv2d<'_, Self, MetaWeight>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self> {
        let Some(first) = parts.first() else { return Err(refused("conv2d", "x", "at least one feature map", &[])) };
        let [b, h, w, _] = first.size4()?;
        let mut channels = Vec::new();
        for part in parts {
            match part.size4()? {
                [b_i, h_i, w_i, c] if [b_i, h_i, w_i] == [b, h, w] => channels.push(c),
                found => return Err(refused("conv2d", "x", "the same b, h and w in all parts", &found)),
            }
        }
        let x = [b, h, w, channels.iter().sum()];
        let shape = output_shape(x, weight, bias, config, strip)?;
        for (_, addend) in epilogue.addends.into_iter().flatten() {
            expect("conv2d", "addend", Some(addend), &shape)?;
        }
        expect("conv2d", "out", out, &shape)?;
        if let Slope::Channels(slopes) = epilogue.slope {
            expect("conv2d", "slope", Some(slopes), &[weight[0]])?;
        }
        let y = out.cloned().unwrap_or_else(|| first.another(&shape));
        let target = first.device.target();
        first.device.takes(fused_conv2d_workspace(target, first.dtype, [b, h, w], &channels, (weight, config, strip)));
        first.device.computes(conv2d_flop(x, weight, config, strip));
        Ok(y)
    }

    /// A linear layer on the rows of this tensor `(.., k)`: `(.., n)`.
    pub(super) fn linear_layer(
        &self,
        &MetaWeight(weight, in_8_bits): &MetaWeight,
        bias: Option<&Self>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        let [n, _, _, k] = weight;
        if self.shape.last() != Some(&k) {
            return Err(refused("linear", "x", &format!("(.., {k})"), &self.shape));
        }
        expect("linear", "bias", bias, &[n])?;
        let y = self.with_channels(n);
        expect("linear", "residual", residual, &y.shape)?;
        let (target, matrices) = (self.device.target(), self.device.matrices());
        let rows = self.elem_count() / k.max(1);
        self.device.takes(match in_8_bits {
            Some(kind) => workspace_of(kind, [1, rows, k], true),
            None => linear_workspace(target, self.dtype, matrices, [n, k]),
        });
        self.device.computes(linear_flop(rows, [n, k]));
        Ok(y)
    }
}

/// The shape `(b, h_out, w_out, c_out)` of the convolution of `x` `(b, h, w, c_in)` with a weight `(c_out, kh, kw, c_in)`. With
/// a strip, `x` has the rows that the strip's rows need.
fn output_shape(
    x: [usize; 4],
    weight: [usize; 4],
    bias: Option<&MetaTensor>,
    config: Conv2d,
    strip: Option<&Strip>,
) -> Result<[usize; 4]> {
    let ([b, h, w, channels], [c_out, kh, kw, c_in]) = (x, weight);
    if channels != c_in {
        return Err(refused("conv2d", "x", &format!("(b, h, w, {c_in})"), &x));
    }
    expect("conv2d", "bias", bias, &[c_out])?;
    let rows = match strip {
        None => config.output_size(h, kh),
        Some(strip) => {
            let read = strip.input_rows(config, kh);
            if h != read.len() {
                let expected = format!("(b, {}, w, c_in): rows {read:?} of {}", read.len(), strip.height);
                return Err(refused("conv2d", "x", &expected, &x));
            }
            Some(strip.rows.len())
        }
    };
    let (Some(h_out), Some(w_out)) = (rows, config.output_size(w, kw)) else {
        let message = format!("a {kh}x{kw} kernel does not fit into a {h}x{w} input with {config:?}");
        return Err(OpsError::Config { op: "conv2d", message }.into());
    };
    Ok([b, h_out, w_out, c_out])
}

/// What a product in 8 bits takes for its input of `[images, pixels, channels]`.
fn workspace_of(kind: EightBits, input @ [images, pixels, channels]: [usize; 3], is_by_pixel: bool) -> Workspace {
    match kind {
        EightBits::Int8 => int8_workspace(images * pixels, channels, is_by_pixel),
        EightBits::Fp8 => fp8_workspace(input, is_by_pixel),
    }
}
