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

/// Has the kernels of `kind` run from now on if a product and attention have the results with them that they have without. `uses` switches
/// these kernels.
pub(crate) fn check(gpu: &Arc<Gpu>, kind: &str, uses: impl Fn(&Gpu, bool)) {
    let agree = agree(gpu, &uses);
    let problem = match &agree {
        Ok(true) => None,
        Ok(false) => Some("their results are wrong".to_string()),
        Err(error) => Some(error.to_string()),
    };
    uses(gpu, problem.is_none());
    if let Some(problem) = problem {
        tracing::warn!("{} computes without {kind}: {problem}", gpu.name());
    }
}

fn agree(gpu: &Arc<Gpu>, uses: impl Fn(&Gpu, bool)) -> Result<bool> {
    uses(gpu, true);
    let with = results(gpu)?;
    uses(gpu, false);
    let without = results(gpu)?;
    // A comparison with NaN is false.
    let agrees = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= BOUND);
    Ok(with.iter().zip(&without).all(agrees))
}

/// The results of both operators. Their operands are small integers, so that the results of the product are exact in f16.
fn results(gpu: &Arc<Gpu>) -> Result<[Vec<f32>; 2]> {
    let backend = gpu.backend();
    let tensor = |dims: &[usize], factor: usize| {
        let value = |i: usize| ((i * factor / 7) % 5) as f32 - 2.0;
        let values: Vec<f32> = (0..dims.iter().product()).map(value).collect();
        PortableTensor::upload(&backend, &Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(DType::F16)?)
    };
    let [m, n, k] = PRODUCT;
    let (x, weight) = (tensor(&[1, m, k], 11)?, PortableWeight::plain(&tensor(&[n, k], 17)?)?);
    let product = x.apply(&LinearOp { x: &x, weight: &weight, bias: None, residual: None })?;
    let [tokens, channels] = TOKENS;
    let [q, k, v] = [13, 19, 23].map(|factor| tensor(&[1, tokens, channels], factor));
    let (q, k, v) = (q?, k?, v?);
    let config = Attention { num_heads: 2, causal: false };
    let attention = q.apply(&AttentionOp { q: &q, k: &k, v: &v, config })?;
    let values = |tensor: PortableTensor| -> Result<Vec<f32>> {
        Ok(tensor.download()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    };
    Ok([values(product)?, values(attention)?])
}
