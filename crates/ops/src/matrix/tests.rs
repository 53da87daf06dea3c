use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Tensor};

use super::*;
use crate::linear;
use crate::packing::Weight;
use crate::test_support::{exact, random};

fn kinds() -> impl Iterator<Item = MatrixType> {
    let rotations = [Rotation::None, Rotation::By16, Rotation::By64, Rotation::By256];
    [MatrixType::F16, MatrixType::Bf16, MatrixType::F8, MatrixType::F8E5M2]
        .into_iter()
        .chain(rotations.map(MatrixType::Int8))
        .chain(BlockType::ALL.map(MatrixType::Blocks))
}

/// The rows of an f32 matrix `(n, k)` in their storage type. Types that are read only have codes that follow from their
/// positions.
fn stored(matrix: &Tensor, kind: MatrixType) -> Vec<u8> {
    let rows: Vec<Vec<f32>> = matrix.to_vec2().unwrap();
    let with_factors = |unit: f32, code: &dyn Fn(f32) -> u8| {
        let row = |(i, row): (usize, &Vec<f32>)| {
            let factor = unit * (0.5 + i as f32 / 7.0);
            let numbers: Vec<u8> = row.iter().map(|value| code(value / factor)).collect();
            [factor.to_le_bytes().to_vec(), numbers].concat()
        };
        rows.iter().enumerate().flat_map(row).collect()
    };
    match kind {
        MatrixType::F16 => rows.concat().iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        MatrixType::Bf16 => rows.concat().iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        MatrixType::F8 => with_factors(1.0, &to_f8_e4m3),
        MatrixType::F8E5M2 => with_factors(1.0, &|value| (f16::from_f32(value).to_bits() >> 8) as u8),
        MatrixType::Int8(_) => with_factors(0.05, &|value| value as i8 as u8),
        MatrixType::Blocks(block) => match block.quantizer() {
            Some(ggml) => QTensor::quantize(matrix, ggml).unwrap().data().unwrap().into_owned(),
            None => {
                let scale: &[u8] = match block {
                    BlockType::NF4 | BlockType::FP4 => &0.75f32.to_le_bytes(),
                    _ => &f16::from_f32(0.01).to_le_bytes(),
                };
                let blocks = rows.concat().len() / block.elements();
                let code = |(i, value): (usize, &f32)| (value.to_bits() >> 9 ^ i as u32) as u8;
                let codes: Vec<u8> = rows.concat().iter().enumerate().map(code).collect();
                let codes = codes.chunks(block.elements()).take(blocks);
                codes.flat_map(|codes| [scale, &codes[scale.len()..block.bytes()]].concat()).collect()
            }
        },
    }
}

/// Bytes as a flat tensor of a type, between others that do not belong to it.
fn memory(bytes: &[u8], dtype: DType) -> Tensor {
    let size = dtype.size_in_bytes();
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(size), 0xff);
    let all = [vec![0xff; 4 * size], bytes.clone(), vec![0xff; 4 * size]].concat();
    let len = bytes.len() / size;
    let tensor = match dtype {
        DType::F32 => {
            let values: Vec<f32> = all.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            Tensor::new(values, &Device::Cpu)
        }
        DType::F16 => {
            let values: Vec<f16> = all.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
            Tensor::new(values, &Device::Cpu)
        }
        _ => {
            let values: Vec<bf16> = all.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b)).collect();
            Tensor::new(values, &Device::Cpu)
        }
    };
    tensor.unwrap().narrow(0, 4, len).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn a_layer_has_the_bits_of_the_dequantized_matrix() {
    let device = random(&[1]).device().clone();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        // The last sizes are larger than a band.
        for (outer, k, n) in [(1, 256, 3), (9, 512, 65), (40, 768, 40), (3, 1024, 2100)] {
            let matrix = exact(&random(&[n, k]));
            let half = |t: Tensor| t.to_dtype(dtype).unwrap();
            let (x, residual) = (half(random(&[2, outer, k])), half(random(&[2, outer, n])));
            let bias = half(random(&[n]));
            for kind in kinds() {
                let memory = memory(&stored(&matrix, kind), dtype);
                let weight = Weight::rows(&memory, kind, [n, k], 1).unwrap().on(&device).unwrap();
                assert_eq!((weight.shape(), weight.layout()), ([n, 1, 1, k], None));
                let plain = Weight::plain(&dense(&weight).unwrap()).unwrap();
                let run = |weight: &Weight, out: Option<&Tensor>| {
                    linear(&x, weight, Some(&bias), Some(&residual), out).unwrap()
                };
                let expected = run(&plain, None);
                assert_eq!(bits(&run(&weight, None)), bits(&expected), "{kind} {dtype:?} ({n}, {k})");
                let out = expected.zeros_like().unwrap();
                run(&weight, Some(&out));
                assert_eq!(bits(&out), bits(&expected), "{kind} {dtype:?} ({n}, {k})");
            }
        }
    }
}

