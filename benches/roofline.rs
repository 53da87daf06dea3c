//! Measures how much of this machine's peak every operator reaches, at the sizes of SD1.5 at 512x512.
//!
//!     cargo bench --workspace --bench roofline                  # the type that --dtype auto selects
//!     cargo bench --workspace --bench roofline -- f32 4         # a type, and the number of threads
//!     cargo bench --workspace --bench roofline -- attention     # the lines that contain a word
//!
//! The peak is that of the innermost loop of the matrix product with data in the first-level cache, on all threads. Lines that
//! end in "in 8 bits" are the same products with `--compute int8`, compared with the same peak.
//! Lines are in the order of the U-Net. `share` is relative to the time of one call of each, so it is not the share of
//! a step.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_ops::{Attention, Conv2d, Conv2dInputs, GroupNorm, Int8Matrix, Packing, Weight, WeightLayout};

/// The allocator of Kiln's programs.
#[global_allocator]
static ALLOCATOR: kiln_mempool::HostPool = kiln_mempool::HostPool;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The images of a guided step.
const BATCH: usize = 2;
/// The number of timed calls, after one untimed call. The median is used.
const CALLS: usize = 5;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let Some(threads) = words.iter().find_map(|word| word.parse().ok()) {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    }
    let cpu = kiln_ops::device::cpu_info();
    let dtypes = [("f32", DType::F32), ("bf16", DType::BF16), ("f16", DType::F16)];
    let dtype = dtypes.into_iter().find(|(name, _)| words.iter().any(|word| word == name));
    let dtype = dtype.map_or(cpu.fastest_dtype, |(_, dtype)| dtype);
    let is_filter = |word: &&String| word.parse::<usize>().is_err() && dtypes.iter().all(|(name, _)| word != name);
    let filter = words.iter().find(is_filter).cloned().unwrap_or_default();
    let peak = kiln_ops::peak_flops(dtype)?;
    let threads = rayon::current_num_threads();
    println!("{}, path {}, {threads} threads, {dtype:?}", cpu.name, cpu.path);
    println!("peak {:.0} GFLOP/s\n", peak / 1e9);
    println!("| operator | ms | GFLOP/s | of the peak | GB/s |\n|---|---|---|---|---|");
    let bench = Bench { dtype, peak, filter };
    for (size, c_in, c_out) in [
        (64, 320, 320),
        (64, 960, 320),
        (32, 640, 640),
        (32, 1920, 640),
        (16, 1280, 1280),
        (16, 2560, 1280),
        (8, 1280, 1280),
    ] {
        bench.conv2d(size, c_in, c_out, 3, 1)?;
    }
    bench.conv2d(64, 320, 320, 3, 2)?;
    bench.conv2d(64, 960, 320, 1, 1)?;
    bench.conv2d(64, 4, 320, 3, 1)?;
    bench.conv2d(64, 320, 4, 3, 1)?;
    for (rows, k, n) in [
        (4096, 320, 320),
        (4096, 320, 2560),
        (4096, 1280, 320),
        (1024, 640, 5120),
        (256, 1280, 1280),
        (256, 5120, 1280),
    ] {
        bench.linear(rows, k, n)?;
    }
    for (tokens, keys, channels) in
        [(4096, 4096, 320), (1024, 1024, 640), (256, 256, 1280), (4096, 77, 320), (1024, 77, 640)]
    {
        bench.attention(tokens, keys, channels)?;
    }
    bench.norms(4096, 320)?;
    bench.norms(1024, 640)
}

struct Bench {
    dtype: DType,
    peak: f64,
    /// The text that a line's name must contain to be measured.
    filter: String,
}

impl Bench {
    fn conv2d(&self, size: usize, c_in: usize, c_out: usize, kernel: usize, stride: usize) -> Outcome {
        let x = self.random(&[BATCH, size, size, c_in])?;
        let weight = self.weight(Packing::Conv2d, &[c_out, c_in, kernel, kernel])?;
        let config = Conv2d { stride, ..Conv2d::same(kernel) };
        let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
        let flop = 2 * BATCH * (size / stride).pow(2) * c_in * c_out * kernel * kernel;
        let name = format!("conv2d {kernel}x{kernel} stride {stride}, {size}x{size}, {c_in} to {c_out}");
        self.line(&name, flop, &[&x, weight.tensor()], || kiln_ops::conv2d(inputs, config, None))?;
        if (kernel, stride) != (3, 1) || c_in.min(c_out) < 32 {
            return Ok(()); // not computed in 8 bits
        }
        let weight = self.bytes(Packing::Conv2d, &[c_out, c_in, kernel, kernel])?;
        let inputs = Conv2dInputs { weight: &weight, ..inputs };
        self.line(&in_8_bits(&name), flop, &[&x, weight.tensor()], || kiln_ops::conv2d(inputs, config, None))
    }

