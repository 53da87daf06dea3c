//! Linear layers with GEGLU on Hopper.
//!
//! One H200, f16, cuBLASLt's product with the kernel of [`crate::geglu()`], and then this kernel, with weights that rotate through more
//! memory than the L2 cache has (driver 580.159, 2026-11-28):
//!
//! | rows, channels, channels of the result | both | this kernel |
//! | --- | ---: | ---: |
//! | 2048, 1280, 5120 (SDXL) | 105.9 us | 88.2 us |
//! | 8192, 640, 2560 (SDXL) | 132.5 us | 104.7 us |
//! | 8192, 320, 1280 (SD 1.5) | 48.6 us | 37.6 us |
//! | 2048, 640, 2560 (SD 1.5) | 33.5 us | 33.5 us |
//! | 512, 1280, 5120 (SD 1.5) | 30.9 us | 36.2 us |
//!
//! A guided step of SDXL takes 28.2, 28.3 and 28.4 ms instead of 28.7, 28.7 and 28.6 in turns, less of a gain than the sum of these
//! products: it runs at the GPU's power limit (691 to 695 of 700 W, 1.7 of 1.98 GHz). That of SD 1.5 takes 5.32, 5.29 and 5.32 ms instead of
//! 5.32, 5.33 and 5.33.
#![allow(unsafe_code)]

use candle_core::{DType, Device, Tensor};

use super::{Call, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::hopper::{self, Input, Kernels};
use crate::cuda::{self, ImageOperands, ImageProduct, Module};
use crate::error::Result;
use crate::matrix::cuda::numbers;
use crate::operation::{rows_and_channels, with_channels};
use crate::packing::{Weight, WeightLayout};

static KERNELS: Module = cuda::kernels!("linear_geglu");

/// Tiles of a multiprocessor from which on the kernel is faster: with fewer, too many multiprocessors have none in the last round.
const TILES: f64 = 3.0;

pub(super) fn has_kernel(x: &Tensor, weight: &Weight) -> Result<bool> {
    let Device::Cuda(device) = x.device() else { return Ok(false) };
    let is_plain = weight.layout() != Some(WeightLayout::Panels) && weight.as_w8().is_none();
    let ([wide, _, _, k], (rows, _), size) = (weight.shape(), rows_and_channels(x.dims()), x.dtype().size_in_bytes());
    let has_whole_vectors =
        [k, wide / 2].into_iter().all(|channels| channels > 0 && (channels * size).is_multiple_of(16));
    Ok(is_plain
        && has_whole_vectors
        && x.dtype() != DType::F32
        && cuda::has_hopper_code(device)?
        && hopper::tiles_each([rows, 1, 1], wide / 2, Input::Geglu, device)? >= TILES)
}

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, _: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, weight, bias } = *self;
        if !has_kernel(x, weight)? {
            return Ok(None);
        }
        let dtype = x.dtype();
        let ([wide, _, _, k], (m, _)) = (weight.shape(), rows_and_channels(x.dims()));
        let n = wide / 2;
        let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
        let (input, matrix, bias) = (operand(x)?, numbers(device, weight, dtype)?, bias.map(operand).transpose()?);
        let y = cuda::output(OP, None, &with_channels(x.dims(), n), dtype, &[&input, &matrix], device)?;
        let operands = ImageOperands {
            x: cuda::address(&input)?,
            weight: cuda::address(&matrix)?,
            residual: 0,
            y: cuda::address(&y)?,
            dtype,
        };
        if !cuda::is_vectored(&[operands.x, operands.weight, operands.y], k, dtype.size_in_bytes()) {
            return Ok(None);
        }
        let count = |value: usize| cuda::count(OP, value);
        let arguments = ImageProduct {
            bias: bias.as_ref().map(cuda::address).transpose()?.unwrap_or(0),
            sizes: [1, 1, count(m)?, count(k)?, count(n)?],
            window: [1, 1, 0, 0],
            ..ImageProduct::default()
        };
        hopper::launch(OP, Kernels { module: &KERNELS, name: OP, input: Input::Geglu }, operands, arguments, device)?;
        Ok(Some(y))
    }
}
