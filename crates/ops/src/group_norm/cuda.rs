//! Group normalization on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use super::moments::{AddMoments, Apply};
use super::workspace::{MAX_PARTS, PART, WHOLE};
use super::{Call, GroupNorm, OP};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Module};
use crate::error::Result;
use crate::w8a8::rounding::Rounded;

static KERNELS: Module = cuda::kernels!("group_norm");

/// Elements of an image that a block of the second launch normalizes, if that results in at most [`MAX_BLOCKS`] blocks.
const BLOCK: usize = 16 << 10;
/// Blocks of the second launch for an image: two images then fill an H200. Each block reads all parts.
const MAX_BLOCKS: usize = 256;
/// Threads of a block, unless the channels of a pixel need more.
const THREADS: usize = 512;
/// Threads of a block at most.
const MAX_THREADS: usize = 1024;
/// Shared memory of a block without opt-in, in bytes.
const MAX_SHARED: usize = 48 << 10;

/// `Norm` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Norm {
    /// Pixels of `x`.
    pixels: i32,
    /// Pixels of the statistics: those of `x`, unless it is a strip.
    total: i32,
    c: i32,
    groups: i32,
    silu: i32,
    eps: f32,
}

// `kernel.cu` asserts the same size.
const _: () = assert!(size_of::<Norm>() == 24);

// SAFETY: the struct has the layout of the kernels' struct: five integers and a float, without padding.
unsafe impl DeviceRepr for Norm {}

impl Norm {
    fn new(config: GroupNorm, c: usize, pixels: usize, total: usize) -> Result<Self> {
        Ok(Self {
            pixels: cuda::count(OP, pixels)?,
            total: cuda::count(OP, total)?,
            c: cuda::count(OP, c)?,
            groups: cuda::count(OP, config.num_groups)?,
            silu: i32::from(config.silu),
            eps: config.eps as f32,
        })
    }
}

/// Addresses of the operands.
#[derive(Clone, Copy)]
struct Addresses {
    x: u64,
    gamma: u64,
    beta: u64,
    y: u64,
}

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gamma, beta, config, shape: (b, c) } = *self;
        let dtype = x.dtype();
        let pixels = x.elem_count() / (b * c).max(1);
        let width = c / config.num_groups;
        let (input, gamma, beta) =
            (cuda::operand(x, dtype)?, cuda::operand(gamma, dtype)?, cuda::operand(beta, dtype)?);
        let y = cuda::output(OP, out, x.dims(), dtype, &[x, &gamma, &beta], device)?;
        let addresses = Addresses {
            x: cuda::address(&input)?,
            gamma: cuda::address(&gamma)?,
            beta: cuda::address(&beta)?,
            y: cuda::address(&y)?,
        };
        let lanes = |channels: usize| lanes(&[addresses.x, addresses.y], channels, dtype);
        let norm = Norm::new(config, c, pixels, pixels)?;
        if pixels * width <= WHOLE {
            whole(device, addresses, norm, b * config.num_groups, lanes(width), dtype)?;
        } else if let Some(split) = Split::of(pixels, c, lanes(c), dtype) {
            split.launch(device, addresses, norm, b, dtype)?;
        } else {
            return Ok(None); // more channels than a block has threads; no known network has them
        }
        Ok(Some(y))
    }
}

/// The moments of some pixels, `x` `(1, .., c)`, joined with those of the pixels in `before`.
impl Kernel<Cuda> for AddMoments<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, config, c, before } = *self;
        let (dtype, pixels) = (x.dtype(), x.elem_count() / c.max(1));
        let input = cuda::operand(x, dtype)?;
        let address = cuda::address(&input)?;
        let Some(split) = Split::of(pixels, c, lanes(&[address], c, dtype), dtype) else { return Ok(None) };
        let (before, pixels_before) = before.unzip();
        let pixels_before = cuda::count(OP, pixels_before.unwrap_or(0))?;
        let norm = Norm::new(config, c, pixels, pixels)?;
        let parts = split.moments(device, address, norm, 1, dtype)?;
        let moments = cuda::output(OP, out, &[config.num_groups, 2], DType::F32, &[], device)?;
        let (parts_at, before_at) = (cuda::address(&parts)?, before.map_or(Ok(0), cuda::address)?);
        let moments_at = cuda::address(&moments)?;
        let kernel = KERNELS.function(device, "group_norm_join")?;
        let (num_parts, pixels_of_part) = (split.parts as i32, split.pixels_of_part as i32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&parts_at).arg(&before_at).arg(&moments_at).arg(&norm);
        launch.arg(&num_parts).arg(&pixels_of_part).arg(&pixels_before);
        // SAFETY: the arguments match the kernel's parameters. Each block, one warp, reads the parts of a group and its
        // earlier moments, if there are some, and writes its moments.
        unsafe { launch.launch(cuda::grid(config.num_groups, 32)?) }.map_err(cuda::driver)?;
        Ok(Some(moments))
    }
}

