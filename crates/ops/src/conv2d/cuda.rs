//! Convolution on GPUs.
//!
//! A 1x1 convolution is a matrix product. Others run through cuDNN. If cuDNN has no engine or is not installed, Hopper runs
//! those of stride 1 whose result has the size of their input in a kernel of its own (`hopper_product.cuh`). All others, those in
//! f32, and those of few pixels gather the windows into a matrix, which a product then reads (im2col). This is faster
//! for few pixels, because cuDNN's engines leave most of the GPU idle there, while a product splits its long sums over
//! the GPU (SD1.5's 8x8 maps on an H200: 17 us against 24). Convolutions with up to 8 output channels, the last layers,
//! have a kernel of their own (SD1.5's last layer: 11 us against 22).
//!
//! A bias of each image, as SDXL's embeddings are and those of images at different timesteps, is added by Hopper's kernel. On other GPUs
//! one more kernel adds it to the result.
//!
//! Hopper's kernel is as fast as cuDNN over U-Nets, and slower for the large maps of VAEs (one H200, driver 580.159, 2026-11-28,
//! f16, in turns; cuDNN computed in both columns what the kernel does not):
//!
//! | | cuDNN | Hopper's kernel |
//! | --- | ---: | ---: |
//! | SD 1.5, 512x512: guided step | 5.4 ms | 5.4 ms |
//! | decoding | 5.45 ms | 6.2 ms |
//! | SDXL, 1024x1024: guided step | 28.85 ms | 28.8 ms |
//! | decoding, bf16 | 20.4 ms | 23.0 ms |
//!
//! Linear layers without GEGLU ([`crate::linear_geglu()`]) stay in cuBLASLt: by this kernel the step of SD 1.5 takes 6.4 ms, that of SDXL 32.4 ms.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::{DevicePtr, PushKernelArg};
use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Tensor};

use super::fused::{Conv2dEpilogue, FusedCall, FusedConv2d, Slope};
use super::workspace::{FEW_CHANNELS, FEW_PIXELS, WINDOWS};
use super::{Call, Conv2d, Conv2dInputs, OP, Shapes};
use crate::backend::{Cuda, Kernel};
use crate::cuda::{self, Addresses, Convolution, ImageOperands, ImageProduct, Module, Product, hopper};
use crate::error::Result;
use crate::packing::WeightLayout;
use crate::w8a8::cuda as w8a8;
use crate::w8a8::source::Source;

static KERNELS: Module = cuda::kernels!("conv2d");

impl Kernel<Cuda> for Call<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        conv2d(self.inputs, self.config, self.shapes, out, device)
    }
}

impl Kernel<Cuda> for FusedCall<'_> {
    /// The convolution of the concatenated parts, and one kernel over its result. An addend alone is the convolution's own
    /// residual.
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let FusedConv2d { parts, weight, bias, epilogue } = self.inputs;
        let joined;
        let x = match parts {
            [one] => *one,
            parts => {
                joined = Tensor::cat(parts, 3)?;
                &joined
            }
        };
        let residual = match epilogue {
            Conv2dEpilogue { scale: 1.0, addends: [Some((1.0, only)), None], slope: Slope::Linear } => Some(only),
            _ => None,
        };
        let is_plain = matches!(epilogue, Conv2dEpilogue { scale: 1.0, addends: [None, None], slope: Slope::Linear });
        let inputs = Conv2dInputs { x, weight, bias, image_bias: None, residual };
        let y = conv2d(inputs, self.config, self.shapes, out, device)?;
        match y {
            Some(y) if residual.is_none() && !is_plain => launch_epilogue(epilogue, &y, device).map(|()| Some(y)),
            done => Ok(done),
        }
    }
}

