//! The matrix product of linear layers and convolutions: `y = x w^T + bias + residual`.

use candle_core::cuda::cudarc::driver::PushKernelArg;
use candle_core::cuda_backend::CudaDevice;

use super::cublaslt::{Addresses, Product};
use super::{Module, count, driver, grid, is_vectored, kernels, libraries};
use crate::error::Result;

static KERNELS: Module = kernels!("linear");
/// Rows up to which Kiln's kernel runs, which reads the weights once at memory bandwidth: time embeddings have one row.
const FEW_ROWS: usize = 4;
const THREADS: u32 = 128;

/// Launches the product on the device's stream. Returns `false` where neither the kernel nor cuBLASLt can compute it.
///
/// # Safety
/// See [`CublasLt::launch`](super::cublaslt::CublasLt::launch).
pub(crate) unsafe fn launch(
    op: &'static str,
    device: &CudaDevice,
    product: Product,
    addresses: Addresses,
) -> Result<bool> {
    if product.m == 0 || product.n == 0 || product.k == 0 {
        return Ok(false);
    }
    let is_plain = !product.gelu && product.y_row == product.n;
    if product.m <= FEW_ROWS && is_plain {
        // SAFETY: by the contract of this function.
        return unsafe { few_rows(op, device, product, addresses) }.map(|()| true);
    }
    libraries::with(device, |libraries| {
        let workspace = libraries.workspace(device)?;
        let stream = device.cuda_stream();
        // SAFETY: by the contract of this function; workspace and stream are the device's own.
        unsafe { libraries.blas.launch(product, addresses, workspace, stream.cu_stream().cast()) }
    })
}

/// Launches a product of operands in e4m3 on the device's stream, with the addresses of the scales of the rows of `x` and of the
/// weight. Returns `false` where cuBLASLt cannot compute it.
///
/// # Safety
/// See [`CublasLt::launch_e4m3`](super::cublaslt::CublasLt::launch_e4m3).
pub(crate) unsafe fn launch_e4m3(
    device: &CudaDevice,
    product: Product,
    addresses: Addresses,
    scales: [u64; 2],
) -> Result<bool> {
    libraries::with(device, |libraries| {
        let workspace = libraries.workspace(device)?;
        let stream = device.cuda_stream().cu_stream().cast();
        // SAFETY: by the contract of this function; workspace and stream are the device's own.
        unsafe { libraries.blas.launch_e4m3(product, addresses, scales, workspace, stream) }
    })
}

/// # Safety
/// See [`launch`].
unsafe fn few_rows(op: &'static str, device: &CudaDevice, product: Product, addresses: Addresses) -> Result<()> {
    let Product { m, n, k, dtype, .. } = product;
    let Addresses { x, weight, bias, residual, y } = addresses;
    let vectored = i32::from(is_vectored(&[x, weight], k, dtype.size_in_bytes()));
    let (bias, residual) = (bias.unwrap_or(0), residual.unwrap_or(0));
    let (m, n_argument, k) = (count(op, m)?, count(op, n)?, count(op, k)?);
    let kernel = KERNELS.typed(device, "linear_few_rows", dtype)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&x).arg(&weight).arg(&bias).arg(&residual).arg(&y).arg(&m).arg(&n_argument).arg(&k).arg(&vectored);
    // SAFETY: the arguments match the kernel's parameters. It reads and writes whole operands of these shapes, never an
    // absent one (address 0), and 16 bytes at a time only where every row is aligned to them.
    unsafe { launch.launch(grid(n.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(driver)?;
    Ok(())
}
