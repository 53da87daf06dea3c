//! A CLIP text encoder: chunks of token ids to hidden states and pooled vectors.
//!
//! Embeddings of tokens and positions, transformer layers, a final normalization ([`transformers`]' `CLIPTextModel`),
//! and, in `CLIPTextModelWithProjection`, a projection of the pooled vector.
//!
//! [`transformers`]: https://github.com/huggingface/transformers/blob/main/src/transformers/models/clip/modeling_clip.py

use candle_core::{Device, Tensor};
use kiln_network::text::TextDevice;
use kiln_nn::ops::graph::RecordedCalls;
use kiln_nn::ops::portable::PortableTensor;
use kiln_nn::{At, Embedding, LayerNorm, Linear, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use crate::config::TextEncoderConfig;
use crate::error::{Error, Result};
use crate::layer::{EncoderLayer, LayerConfig};
use crate::textual_inversion::TokenEmbeddings;

/// The names in the checkpoint. Some versions' files lack the prefix `text_model.`; `kiln_weights::KeyRule::TEXT_MODEL`
/// handles that.
const EMBEDDINGS: &str = "text_model.embeddings";
const LAYERS: &str = "text_model.encoder.layers";
const FINAL_LAYER_NORM: &str = "text_model.final_layer_norm";
const TEXT_PROJECTION: &str = "text_projection";

/// The hidden state that conditions the U-Net.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HiddenLayer {
    /// The layer whose output is used, counted from the end: 1 is the last layer, 2 the penultimate one.
    pub from_end: usize,
    /// Whether the encoder's final normalization follows.
    pub final_layer_norm: bool,
}

impl HiddenLayer {
    /// The last layer, normalized: SD1 and SD2.
    pub const LAST: Self = Self { from_end: 1, final_layer_norm: true };
    /// The penultimate layer without normalization: SDXL.
    pub const PENULTIMATE: Self = Self { from_end: 2, final_layer_norm: false };
}

/// The output of an encoder for chunks of tokens, in the weights' dtype.
#[derive(Debug, Clone)]
pub struct TextOutput<T = Tensor> {
    /// The requested hidden state, `(chunks, tokens, hidden_size)`.
    pub hidden: T,
    /// The last layer's normalized row at the end token, projected if the encoder has a projection: `(chunks,
    /// pooled_size)`. It does not depend on the requested layer.
    pub pooled: T,
}

struct Embeddings {
    token: Embedding,
    position: Embedding,
}

impl Embeddings {
    fn new(p: &ParamBuilder<'_>, config: &TextEncoderConfig) -> Self {
        let channels = config.hidden_size;
        Self {
            token: Embedding::new(&p.pp("token_embedding"), config.vocab_size, channels),
            position: Embedding::new(&p.pp("position_embedding"), config.max_position_embeddings, channels),
        }
    }

    /// Embeds `b` chunks of `s` ids each: `(b, s, hidden_size)`, on the host.
    fn forward<T: TensorLike>(
        &self,
        chunks: &[Vec<u32>],
        s: usize,
        words: &TokenEmbeddings,
        device: &T::Device,
    ) -> kiln_nn::Result<T> {
        let ids = chunks.concat();
        let rows: Vec<u32> = ids.iter().map(|&id| if words.contains(id) { 0 } else { id }).collect();
        let tokens = words.fill(self.token.forward::<T>(&rows, device)?, &ids)?; // (b*s, c)
        let positions = self.position.first_rows::<T>(s, device)?; // (s, c)
        let [_, c] = positions.size2()?;
        tokens.reshape(&[chunks.len(), s, c])?.broadcast_add(&positions)
    }
}

struct Head {
    final_layer_norm: LayerNorm,
    text_projection: Option<Linear>,
}

impl Head {
    fn new(p: &ParamBuilder<'_>, config: &TextEncoderConfig) -> Self {
        let channels = config.hidden_size;
        Self {
            final_layer_norm: LayerNorm::new(&p.pp(FINAL_LAYER_NORM), channels, config.layer_norm_eps),
            text_projection: config
                .has_projection()
                .then(|| Linear::new(&p.pp(TEXT_PROJECTION), channels, config.pooled_size(), false)),
        }
    }

