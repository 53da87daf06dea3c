//! Random weights, for measurements that need a network's sizes but no trained values.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use safetensors::{Dtype, View};

use crate::error::{Error, Result};
use crate::param_spec::ParamSpec;
use crate::segment::Segment;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// Random tensors for every parameter of some segments, the same in every run.
///
/// Matrices, kernels and tables have approximately normal values of standard deviation `1 / sqrt(fan_in)`, so that
/// activations keep their magnitude from layer to layer. `weight`s of one dimension (normalizations) are 1, and all
/// others (biases) are 0. A tensor is generated on demand, as f16: only the tensors in use are in memory.
#[derive(Debug, Clone)]
pub struct RandomSource {
    params: HashMap<String, Made>,
}

#[derive(Debug, Clone)]
struct Made {
    shape: Vec<usize>,
    values: Values,
}

#[derive(Debug, Clone, Copy)]
enum Values {
    Constant(f16),
    Normal { stream: u64, std: f32 },
}

impl RandomSource {
    /// Tensors for the parameters of `segments`. Another `seed` results in other values.
    pub fn new(segments: &[Segment], seed: u64) -> Self {
        let params = segments.iter().flat_map(Segment::params).enumerate();
        let made = |(i, param): (usize, &ParamSpec)| {
            let values = match param.shape.as_slice() {
                [_] if param.key.ends_with("weight") => Values::Constant(f16::ONE),
                [] | [_] => Values::Constant(f16::ZERO),
                [_, inputs @ ..] => {
                    let fan_in = inputs.iter().product::<usize>().max(1);
                    Values::Normal { stream: hash(seed ^ hash(i as u64)), std: 1.0 / (fan_in as f32).sqrt() }
                }
            };
            (param.key.clone(), Made { shape: param.shape.clone(), values })
        };
        Self { params: params.map(made).collect() }
    }
}

impl RandomSource {
    /// Writes all tensors to a safetensors file, one by one: the file may be larger than memory.
    ///
    /// # Errors
    /// [`Error::Format`] with the file and the operating system's error.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |error: safetensors::SafeTensorError| Error::Format {
            path: path.to_path_buf(),
            problem: format!("cannot be written: {error}"),
        };
        safetensors::serialize_to_file(&self.params, None, path).map_err(failed)
    }
}

impl View for &Made {
    fn dtype(&self) -> Dtype {
        Dtype::F16
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.bytes(0..self.elements()))
    }

    fn data_len(&self) -> usize {
        self.elements() * size_of::<f16>()
    }
}

impl ParamSource for RandomSource {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.params.get(key).map(|made| ParamInfo { shape: made.shape.clone(), dtype: Dtype::F16.into() })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let (Some(info), Some(made)) = (self.info(key), self.params.get(key)) else { return Ok(None) };
        Ok(Some(ParamData { info, bytes: Cow::Owned(made.bytes(0..made.elements())) }))
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        let (Some(info), Some(made)) = (self.info(key), self.params.get(key)) else { return Ok(None) };
        let Some((info, bytes)) = info.rows(&rows) else { return Ok(None) };
        let elements = bytes.start / size_of::<f16>()..bytes.end / size_of::<f16>();
        Ok(Some(ParamData { info, bytes: Cow::Owned(made.bytes(elements)) }))
    }

    fn origin(&self, _key: &str) -> String {
        "random weights".into()
    }

    fn keys(&self) -> Vec<String> {
        self.params.keys().cloned().collect()
    }
}

/// The number of values that are generated at a time: a small buffer in the first-level cache.
const CHUNK: usize = 1024;

