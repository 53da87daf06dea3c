//! Products of bytes on GPUs of every compute capability since 7.5.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::cuda_backend::CudaDevice;

use super::ByteNumber;
use super::cuda::KERNELS;
use crate::cuda::{self, ImageOperands, ImageProduct};
use crate::error::Result;

/// Launches the kernel of `tile.cuh`, which the GPU has for these numbers.
pub(super) fn launch(
    op: &'static str,
    number: ByteNumber,
    operands: ImageOperands,
    arguments: ImageProduct,
    device: &CudaDevice,
) -> Result<()> {
    let ImageOperands { x, weight, residual, y, dtype } = operands;
    let [b, h, w, _, n] = arguments.sizes.map(|size| size as usize);
    let tiles = |side: usize| [(b * h * w).div_ceil(side), n.div_ceil(side)];
    // Small tiles where large ones leave multiprocessors without work.
    let (side, threads) = match tiles(128) {
        [rows, columns] if rows * columns >= cuda::multiprocessors(device)? => (128, 256),
        _ => (64, 128),
    };
    let [rows, columns] = tiles(side);
    let arguments = ImageProduct { tiles: [cuda::count(op, rows)?, 1, 1, cuda::count(op, columns)?], ..arguments };
    let kernel = KERNELS.typed(device, &format!("w8a8_tile_{side}_{number}"), dtype)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&x).arg(&weight).arg(&residual).arg(&y).arg(&arguments);
    // SAFETY: the arguments match the kernel's parameters. It reads the operands of these shapes, 16 bytes of activation and
    // weight at a time, of which rows and addresses are multiples, and writes the `n` elements of every pixel. All outlive the
    // launch and are freed in the order of the device's stream.
    unsafe { launch.launch(cuda::grid(rows * columns, threads)?) }.map_err(cuda::driver)?;
    Ok(())
}
