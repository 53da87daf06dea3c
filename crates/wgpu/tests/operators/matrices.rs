//! Matrices in storage types of their own: their elements bit by bit, and products with them.

use candle_core::{DType, Device, Tensor};
use half::f16;
use kiln_ops::portable::{PortableTensor, PortableWeight};
use kiln_ops::{ActivatedLinearOp, Activation, BlockType, LinearOp, MatrixType, Rotation, Weight, WeightOperand};

use crate::harness::{both, check, for_types, gpu, pair};

fn kinds() -> impl Iterator<Item = MatrixType> {
    let rotations = [Rotation::None, Rotation::By16, Rotation::By64, Rotation::By256];
    [MatrixType::F16, MatrixType::Bf16, MatrixType::F8, MatrixType::F8E5M2]
        .into_iter()
        .chain(rotations.map(MatrixType::Int8))
        .chain(BlockType::ALL.map(MatrixType::Blocks))
}

/// Bytes of a deterministic sequence.
struct Noise(u32);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 24) as u8
    }

    /// An f16 of any sign up to 0.1, or one of the smallest.
    fn half(&mut self) -> [u8; 2] {
        let bits = u16::from_le_bytes([self.byte(), self.byte()]);
        let small = self.byte() < 16;
        (if small { bits & 0x83ff } else { bits & 0x8fff | 0x2000 }).to_le_bytes()
    }

    /// A positive f32 up to 0.1.
    fn factor(&mut self) -> [u8; 4] {
        (f32::from(self.byte()) / 2550.0 + 1e-3).to_le_bytes()
    }

    /// A row of `k` numbers with any codes, whose elements are finite.
    fn row(&mut self, kind: MatrixType, k: usize) -> Vec<u8> {
        let mut row: Vec<u8> = (0..kind.row_bytes(k).unwrap()).map(|_| self.byte()).collect();
        match kind {
            MatrixType::F16 | MatrixType::Bf16 => {
                row.as_chunks_mut::<2>().0.iter_mut().for_each(|number| *number = self.half());
                if kind == MatrixType::Bf16 {
                    row.as_chunks_mut::<2>().0.iter_mut().for_each(|number| number[1] = number[1] & 0x80 | 0x3e);
                }
            }
            MatrixType::F8 | MatrixType::F8E5M2 | MatrixType::Int8(_) => {
                row[..4].copy_from_slice(&self.factor());
                for code in &mut row[4..] {
                    *code = match (kind, *code & 0x7f) {
                        (MatrixType::F8, 0x7f) => 0x7e,
                        (MatrixType::F8E5M2, 0x60..) => *code & 0x9f,
                        _ => *code,
                    };
                }
            }
            MatrixType::Blocks(block) => {
                let halves: &[usize] = match block {
                    BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
                    BlockType::Q2_K => &[80, 82],
                    BlockType::Q3_K => &[108],
                    BlockType::Q6_K => &[208],
                    BlockType::NF4 | BlockType::FP4 => &[],
                    _ => &[0],
                };
                for bytes in row.chunks_exact_mut(block.bytes()) {
                    halves.iter().for_each(|&at| bytes[at..at + 2].copy_from_slice(&self.half()));
                    if halves.is_empty() {
                        bytes[..4].copy_from_slice(&self.factor());
                    }
                }
                assert!(block.has_finite_scales(&row), "{block:?}");
            }
        }
        row
    }
}

/// Bytes as a flat tensor of a type, after others that do not belong to it.
fn memory(bytes: &[u8], dtype: DType) -> Tensor {
    let mut all = vec![0xa5; 256];
    all.extend(bytes);
    all.resize(all.len().next_multiple_of(4), 0xa5);
    let (skipped, count) = (256 / dtype.size_in_bytes(), all.len() / dtype.size_in_bytes());
    let tensor = match dtype {
        DType::F16 => {
            let values: Vec<f16> = all.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect();
            Tensor::from_vec(values, count, &Device::Cpu)
        }
        _ => {
            let values: Vec<f32> = all.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Tensor::from_vec(values, count, &Device::Cpu)
        }
    };
    tensor.unwrap().narrow(0, skipped, count - skipped).unwrap()
}

/// A matrix `(n, k)` of `parts` layers with gaps between them, on both sides, and its elements.
fn matrix(kind: MatrixType, dtype: DType, [n, k]: [usize; 2], parts: usize) -> (Weight, PortableWeight, Vec<f32>) {
    let mut noise = Noise(n as u32);
    let (mut bytes, mut elements) = (Vec::new(), Vec::new());
    for i in 0..n {
        let row = noise.row(kind, k);
        kind.each(&row, 0, k, |values| elements.extend_from_slice(values));
        bytes.extend(row);
        if (i + 1) % (n / parts) == 0 && parts > 1 {
            bytes.resize(bytes.len().next_multiple_of(256), 0xa5);
        }
    }
    let memory = memory(&bytes, dtype);
    let weight = Weight::rows(&memory, kind, [n, k], parts).unwrap();
    // With what is before it.
    let offset = memory.layout().start_offset();
    let before = Tensor::zeros(offset, dtype, &Device::Cpu).unwrap();
    let all = PortableTensor::upload(&gpu().backend, &Tensor::cat(&[&before, &memory], 0).unwrap()).unwrap();
    let portable = PortableWeight::new(&gpu().backend, all.memory().clone(), offset, &weight).unwrap();
    assert_eq!((portable.shape(), portable.matrix()), ([n, 1, 1, k], Some(kind)));
    (weight, portable, elements)
}