/// `y = slope(scale y + factor_0 addend_0 + factor_1 addend_1)`, in place.
fn launch_epilogue(epilogue: Conv2dEpilogue<'_>, y: &Tensor, device: &CudaDevice) -> Result<()> {
    const THREADS: u32 = 256;
    let Conv2dEpilogue { scale, addends, slope } = epilogue;
    let dtype = y.dtype();
    let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
    let addends = [addends[0], addends[1]].map(|addend| addend.map(|(factor, map)| (factor, operand(map))));
    let [first, second] = addends.map(|addend| match addend {
        Some((factor, map)) => map.map(|map| (factor, Some(map))),
        None => Ok((0.0, None)),
    });
    let ((first_factor, first), (second_factor, second)) = (first?, second?);
    let (constant, slopes) = match slope {
        Slope::Linear => (1.0, None),
        Slope::Constant(slope) => (slope, None),
        Slope::Channels(slopes) => (1.0, Some(operand(slopes)?)),
    };
    let address = |tensor: &Option<Tensor>| tensor.as_ref().map_or(Ok(0), cuda::address);
    let [first, second, slopes] = [address(&first)?, address(&second)?, address(&slopes)?];
    let (at, n, size) = (cuda::address(y)?, y.elem_count(), dtype.size_in_bytes());
    let vectored = i32::from(cuda::is_vectored(&[at, first, second], n, size));
    let channels = cuda::count(OP, y.dim(3)?)?;
    let kernel = KERNELS.typed(device, "conv2d_epilogue", dtype)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    let elements = n as i64;
    launch.arg(&at).arg(&elements).arg(&channels).arg(&scale).arg(&first_factor).arg(&first);
    launch.arg(&second_factor).arg(&second).arg(&constant).arg(&slopes).arg(&vectored);
    let lanes = THREADS as usize * (16 / size);
    // SAFETY: the arguments match the kernel's parameters. It changes the `n` elements of `y` in place, reads as many of each
    // addend and one slope for each channel; all outlive the launch. `is_vectored` allows 16 bytes at a time.
    unsafe { launch.launch(cuda::grid(n.div_ceil(lanes), THREADS)?) }.map_err(cuda::driver)?;
    Ok(())
}

fn conv2d(
    inputs: Conv2dInputs<'_>,
    config: Conv2d,
    shapes: Shapes,
    out: Option<&Tensor>,
    device: &CudaDevice,
) -> Result<Option<Tensor>> {
    let Conv2dInputs { x, weight, bias, image_bias, residual } = inputs;
    if weight.as_w8().is_some() {
        let Shapes { b, h, w, c_in, kh, kw, h_out, w_out, pad_top, .. } = shapes;
        if config.stride != 1 || [h_out, w_out] != [h, w] || kh * kw == 1 && config != Conv2d::same(1) {
            return Ok(None);
        }
        let (shape, pad) = ([b, h, w, c_in], [pad_top, config.pad_before]);
        let source = Source::Plain(x);
        let product = w8a8::Product { op: OP, source, shape, weight, bias, image_bias, residual, pad };
        return product.launch(device, &shapes.result(), out);
    }
    if weight.layout() != Some(WeightLayout::Plain) {
        return Ok(None);
    }
    let Shapes { b, h, w, c_in, kh, kw, h_out, w_out, c_out, pad_top, pad_bottom, .. } = shapes;
    let dtype = x.dtype();
    let operand = |tensor: &Tensor| cuda::operand(tensor, dtype);
    // One for all images is part of the bias.
    let (image_bias, of_all) = match image_bias {
        Some(image_bias) if image_bias.dims()[0] > 1 => (Some(operand(image_bias)?), None), // (b, c_out)
        Some(of_all) => (None, Some(operand(&of_all.flatten_all()?)?)),                     // (c_out)
        None => (None, None),
    };
    let bias = match (bias.map(operand).transpose()?, of_all) {
        (Some(bias), Some(of_all)) => Some(crate::arithmetic(crate::Arithmetic::Add, &bias, &of_all)?),
        (bias, of_all) => bias.or(of_all),
    };
    let (input, kernel) = (operand(x)?, operand(weight.tensor())?);
    let residual = residual.map(operand).transpose()?;
    let mut operands = vec![&input, &kernel];
    operands.extend([&bias, &image_bias, &residual].into_iter().flatten());
    let y = cuda::output(OP, out, &shapes.result(), dtype, &operands, device)?;
    let addresses = Addresses {
        x: cuda::address(&input)?,
        weight: cuda::address(&kernel)?,
        bias: bias.as_ref().map(cuda::address).transpose()?,
        residual: residual.as_ref().map(cuda::address).transpose()?,
        y: cuda::address(&y)?,
    };
    let Conv2d { stride, pad_before, pad_after } = config;
    let pixels = b * h_out * w_out;
    let convolution = Convolution {
        x: [b, h, w, c_in],
        weight: weight.shape(),
        y: shapes.result(),
        stride,
        pad_before: [pad_top, pad_before],
        pad_after: [pad_bottom, pad_after],
        dtype,
        bias: bias.is_some(),
        residual: residual.is_some(),
    };
    let of_images = image_bias.as_ref().map(cuda::address).transpose()?;
    // SAFETY: the operands have been checked to have these shapes, are contiguous and of this type, and outlive the
    // launch; they are freed in the order of the device's stream.
    unsafe {
        // Hopper's kernel alone takes a bias of each image.
        if of_images.is_some() && through_hopper(device, convolution, addresses, of_images)? {
            return Ok(Some(y));
        }
        let done = if (kh, kw, stride, pad_before, pad_after) == (1, 1, 1, 0, 0) {
            cuda::product(OP, device, Product::new([pixels, c_out, c_in], dtype), addresses)?
        } else {
            through_few_channels(device, convolution, addresses)?
                || (pixels > FEW_PIXELS
                    && (through_cudnn(device, convolution, addresses)?
                        || through_hopper(device, convolution, addresses, None)?))
                || through_windows(device, convolution, addresses)?
        };
        if let Some(of_images) = of_images.filter(|_| done) {
            add_image_bias(&y, of_images, device)?;
        }
        Ok(done.then_some(y))
    }
}

