//! Long operators, which are computed in parts.

use std::sync::Arc;

use candle_core::DType;
use kiln_ops::portable::{Backend, PortableTensor, PortableWeight};
use kiln_ops::{Attention, AttentionOp, Conv2d, Conv2dInputs, Conv2dOp, LinearOp};
use kiln_wgpu::Gpu;

use crate::harness::{kinds_of_kernels, values};

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_parts_of_long_operators_have_the_same_bits() {
    for (name, adapter) in kinds_of_kernels() {
        println!("{name}");
        let [whole, parts] = [0, 1].map(|_| Gpu::open(&adapter).unwrap());
        parts.set_most_flop(3_000_000);
        let dtype = if whole.has_f16() { DType::F16 } else { DType::F32 };
        let [whole, parts] = [whole, parts].map(|gpu| results(&gpu, dtype));
        for ((operator, whole), (_, parts)) in whole.iter().zip(&parts) {
            assert!(whole == parts, "{name}: the parts of {operator} differ from the whole");
            assert!(whole.iter().any(|&byte| byte != 0), "{name}: {operator} is 0");
        }
    }
}

/// The bytes of operators with 1 to 200 million floating point operations, one of them with few rows.
fn results(gpu: &Arc<Gpu>, dtype: DType) -> Vec<(&'static str, Vec<u8>)> {
    let backend = &gpu.backend();
    let tensor = |seed, dims: &[usize]| {
        let values = (values(seed, dims).to_dtype(DType::F32).unwrap() * 0.1).unwrap();
        PortableTensor::upload(backend, &values.to_dtype(dtype).unwrap()).unwrap()
    };
    let weight = |seed, dims: &[usize]| PortableWeight::plain(&tensor(seed, dims)).unwrap();
    let linear = |x: &PortableTensor, weight: &PortableWeight| {
        x.apply(&LinearOp { x, weight, bias: None, residual: None }).unwrap()
    };
    let few = linear(&tensor(1, &[1, 4, 512]), &weight(2, &[1024, 512]));
    let rows = linear(&tensor(1, &[2, 350, 512]), &weight(2, &[256, 512]));
    let deep = linear(&tensor(1, &[1, 140, 2048]), &weight(2, &[64, 2048]));
    let (x, kernels) = (tensor(3, &[2, 40, 24, 32]), weight(4, &[64, 3, 3, 32]));
    let inputs = Conv2dInputs { x: &x, weight: &kernels, bias: None, image_bias: None, residual: None };
    let map = x.apply(&Conv2dOp { inputs, config: Conv2d::same(3), strip: None, out: None }).unwrap();
    let q = tensor(5, &[2, 300, 128]);
    let config = Attention { num_heads: 2, causal: false };
    let attention = q.apply(&AttentionOp { q: &q, k: &q, v: &q, config }).unwrap();
    let results = [
        ("a linear layer of few rows", few),
        ("a linear layer", rows),
        ("a linear layer of few columns", deep),
        ("a convolution", map),
        ("attention", attention),
    ];
    results.map(|(name, result)| (name, gpu.download(&result).unwrap())).into()
}