/// Normalizes `x` `(1, .., c)` by the moments of `total` pixels.
impl Kernel<Cuda> for Apply<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gamma, beta, moments: (moments, total), config } = *self;
        let (dtype, c) = (x.dtype(), gamma.elem_count());
        let pixels = x.elem_count() / c.max(1);
        let (input, gamma, beta) =
            (cuda::operand(x, dtype)?, cuda::operand(gamma, dtype)?, cuda::operand(beta, dtype)?);
        let y = cuda::output(OP, out, x.dims(), dtype, &[x, &gamma, &beta], device)?;
        let addresses = Addresses {
            x: cuda::address(&input)?,
            gamma: cuda::address(&gamma)?,
            beta: cuda::address(&beta)?,
            y: cuda::address(&y)?,
        };
        let lanes = lanes(&[addresses.x, addresses.y], c, dtype);
        let Some(split) = Split::of(pixels, c, lanes, dtype) else { return Ok(None) };
        let joined = Split { parts: 1, pixels_of_part: total, ..split };
        joined.apply(device, addresses, Norm::new(config, c, pixels, total)?, 1, dtype, cuda::address(moments)?)?;
        Ok(Some(y))
    }
}

/// The normalized `b` images of `c` channels in e4m3, by the scale that `bound` gives, which every image has. `None` for more
/// channels than a block can process.
pub(crate) fn rounded(
    [x, gamma, beta]: [Tensor; 3],
    config: GroupNorm,
    [b, c]: [usize; 2],
    device: &CudaDevice,
) -> Result<Option<Rounded>> {
    let (dtype, pixels) = (x.dtype(), x.elem_count() / (b * c).max(1));
    let Some(split) = Split::of(pixels, c, lanes(&[cuda::address(&x)?], c, dtype), dtype) else { return Ok(None) };
    if split.lanes != 8 {
        return Ok(None);
    }
    let norm = Norm::new(config, c, pixels, pixels)?;
    let parts = split.moments(device, cuda::address(&x)?, norm, b, dtype)?;
    let rounded = Rounded::new(OP, x.elem_count(), b, device)?;
    let kernel = KERNELS.typed(device, "group_norm_apply_e4m3", dtype)?;
    let [from, scale, shift] = [cuda::address(&x)?, cuda::address(&gamma)?, cuda::address(&beta)?];
    let [parts_at, to, scales_at] =
        [cuda::address(&parts)?, cuda::address(&rounded.bytes)?, cuda::address(&rounded.scales)?];
    let (num_parts, pixels_of_part) = (split.parts as i32, split.pixels_of_part as i32);
    let (pixels_of_block, rows) = (split.pixels_of_block as i32, split.rows as i32);
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&from).arg(&scale).arg(&shift).arg(&parts_at).arg(&to).arg(&norm);
    launch.arg(&num_parts).arg(&pixels_of_part).arg(&pixels_of_block).arg(&rows).arg(&scales_at);
    let shared = 2 * config.num_groups * size_of::<f32>();
    // SAFETY: as in `Split::apply`, with one byte for each element and one scale for each image.
    unsafe { launch.launch(split.config(split.blocks, b, shared)?) }.map_err(cuda::driver)?;
    Ok(Some(rounded))
}

/// Elements of a group, or of a pixel, of `channels` channels, that can be accessed as one vector.
fn lanes(addresses: &[u64], channels: usize, dtype: DType) -> usize {
    cuda::unit(addresses, &[channels * dtype.size_in_bytes()]) / dtype.size_in_bytes()
}

/// One block for every group of every image. `lanes` elements are accessed as one vector.
fn whole(
    device: &CudaDevice,
    addresses: Addresses,
    norm: Norm,
    groups: usize,
    lanes: usize,
    dtype: DType,
) -> Result<()> {
    let kernel = KERNELS.typed(device, &format!("group_norm_whole_{lanes}"), dtype)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&addresses.x).arg(&addresses.gamma).arg(&addresses.beta).arg(&addresses.y).arg(&norm);
    let vectors = norm.pixels as usize * (norm.c / norm.groups) as usize / lanes;
    let threads = vectors.next_multiple_of(32).min(THREADS) as u32;
    // SAFETY: the arguments match the kernel's parameters. Its blocks access the elements of their group; the tensors
    // outlive the launch, and `lanes` divides the width of a group and the addresses.
    unsafe { launch.launch(cuda::grid(groups, threads)?) }.map_err(cuda::driver)?;
    Ok(())
}