#[test]
fn dequantized_values_are_those_that_were_stored() {
    let matrix = exact(&random(&[5, 512]));
    let close = [
        (MatrixType::F16, 1e-3),
        (MatrixType::Bf16, 1e-2),
        (MatrixType::F8, 0.1),
        (MatrixType::F8E5M2, 0.4),
        (MatrixType::Int8(Rotation::None), 0.2),
        (MatrixType::Blocks(BlockType::Q8_0), 0.02),
        (MatrixType::Blocks(BlockType::Q4_K), 0.25),
    ];
    for (kind, bound) in close {
        let weight = Weight::rows(&memory(&stored(&matrix, kind), DType::F32), kind, [5, 512], 1).unwrap();
        let off = (dense(&weight).unwrap() - &matrix).unwrap().abs().unwrap().max_all().unwrap();
        let off: f32 = off.to_scalar().unwrap();
        assert!(off <= bound, "{kind}: {off}");
    }
    // Any range of a row, whatever block it begins in.
    for kind in kinds() {
        let bytes = stored(&matrix, kind);
        let row = &bytes[..bytes.len() / 5];
        let (mut all, mut part) = ([0f32; 512], [0f32; 300]);
        kind.read(row, 0, &mut all);
        kind.read(row, 111, &mut part);
        assert_eq!(part, all[111..411], "{kind}");
    }
}

#[test]
fn layers_with_a_gap_between_them_are_one_matrix() {
    let (kind, k) = (MatrixType::Blocks(BlockType::Q5_1), 64);
    let matrices = [exact(&random(&[3, k])), exact(&random(&[3, k]))];
    let mut bytes = Vec::new();
    for matrix in &matrices {
        bytes.extend(stored(matrix, kind));
        bytes.resize(bytes.len().next_multiple_of(256), 0xff);
    }
    let memory = memory(&bytes, DType::F32);
    let both = dense(&Weight::rows(&memory, kind, [6, k], 2).unwrap()).unwrap();
    let second = memory.narrow(0, memory.elem_count() / 2, memory.elem_count() / 2).unwrap();
    let second = dense(&Weight::rows(&second, kind, [3, k], 1).unwrap()).unwrap();
    assert_eq!(bits(&both.narrow(0, 3, 3).unwrap()), bits(&second));
}

#[test]
fn rows_that_a_type_cannot_store_are_refused() {
    let memory = Tensor::zeros(64, DType::F32, &Device::Cpu).unwrap();
    let kind = MatrixType::Blocks(BlockType::Q8_0);
    let message = Weight::rows(&memory, kind, [2, 40], 1).unwrap_err().to_string();
    assert!(message.contains("rows of 40 elements cannot be stored as q8_0"), "{message}");
    let message = Weight::rows(&memory, MatrixType::Int8(Rotation::By64), [2, 48], 1).unwrap_err().to_string();
    assert!(message.contains("rows of 48 elements cannot be stored as int8_convrot64"), "{message}");
    assert!(Weight::rows(&memory, kind, [8, 32], 1).is_err(), "272 bytes in 256");
    assert!(Weight::rows(&memory, kind, [7, 32], 2).is_err());
    assert!(Weight::rows(&memory, kind, [7, 32], 1).is_ok());
}
