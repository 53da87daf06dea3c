//! Arithmetic, conversions, copies and rows on GPUs.
#![allow(unsafe_code)]

use candle_core::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::{DType, Tensor};

use super::{Affine, Arithmetic, Binary, Cast, Copy, IndexSelect, WeightedSum, contiguous};
use crate::backend::{Cuda, Kernel, Operator};
use crate::cuda::{self, Module};
use crate::error::Result;

static KERNELS: Module = cuda::kernels!("elementwise");
const THREADS: usize = 256;
/// The most blocks of a launch: threads stride over what is left.
const BLOCKS: usize = 1 << 16;
/// Terms of one launch of a sum.
const TERMS: usize = 4;

/// The launch of `n` elements.
fn elements(n: usize) -> Result<LaunchConfig> {
    cuda::grid(n.div_ceil(THREADS).min(BLOCKS), THREADS as u32)
}

/// The suffix of the kernels' names, for the types that they have.
fn suffix(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::F16 => Some("f16"),
        DType::BF16 => Some("bf16"),
        _ => None,
    }
}

impl Kernel<Cuda> for Binary<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { function, a, b } = *self;
        let (n, period) = (a.elem_count(), b.elem_count());
        let (Some(name), true) = (suffix(a.dtype()), a.dims().ends_with(b.dims())) else { return Ok(None) };
        if a.dtype() != b.dtype() || n == 0 {
            return Ok(None);
        }
        let (left, right) = (contiguous(a)?, contiguous(b)?);
        let y = cuda::output(self.name(), out, a.dims(), a.dtype(), &[a, b], device)?;
        let addresses = [cuda::address(&left)?, cuda::address(&right)?, cuda::address(&y)?];
        let kernel = KERNELS.function(device, &format!("binary_{name}"))?;
        let function = match function {
            Arithmetic::Add => 0i32,
            Arithmetic::Sub => 1,
            Arithmetic::Mul => 2,
        };
        let vectored = i32::from(n == period && cuda::is_vectored(&addresses, n, a.dtype().size_in_bytes()));
        let (count, period) = (n as i64, period as i64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch
            .arg(&addresses[0])
            .arg(&addresses[1])
            .arg(&addresses[2])
            .arg(&count)
            .arg(&period)
            .arg(&function)
            .arg(&vectored);
        // SAFETY: the arguments match the kernel's parameters. It reads `n` elements of `a` and the `period` elements of
        // `b`, which divide them, and writes the `n` elements of `y`; all of them
        // outlive the launch. It accesses 16 bytes at a time only where `is_vectored` allows it.
        unsafe { launch.launch(elements(n)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

impl Kernel<Cuda> for Affine<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (n, x) = (self.x.elem_count(), self.x);
        let Some(name) = suffix(x.dtype()).filter(|_| n > 0) else { return Ok(None) };
        let input = contiguous(x)?;
        let y = cuda::output(self.name(), out, x.dims(), x.dtype(), &[x], device)?;
        let (from, to) = (cuda::address(&input)?, cuda::address(&y)?);
        let kernel = KERNELS.function(device, &format!("affine_{name}"))?;
        let (count, mul, add) = (n as i64, self.mul as f32, self.add as f32);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&count).arg(&mul).arg(&add);
        // SAFETY: the arguments match the kernel's parameters. It accesses the `n` elements of two tensors, which outlive
        // the launch.
        unsafe { launch.launch(elements(n)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

impl Kernel<Cuda> for Cast<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (n, x) = (self.x.elem_count(), self.x);
        let (Some(from), Some(to), true) = (suffix(x.dtype()), suffix(self.dtype), n > 0) else { return Ok(None) };
        let kernel = KERNELS.function(device, &format!("cast_{from}_{to}"))?;
        let input = contiguous(x)?;
        let y = cuda::output(self.name(), out, x.dims(), self.dtype, &[x], device)?;
        let (from, to, count) = (cuda::address(&input)?, cuda::address(&y)?, n as i64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&count);
        // SAFETY: the arguments match the kernel's parameters. It reads the `n` elements of one tensor and writes those of
        // the other, in the types of its name; both outlive the launch.
        unsafe { launch.launch(elements(n)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

impl Kernel<Cuda> for Copy<'_> {
    /// Strides are arguments of the launch, so that it can be recorded; candle reads them from memory of the GPU.
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (n, x) = (self.x.elem_count(), self.x);
        let size = x.dtype().size_in_bytes();
        let (Some([[_, d1, d2, d3], strides]), 2 | 4) = (merged_dims(x), size) else { return Ok(None) };
        if x.is_contiguous() || n == 0 {
            return Ok(None); // a copy by the driver
        }
        let y = cuda::output(self.name(), out, x.dims(), x.dtype(), &[x], device)?;
        let (from, to) = (cuda::start(x)?, cuda::address(&y)?);
        // Up to 16 bytes at a time if neighbors in the last dimension are neighbors in memory.
        let [s0, s1, s2, s3] = strides;
        let bytes = [d3, s0, s1, s2].map(|count| count as usize * size);
        let unit = if s3 == 1 { cuda::unit(&[from, to], &bytes).max(size) } else { size };
        let of_unit = (unit / size) as i64;
        let (count, d3) = (n as i64 / of_unit, d3 / of_unit);
        let strides = [s0 / of_unit, s1 / of_unit, s2 / of_unit, s3];
        let kernel = KERNELS.function(device, &format!("strided_copy_{unit}"))?;
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&to).arg(&count).arg(&d1).arg(&d2).arg(&d3);
        strides.iter().for_each(|stride| _ = launch.arg(stride));
        // SAFETY: the arguments match the kernel's parameters. It writes the `count` units of `y` and reads those of `x`, whose
        // dimensions and strides these are; the unit divides them and the addresses, and both outlive the launch.
        unsafe { launch.launch(elements(count as usize)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

/// A tensor's dimensions and strides as four, the outermost first, where neighbors can be joined to so few.
fn merged_dims(x: &Tensor) -> Option<[[i64; 4]; 2]> {
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for (&size, &stride) in x.dims().iter().zip(x.stride()).filter(|(size, _)| **size != 1) {
        match merged.last_mut() {
            Some((last, outer)) if *outer == stride * size => (*last, *outer) = (*last * size, stride),
            _ => merged.push((size, stride)),
        }
    }
    let missing = 4usize.checked_sub(merged.len())?;
    let all = std::iter::repeat_n((1, 0), missing).chain(merged);
    let (mut dims, mut strides) = ([1; 4], [0; 4]);
    for (i, (size, stride)) in all.enumerate() {
        (dims[i], strides[i]) = (size as i64, stride as i64);
    }
    Some([dims, strides])
}

impl Kernel<Cuda> for WeightedSum<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (like, n) = (self.input(), self.input().elem_count());
        let is_one_shape = self.terms.iter().all(|(_, term)| term.dims() == like.dims() && term.device().is_cuda());
        if !is_one_shape || n == 0 || self.terms.len() > TERMS {
            return Ok(None);
        }
        let terms = self.terms.iter().map(|(_, term)| contiguous(term)).collect::<Result<Vec<_>>>()?;
        let y = cuda::output(self.name(), out, like.dims(), DType::F32, &terms.iter().collect::<Vec<_>>(), device)?;
        let (mut addresses, mut factors) = ([cuda::address(&terms[0])?; TERMS], [0f32; TERMS]);
        for (i, (term, (factor, _))) in terms.iter().zip(self.terms).enumerate() {
            (addresses[i], factors[i]) = (cuda::address(term)?, *factor as f32);
        }
        let kernel = KERNELS.function(device, "weighted_sum")?;
        let (to, used, count) = (cuda::address(&y)?, terms.len() as i32, n as i64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        addresses.iter().for_each(|address| _ = launch.arg(address));
        factors.iter().for_each(|factor| _ = launch.arg(factor));
        launch.arg(&used).arg(&to).arg(&count);
        // SAFETY: the arguments match the kernel's parameters. It reads the `n` elements of the first `used` tensors and
        // writes those of `y`; all of them outlive the launch.
        unsafe { launch.launch(elements(n)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}

impl Kernel<Cuda> for IndexSelect<'_> {
    fn launch(&self, Cuda { device }: &Cuda, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { table, rows } = *self;
        let ([_, rest @ ..], [count]) = (table.dims(), rows.dims()) else { return Ok(None) };
        let shape = [&[*count], rest].concat();
        let bytes = rest.iter().product::<usize>() * table.dtype().size_in_bytes();
        if suffix(table.dtype()).is_none() || rows.dtype() != DType::U32 || bytes * count == 0 {
            return Ok(None);
        }
        let (table, rows) = (contiguous(table)?, contiguous(rows)?);
        let y = cuda::output(self.name(), out, &shape, table.dtype(), &[&table], device)?;
        let (from, numbers, to) = (cuda::address(&table)?, cuda::address(&rows)?, cuda::address(&y)?);
        let unit = cuda::unit(&[from, to], &[bytes]);
        let kernel = KERNELS.function(device, &format!("index_select_{unit}"))?;
        let (n, row) = ((bytes * count / unit) as i64, (bytes / unit) as i64);
        let stream = device.cuda_stream();
        let mut launch = stream.launch_builder(&kernel);
        launch.arg(&from).arg(&numbers).arg(&to).arg(&n).arg(&row);
        // SAFETY: the arguments match the kernel's parameters. It reads `count` numbers, and for each a row of the table,
        // which the caller has checked, and writes the `n` units of `y`; `unit` divides addresses and rows, and all three
        // tensors outlive the launch.
        unsafe { launch.launch(elements(n as usize)?) }.map_err(cuda::driver)?;
        Ok(Some(y))
    }
}
