use candle_core::{DType, Device, Tensor};

use super::*;
use crate::activation::reference as activations;
use crate::linear::reference as linears;
use crate::test_support::{assert_close, exact, exact_weight, random, weight};

#[test]
fn the_layer_with_its_activation_is_both_in_turn() {
    // Few rows, rows that are no multiple of a tile, and channels that are.
    for (shape, n) in [([1, 3, 32], 24), ([2, 65, 64], 48), ([1, 130, 256], 512)] {
        let x = random(&shape);
        let k = shape[2];
        let (weight, bias) = (weight(&[n, k]), random(&[n]));
        let before = random(&[shape[0], shape[1], 16]);
        for bias in [None, Some(&bias)] {
            for function in [Activation::GeluTanh, Activation::Silu] {
                let exact_bias = bias.map(exact);
                let product = linears::forward(&exact(&x), &exact_weight(&weight), exact_bias.as_ref(), None).unwrap();
                let expected = activations::forward(&product, function).unwrap();
                let y = activated_linear(&x, &weight, bias, function, None).unwrap();
                assert_close(&y, &expected, 1e-4);
                let joined = activated_linear(&x, &weight, bias, function, Some(&before)).unwrap();
                assert_close(&joined, &Tensor::cat(&[&exact(&before), &expected], 2).unwrap(), 1e-4);
            }
        }
    }
}

#[test]
fn refuses_other_rows_before_the_layer() {
    let weight = weight(&[4, 8]);
    let (x, before) = (random(&[1, 2, 8]), random(&[1, 3, 4]));
    let error = activated_linear(&x, &weight, None, Activation::GeluTanh, Some(&before)).unwrap_err();
    assert_eq!(error.to_string(), "activated_linear: before has shape [1, 3, 4], expected [1, 2, 4]");
}

#[test]
fn a_gpu_computes_gelu_with_products_in_16_bits() {
    let fuses = |target: Target, dtype| target.fuses_activation(dtype, Activation::GeluTanh);
    assert!(fuses(Target::Gpu, DType::BF16) && !fuses(Target::Gpu, DType::F32));
    assert!(!Target::Gpu.fuses_activation(DType::F16, Activation::Silu));
    assert!(!fuses(Target::of(&Device::Cpu), DType::BF16));
}