/// Adds a bias of each image to the result `y` `(b, h, w, c)`, in place.
///
/// # Safety
/// `image_bias` is the address of `(b, c)` numbers of the result's type on this device.
unsafe fn add_image_bias(y: &Tensor, image_bias: u64, device: &CudaDevice) -> Result<()> {
    const THREADS: u32 = 256;
    let (b, h, w, c) = y.dims4()?;
    let (at, of_image, channels) = (cuda::address(y)?, (h * w * c) as i64, cuda::count(OP, c)?);
    let size = y.dtype().size_in_bytes();
    let vectored = i32::from(cuda::is_vectored(&[at, image_bias], c, size));
    let kernel = KERNELS.typed(device, "conv2d_image_bias", y.dtype())?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    let elements = b as i64 * of_image;
    launch.arg(&at).arg(&image_bias).arg(&elements).arg(&of_image).arg(&channels).arg(&vectored);
    let lanes = THREADS as usize * (16 / size);
    // SAFETY: the arguments match the kernel's parameters. It changes the elements of `y` in place and reads the `(b, c)` numbers of
    // the bias; both outlive the launch. `is_vectored` allows 16 bytes at a time.
    unsafe { launch.launch(cuda::grid((elements as usize).div_ceil(lanes), THREADS)?) }.map_err(cuda::driver)?;
    Ok(())
}

/// # Safety
/// The addresses are those of contiguous operands of the convolution's type and shapes on this device.
unsafe fn through_few_channels(device: &CudaDevice, convolution: Convolution, addresses: Addresses) -> Result<bool> {
    let Convolution { x: [.., c_in], weight: [c_out, ..], y: [b, h_out, w_out, _], dtype, .. } = convolution;
    let Addresses { x, weight, bias, residual, y } = addresses;
    let vectored = cuda::is_vectored(&[x, weight], 1, 16) && c_in.is_multiple_of(32);
    if dtype == DType::F32 || c_out > FEW_CHANNELS || !vectored {
        return Ok(false);
    }
    let pixels = cuda::count(OP, b * h_out * w_out)?;
    let (bias, residual, channels) = (bias.unwrap_or(0), residual.unwrap_or(0), cuda::count(OP, c_out)?);
    let geometry = geometry(convolution)?;
    let kernel = KERNELS.typed(device, "conv2d_few_channels", dtype)?;
    let stream = device.cuda_stream();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&x).arg(&weight).arg(&bias).arg(&residual).arg(&y).arg(&pixels).arg(&channels);
    geometry.iter().for_each(|value| {
        launch.arg(value);
    });
    // With many pixels, warps of 16 pixels fill the GPU; with fewer, four warps share the channels.
    let threads = if pixels < 1 << 15 { 128 } else { 32 };
    // SAFETY: the arguments match the kernel's parameters. Its blocks of up to 4 warps compute 16 pixels each; it reads
    // inside of images, 16 aligned bytes at a time, and writes each element of the result once.
    unsafe { launch.launch(cuda::grid((b * h_out * w_out).div_ceil(16), threads)?) }.map_err(cuda::driver)?;
    Ok(true)
}

/// # Safety
/// The addresses are those of contiguous operands of the convolution's type and shapes on this device, `image_bias` that of `(b, n)`.
unsafe fn through_hopper(
    device: &CudaDevice,
    convolution: Convolution,
    addresses: Addresses,
    image_bias: Option<u64>,
) -> Result<bool> {
    let Convolution { x: [b, h, w, c], weight: [n, kh, kw, _], y, stride, pad_before, dtype, .. } = convolution;
    let Addresses { x, weight, bias, residual, y: to } = addresses;
    let is_known = dtype != DType::F32 && stride == 1 && [y[1], y[2]] == [h, w];
    let size = dtype.size_in_bytes();
    let operands = [x, weight, residual.unwrap_or(0), to];
    let is_aligned = c > 0 && [c, n].into_iter().all(|channels| cuda::is_vectored(&operands, channels, size));
    if !is_known || !is_aligned || !cuda::has_hopper_code(device)? {
        return Ok(false);
    }
    let count = |value: usize| cuda::count(OP, value);
    let arguments = ImageProduct {
        bias: bias.unwrap_or(0),
        image_bias: image_bias.unwrap_or(0),
        image_bias_stride: if image_bias.is_some() { count(n)? } else { 0 },
        sizes: [count(b)?, count(h)?, count(w)?, count(c)?, count(n)?],
        window: [count(kh * kw)?, count(kw)?, count(pad_before[0])?, count(pad_before[1])?],
        has_residual: residual.is_some().into(),
        ..ImageProduct::default()
    };
    let operands = ImageOperands { x, weight, residual: residual.unwrap_or(0), y: to, dtype };
    let kernels = hopper::Kernels { module: &KERNELS, name: "conv2d_hopper", input: hopper::Input::Wide };
    hopper::launch(OP, kernels, operands, arguments, device)?;
    Ok(true)
}

