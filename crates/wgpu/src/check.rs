//! Whether a driver computes as expected with cooperative matrices.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{Attention, AttentionOp, LinearOp, Result};

use crate::gpu::Gpu;

/// Rows, columns and inputs of a product that has the edges of every tile.
const PRODUCT: [usize; 3] = [200, 168, 192];
/// Tokens and channels of attention, which has two heads.
const TOKENS: [usize; 2] = [70, 128];
/// The largest difference of attention's results, which are weighted means of integers up to 2.
const BOUND: f32 = 0.02;

/// Leaves out matrices of workgroups if a product has other results with them than without any matrices. Attention does not use them.
pub(crate) fn check_workgroup_matrices(gpu: &Arc<Gpu>) {
    let problem = problem(gpu, |gpu| Ok(vec![product(gpu)?]));
    gpu.use_matrices(true);
    if let Some(problem) = problem {
        gpu.use_workgroup_matrices(false);
        tracing::warn!("{} computes without matrices of workgroups: {problem}", gpu.name());
    }
}

/// Leaves out cooperative matrices if a product or attention have other results with them than without.
pub(crate) fn check_matrices(gpu: &Arc<Gpu>) {
    let problem = problem(gpu, |gpu| Ok(vec![product(gpu)?, attention(gpu)?]));
    gpu.use_matrices(problem.is_none());
    if let Some(problem) = problem {
        tracing::warn!("{} computes without cooperative matrices: {problem}", gpu.name());
    }
}

/// Why matrices cannot be used, if `results` differ with them and without, or the driver refuses a kernel.
fn problem(gpu: &Arc<Gpu>, results: impl Fn(&Arc<Gpu>) -> Result<Vec<Vec<f32>>>) -> Option<String> {
    let both = || -> Result<_> {
        gpu.use_matrices(true);
        let with = results(gpu)?;
        gpu.use_matrices(false);
        Ok((with, results(gpu)?))
    };
    // A comparison with NaN is false.
    let agrees = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= BOUND);
    match both() {
        Ok((with, without)) if with.iter().zip(&without).all(agrees) => None,
        Ok(_) => Some("their results are wrong".into()),
        Err(error) => Some(error.to_string()),
    }
}

/// A product of small integers, whose results are exact in f16.
fn product(gpu: &Arc<Gpu>) -> Result<Vec<f32>> {
    let [m, n, k] = PRODUCT;
    let (x, weight) = (integers(gpu, &[1, m, k], 11)?, PortableWeight::plain(&integers(gpu, &[n, k], 17)?)?);
    values(&x.apply(&LinearOp { x: &x, weight: &weight, bias: None, residual: None })?)
}

/// Attention of small integers.
fn attention(gpu: &Arc<Gpu>) -> Result<Vec<f32>> {
    let [tokens, channels] = TOKENS;
    let [q, k, v] = [13, 19, 23].map(|factor| integers(gpu, &[1, tokens, channels], factor));
    let (q, k, v) = (q?, k?, v?);
    let config = Attention { num_heads: 2, causal: false };
    values(&q.apply(&AttentionOp { q: &q, k: &k, v: &v, config })?)
}

/// Integers from -2 to 2.
fn integers(gpu: &Arc<Gpu>, dims: &[usize], factor: usize) -> Result<PortableTensor> {
    let value = |i: usize| ((i * factor / 7) % 5) as f32 - 2.0;
    let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
    PortableTensor::upload(&gpu.backend(), &Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(DType::F16)?)
}

fn values(tensor: &PortableTensor) -> Result<Vec<f32>> {
    Ok(tensor.download()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}