/// The distribution of an image's pixels over blocks.
struct Split {
    /// Elements that are accessed as one vector.
    lanes: usize,
    /// Pixels that a block processes at a time.
    rows: usize,
    /// Threads of a block: those of the rows, rounded up to whole warps.
    threads: u32,
    pixels_of_part: usize,
    parts: usize,
    pixels_of_block: usize,
    blocks: usize,
    /// Shared memory of the first launch in bytes.
    shared: usize,
}

impl Split {
    /// The distribution for images of `pixels` pixels with `c` channels, `lanes` of which can be accessed as one
    /// vector. `None` where a pixel has more channels than a block can process.
    fn of(pixels: usize, c: usize, lanes: usize, dtype: DType) -> Option<Self> {
        let lanes = if lanes * dtype.size_in_bytes() == 16 { lanes } else { 1 }; // only these kernels exist
        let vectors = c / lanes;
        if vectors > MAX_THREADS {
            return None;
        }
        let shared = |rows: usize| (2 * rows + 2) * c * size_of::<f32>();
        let mut rows = (THREADS / vectors).max(1);
        while rows > 1 && shared(rows) > MAX_SHARED {
            rows -= 1;
        }
        let pixels_of_part = (PART / c).max(rows).max(pixels.div_ceil(MAX_PARTS));
        let pixels_of_block = (BLOCK / c).max(rows).max(pixels.div_ceil(MAX_BLOCKS));
        Some(Self {
            lanes,
            rows,
            threads: (rows * vectors).next_multiple_of(32) as u32,
            pixels_of_part,
            parts: pixels.div_ceil(pixels_of_part),
            pixels_of_block,
            blocks: pixels.div_ceil(pixels_of_block),
            shared: shared(rows),
        })
        .filter(|split| split.shared <= MAX_SHARED)
    }

    fn launch(&self, device: &CudaDevice, addresses: Addresses, norm: Norm, b: usize, dtype: DType) -> Result<()> {
        let parts = self.moments(device, addresses.x, norm, b, dtype)?;
        self.apply(device, addresses, norm, b, dtype, cuda::address(&parts)?)
    }

    fn config(&self, blocks: usize, b: usize, shared: usize) -> Result<LaunchConfig> {
        let grid_dim = (cuda::count(OP, blocks)? as u32, cuda::count(OP, b)? as u32, 1);
        Ok(LaunchConfig { grid_dim, block_dim: (self.threads, 1, 1), shared_mem_bytes: shared as u32 })
    }

    /// A mean and a sum of squared differences for every image, group and part.
    fn moments(&self, device: &CudaDevice, x: u64, norm: Norm, b: usize, dtype: DType) -> Result<Tensor> {
        let kernel = KERNELS.typed(device, &format!("group_norm_moments_{}", self.lanes), dtype)?;
        let parts = cuda::output(OP, None, &[b, norm.groups as usize, self.parts, 2], DType::F32, &[], device)?;
        let parts_at = cuda::address(&parts)?;
        let (pixels_of_part, rows) = (self.pixels_of_part as i32, self.rows as i32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&x).arg(&parts_at).arg(&norm).arg(&pixels_of_part).arg(&rows);
        // SAFETY: the arguments match the kernel's parameters. Its blocks read the pixels of their part and write one
        // entry of `parts` for each group; the tensors outlive the launch, and `lanes` divides the channels of a pixel.
        unsafe { launch.launch(self.config(self.parts, b, self.shared)?) }.map_err(cuda::driver)?;
        Ok(parts)
    }

    /// Joins the parts at `parts` and normalizes the pixels.
    fn apply(
        &self,
        device: &CudaDevice,
        Addresses { x, gamma, beta, y }: Addresses,
        norm: Norm,
        b: usize,
        dtype: DType,
        parts: u64,
    ) -> Result<()> {
        let kernel = KERNELS.typed(device, &format!("group_norm_apply_{}", self.lanes), dtype)?;
        let (num_parts, pixels_of_part) = (self.parts as i32, self.pixels_of_part as i32);
        let (pixels_of_block, rows) = (self.pixels_of_block as i32, self.rows as i32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&x).arg(&gamma).arg(&beta).arg(&parts).arg(&y).arg(&norm);
        launch.arg(&num_parts).arg(&pixels_of_part).arg(&pixels_of_block).arg(&rows);
        let shared = 2 * norm.groups as usize * size_of::<f32>();
        // SAFETY: as in `moments`. An earlier launch on the same stream has written the parts, and they are freed in
        // that stream's order.
        unsafe { launch.launch(self.config(self.blocks, b, shared)?) }.map_err(cuda::driver)?;
        Ok(())
    }
}