impl Made {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of some elements.
    fn bytes(&self, elements: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(elements.len() * size_of::<f16>());
        let mut values = [0f32; CHUNK];
        let mut halves = [f16::ZERO; CHUNK];
        for start in elements.clone().step_by(CHUNK) {
            let halves = &mut halves[..CHUNK.min(elements.end - start)];
            match self.values {
                Values::Constant(value) => halves.fill(value),
                Values::Normal { stream, std } => {
                    for (i, value) in values.iter_mut().enumerate() {
                        *value = normal(stream.wrapping_add((start + i) as u64)) * std;
                    }
                    halves.convert_from_f32_slice(&values[..halves.len()]);
                }
            }
            bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
        }
        bytes
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): every bit of the result depends on every bit of
/// `x`, and neighboring inputs have unrelated results.
fn hash(x: u64) -> u64 {
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Approximately normal, with mean 0 and standard deviation 1, within 3.5: the sum of the four 16-bit numbers in a
/// hash. The Box-Muller transform would need a logarithm and a cosine for the same purpose.
fn normal(x: u64) -> f32 {
    let bits = hash(x);
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    // Four uniform numbers of 0..65536 have mean 4 * 32767.5 and variance 4 * 65536^2 / 12.
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65536.0)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use kiln_ops::Packing;

    use super::*;
    use crate::load::{Placement, load};
    use crate::safetensors_file::SafetensorsFile;
    use crate::segment::{Param, SegmentModule, Segments};

    /// A segment with a matrix, a normalization's weight and a bias.
    fn declared() -> (Segments, SegmentModule<[Param; 3]>) {
        let mut segments = Segments::default();
        let block = segments.add("block", |p| {
            [
                p.param("proj.weight", &[300, 64], Packing::AsStored),
                p.param("norm.weight", &[70], Packing::AsStored),
                p.param("norm.bias", &[70], Packing::AsStored),
            ]
        });
        (segments, block)
    }

    fn loaded(seed: u64) -> [Vec<f32>; 3] {
        let (segments, block) = declared();
        let source = RandomSource::new(&segments, seed);
        load(&segments, &source, &Placement::new(Device::Cpu, DType::F32)).unwrap();
        let values = |param: &Param| -> candle_core::Result<Vec<f32>> {
            let tensor: Tensor = param.tensor().map_err(candle_core::Error::wrap)?;
            tensor.flatten_all()?.to_vec1()
        };
        [0, 1, 2].map(|i| values(&block.enter().unwrap()[i]).unwrap())
    }

    #[test]
    fn the_same_seed_makes_the_same_weights() {
        assert_eq!(loaded(7), loaded(7));
        assert_ne!(loaded(7)[0], loaded(8)[0]);
    }

    #[test]
    fn matrices_are_normal_scales_one_and_biases_zero() {
        let [matrix, scale, bias] = loaded(0);
        let mean = matrix.iter().sum::<f32>() / matrix.len() as f32;
        let std = (matrix.iter().map(|value| value * value).sum::<f32>() / matrix.len() as f32).sqrt();
        assert!(mean.abs() < 0.003, "mean {mean}");
        assert!((std - 0.125).abs() < 0.003, "standard deviation {std}, expected 1 / sqrt(64)");
        assert!(scale.iter().all(|&value| value == 1.0) && bias.iter().all(|&value| value == 0.0));
    }

    #[test]
    fn a_saved_file_holds_the_same_tensors() {
        let (segments, _) = declared();
        let (source, folder) = (RandomSource::new(&segments, 3), tempfile::tempdir().unwrap());
        let path = folder.path().join("random.safetensors");
        source.save(&path).unwrap();
        let file = SafetensorsFile::open(&path).unwrap();
        for key in source.keys() {
            assert_eq!(file.info(&key), source.info(&key));
            assert!(file.data(&key).unwrap().unwrap().bytes == source.data(&key).unwrap().unwrap().bytes, "{key}");
        }
    }

    #[test]
    fn undeclared_tensors_are_absent() {
        let source = RandomSource::new(&declared().0, 0);
        assert!(source.info("other").is_none() && source.data("other").unwrap().is_none());
        assert_eq!(source.keys().len(), 3);
    }
}
