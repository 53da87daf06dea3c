//! Memory of a convolution besides operands and result.

use candle_core::DType;

use super::{Conv2d, Shapes, Strip, cpu};
use crate::workspace::{Target, Workspace};

/// Pixels up to which a GPU gathers windows although cuDNN is installed.
pub(super) const FEW_PIXELS: usize = 256;
/// Bytes of gathered windows at a time: they stay in the L2 cache of a large GPU.
pub(super) const WINDOWS: usize = 48 << 20;
/// Output channels up to which CUDA's own kernel runs.
pub(super) const FEW_CHANNELS: usize = 8;

/// Memory of [`crate::conv2d`] besides operands and result, for `x` `(b, h, w, c_in)` and a weight `(c_out, kh, kw,
/// c_in)`, all of `dtype`. With a strip, `h` counts the rows that it reads. `image_bias` says whether there is one in
/// addition to the bias.
pub fn conv2d_workspace(
    target: Target,
    dtype: DType,
    x: [usize; 4],
    weight: [usize; 4],
    config: Conv2d,
    strip: Option<&Strip>,
    image_bias: bool,
) -> Workspace {
    let Some(shapes) = Shapes::of(x, weight, config, strip) else {
        return Workspace::default(); // an error when it runs
    };
    match target {
        Target::Cpu { threads } => Workspace { call: 0, kept: cpu::kept(dtype, config, shapes, threads) },
        Target::Gpu => {
            let sum_of_biases = if image_bias { shapes.c_out * dtype.size_in_bytes() } else { 0 };
            Workspace::call(sum_of_biases + windows(dtype, config, shapes))
        }
    }
}

/// Bytes of the windows that a GPU gathers: none for a 1x1 convolution, which is a product, nor if cuDNN or the
/// kernel for few channels runs. A GPU without cuDNN gathers more, but for what Hopper's kernel computes.
fn windows(dtype: DType, config: Conv2d, Shapes { b, c_in, kh, kw, h_out, w_out, c_out, .. }: Shapes) -> usize {
    let (pixels, half) = (b * h_out * w_out, dtype != DType::F32);
    let product = (kh, kw) == (1, 1) && config == Conv2d::same(1);
    let few_channels = half && c_out <= FEW_CHANNELS && c_in.is_multiple_of(32);
    if product || few_channels || (half && pixels > FEW_PIXELS) {
        return 0;
    }
    let row = kh * kw * c_in * dtype.size_in_bytes();
    (WINDOWS / row.max(1)).clamp(1, pixels.max(1)) * row
}