/// The geometry of a convolution as kernel arguments.
fn geometry(convolution: Convolution) -> Result<[i32; 10]> {
    let Convolution { x: [_, h, w, c_in], weight: [_, kh, kw, _], y: [_, h_out, w_out, _], stride, .. } = convolution;
    cuda::count(OP, kh * kw * c_in)?; // the kernels count the elements of a window,
    cuda::count(OP, convolution.y[0] * h_out * w_out)?; // and pixels
    let [pad_top, pad_left] = convolution.pad_before;
    let values = [h, w, c_in, kh, kw, h_out, w_out, stride, pad_top, pad_left];
    let mut geometry = [0; 10];
    for (argument, value) in geometry.iter_mut().zip(values) {
        *argument = cuda::count(OP, value)?;
    }
    Ok(geometry)
}

/// # Safety
/// The addresses are those of contiguous operands of the convolution's type and shapes on this device.
unsafe fn through_cudnn(device: &CudaDevice, convolution: Convolution, addresses: Addresses) -> Result<bool> {
    let all = [Some(addresses.x), Some(addresses.weight), addresses.bias, addresses.residual, Some(addresses.y)];
    let aligned = all.iter().flatten().all(|address| address.is_multiple_of(cuda::CUDNN_ALIGNMENT));
    // In f32 cuDNN's fast engines round operands to TF32.
    if convolution.dtype == DType::F32 || !aligned {
        return Ok(false);
    }
    cuda::libraries::with(device, |libraries| {
        let workspace = libraries.workspace(device)?;
        match &mut libraries.dnn {
            // SAFETY: by the contract of this function; the workspace is the device's own, and so is the handle's
            // stream.
            Some(dnn) => unsafe { dnn.launch(convolution, addresses, workspace) },
            None => Ok(false),
        }
    })
}

/// # Safety
/// The addresses are those of contiguous operands of the convolution's type and shapes on this device.
unsafe fn through_windows(device: &CudaDevice, convolution: Convolution, addresses: Addresses) -> Result<bool> {
    let Convolution { x: [.., c_in], weight: [n, kh, kw, _], y: [b, h_out, w_out, _], dtype, .. } = convolution;
    let (pixels, k, size) = (b * h_out * w_out, kh * kw * c_in, dtype.size_in_bytes());
    let rows = (WINDOWS / (k * size).max(1)).clamp(1, pixels.max(1));
    let stream = device.cuda_stream();
    // SAFETY: every row that a product reads is written before, on the same stream.
    let windows = unsafe { device.alloc::<u8>((rows * k * size).max(1))? };
    let windows_at = windows.device_ptr(&stream).0;
    let kernel = KERNELS.typed(device, "conv2d_windows", dtype)?;
    let vectored = i32::from(cuda::is_vectored(&[addresses.x, windows_at], c_in, size));
    let geometry = geometry(convolution)?;
    for first in (0..pixels).step_by(rows) {
        let m = rows.min(pixels - first);
        let first_argument = cuda::count(OP, first)?;
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&addresses.x).arg(&windows_at).arg(&first_argument);
        geometry.iter().for_each(|value| {
            launch.arg(value);
        });
        launch.arg(&vectored);
        let lanes = if vectored == 1 { 16 / size } else { 1 };
        let threads = k.div_ceil(lanes).next_multiple_of(32).min(256) as u32;
        // SAFETY: the arguments match the kernel's parameters. Block `i` reads inside of the image of pixel `first + i`
        // and writes row `i` of the windows.
        unsafe { launch.launch(cuda::grid(m, threads)?) }.map_err(cuda::driver)?;
        let offset = (first * n * size) as u64;
        let part = Addresses {
            x: windows_at,
            residual: addresses.residual.map(|residual| residual + offset),
            y: addresses.y + offset,
            ..addresses
        };
        // SAFETY: the rows of the product are those of the windows and of parts of residual and result.
        if !unsafe { cuda::product(OP, device, Product::new([m, n, k], dtype), part)? } {
            return Ok(false);
        }
    }
    Ok(true)
}