    /// Row `rows[i]` of chunk `i` of `last` `(b, s, hidden_size)`, projected: `(b, pooled_size)`.
    fn pool<T: TensorLike>(&self, last: &T, rows: &[usize]) -> kiln_nn::Result<T> {
        let [b, s, c] = last.size3()?;
        let rows: Vec<u32> = rows.iter().enumerate().map(|(chunk, row)| (chunk * s + row) as u32).collect();
        let pooled = last.reshape(&[b * s, c])?.index_select(&rows)?; // (b, hidden_size)
        match &self.text_projection {
            None => Ok(pooled),
            Some(projection) => projection.forward(&pooled).at(TEXT_PROJECTION),
        }
    }
}

/// A CLIP text encoder.
pub struct TextEncoder {
    config: TextEncoderConfig,
    segments: Segments,
    embeddings: SegmentModule<Embeddings>,
    layers: Vec<SegmentModule<EncoderLayer>>,
    head: SegmentModule<Head>,
}

impl TextEncoder {
    /// Builds the network and declares its parameters: a segment with both tables, which stays on the host, one for
    /// each layer, and one with the final normalization and the projection.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is invalid.
    pub fn new(config: TextEncoderConfig) -> Result<Self> {
        config.validate()?;
        let layer = LayerConfig {
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            num_heads: config.num_attention_heads,
            layer_norm_eps: config.layer_norm_eps,
            activation: config.activation()?,
            causal: true,
        };
        let mut segments = Segments::default();
        let embeddings = segments.add_on_host(EMBEDDINGS, |p| Embeddings::new(&p.pp(EMBEDDINGS), &config));
        let layers = (0..config.num_hidden_layers)
            .map(|i| format!("{LAYERS}.{i}"))
            .map(|name| segments.add(name.as_str(), |p| EncoderLayer::new(&p.pp(&name), &layer)))
            .collect();
        let head = segments.add(FINAL_LAYER_NORM, |p| Head::new(p, &config));
        Ok(Self { config, segments, embeddings, layers, head })
    }

    /// The parameters' segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The configuration.
    pub fn config(&self) -> &TextEncoderConfig {
        &self.config
    }

