//! A T5 text encoder: token ids to hidden states.
//!
//! A token table, blocks, and a final normalization: transformers' [`T5EncoderModel`] of version 1.1. There are no biases of
//! linear layers, no embedded positions and no scaled scores.
//!
//! [`T5EncoderModel`]: https://github.com/huggingface/transformers/blob/main/src/transformers/models/t5/modeling_t5.py

use candle_core::{DType, Device, Tensor};
use kiln_network::text::TextDevice;
use kiln_nn::{Embedding, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::block::{Block, Norm};
use crate::config::{NETWORK, T5Config};
use crate::error::{Error, Result};

/// The names in the checkpoint. Some files name the table `encoder.embed_tokens`; `kiln_weights::KeyRule::T5_TABLE` handles that.
const TABLE: &str = "shared";
const BLOCKS: &str = "encoder.block";
const FINAL_NORM: &str = "encoder.final_layer_norm";

/// The largest number of tokens of a text: the scores of all pairs of tokens have a bias.
const MAX_TOKENS: usize = 4096;

/// The ids of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct T5Ids {
    /// The ids of all tokens.
    pub ids: Vec<u32>,
    /// Tokens at the end that no token attends, themselves included. They have hidden states too.
    pub masked: usize,
}

impl From<Vec<u32>> for T5Ids {
    /// A text whose tokens are all attended.
    fn from(ids: Vec<u32>) -> Self {
        Self { ids, masked: 0 }
    }
}

/// A T5 text encoder.
pub struct T5Encoder {
    config: T5Config,
    segments: Segments,
    table: SegmentModule<Embedding>,
    blocks: Vec<SegmentModule<Block>>,
    final_norm: SegmentModule<Norm>,
}

impl T5Encoder {
    /// Builds the network and declares its parameters: a segment with the token table, which stays on the host, one for each
    /// block, and one with the final normalization.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid.
    pub fn new(config: T5Config) -> Result<Self> {
        config.validate()?;
        let mut segments = Segments::default();
        let table = segments.add_in_source(TABLE, |p| Embedding::new(&p.pp(TABLE), config.vocab_size, config.d_model));
        let blocks = (0..config.num_layers)
            .map(|i| (i, format!("{BLOCKS}.{i}")))
            .map(|(i, name)| segments.add(name.as_str(), |p| Block::new(&p.pp(&name), &config, i == 0)))
            .collect();
        let final_norm = segments.add(FINAL_NORM, |p| Norm::new(&p.pp(FINAL_NORM), &config));
        Ok(Self { config, segments, table, blocks, final_norm })
    }

    /// The parameters' segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The configuration.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Encodes texts of token ids, of any length each: `(1, s, d_model)` for each one, in the weights' type. All tokens attend to
    /// all others, padding included. The rows of the table are gathered on the host; `device` runs the rest.
    ///
    /// # Errors
    /// [`Error::Input`] for a text without tokens or with too many, [`Error::Token`] for an id outside of the vocabulary, and
    /// [`Error::Nn`] if a part fails or has no weights.
    pub fn encode(&self, texts: &[Vec<u32>], device: &Device) -> Result<Vec<Tensor>> {
        let texts: Vec<T5Ids> = texts.iter().cloned().map(T5Ids::from).collect();
        self.forward(&texts, device)
    }

    /// Like [`Self::encode`] on any device, also with masked tokens. With Vulkan, Metal and DirectX 12 the results are copied
    /// from the GPU to host memory.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub fn encode_on(&self, texts: &[T5Ids], device: &TextDevice) -> Result<Vec<Tensor>> {
        match device {
            TextDevice::Candle { device, .. } => self.forward(texts, device),
            TextDevice::Backend(backend) => Ok(TextDevice::download(self.forward(texts, backend)?)?),
        }
    }

    /// The computation of [`Self::encode_on`] for tensors of any kind: [`Tensor`], [`kiln_nn::ops::portable::PortableTensor`], or
    /// [`kiln_nn::MetaTensor`] to count bytes and operations. Each block runs for all texts, one after the other: weights that are
    /// streamed are needed once, and a text has the same bits alone.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub fn forward<T: TensorLike>(&self, texts: &[T5Ids], device: &T::Device) -> Result<Vec<T>> {
        self.check(texts)?;
        let mut states = T::run(&self.table, |table| {
            let row = |T5Ids { ids, .. }: &T5Ids| {
                let rows = table.forward::<T>(ids, device)?; // (s, d_model)
                rows.reshape(&[1, ids.len(), self.config.d_model])?.to_device(device)
            };
            texts.iter().map(row).collect::<kiln_nn::Result<Vec<T>>>()
        })?;
        let Some(dtype) = states.first().map(|first| first.dtype()) else { return Ok(states) };
        for x in &mut states {
            *x = x.to_dtype(DType::F32)?;
        }
        let attended = |(x, T5Ids { ids, masked }): (&T, &T5Ids)| match masked {
            0 => Ok(None),
            _ => x.new_constant(&Tensor::new(&[(ids.len() - masked) as f32], &Device::Cpu)?).map(Some),
        };
        let lengths = states.iter().zip(texts).map(attended).collect::<kiln_nn::Result<Vec<Option<T>>>>()?;
        let mut biases: Vec<(usize, T)> = Vec::new(); // by the number of tokens
        for block in &self.blocks {
            T::run(block, |block| {
                for ((x, text), length) in states.iter_mut().zip(texts).zip(&lengths) {
                    let s = text.ids.len();
                    if !biases.iter().any(|(tokens, _)| *tokens == s)
                        && let Some(bias) = block.bias(x, s, dtype)?
                    {
                        biases.push((s, bias));
                    }
                    if let Some((_, bias)) = biases.iter().find(|(tokens, _)| *tokens == s) {
                        *x = block.forward(x, bias, length.as_ref())?;
                    }
                }
                Ok(())
            })?;
        }
        drop(biases);
        let normed = |norm: &Norm| states.iter().map(|x| norm.forward(x, dtype)).collect();
        Ok(T::run(&self.final_norm, normed)?)
    }

    fn check(&self, texts: &[T5Ids]) -> Result<()> {
        let vocab_size = self.config.vocab_size;
        for T5Ids { ids, masked } in texts {
            if *masked > 0 && *masked >= ids.len() {
                let (expected, found) = (format!("less than {} masked tokens", ids.len()), vec![*masked]);
                return Err(Error::Input { network: NETWORK, input: "masked", expected, found });
            }
            if ids.is_empty() || ids.len() > MAX_TOKENS {
                let (expected, found) = (format!("1 to {MAX_TOKENS} tokens"), vec![ids.len()]);
                return Err(Error::Input { network: NETWORK, input: "ids", expected, found });
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
                return Err(Error::Token { id, vocab_size });
            }
        }
        Ok(())
    }
}
