//! Operators between layers.

use candle_core::{DType, Device, Tensor};
use kiln_ops::{
    Activation, ActivationOp, Arithmetic, Binary, BinaryOp, IndexSelectOp, Map, MapOp, Operation, ReduceOp, Reduction,
    TimestepEmbedding, TimestepEmbeddingOp,
};

use crate::harness::{both, check, compare, for_types, pair};

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_functions_of_elements() {
    for_types(|dtype| {
        let x = pair(1, &[3, 70, 5], dtype);
        let functions =
            [Activation::Silu, Activation::QuickGelu, Activation::GeluErf, Activation::GeluTanh, Activation::Relu];
        for function in functions {
            let cpu = ActivationOp { x: &x.cpu, function };
            check(&format!("{function:?}"), &cpu, &ActivationOp { x: &x.gpu, function }, &x.gpu);
        }
        for map in [Map::Affine { mul: 2.5, add: -1.0 }, Map::Tanh, Map::Clamp { min: -0.5, max: 0.75 }] {
            let cpu = MapOp { x: &x.cpu, map };
            check(&format!("{map:?}"), &cpu, &MapOp { x: &x.gpu, map }, &x.gpu);
        }
        let positive = both(&x.cpu.abs().unwrap());
        for map in [Map::Sqrt, Map::Log] {
            let shifted = both(&(&positive.cpu + 0.1).unwrap());
            check(&format!("{map:?}"), &MapOp { x: &shifted.cpu, map }, &MapOp { x: &shifted.gpu, map }, &x.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_functions_of_two_elements() {
    for_types(|dtype| {
        let x = pair(1, &[3, 4, 5], dtype);
        for dims in [vec![3, 4, 5], vec![4, 5], vec![3, 1, 5], vec![1, 4, 1]] {
            let other = both(&(pair(2, &dims, DType::F32).cpu.abs().unwrap() + 0.5).unwrap().to_dtype(dtype).unwrap());
            let functions = [
                Binary::Repeated(Arithmetic::Add),
                Binary::Repeated(Arithmetic::Sub),
                Binary::Repeated(Arithmetic::Mul),
                Binary::Divide,
            ];
            for function in functions {
                let cpu = BinaryOp { function, a: &x.cpu, b: &other.cpu };
                check(
                    &format!("{function:?} {dims:?}"),
                    &cpu,
                    &BinaryOp { function, a: &x.gpu, b: &other.gpu },
                    &x.gpu,
                );
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_embeddings_of_timesteps() {
    let values = both(&Tensor::new(&[0f32, 1.0, 999.0, 501.25], &Device::Cpu).unwrap());
    for_types(|dtype| {
        for (dim, flip_sin_to_cos, freq_shift) in [(320, true, 0.0), (32, false, 1.0), (7, true, 0.0)] {
            let config = TimestepEmbedding { dim, flip_sin_to_cos, freq_shift };
            let expected = TimestepEmbeddingOp { values: &values.cpu, config, dtype }.compute().unwrap();
            let found = values.gpu.apply(&TimestepEmbeddingOp { values: &values.gpu, config, dtype }).unwrap();
            // The angle of 999 radians has an error of 6e-5 in f32 on both sides.
            let difference = (expected.to_dtype(DType::F32).unwrap()
                - found.download().unwrap().to_dtype(DType::F32).unwrap())
            .unwrap();
            let worst = difference.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(worst < if dtype == DType::F16 { 1e-3 } else { 1.3e-4 }, "{dim} in {dtype:?}: {worst:e}");
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_numbers_of_lines() {
    for_types(|dtype| {
        let x = pair(1, &[3, 7, 5], dtype);
        for (how, dim) in [(Reduction::Mean, 1), (Reduction::Min, 2), (Reduction::Max, 0)] {
            let cpu = ReduceOp { x: &x.cpu, how, dim };
            check(&format!("{how:?} {dim}"), &cpu, &ReduceOp { x: &x.gpu, how, dim }, &x.gpu);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_rows_of_tables() {
    for_types(|dtype| {
        let table = pair(1, &[6, 10], dtype);
        let many: Vec<u32> = (0..70_001u32).map(|i| i * i % 6).collect();
        for (rows, columns) in [(&[5, 0, 5, 2][..], 0..10), (&[5, 0, 5, 2], 3..8), (&many, 0..10)] {
            let cpu = table.cpu.narrow(1, columns.start, columns.len()).unwrap().contiguous().unwrap();
            let gpu = table.gpu.narrow(1, columns.start, columns.len()).unwrap();
            let cpu = IndexSelectOp { table: &cpu, rows }.compute().unwrap();
            compare("index_select", &cpu, &gpu.apply(&IndexSelectOp { table: &gpu, rows }).unwrap());
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_what_a_device_lacks_is_an_error() {
    let x = pair(1, &[2, 3], DType::F32);
    let refused = x.gpu.to_dtype(DType::BF16).unwrap_err();
    assert!(refused.to_string().contains("this GPU computes with f32 and f16, found bf16"), "{refused}");
    let huge = kiln_ops::portable::PortableTensor::uninit(x.gpu.backend(), &[1 << 45], DType::F32).unwrap_err();
    assert!(huge.to_string().contains("a buffer of this GPU has"), "{huge}");
}
