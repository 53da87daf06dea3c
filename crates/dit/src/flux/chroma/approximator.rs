//! The network that makes the vectors of all blocks (diffusers' `ChromaApproximator`).
//!
//! It has one row for each vector. A row's input is the sinusoids of the timestep, those of a guidance of 0, and those of the row's
//! number; the last two are the same in every call.

use candle_core::{DType, Device, Tensor};
use kiln_network::{Inputs, Slot};
use kiln_nn::ops::{TimestepEmbedding, timestep_embedding};
use kiln_nn::{Linear, Result, RmsNorm, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use super::config::ChromaConfig;
use crate::flux::embedders::EmbeddingMlp;
use crate::flux::trunk::Place;
use crate::rotary::in_f32;
use crate::tokens::repeated;

/// The inputs of all rows that are the same in every call, `(1, rows, 3 channels / 4)` in f32.
const ROWS: Slot = Slot::shared("numbers of vectors").keeping_dtype();
/// PyTorch's `RMSNorm` without an epsilon of its own, in f32.
const EPS: f64 = f32::EPSILON as f64;
/// The factor of a row's number.
const NUMBER: f32 = 1000.0;

/// The network, with a segment for each layer.
pub(super) struct Approximator {
    config: ChromaConfig,
    in_proj: SegmentModule<Linear>,
    layers: Vec<SegmentModule<(RmsNorm, EmbeddingMlp)>>,
    out_proj: SegmentModule<Linear>,
}

impl Approximator {
    /// Declares `distilled_guidance_layer`.
    pub(super) fn new(segments: &mut Segments, config: &ChromaConfig) -> Self {
        const PATH: &str = "distilled_guidance_layer";
        let ChromaConfig { dims, approximator_channels, approximator_hidden: hidden, approximator_layers } = *config;
        let linear = |segments: &mut Segments, name: &str, sizes: [usize; 2]| {
            let path = format!("{PATH}.{name}");
            segments.add(&path, |p| Linear::new(&p.pp(&path), sizes[0], sizes[1], true))
        };
        let in_proj = linear(segments, "in_proj", [approximator_channels, hidden]);
        let layers = (0..approximator_layers).map(|i| {
            let layer = format!("{PATH}.layers.{i}");
            segments.add(&layer, |p| {
                let norm = RmsNorm::new(&p.pp(format!("{PATH}.norms.{i}")), hidden, EPS);
                (norm, EmbeddingMlp::new(&p.pp(&layer), hidden, hidden))
            })
        });
        let layers = layers.collect();
        let out_proj = linear(segments, "out_proj", [hidden, dims.channels()]);
        Self { config: *config, in_proj, layers, out_proj }
    }

    /// The vectors in `dtype` for `timesteps` `(1)` or `(b)` in f32. `rows` is the input of [`prepare`], if it was made.
    pub(super) fn forward<T: TensorLike>(&self, timesteps: &T, rows: Option<T>, dtype: DType) -> Result<AllVectors<T>> {
        let (count, dim) = (self.config.vectors(), self.config.approximator_channels / 4);
        let time = timesteps.timestep_embedding(sinusoids(dim), dtype)?; // (b or 1, dim)
        let b = time.size2()?[0];
        let time = time.reshape(&[b, 1, 1, dim])?.upsample_nearest((count, 1), None)?.reshape(&[b, count, dim])?;
        let rows = match rows {
            Some(rows) => rows,
            None => timesteps.new_constant(&numbers(&self.config)?)?,
        };
        let input = time.concat_channels(&repeated(rows.to_dtype(dtype)?, b)?)?;
        let mut x = T::run(&self.in_proj, |layer| layer.forward(&input))?; // (b, count, hidden)
        for layer in &self.layers {
            x = T::run(layer, |(norm, mlp)| mlp.forward(&norm.forward(&x)?, Some(&x)))?;
        }
        let all = T::run(&self.out_proj, |layer| layer.forward(&x))?;
        let c = self.config.dims.channels();
        let ChromaConfig { dims, .. } = self.config;
        Ok(AllVectors { all: all.reshape(&[b, count * c])?, channels: c, blocks: [dims.layers, dims.single_layers] })
    }
}

/// The vectors of all blocks: those of single blocks first, then those of the double blocks' image, then of their text, and two of
/// the last layer.
pub(super) struct AllVectors<T> {
    /// `(b or 1, count * channels)`.
    all: T,
    channels: usize,
    /// The numbers of double and of single blocks.
    blocks: [usize; 2],
}

impl<T: TensorLike> AllVectors<T> {
    /// The vectors of a block, as views: shift, scale and gate of each of its layers.
    pub(super) fn of_block(&self, place: Place) -> Result<Vec<T>> {
        let [double, single] = self.blocks;
        match place {
            Place::Single(i) => self.rows(3 * i, 3),
            Place::Double(i) => {
                let (image, text) = (3 * single + 6 * i, 3 * single + 6 * double + 6 * i);
                Ok([self.rows(image, 6)?, self.rows(text, 6)?].concat())
            }
        }
    }

    /// Shift and scale of the last layer.
    pub(super) fn of_output(&self) -> Result<[T; 2]> {
        let [double, single] = self.blocks;
        let first = 3 * single + 12 * double;
        Ok([self.row(first)?, self.row(first + 1)?])
    }

    fn rows(&self, first: usize, count: usize) -> Result<Vec<T>> {
        (first..first + count).map(|row| self.row(row)).collect()
    }

    fn row(&self, row: usize) -> Result<T> {
        self.all.narrow(1, row * self.channels, self.channels)
    }
}

/// `inputs` with those of the rows, made once for all steps.
pub(super) fn prepare<T: TensorLike>(mut inputs: Inputs<T>, config: &ChromaConfig) -> Result<Inputs<T>> {
    let like = inputs.tensors().next().filter(|_| inputs.get(ROWS).is_none()).map(in_f32).transpose()?;
    if let Some(like) = like {
        inputs.add(ROWS, 0, like.new_constant(&numbers(config)?)?);
    }
    Ok(inputs)
}

/// The inputs of the rows among `inputs`.
pub(super) fn prepared<T: TensorLike>(inputs: &Inputs<T>) -> Option<T> {
    inputs.get(ROWS).cloned()
}

/// The sinusoids of a guidance of 0 and of each row's number, `(1, rows, 3 channels / 4)` in host memory.
fn numbers(config: &ChromaConfig) -> Result<Tensor> {
    let (count, dim) = (config.vectors(), config.approximator_channels / 4);
    let embedded = |values: Vec<f32>, dim: usize| -> Result<Tensor> {
        let values = Tensor::new(values, &Device::Cpu)?;
        Ok(timestep_embedding(&values, sinusoids(dim), DType::F32, None)?)
    };
    let guidance = embedded(vec![0.0; count], dim)?;
    let numbers = embedded((0..count).map(|row| NUMBER * row as f32).collect(), 2 * dim)?;
    Ok(Tensor::cat(&[guidance, numbers], 1)?.unsqueeze(0)?)
}

/// Sinusoids of the width `dim`, cosines first.
fn sinusoids(dim: usize) -> TimestepEmbedding {
    TimestepEmbedding { dim, flip_sin_to_cos: true, freq_shift: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_in_the_order_of_the_file() {
        let config = ChromaConfig::from_json(r#"{"num_layers": 2, "num_single_layers": 3}"#).unwrap();
        let count = config.vectors() as u32;
        assert_eq!(count, 3 * 3 + 12 * 2 + 2);
        let all = Tensor::arange(0, 2 * count, &Device::Cpu).unwrap().reshape((1, 2 * count as usize)).unwrap();
        let vectors = AllVectors { all, channels: 2, blocks: [2, 3] };
        let numbers = |rows: Vec<Tensor>| -> Vec<u32> {
            rows.iter().map(|row| row.to_vec2::<u32>().unwrap()[0][0] / 2).collect()
        };
        assert_eq!(numbers(vectors.of_block(Place::Single(2)).unwrap()), [6, 7, 8]);
        let double = numbers(vectors.of_block(Place::Double(1)).unwrap());
        assert_eq!(double, (15..21).chain(27..33).collect::<Vec<_>>());
        assert_eq!(numbers(vectors.of_output().unwrap().into()), [33, 34]);
        assert!(vectors.of_block(Place::Single(99)).is_err());
    }

    #[test]
    fn rows_are_numbered_by_thousands() {
        let config = ChromaConfig::from_json(r#"{"num_layers": 1, "num_single_layers": 1}"#).unwrap();
        let rows = numbers(&config).unwrap();
        assert_eq!(rows.dims(), [1, 17, 48]);
        let rows = rows.squeeze(0).unwrap().to_vec2::<f32>().unwrap();
        for (row, values) in rows.iter().enumerate() {
            assert!(values[..8] == [1.0; 8] && values[8..16] == [0.0; 8], "a guidance of 0");
            let slowest = 1000.0 * row as f32 * 10_000f32.powf(-15.0 / 16.0);
            let close = |found: f32, expected: f32| (found - expected).abs() < 1e-4;
            assert!(close(values[31], slowest.cos()) && close(values[47], slowest.sin()), "row {row}");
        }
    }
}
