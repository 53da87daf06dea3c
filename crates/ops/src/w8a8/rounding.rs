//! Activations in bytes on GPUs: an operator's result is rounded by the kernel that computes it.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use super::activated::{Activated, Hidden};
use super::cuda::KERNELS;
use super::source::Source;
use super::{ALIGNMENT, ByteNumber, PARTS};
use crate::activation::Activation;
use crate::cuda;
use crate::error::Result;
use crate::group_norm::cuda as group_norm;

/// Threads of the rounding kernels.
const THREADS: u32 = 128;

/// A rounded activation: its bytes, and one scale in f32 for each pixel or each image.
pub(crate) struct Rounded {
    pub(crate) bytes: Tensor,
    pub(crate) scales: Tensor,
}

impl Rounded {
    /// Uninitialized memory for `bytes` elements and `scales` scales.
    pub(crate) fn new(op: &'static str, bytes: usize, scales: usize, device: &CudaDevice) -> Result<Self> {
        let bytes = cuda::output(op, None, &[bytes], DType::U8, &[], device)?;
        Ok(Self { bytes, scales: cuda::output(op, None, &[scales], DType::F32, &[], device)? })
    }
}

impl Source<'_> {
    /// The activation in bytes: each of the `b` images of `[h, w, c]`, or each pixel, by its own scale. `None` if there is no
    /// kernel.
    pub(super) fn round(
        &self,
        op: &'static str,
        number: ByteNumber,
        [b, h, w, c]: [usize; 4],
        is_by_pixel: bool,
        device: &CudaDevice,
    ) -> Result<Option<Rounded>> {
        let dtype = self.input().dtype();
        let operand = |tensor: &Tensor| aligned(&cuda::operand(tensor, dtype)?);
        let call = Call { op, number, device };
        match *self {
            Self::Plain(x) if is_by_pixel => call.rows(&operand(x)?, [b * h * w, c]).map(Some),
            Self::Plain(x) => call.images(&operand(x)?, [b, h * w * c]).map(Some),
            Self::LayerNorm { x, gamma, beta, eps } => {
                call.layer_norm_rows([operand(x)?, operand(gamma)?, operand(beta)?], eps, [b * h * w, c])
            }
            Self::Geglu(x) => {
                let x = operand(x)?;
                let (values, row) = (cuda::address(&x)?, 2 * c);
                let gates = values + (c * dtype.size_in_bytes()) as u64;
                let rows = HiddenRows { before: 0, first: 0, gates, values, row, function: Activation::GeluErf };
                call.activated_rows(rows, dtype, [b * h * w, c]).map(Some)
            }
            Self::Activated(input) => call.activated(input, [b * h * w, c]),
            Self::GroupNorm { .. } if number != ByteNumber::E4m3 => Ok(None),
            Self::GroupNorm { x, gamma, beta, config } => {
                group_norm::rounded([operand(x)?, operand(gamma)?, operand(beta)?], config, [b, c], device)
            }
        }
    }
}

/// The tensor, or a copy where its address does not allow accesses of 16 bytes.
pub(super) fn aligned(tensor: &Tensor) -> Result<Tensor> {
    match cuda::address(tensor)?.is_multiple_of(ALIGNMENT as u64) {
        true => Ok(tensor.clone()),
        false => crate::copy(tensor),
    }
}

/// Rows at one distance, which is returned, in place if kernels can read vectors of 8 of them, or else copied.
fn rows_in_place(x: &Tensor, dtype: DType) -> Result<(Tensor, usize)> {
    let in_place = cuda::row_distance(x).filter(|row| x.dtype() == dtype && row.is_multiple_of(8));
    match in_place {
        Some(row) if cuda::start(x)?.is_multiple_of(ALIGNMENT as u64) => Ok((x.clone(), row)),
        _ => {
            let x = aligned(&cuda::operand(x, dtype)?)?;
            let row = x.dims().last().copied().unwrap_or(1);
            Ok((x, row))
        }
    }
}

