//! Operators of tokens: products, attention, normalizations of rows, gates.

use candle_core::{DType, Device, Tensor};
use kiln_ops::{
    Activation, Attention, AttentionOp, AttentionReceivedOp, ChangeSumsOp, GatedActivationOp, GatedResidualOp, GegluOp,
    GroupedAttention, GroupedAttentionOp, LayerNormOp, LinearOp, MaskedAttentionOp, ModulatedNormOp, PremultiplyOp,
    RopeOp, RopePairs, RowNorm,
};

use crate::harness::{both, check, compare, for_types, pair, weight};

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_linear_layers() {
    for_types(|dtype| {
        // The last one has more tiles than a large GPU has multiprocessors.
        let sizes =
            [[1, 5, 3], [2, 70, 72], [77, 130, 96], [64, 64, 64], [130, 320, 257], [70, 132, 520], [780, 1410, 20]];
        for [m, n, k] in sizes {
            let (x, bias, residual) = (pair(1, &[2, m, k], dtype), pair(2, &[n], dtype), pair(3, &[2, m, n], dtype));
            let (on_cpu, on_gpu) = weight(4, &[n, k], dtype);
            let cpu = LinearOp { x: &x.cpu, weight: &on_cpu, bias: Some(&bias.cpu), residual: Some(&residual.cpu) };
            let gpu = LinearOp { x: &x.gpu, weight: &on_gpu, bias: Some(&bias.gpu), residual: Some(&residual.gpu) };
            check("linear", &cpu, &gpu, &x.gpu);
            let cpu = LinearOp { x: &x.cpu, weight: &on_cpu, bias: None, residual: None };
            let gpu = LinearOp { x: &x.gpu, weight: &on_gpu, bias: None, residual: None };
            check("linear without a bias", &cpu, &gpu, &x.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_a_matrix_times_matrices() {
    let (x, matrix) = (pair(1, &[2, 9, 13], DType::F32), pair(2, &[5, 9], DType::F32));
    let cpu = PremultiplyOp { x: &x.cpu, matrix: &matrix.cpu };
    check("premultiplied", &cpu, &PremultiplyOp { x: &x.gpu, matrix: &matrix.gpu }, &x.gpu);
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_attention() {
    for_types(|dtype| {
        for (num_heads, head_dim, s, t) in
            [(2, 40, 65, 65), (3, 64, 20, 77), (1, 160, 33, 40), (1, 512, 17, 17), (1, 512, 304, 304), (2, 256, 24, 40)]
        {
            let c = num_heads * head_dim;
            let [q, k, v] = [pair(1, &[2, s, c], dtype), pair(2, &[2, t, c], dtype), pair(3, &[2, t, c], dtype)];
            for causal in [false, true].into_iter().filter(|causal| !causal || s == t) {
                let config = Attention { num_heads, causal };
                let cpu = AttentionOp { q: &q.cpu, k: &k.cpu, v: &v.cpu, config };
                let gpu = AttentionOp { q: &q.gpu, k: &k.gpu, v: &v.gpu, config };
                check("attention", &cpu, &gpu, &q.gpu);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_attention_of_slices_of_one_product() {
    for_types(|dtype| {
        let all = pair(1, &[2, 30, 3 * 80], dtype);
        let config = Attention { num_heads: 2, causal: false };
        let parts = [0, 1, 2].map(|i| all.cpu.narrow(2, i * 80, 80).unwrap().contiguous().unwrap());
        let views = [0, 1, 2].map(|i| all.gpu.narrow(2, i * 80, 80).unwrap());
        let cpu = AttentionOp { q: &parts[0], k: &parts[1], v: &parts[2], config };
        let gpu = AttentionOp { q: &views[0], k: &views[1], v: &views[2], config };
        check("attention of slices", &cpu, &gpu, &all.gpu);
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_attention_with_masks() {
    for_types(|dtype| {
        let [q, k, v] = [pair(1, &[2, 24, 128], dtype), pair(2, &[2, 40, 64], dtype), pair(3, &[2, 40, 64], dtype)];
        let bias = pair(4, &[1, 4, 24, 40], dtype);
        let lengths = both(&Tensor::new(&[40f32, 7.0], &Device::Cpu).unwrap());
        let config = GroupedAttention { num_heads: 4, num_kv_heads: 2, causal: false, scale: Some(0.3) };
        let cpu = GroupedAttentionOp {
            q: &q.cpu,
            k: &k.cpu,
            v: &v.cpu,
            bias: Some(&bias.cpu),
            lengths: Some(&lengths.cpu),
            config,
        };
        let gpu = GroupedAttentionOp {
            q: &q.gpu,
            k: &k.gpu,
            v: &v.gpu,
            bias: Some(&bias.gpu),
            lengths: Some(&lengths.gpu),
            config,
        };
        check("grouped attention", &cpu, &gpu, &q.gpu);
    });
    let [q, k, v] = [1, 2, 3].map(|seed| pair(seed, &[2, 20, 64], DType::F32));
    let hidden = [5, 23];
    let seen: Vec<f32> = (0..40).map(|key| if hidden.contains(&key) { 0.0 } else { 1.0 }).collect();
    let seen = both(&Tensor::from_vec(seen, (2, 20), &Device::Cpu).unwrap());
    let config = Attention { num_heads: 2, causal: true };
    let cpu = MaskedAttentionOp { q: &q.cpu, k: &k.cpu, v: &v.cpu, seen: &seen.cpu, config };
    let gpu = MaskedAttentionOp { q: &q.gpu, k: &k.gpu, v: &v.gpu, seen: &seen.gpu, config };
    check("masked attention", &cpu, &gpu, &q.gpu);
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_norms_of_rows() {
    for_types(|dtype| {
        for c in [3, 64, 321] {
            let [x, gamma, beta] = [pair(1, &[2, 9, c], dtype), pair(2, &[c], dtype), pair(3, &[c], dtype)];
            let cpu = LayerNormOp { x: &x.cpu, gamma: &gamma.cpu, beta: &beta.cpu, eps: 1e-5 };
            let gpu = LayerNormOp { x: &x.gpu, gamma: &gamma.gpu, beta: &beta.gpu, eps: 1e-5 };
            check("layer_norm", &cpu, &gpu, &x.gpu);
            for (norm, images) in [(RowNorm::Layer, 2), (RowNorm::Rms, 1)] {
                let (scale, shift) = (pair(4, &[images, c], dtype), pair(5, &[images, c], dtype));
                let (x, gamma) = (&x, &gamma);
                let cpu = ModulatedNormOp {
                    x: &x.cpu,
                    norm,
                    gamma: Some(&gamma.cpu),
                    scale: Some(&scale.cpu),
                    shift: Some(&shift.cpu),
                    eps: 1e-6,
                };
                let gpu = ModulatedNormOp {
                    x: &x.gpu,
                    norm,
                    gamma: Some(&gamma.gpu),
                    scale: Some(&scale.gpu),
                    shift: Some(&shift.gpu),
                    eps: 1e-6,
                };
                check("modulated_norm", &cpu, &gpu, &x.gpu);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_gates() {
    for_types(|dtype| {
        let (x, gate, y) = (pair(1, &[2, 7, 50], dtype), pair(2, &[2, 50], dtype), pair(3, &[2, 7, 50], dtype));
        check("geglu", &GegluOp { x: &x.cpu }, &GegluOp { x: &x.gpu }, &x.gpu);
        let function = Activation::Silu;
        let cpu = GatedActivationOp { function, gate: &x.cpu, values: None };
        check("swiglu", &cpu, &GatedActivationOp { function, gate: &x.gpu, values: None }, &x.gpu);
        let cpu = GatedActivationOp { function: Activation::GeluTanh, gate: &x.cpu, values: Some(&y.cpu) };
        let gpu = GatedActivationOp { function: Activation::GeluTanh, gate: &x.gpu, values: Some(&y.gpu) };
        check("gated gelu", &cpu, &gpu, &x.gpu);
        let cpu = GatedResidualOp { x: &x.cpu, gate: &gate.cpu, y: &y.cpu };
        check("gated_residual", &cpu, &GatedResidualOp { x: &x.gpu, gate: &gate.gpu, y: &y.gpu }, &x.gpu);
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_rotary_embeddings() {
    for_types(|dtype| {
        let (x, gamma) = (pair(1, &[2, 11, 3 * 16], dtype), pair(2, &[16], dtype));
        for (pairs, table) in [(RopePairs::Interleaved, vec![11, 8]), (RopePairs::Halves, vec![2, 11, 8])] {
            let angles = pair(3, &table, DType::F32);
            let (cos, sin) = (both(&angles.cpu.cos().unwrap()), both(&angles.cpu.sin().unwrap()));
            for has_norm in [false, true] {
                let norm = has_norm.then_some((&gamma.cpu, 1e-6));
                let cpu = RopeOp { x: &x.cpu, cos: &cos.cpu, sin: &sin.cpu, norm, num_heads: 3, pairs };
                let norm = has_norm.then_some((&gamma.gpu, 1e-6));
                let gpu = RopeOp { x: &x.gpu, cos: &cos.gpu, sin: &sin.gpu, norm, num_heads: 3, pairs };
                check("rope", &cpu, &gpu, &x.gpu);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_views_and_types() {
    let x = pair(1, &[3, 5, 8], DType::F32);
    let narrowed = x.cpu.narrow(1, 1, 3).unwrap().narrow(2, 2, 5).unwrap().contiguous().unwrap();
    let view = x.gpu.narrow(1, 1, 3).unwrap().narrow(2, 2, 5).unwrap();
    compare("narrow", &narrowed, &view);
    let permuted = x.cpu.permute((2, 0, 1)).unwrap().contiguous().unwrap();
    compare("permuted", &permuted, &x.gpu.permuted(&[2, 0, 1]));
    for_types(|dtype| {
        let converted = x.cpu.to_dtype(dtype).unwrap();
        compare("to_dtype", &converted, &x.gpu.to_dtype(dtype).unwrap());
        // Views of f16 may begin within four bytes.
        let odd = both(&converted).gpu.narrow(0, 1, 1).unwrap().reshape(&[40]).unwrap().narrow(0, 1, 3).unwrap();
        compare("an odd offset", &converted.flatten_all().unwrap().narrow(0, 41, 3).unwrap(), &odd);
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_attention_that_keys_receive() {
    for_types(|dtype| {
        for (num_heads, head_dim, s, t) in [(2, 40, 65, 65), (5, 64, 9, 130), (1, 160, 64, 64)] {
            let c = num_heads * head_dim;
            let [q, k] = [pair(1, &[2, s, c], dtype), pair(2, &[2, t, c], dtype)];
            let config = Attention { num_heads, causal: false };
            let cpu = AttentionReceivedOp { q: &q.cpu, k: &k.cpu, config };
            check("attention_received", &cpu, &AttentionReceivedOp { q: &q.gpu, k: &k.gpu, config }, &q.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_changes_of_tokens() {
    for_types(|dtype| {
        for dims in [[1, 5, 3], [3, 70, 129], [2, 64, 256]] {
            let [now, before] = [pair(1, &dims, dtype), pair(2, &dims, dtype)];
            let cpu = ChangeSumsOp { now: &now.cpu, before: &before.cpu };
            check("change_sums", &cpu, &ChangeSumsOp { now: &now.gpu, before: &before.gpu }, &now.gpu);
        }
    });
}
