//! Operands of a tested operator: the same numbers on the tested device and on the CPU.

use candle_core::{DType, Device, Tensor};
use half::f16;
use kiln_nn::Result;
use kiln_ops::{BlockType, EightBits, MatrixType, Packing, ROW_FACTOR, Weight};
use kiln_weights::{EightBitLayers, RandomSource, Segments, load};

use super::tested::Tested;

/// Whether weights can be converted to a type.
fn can_be_made(kind: MatrixType) -> bool {
    match kind {
        MatrixType::Blocks(block) => block.quantizer().is_some(),
        kind => kind == MatrixType::F8,
    }
}

/// Random operands, from the same stream in every run.
pub(super) struct Operands<T: Tested> {
    device: T::Device,
    dtype: DType,
    /// The type that the numbers are rounded to.
    rounded: DType,
    state: u64,
}

impl<T: Tested> Operands<T> {
    /// On a device in a type.
    pub(super) fn of_device(device: &T::Device, dtype: DType) -> Self {
        Self { device: device.clone(), dtype, rounded: dtype, state: 0 }
    }

    /// Numbers between -1 and 1.
    pub(super) fn tensor(&mut self, shape: &[usize]) -> Result<T> {
        let numbers = self.numbers(shape)?.to_dtype(self.rounded)?;
        T::upload(&numbers.to_dtype(self.dtype)?, &self.device)
    }

    /// Numbers between -1 and 1 that are f32 on every device.
    pub(super) fn tensor_f32(&mut self, shape: &[usize]) -> Result<T> {
        T::upload(&self.numbers(shape)?, &self.device)
    }

    /// These numbers in f32.
    pub(super) fn values(&self, values: &[f32]) -> Result<T> {
        T::upload(&Tensor::new(values, &Device::Cpu)?, &self.device)
    }

    /// The kernel of a convolution `(c_out, kh, kw, c_in)`, with results of the magnitude of the inputs.
    pub(super) fn kernel(&mut self, shape: &[usize; 4]) -> Result<T::Weight> {
        let [_, kh, kw, c_in] = *shape;
        let factor = 1.0 / ((kh * kw * c_in) as f64).sqrt();
        let numbers = (self.numbers(shape)? * factor)?.to_dtype(self.rounded)?;
        T::upload(&numbers.to_dtype(self.dtype)?, &self.device)?.plain_weight()
    }

    /// The matrix `(n, k)` of a linear layer in the type of the activations, loaded as one of a network.
    pub(super) fn matrix(&mut self, shape: [usize; 2]) -> Result<T::Weight> {
        self.loaded(shape, None, None)
    }

    /// The matrix `(n, k)` of a linear layer in the type of a file, loaded as one of a network. Types that are only read have random
    /// codes.
    pub(super) fn stored(&mut self, shape: [usize; 2], kind: MatrixType) -> Result<T::Weight> {
        if can_be_made(kind) { self.loaded(shape, Some(kind), None) } else { self.codes(kind, shape) }
    }

    fn loaded(
        &mut self,
        [n, k]: [usize; 2],
        kept: Option<MatrixType>,
        in_bytes: Option<EightBits>,
    ) -> Result<T::Weight> {
        let mut segments = Segments::default();
        let layer = segments.add("layer", |p| p.allows_8_bits().param("weight", &[n, k], Packing::Linear));
        if let Some(kind) = in_bytes {
            segments.set_8_bits(Some(&EightBitLayers { kind, ..EightBitLayers::default() }));
        }
        let placement = T::placement(&self.device, self.dtype).with_matrices(kept);
        let seed = self.next();
        load(&segments, &RandomSource::new(&segments, seed), &placement)?;
        let param = layer.enter()?;
        T::loaded(&param, &self.device)
    }

    /// A matrix of random codes with one scale.
    fn codes(&mut self, kind: MatrixType, [n, k]: [usize; 2]) -> Result<T::Weight> {
        // Numbers up to about 1, as e5m2, and integers and codes of 4 bits times their scales.
        let (scale, part, bytes): (Vec<u8>, usize, usize) = match kind {
            MatrixType::Blocks(block @ (BlockType::NF4 | BlockType::FP4)) => {
                (0.75f32.to_le_bytes().into(), block.elements(), block.bytes())
            }
            MatrixType::Blocks(block) => (f16::from_f32(0.01).to_le_bytes().into(), block.elements(), block.bytes()),
            MatrixType::F8E5M2 => (1f32.to_le_bytes().into(), k, k + ROW_FACTOR),
            _ => (0.01f32.to_le_bytes().into(), k, k + ROW_FACTOR),
        };
        let mut memory = Vec::new();
        for _ in 0..n * k / part.max(1) {
            memory.extend(&scale);
            memory.extend((scale.len()..bytes).map(|_| match kind {
                MatrixType::F8E5M2 => (self.next() as u8) & 0xbf, // exponents below 16: less than 2
                _ => self.next() as u8,
            }));
        }
        // Slabs have elements of other types, so the bytes are those of floats.
        memory.resize(memory.len().next_multiple_of(size_of::<f32>()), 0);
        let floats: Vec<f32> = memory.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let count = floats.len();
        let memory = Tensor::from_vec(floats, count, &Device::Cpu)?;
        T::stored_rows(&memory, kind, [n, k], &self.device)
    }

    fn numbers(&mut self, shape: &[usize]) -> Result<Tensor> {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect();
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    /// The next number of a splitmix64 stream (Steele et al., 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Operands<Tensor> {
    /// In f32 on the CPU, with the numbers that have been rounded to `dtype`.
    pub(super) fn exact(dtype: DType) -> Self {
        Self { device: Device::Cpu, dtype: DType::F32, rounded: dtype, state: 0 }
    }

    /// The matrix `(n, k)` of a linear layer in bytes with a scale for each row, computed in 8 bits.
    pub(super) fn in_bytes(&mut self, shape: [usize; 2], kind: EightBits) -> Result<Weight> {
        self.loaded(shape, None, Some(kind))
    }
}
