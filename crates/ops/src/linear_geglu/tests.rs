use candle_core::DType;
#[cfg(feature = "cuda")]
use candle_core::Device;

use super::*;
use crate::geglu::reference as geglus;
use crate::linear::reference as linears;
use crate::test_support::{assert_close, exact, exact_weight, random, weight};

#[test]
fn the_layer_with_geglu_is_both_in_turn() {
    // Few rows; then, for Hopper's kernel, rows and channels that are no multiples of a tile, and that are.
    for (shape, n) in [([1, 3, 32], 12), ([2, 65, 64], 48), ([2, 2065, 72], 1560), ([1, 2048, 1280], 5120)] {
        let (x, k) = (random(&shape), shape[2]);
        if !x.device().is_cuda() && n > 1000 {
            continue; // the CPU has no kernel of its own
        }
        let (weight, bias) = (weight(&[2 * n, k]), random(&[2 * n]));
        for bias in [None, Some(&bias)] {
            let exact_bias = bias.map(exact);
            let wide = linears::forward(&exact(&x), &exact_weight(&weight), exact_bias.as_ref(), None).unwrap();
            let y = linear_geglu(&x, &weight, bias).unwrap();
            assert_close(&y, &geglus::forward(&wide).unwrap(), 1e-4);
        }
    }
}

#[test]
fn refuses_a_weight_without_a_gate_for_each_value() {
    let error = linear_geglu(&random(&[1, 2, 8]), &weight(&[5, 8]), None).unwrap_err();
    let expected = "linear_geglu: weight has shape [5, 1, 1, 8], expected an even number of rows";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn memory_is_that_of_both_operators() {
    let (x, weight) = (random(&[2, 3, 8]), weight(&[10, 8]));
    let cost = LinearGegluOp { x: &x, weight: &weight, bias: None }.cost(Target::Gpu).unwrap();
    assert_eq!((cost.shape, cost.temporaries), (vec![2, 3, 5], vec![(vec![2, 3, 10], x.dtype())]));
}

#[test]
fn the_kernel_needs_a_hopper_16_bits_and_many_rows() {
    let (few, many, weight) = (random(&[1, 64, 64]), random(&[1, 8192, 64]), weight(&[2560, 64]));
    assert!(!has_linear_geglu(&few, &weight).unwrap());
    assert_eq!(has_linear_geglu(&many, &weight).unwrap(), is_hopper(&many) && many.dtype() != DType::F32);
}

fn is_hopper(x: &Tensor) -> bool {
    match x.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => crate::cuda::has_hopper_code(device).unwrap(),
        _ => false,
    }
}