/// The operands of an activation before a product, as addresses of rows.
#[derive(Clone, Copy)]
struct HiddenRows {
    /// Rows of `first` channels before those of the activation. 0 if there are none.
    before: u64,
    first: usize,
    /// The gates, or the input of an activation without gates.
    gates: u64,
    /// 0 if there are no gates.
    values: u64,
    /// The distance of rows of gates and of values in elements.
    row: usize,
    function: Activation,
}

/// Launches of the rounding kernels.
struct Call<'a> {
    op: &'static str,
    number: ByteNumber,
    device: &'a CudaDevice,
}

impl Call<'_> {
    fn kernel(&self, name: &str, dtype: DType) -> Result<CudaFunction> {
        KERNELS.typed(self.device, &format!("w8a8_{name}_{}", self.number), dtype)
    }

    /// `x` `(rows, c)`, each row by its own scale.
    fn rows(&self, x: &Tensor, [rows, c]: [usize; 2]) -> Result<Rounded> {
        let Self { op, device, .. } = *self;
        let Rounded { bytes, scales } = Rounded::new(op, rows * c, rows, device)?;
        let kernel = self.kernel("round_rows", x.dtype())?;
        let (from, to, scales_at) = (cuda::address(x)?, cuda::address(&bytes)?, cuda::address(&scales)?);
        let (row_count, columns) = (cuda::count(op, rows)?, cuda::count(op, c)?);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&scales_at).arg(&row_count).arg(&columns);
        // SAFETY: the arguments match the kernel's parameters. Each warp reads a row of `c` elements, 8 of them at a time, which
        // are aligned since `c` and the address are multiples of 16 bytes, and writes its bytes and its scale.
        unsafe { launch.launch(cuda::grid(rows.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Rounded { bytes, scales })
    }

    /// The normalized rows of `x` `(rows, c)`, each by its own scale. `None` for rows that do not fit the registers of a warp.
    fn layer_norm_rows(
        &self,
        [x, gamma, beta]: [Tensor; 3],
        eps: f64,
        [rows, c]: [usize; 2],
    ) -> Result<Option<Rounded>> {
        let Self { op, device, .. } = *self;
        // By the vectors of 8 elements of each lane.
        let kernels = [(3, "layer_norm_rows_3"), (5, "layer_norm_rows_5"), (10, "layer_norm_rows_10")];
        let Some((_, name)) = kernels.into_iter().find(|(vectors, _)| c <= vectors * 256) else { return Ok(None) };
        let rounded = Rounded::new(op, rows * c, rows, device)?;
        let kernel = self.kernel(name, x.dtype())?;
        let [from, scale, shift] = [cuda::address(&x)?, cuda::address(&gamma)?, cuda::address(&beta)?];
        let (to, scales_at) = (cuda::address(&rounded.bytes)?, cuda::address(&rounded.scales)?);
        let (row_count, columns, eps) = (cuda::count(op, rows)?, cuda::count(op, c)?, eps as f32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&scale).arg(&shift).arg(&to).arg(&scales_at).arg(&row_count).arg(&columns).arg(&eps);
        // SAFETY: as for `round_rows`; gamma and beta have `c` elements at aligned addresses.
        unsafe { launch.launch(cuda::grid(rows.div_ceil(THREADS as usize / 32), THREADS)?) }.map_err(cuda::driver)?;
        Ok(Some(rounded))
    }

    /// The input of a linear layer after an activation, `rows` of `c` channels, each row by its own scale. `None` if the first
    /// channels are not vectors of 8.
    fn activated(&self, input: Activated<&Tensor>, [rows, c]: [usize; 2]) -> Result<Option<Rounded>> {
        let dtype = input.hidden.first().dtype();
        let size = dtype.size_in_bytes();
        let before = input.before.map(|before| aligned(&cuda::operand(before, dtype)?)).transpose()?;
        let first = before.as_ref().and_then(|before| before.dims().last().copied()).unwrap_or(0);
        if !first.is_multiple_of(8) {
            return Ok(None);
        }
        let (tensors, values) = match input.hidden {
            Hidden::Plain(x) => (vec![rows_in_place(x, dtype)?], 0),
            Hidden::Joint(x) => {
                let x = rows_in_place(x, dtype)?;
                let values = cuda::start(&x.0)? + ((c - first) * size) as u64;
                (vec![x], values)
            }
            Hidden::Separate { gates, values } => {
                let operand = |x: &Tensor| aligned(&cuda::operand(x, dtype)?);
                let (gates, values) = (operand(gates)?, operand(values)?);
                let at = cuda::address(&values)?;
                (vec![(gates, c - first), (values, c - first)], at)
            }
        };
        let (gates, row) = &tensors[0];
        let before = before.as_ref().map_or(Ok(0), cuda::address)?;
        let rows_of =
            HiddenRows { before, first, gates: cuda::start(gates)?, values, row: *row, function: input.function };
        self.activated_rows(rows_of, dtype, [rows, c]).map(Some)
    }

    /// [`Call::activated`] of memory in the kernel's format.
    fn activated_rows(&self, from: HiddenRows, dtype: DType, [rows, c]: [usize; 2]) -> Result<Rounded> {
        let Self { op, device, .. } = *self;
        let rounded = Rounded::new(op, rows * c, rows, device)?;
        let kernel = self.kernel("activated_rows", dtype)?;
        let (to, scales_at) = (cuda::address(&rounded.bytes)?, cuda::address(&rounded.scales)?);
        let HiddenRows { before, first, gates, values, row, function } = from;
        let (first, row, columns) = (cuda::count(op, first)?, cuda::count(op, row)?, cuda::count(op, c)?);
        let function = function.number();
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&before).arg(&gates).arg(&values).arg(&to).arg(&scales_at);
        launch.arg(&first).arg(&columns).arg(&row).arg(&function);
        // A thread keeps 4 vectors of 8 channels.
        let threads = if c <= 2 * THREADS as usize * 32 { 2 * THREADS } else { 4 * THREADS };
        // SAFETY: the arguments match the kernel's parameters. Each block reads a row of each operand, 8 elements at a time, which are
        // aligned since rows and addresses are multiples of 16 bytes, and writes `c` bytes and a scale. The caller keeps the operands.
        unsafe { launch.launch(cuda::grid(rows, threads)?) }.map_err(cuda::driver)?;
        Ok(rounded)
    }

    /// `x`, `images` of `size` elements, each image by its own scale.
    fn images(&self, x: &Tensor, [images, size]: [usize; 2]) -> Result<Rounded> {
        let Self { op, device, .. } = *self;
        let Rounded { bytes, scales } = Rounded::new(op, images * size, images, device)?;
        let most = cuda::output(op, None, &[images, PARTS], DType::F32, &[], device)?;
        let (from, to, scales_at) = (cuda::address(x)?, cuda::address(&bytes)?, cuda::address(&scales)?);
        let (most_at, elements, parts) = (cuda::address(&most)?, cuda::count(op, size)?, PARTS as i32);
        let stream = device.cuda_stream();
        let grid = |blocks: usize| -> Result<LaunchConfig> {
            let grid_dim = (cuda::count(op, blocks)? as u32, cuda::count(op, images)? as u32, 1);
            Ok(LaunchConfig { grid_dim, ..cuda::grid(1, 2 * THREADS)? })
        };
        let kernel = self.kernel("most", x.dtype())?;
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&most_at).arg(&elements);
        // SAFETY: the arguments match the kernel's parameters. The blocks in x are the parts of an image, the blocks in y images:
        // each reads elements of its image, 8 at a time, which are aligned since channels are multiples of 16, and writes a number.
        unsafe { launch.launch(grid(PARTS)?) }.map_err(cuda::driver)?;
        let kernel = self.kernel("round_images", x.dtype())?;
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&most_at).arg(&parts).arg(&to).arg(&scales_at).arg(&elements);
        let blocks = (size / 8).div_ceil(2 * THREADS as usize * 4).min(512);
        // SAFETY: as above; all blocks of an image read its parts, and together they write its bytes, the first one its scale.
        unsafe { launch.launch(grid(blocks)?) }.map_err(cuda::driver)?;
        Ok(Rounded { bytes, scales })
    }
}