/// The sums of a product with the unit matrix have one number that is not 0.
#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_elements_of_stored_matrices_are_those_of_the_cpu() {
    for_types(|dtype| {
        let check = |kind: MatrixType, [n, k]: [usize; 2], parts: usize| {
            let (_, weight, elements) = matrix(kind, dtype, [n, k], parts);
            let unit = both(&Tensor::eye(k, dtype, &Device::Cpu).unwrap());
            let found = unit.gpu.apply(&LinearOp { x: &unit.gpu, weight: &weight, bias: None, residual: None });
            let found = found.unwrap().download().unwrap().t().unwrap().to_dtype(DType::F32).unwrap();
            let found: Vec<f32> = found.contiguous().unwrap().flatten_all().unwrap().to_vec1().unwrap();
            for (i, (found, expected)) in found.into_iter().zip(elements).enumerate() {
                let rounded = if dtype == DType::F16 { f16::from_f32(expected).to_f32() } else { expected };
                // A GPU may take the smallest f16 for 0.
                let is_tiny = dtype == DType::F16 && rounded.abs() < 6.2e-5 && found == 0.0;
                assert!(found == rounded || is_tiny, "{kind} {dtype:?} ({n}, {k}), {i}: {found:e}, not {expected:e}");
            }
        };
        for kind in kinds() {
            check(kind, [12, 512], 1);
            check(kind, [6, 256], 3);
        }
        for kind in [MatrixType::F16, MatrixType::Bf16] {
            check(kind, [3, 7], 1);
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_products_of_stored_matrices() {
    for_types(|dtype| {
        for kind in kinds() {
            for (m, n) in [(1, 40), (70, 132)] {
                let (x, bias, residual) = (pair(1, &[m, 256], dtype), pair(2, &[n], dtype), pair(3, &[m, n], dtype));
                let (on_cpu, on_gpu, _) = matrix(kind, dtype, [n, 256], 2);
                let cpu = LinearOp { x: &x.cpu, weight: &on_cpu, bias: Some(&bias.cpu), residual: Some(&residual.cpu) };
                let gpu = LinearOp { x: &x.gpu, weight: &on_gpu, bias: Some(&bias.gpu), residual: Some(&residual.gpu) };
                check(&format!("linear, {kind}"), &cpu, &gpu, &x.gpu);
                let function = Activation::GeluTanh;
                let linear = LinearOp { residual: None, ..cpu };
                let cpu = ActivatedLinearOp { linear, function, before: Some(&x.cpu) };
                let linear = LinearOp { residual: None, ..gpu };
                let gpu = ActivatedLinearOp { linear, function, before: Some(&x.gpu) };
                check(&format!("linear with GELU, {kind}"), &cpu, &gpu, &x.gpu);
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_stored_matrices_come_back_as_they_are() {
    for_types(|dtype| {
        let kind = MatrixType::Blocks(BlockType::Q5_0);
        let (_, portable, elements) = matrix(kind, dtype, [6, 64], 2);
        let back = portable.download().unwrap();
        assert_eq!((back.shape(), back.matrix()), ([6, 1, 1, 64], Some(kind)));
        let unit = Tensor::eye(64, dtype, &Device::Cpu).unwrap();
        let found =
            kiln_ops::linear(&unit, &back, None, None, None).unwrap().t().unwrap().to_dtype(DType::F32).unwrap();
        let found: Vec<f32> = found.contiguous().unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let rounded = |value: f32| if dtype == DType::F16 { f16::from_f32(value).to_f32() } else { value };
        assert_eq!(found, elements.into_iter().map(rounded).collect::<Vec<_>>());
    });
}

#[test]
#[ignore = "needs a GPU with Vulkan, Metal or DirectX 12, or Mesa's lavapipe"]
fn vulkan_rows_that_do_not_begin_at_words_are_refused() {
    for_types(|dtype| {
        let (_, weight, _) = matrix(MatrixType::F16, dtype, [4, 6], 2);
        let x = pair(1, &[2, 6], dtype);
        let error = x.gpu.apply(&LinearOp { x: &x.gpu, weight: &weight, bias: None, residual: None }).unwrap_err();
        assert!(error.to_string().contains("rows of 6 elements in f16"), "{error}");
    });
}