    /// Encodes chunks of token ids, all of the same length, which is at most `max_position_embeddings`. The rows of the
    /// tables are gathered on the host. `device`, which holds the layers' weights, runs the rest.
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::NoChunks`], [`Error::ChunkLength`] and [`Error::Token`] for invalid arguments,
    /// [`Error::Nn`] if a layer fails or has no weights.
    pub fn encode(&self, chunks: &[Vec<u32>], layer: HiddenLayer, device: &Device) -> Result<TextOutput> {
        self.forward(chunks, None, layer, device, &TokenEmbeddings::default(), &mut |_, _| ())
    }

    /// Like [`Self::encode`] on any device, with embeddings of textual inversion. Tokens whose `seen`, of one chunk, is 0 are masked; it
    /// is 1 for the others.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub(crate) fn encode_on(
        &self,
        chunks: &[Vec<u32>],
        seen: Option<&[f32]>,
        layer: HiddenLayer,
        device: &TextDevice,
        words: &TokenEmbeddings,
    ) -> Result<TextOutput> {
        let on_host = |seen: &[f32]| Tensor::from_slice(seen, (1, seen.len()), &Device::Cpu);
        let seen = seen.map(on_host).transpose().map_err(kiln_nn::Error::from)?;
        match device {
            TextDevice::Candle { device, recorded: Some(calls) } if seen.is_none() => {
                self.forward_recorded(chunks, layer, device, words, calls)
            }
            TextDevice::Candle { device, .. } => {
                let seen = seen.map(|seen| seen.to_device(device)).transpose().map_err(kiln_nn::Error::from)?;
                self.forward(chunks, seen.as_ref(), layer, device, words, &mut |_, _| ())
            }
            TextDevice::Backend(backend) => {
                let upload = |seen: Tensor| PortableTensor::upload(backend, &seen);
                let seen = seen.map(upload).transpose().map_err(kiln_nn::Error::from)?;
                let output = self.forward(chunks, seen.as_ref(), layer, backend, words, &mut |_, _| ())?;
                let host = |tensor: PortableTensor| tensor.download().map_err(kiln_nn::Error::from);
                Ok(TextOutput { hidden: host(output.hidden)?, pooled: host(output.pooled)? })
            }
        }
    }

    /// An empty set of embeddings for this encoder.
    pub fn token_embeddings(&self) -> TokenEmbeddings {
        TokenEmbeddings::new(self.config.vocab_size, self.config.hidden_size)
    }

    /// Like [`Self::encode`], and passes every stage to `observe`: `hidden.0` (the embeddings), `hidden.1` (the first
    /// layer's output), ..., `last` (the last one's, normalized), `pooled`.
    pub fn encode_observed(
        &self,
        chunks: &[Vec<u32>],
        layer: HiddenLayer,
        device: &Device,
        observe: &mut dyn FnMut(&str, &Tensor),
    ) -> Result<TextOutput> {
        self.forward(chunks, None, layer, device, &TokenEmbeddings::default(), observe)
    }

    /// The computation of [`Self::encode`] for tensors of any kind: [`Tensor`], [`PortableTensor`], or [`kiln_nn::MetaTensor`] to
    /// count bytes and operations. `seen` `(chunks, tokens)` is 0 for masked tokens. `observe` gets every stage.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub fn forward<T: TensorLike>(
        &self,
        chunks: &[Vec<u32>],
        seen: Option<&T>,
        layer: HiddenLayer,
        device: &T::Device,
        words: &TokenEmbeddings,
        observe: &mut dyn FnMut(&str, &T),
    ) -> Result<TextOutput<T>> {
        let x = self.embed(chunks, layer, device, words)?;
        let states = self.states(x, seen, layer, observe)?;
        Ok(self.output(states, chunks, layer, observe)?)
    }

    /// [`Self::forward`] of a GPU that records the layers.
    fn forward_recorded(
        &self,
        chunks: &[Vec<u32>],
        layer: HiddenLayer,
        device: &Device,
        words: &TokenEmbeddings,
        calls: &RecordedCalls,
    ) -> Result<TextOutput> {
        let x = self.embed(chunks, layer, device, words)?;
        let layers = |x: &Tensor| self.states(x.clone(), None, layer, &mut |_, _| ()).map(Vec::from);
        match <[Tensor; 2]>::try_from(calls.run(layer.from_end, &x, layers)?) {
            Ok(states) => Ok(self.output(states, chunks, layer, &mut |_, _| ())?),
            Err(_) => self.forward(chunks, None, layer, device, words, &mut |_, _| ()),
        }
    }

    /// The embeddings of the chunks, `(chunks, tokens, hidden_size)`.
    fn embed<T: TensorLike>(
        &self,
        chunks: &[Vec<u32>],
        layer: HiddenLayer,
        device: &T::Device,
        words: &TokenEmbeddings,
    ) -> Result<T> {
        let s = self.check(chunks, layer, words)?;
        let embed = |embeddings: &Embeddings| embeddings.forward::<T>(chunks, s, words, device)?.to_device(device);
        Ok(T::run(&self.embeddings, embed)?)
    }

    /// The states after the requested layer and after the last one, for the embeddings `x`.
    fn states<T: TensorLike>(
        &self,
        mut x: T,
        seen: Option<&T>,
        layer: HiddenLayer,
        observe: &mut dyn FnMut(&str, &T),
    ) -> kiln_nn::Result<[T; 2]> {
        let taken = self.layers.len() - layer.from_end; // counted from 0
        observe("hidden.0", &x);
        let mut hidden = x.clone();
        for (i, staged) in self.layers.iter().enumerate() {
            x = T::run(staged, |staged| staged.forward(&x, seen))?;
            observe(&format!("hidden.{}", i + 1), &x);
            if i == taken {
                hidden = x.clone();
            }
        }
        Ok([hidden, x])
    }

    /// The output for the states of [`Self::states`].
    fn output<T: TensorLike>(
        &self,
        [hidden, x]: [T; 2],
        chunks: &[Vec<u32>],
        layer: HiddenLayer,
        observe: &mut dyn FnMut(&str, &T),
    ) -> kiln_nn::Result<TextOutput<T>> {
        let rows: Vec<usize> = chunks.iter().map(|ids| self.config.pool_at(ids)).collect();
        T::run(&self.head, |head| {
            let last = head.final_layer_norm.forward(&x)?;
            observe("last", &last);
            let pooled = head.pool(&last, &rows)?;
            observe("pooled", &pooled);
            let hidden = match layer {
                HiddenLayer { final_layer_norm: false, .. } => hidden,
                HiddenLayer { from_end: 1, .. } => last,
                _ => head.final_layer_norm.forward(&hidden)?,
            };
            Ok(TextOutput { hidden, pooled })
        })
    }

    /// Checks the arguments and returns the chunks' length.
    pub(crate) fn check(&self, chunks: &[Vec<u32>], layer: HiddenLayer, words: &TokenEmbeddings) -> Result<usize> {
        let layers = self.layers.len();
        if layer.from_end == 0 || layer.from_end > layers {
            return Err(Error::Layer { from_end: layer.from_end, layers });
        }
        let TextEncoderConfig { vocab_size, max_position_embeddings, .. } = self.config;
        let s = chunks.first().ok_or(Error::NoChunks)?.len();
        for (chunk, ids) in chunks.iter().enumerate() {
            let length_error = |expected| Error::ChunkLength { chunk, found: ids.len(), expected };
            if ids.is_empty() || ids.len() > max_position_embeddings {
                return Err(length_error(format!("1 to {max_position_embeddings}")));
            }
            if ids.len() != s {
                return Err(length_error(format!("{s}, like the first chunk")));
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size && !words.contains(id)) {
                return Err(Error::Token { chunk, id, vocab_size });
            }
        }
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    fn built(hidden_size: usize, num_hidden_layers: usize, num_attention_heads: usize, class: &str) -> TextEncoder {
        let config = TextEncoderConfig {
            hidden_size,
            intermediate_size: 4 * hidden_size,
            num_hidden_layers,
            num_attention_heads,
            projection_dim: Some(hidden_size),
            architectures: vec![class.into()],
            ..TextEncoderConfig::default()
        };
        TextEncoder::new(config).unwrap()
    }

    /// The counts are PyTorch's: the sum of `numel()` over `parameters()` of transformers' classes.
    #[test]
    fn real_encoders_have_pytorchs_number_of_parameters() {
        let sd1 = built(768, 12, 12, "CLIPTextModel");
        let sd2 = built(1024, 23, 16, "CLIPTextModel");
        let sdxl = built(1280, 32, 20, "CLIPTextModelWithProjection");
        assert_eq!([&sd1, &sd2, &sdxl].map(|e| e.segments().parameters()), [123_060_480, 340_387_840, 694_659_840]);
    }

    #[test]
    fn segments_are_in_running_order_with_the_tables_on_the_host() {
        let encoder = built(8, 2, 2, "CLIPTextModelWithProjection");
        let segments = encoder.segments();
        let names: Vec<&str> = segments.iter().map(|segment| segment.name()).collect();
        let layers = ["text_model.encoder.layers.0", "text_model.encoder.layers.1"];
        assert_eq!(names, [EMBEDDINGS, layers[0], layers[1], FINAL_LAYER_NORM]);
        assert!(segments[0].on_host() && segments[1..].iter().all(|segment| !segment.on_host()));
        assert_eq!(segments[0].bytes(DType::F16), (49408 + 77) * 8 * 2 + 48); // 48: the slab's end is aligned
        assert_eq!(segments[3].params()[2].key, "text_projection.weight");
    }
}