    fn linear(&self, rows: usize, k: usize, n: usize) -> Outcome {
        let (x, weight) = (self.random(&[BATCH, rows, k])?, self.weight(Packing::Linear, &[n, k])?);
        let name = format!("linear {rows} rows, {k} to {n}");
        let bytes = self.bytes(Packing::Linear, &[n, k])?;
        for (name, weight) in [(name.clone(), &weight), (in_8_bits(&name), &bytes)] {
            let call = || kiln_ops::linear(&x, weight, None, None, None);
            self.line(&name, 2 * BATCH * rows * k * n, &[&x, weight.tensor()], call)?;
        }
        Ok(())
    }

    fn attention(&self, tokens: usize, keys: usize, channels: usize) -> Outcome {
        let (q, kv) = (self.random(&[BATCH, tokens, channels])?, self.random(&[BATCH, keys, channels])?);
        let name = format!("attention {tokens} queries, {keys} keys, 8 heads of {}", channels / 8);
        let config = Attention { num_heads: 8, causal: false };
        self.line(&name, 4 * BATCH * tokens * keys * channels, &[&q, &kv, &kv], || {
            kiln_ops::attention(&q, &kv, &kv, config, None)
        })
    }

    /// The operators with very little arithmetic.
    fn norms(&self, pixels: usize, channels: usize) -> Outcome {
        let x = self.random(&[BATCH, pixels, channels])?;
        let gamma = Tensor::ones(channels, DType::F32, &Device::Cpu)?;
        let beta = gamma.zeros_like()?;
        let config = GroupNorm { num_groups: 32, eps: 1e-5, silu: true };
        let size = pixels.isqrt();
        let map = x.reshape((BATCH, size, size, channels))?;
        let wide = self.random(&[BATCH, pixels, 8 * channels])?;
        let name = |op: &str| format!("{op}, {pixels} pixels, {channels} channels");
        self.line(&name("group_norm with SiLU"), 0, &[&x], || kiln_ops::group_norm(&map, &gamma, &beta, config, None))?;
        self.line(&name("layer_norm"), 0, &[&x], || kiln_ops::layer_norm(&x, &gamma, &beta, 1e-5, None))?;
        self.line(&name("geglu"), 0, &[&wide], || kiln_ops::geglu(&wide, None))?;
        self.line(&name("upsample_nearest"), 0, &[&x], || {
            kiln_ops::upsample_nearest(&map, (2 * size, 2 * size), None)
        })?;
        self.line(&name("concat_channels"), 0, &[&x, &x], || kiln_ops::concat_channels(&map, &map, None))
    }

    fn line(&self, name: &str, flop: usize, read: &[&Tensor], call: impl Fn() -> kiln_ops::Result<Tensor>) -> Outcome {
        if !name.contains(&self.filter) {
            return Ok(());
        }
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let moved = bytes(&call()?) + read.iter().map(|tensor| bytes(tensor)).sum::<usize>();
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let start = Instant::now();
            call()?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let (seconds, flop) = (times[CALLS / 2], flop as f64);
        let arithmetic = if flop > 0.0 {
            format!("{:.0} | {:.0} %", flop / seconds / 1e9, 100.0 * flop / seconds / self.peak)
        } else {
            "| ".into()
        };
        println!("| {name} | {:.2} | {arithmetic} | {:.1} |", seconds * 1e3, moved as f64 / seconds / 1e9);
        Ok(())
    }

    fn random(&self, shape: &[usize]) -> Outcome<Tensor> {
        Ok(Tensor::randn(0f32, 1.0, shape, &Device::Cpu)?.to_dtype(self.dtype)?)
    }

    /// Random weights, packed as after loading.
    fn weight(&self, packing: Packing, stored: &[usize]) -> Outcome<Weight> {
        let values = self.random(stored)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let layout = WeightLayout::Panels;
        macro_rules! packed {
            ($type:ty, $from:expr) => {{
                let mut packed = vec![<$type>::default(); packing.elements(stored)];
                let read = |start: usize, out: &mut [_]| {
                    out.iter_mut().zip(&values[start..]).for_each(|(out, &value)| *out = $from(value));
                };
                packing.pack(layout, stored, read, &mut packed);
                let len = packed.len();
                Tensor::from_vec(packed, len, &Device::Cpu)?
            }};
        }
        let packed = match self.dtype {
            DType::BF16 => packed!(half::bf16, half::bf16::from_f32),
            DType::F16 => packed!(half::f16, half::f16::from_f32),
            _ => packed!(f32, |value| value),
        };
        Ok(Weight::packed(&packed, packing, layout, stored)?)
    }

    /// Random weights in 8 bits. The range of the input is measured at each call.
    fn bytes(&self, packing: Packing, stored: &[usize]) -> Outcome<Weight> {
        let values = self.random(stored)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let matrix = Int8Matrix::of(packing, stored).ok_or("no matrix in 8 bits")?;
        Ok(Weight::int8(&matrix.memory(&values, None)?, packing, stored, Arc::default())?)
    }
}

/// The name of a line's product in 8 bits.
fn in_8_bits(name: &str) -> String {
    format!("{name}, in 8 bits")
}
