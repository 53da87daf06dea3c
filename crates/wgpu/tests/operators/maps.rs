//! Operators of feature maps.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{
    ConcatOp, Conv2d, Conv2dInputs, Conv2dOp, GroupNorm, GroupNormOp, LayoutOp, Operation, PixelShuffleOp, Strip,
    UpsampleOp,
};

use crate::harness::{check, compare, for_types, pair, weight};

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_convolutions() {
    for_types(|dtype| {
        let cases = [
            (Conv2d::same(3), 3, [2, 9, 11, 8], 70),
            (Conv2d { stride: 2, pad_before: 1, pad_after: 1 }, 3, [2, 12, 10, 5], 6),
            (Conv2d { stride: 2, pad_before: 0, pad_after: 1 }, 3, [1, 12, 10, 16], 33),
            (Conv2d { stride: 2, pad_before: 0, pad_after: 1 }, 3, [1, 18, 10, 16], 36),
            (Conv2d::same(3), 3, [1, 9, 11, 72], 68),
            (Conv2d::same(1), 1, [2, 7, 5, 24], 24),
            (Conv2d { stride: 1, pad_before: 0, pad_after: 0 }, 2, [1, 6, 6, 4], 4),
            // More tiles than a large GPU has multiprocessors.
            (Conv2d::same(3), 3, [2, 91, 100, 4], 130),
        ];
        for (config, kernel, [b, h, w, c], c_out) in cases {
            let x = pair(1, &[b, h, w, c], dtype);
            let (on_cpu, on_gpu) = weight(2, &[c_out, kernel, kernel, c], dtype);
            let [h_out, w_out] = [h, w].map(|size| config.output_size(size, kernel).unwrap());
            let (bias, of_image) = (pair(3, &[c_out], dtype), pair(4, &[b, c_out], dtype));
            let residual = pair(5, &[b, h_out, w_out, c_out], dtype);
            let inputs = Conv2dInputs {
                x: &x.cpu,
                weight: &on_cpu,
                bias: Some(&bias.cpu),
                image_bias: Some(&of_image.cpu),
                residual: Some(&residual.cpu),
            };
            let cpu = Conv2dOp { inputs, config, strip: None, out: None };
            let inputs = Conv2dInputs {
                x: &x.gpu,
                weight: &on_gpu,
                bias: Some(&bias.gpu),
                image_bias: Some(&of_image.gpu),
                residual: Some(&residual.gpu),
            };
            let gpu = Conv2dOp { inputs, config, strip: None, out: None };
            check(&format!("conv2d {kernel}x{kernel}"), &cpu, &gpu, &x.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_convolutions_of_strips() {
    for_types(|dtype| {
        let (config, strip) = (Conv2d::same(3), Strip { height: 20, rows: 4..12 });
        let read = strip.input_rows(config, 3);
        let x = pair(1, &[1, read.len(), 7, 6], dtype);
        let (on_cpu, on_gpu) = weight(2, &[9, 3, 3, 6], dtype);
        let out = pair(3, &[1, 20, 7, 9], dtype);
        let inputs = Conv2dInputs { x: &x.cpu, weight: &on_cpu, bias: None, image_bias: None, residual: None };
        let expected = Conv2dOp { inputs, config, strip: Some(&strip), out: None }.compute().unwrap();
        let place = out.gpu.narrow(1, 4, 8).unwrap();
        let inputs = Conv2dInputs { x: &x.gpu, weight: &on_gpu, bias: None, image_bias: None, residual: None };
        x.gpu.apply(&Conv2dOp { inputs, config, strip: Some(&strip), out: Some(&place) }).unwrap();
        compare("conv2d of a strip", &expected, &place);
        // Rows around the strip are as they were.
        compare("rows above", &out.cpu.narrow(1, 0, 4).unwrap(), &out.gpu.narrow(1, 0, 4).unwrap());
        let below = out.cpu.narrow(1, 12, 8).unwrap().contiguous().unwrap();
        compare("rows below", &below, &out.gpu.narrow(1, 12, 8).unwrap());
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_group_norms() {
    for_types(|dtype| {
        for ([h, w, c], num_groups) in [([13, 9, 32], 32), ([13, 9, 64], 8), ([13, 9, 30], 3), ([60, 57, 20], 2)] {
            let [x, gamma, beta] = [pair(1, &[2, h, w, c], dtype), pair(2, &[c], dtype), pair(3, &[c], dtype)];
            for silu in [false, true] {
                let config = GroupNorm { num_groups, eps: 1e-5, silu };
                let cpu = GroupNormOp { x: &x.cpu, gamma: &gamma.cpu, beta: &beta.cpu, config };
                let gpu = GroupNormOp { x: &x.gpu, gamma: &gamma.gpu, beta: &beta.gpu, config };
                check("group_norm", &cpu, &gpu, &x.gpu);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_orders_of_elements() {
    for_types(|dtype| {
        let (x, other) = (pair(1, &[2, 4, 6, 8], dtype), pair(2, &[2, 4, 6, 5], dtype));
        let cpu = ConcatOp { a: &x.cpu, b: &other.cpu };
        check("concat_channels", &cpu, &ConcatOp { a: &x.gpu, b: &other.gpu }, &x.gpu);
        for channels_last in [false, true] {
            let cpu = LayoutOp { x: &x.cpu, channels_last };
            check("layout", &cpu, &LayoutOp { x: &x.gpu, channels_last }, &x.gpu);
        }
        for shuffle in [false, true] {
            let cpu = PixelShuffleOp { x: &x.cpu, factor: 2, shuffle };
            check("pixel_shuffle", &cpu, &PixelShuffleOp { x: &x.gpu, factor: 2, shuffle }, &x.gpu);
        }
        for size in [(8, 12), (9, 11), (4, 6)] {
            let cpu = UpsampleOp { x: &x.cpu, size, out: None };
            check("upsample_nearest", &cpu, &UpsampleOp { x: &x.gpu, size, out: None }, &x.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_memory_is_reused_in_order() {
    let x = pair(1, &[64, 64], DType::F32);
    // Each result takes the memory of the one before the last, which may still be read.
    let mut found = x.gpu.clone();
    for _ in 0..200 {
        found = PortableTensor::copy(&found).unwrap();
    }
    compare("200 copies", &x.cpu, &found);
}
