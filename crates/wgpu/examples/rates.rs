//! How fast a GPU computes the operators of SDXL's U-Net: `cargo run --release -p kiln-wgpu --example rates [SIZE]`.
//!
//! `SIZE` divides the sizes, for slow devices. Prints the median of five calls of several operators each.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{
    Attention, AttentionOp, Conv2d, Conv2dInputs, Conv2dOp, GroupNorm, GroupNormOp, LinearOp, Operation, Result, Weight,
};
use kiln_wgpu::{Gpu, adapters};

/// Operators of a call.
const REPEATS: usize = 10;

fn main() -> Result<()> {
    let part: usize = std::env::args().nth(1).and_then(|size| size.parse().ok()).unwrap_or(1);
    for mut adapter in adapters() {
        println!("{} ({}), {}", adapter.name, adapter.api, adapter.driver);
        // With cooperative matrices, and without.
        let found = adapter.matrices;
        for matrices in [found, None].into_iter().skip(usize::from(found.is_none())) {
            println!(" {} cooperative matrices", if matrices.is_some() { "with" } else { "without" });
            adapter.matrices = matrices;
            let gpu = Gpu::open(&adapter)?;
            let types = if gpu.has_f16() { vec![DType::F16, DType::F32] } else { vec![DType::F32] };
            for dtype in types {
                measure(&gpu.backend(), dtype, part)?;
            }
        }
    }
    Ok(())
}

fn measure(gpu: &Arc<dyn Backend>, dtype: DType, part: usize) -> Result<()> {
    for [m, n, k] in [[4096, 4096, 4096], [2048, 1280, 1280], [2048, 10240, 1280], [8192, 640, 640]] {
        let [m, n, k] = [m, n, k].map(|size| size / part);
        let (x, weight) = (random(gpu, &[m, k], dtype)?, weight(gpu, &[n, k], dtype)?);
        let op = LinearOp { x: &x, weight: &weight, bias: None, residual: None };
        report(&format!("product {m} x {n} x {k}"), dtype, 2.0 * (m * n * k) as f64, &x, &op)?;
    }
    for [h, c] in [[128, 320], [64, 640], [32, 1280]] {
        let (h, c) = (h / part, c / part);
        let (x, weight) = (random(gpu, &[2, h, h, c], dtype)?, weight(gpu, &[c, 3, 3, c], dtype)?);
        let inputs = Conv2dInputs { x: &x, weight: &weight, bias: None, image_bias: None, residual: None };
        let op = Conv2dOp { inputs, config: Conv2d::same(3), strip: None, out: None };
        report(&format!("convolution {h} x {h} x {c}"), dtype, 2.0 * (2 * h * h * c * c * 9) as f64, &x, &op)?;
    }
    for [s, c] in [[4096, 640], [1024, 1280]] {
        let (s, c) = (s / part, c / part);
        let x = random(gpu, &[2, s, c], dtype)?;
        let config = Attention { num_heads: (c / 64).max(1), causal: false };
        let op = AttentionOp { q: &x, k: &x, v: &x, config };
        report(&format!("attention {s} x {c}"), dtype, 4.0 * (2 * s * s * c) as f64, &x, &op)?;
    }
    let (h, c) = (128 / part, 320 / part);
    let (x, one) = (random(gpu, &[2, h, h, c], dtype)?, random(gpu, &[c], dtype)?);
    let config = GroupNorm { num_groups: if c % 32 == 0 { 32 } else { 1 }, eps: 1e-5, silu: true };
    let op = GroupNormOp { x: &x, gamma: &one, beta: &one, config };
    report(&format!("group norm {h} x {h} x {c}"), dtype, 0.0, &x, &op)
}

/// Prints the time of an operator, and its rate if it has floating-point operations.
fn report(name: &str, dtype: DType, flop: f64, x: &PortableTensor, op: &impl Operation<PortableTensor>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        let mut last = None;
        for _ in 0..REPEATS {
            last = Some(x.apply(op)?);
        }
        // The end of the work: a few elements come back.
        if let Some(result) = last {
            let count = result.elements().min(4);
            result.reshape(&[result.elements()])?.narrow(0, 0, count)?.download()?;
        }
        times.push(start.elapsed().as_secs_f64() / REPEATS as f64);
    }
    times.remove(0); // compiles
    times.sort_by(f64::total_cmp);
    let time = times[times.len() / 2];
    let rate = if flop > 0.0 { format!("{:9.3} TFLOP/s", flop / time * 1e-12) } else { String::new() };
    println!("  {:4} {name:32} {:9.3} ms {rate}", dtype.as_str(), time * 1e3);
    Ok(())
}

fn random(gpu: &Arc<dyn Backend>, dims: &[usize], dtype: DType) -> Result<PortableTensor> {
    PortableTensor::upload(gpu, &Tensor::randn(0f32, 1.0, dims, &Device::Cpu)?.to_dtype(dtype)?)
}

fn weight(gpu: &Arc<dyn Backend>, dims: &[usize], dtype: DType) -> Result<PortableWeight> {
    let values = Tensor::randn(0f32, 0.02, dims, &Device::Cpu)?.to_dtype(dtype)?;
    let memory = PortableTensor::upload(gpu, &values)?.memory().clone();
    PortableWeight::new(gpu, memory, 0, &Weight::plain(&values)?)
}
