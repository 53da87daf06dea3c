//! A CLIP image encoder (transformers' `CLIPVisionModelWithProjection`): pixels to the image's embedding, or to the hidden
//! states of its patches.

mod config;

use kiln_nn::{At, Conv2d, LayerNorm, Linear, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder, SegmentModule, Segments};

pub use config::VisionConfig;

use crate::error::{Error, Result};
use crate::layer::{EncoderLayer, LayerConfig};

/// The names in the checkpoint. `pre_layrnorm` is spelled so.
const EMBEDDINGS: &str = "vision_model.embeddings";
const PRE_LAYER_NORM: &str = "vision_model.pre_layrnorm";
const LAYERS: &str = "vision_model.encoder.layers";
const POST_LAYER_NORM: &str = "vision_model.post_layernorm";
const PROJECTION: &str = "visual_projection";

/// What is taken of an image encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFeatures {
    /// The projected class token, `(b, projection_dim)`: `image_embeds` of transformers.
    Embedding,
    /// The tokens that the last layer takes, `(b, tokens, hidden_size)`, the class first and without a final normalization:
    /// `hidden_states[-2]` of transformers.
    Penultimate,
}

/// A CLIP image encoder.
pub struct VisionEncoder {
    config: VisionConfig,
    segments: Segments,
    embeddings: SegmentModule<Embeddings>,
    layers: Vec<SegmentModule<EncoderLayer>>,
    head: SegmentModule<Head>,
}

/// Patches to tokens.
struct Embeddings {
    patches: Conv2d,
    /// The token of the class, `(hidden_size)`.
    class: Param,
    /// `(tokens, hidden_size)`.
    positions: Param,
    pre_layer_norm: LayerNorm,
}

/// The last normalization and the projection of the class token.
struct Head {
    post_layer_norm: LayerNorm,
    projection: Linear,
}

impl Embeddings {
    fn new(p: &ParamBuilder<'_>, config: &VisionConfig) -> Self {
        let (channels, patch) = (config.hidden_size, config.patch_size);
        let geometry = kiln_nn::ops::Conv2d { stride: patch, pad_before: 0, pad_after: 0 };
        let own = p.pp(EMBEDDINGS);
        let patches = own.pp("patch_embedding");
        Self {
            patches: Conv2d::without_bias(&patches, config.num_channels, channels, patch, geometry),
            class: own.param("class_embedding", &[channels], Packing::AsStored),
            positions: own.pp("position_embedding").param("weight", &[config.tokens(), channels], Packing::AsStored),
            pre_layer_norm: LayerNorm::new(&p.pp(PRE_LAYER_NORM), channels, config.layer_norm_eps),
        }
    }

    /// Pixels `(b, 3, image_size, image_size)` to tokens `(b, tokens, hidden_size)`.
    fn forward<T: TensorLike>(&self, pixels: &T) -> kiln_nn::Result<T> {
        let x = self.patches.forward(&pixels.to_channels_last()?)?;
        let [b, h, w, c] = x.size4()?;
        let class = x.param(&self.class)?.reshape(&[1, 1, c])?;
        let class = if b == 1 { class } else { T::cat(&vec![&class; b], 0)? };
        let x = T::cat(&[&class, &x.reshape(&[b, h * w, c])?], 1)?;
        let x = x.broadcast_add(&x.param(&self.positions)?)?;
        self.pre_layer_norm.forward(&x)
    }
}

impl VisionEncoder {
    /// Builds the network and declares its parameters: a segment with the embeddings, one for each layer, and one with the
    /// projection.
    ///
    /// # Errors
    /// [`Error::VisionConfig`] if the configuration is invalid.
    pub fn new(config: VisionConfig) -> Result<Self> {
        config.validate()?;
        let layer = LayerConfig {
            hidden_size: config.hidden_size,
            intermediate_size: config.intermediate_size,
            num_heads: config.num_attention_heads,
            layer_norm_eps: config.layer_norm_eps,
            activation: config.activation()?,
            causal: false,
        };
        let mut segments = Segments::default();
        let embeddings = segments.add(EMBEDDINGS, |p| Embeddings::new(p, &config));
        let layers = (0..config.num_hidden_layers)
            .map(|i| format!("{LAYERS}.{i}"))
            .map(|name| segments.add(name.as_str(), |p| EncoderLayer::new(&p.pp(&name), &layer)))
            .collect();
        let head = segments.add(PROJECTION, |p| Head {
            post_layer_norm: LayerNorm::new(&p.pp(POST_LAYER_NORM), config.hidden_size, config.layer_norm_eps),
            projection: Linear::new(&p.pp(PROJECTION), config.hidden_size, config.projection_dim, false),
        });
        Ok(Self { config, segments, embeddings, layers, head })
    }

    /// The parameters' segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The configuration.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// The features of images: `pixels` `(b, 3, image_size, image_size)`, normalized as the encoder was trained
    /// (`kiln_media::clip_pixels`), in the slabs' type and on their device.
    ///
    /// # Errors
    /// [`Error::Pixels`] for another shape, [`Error::Nn`] if a layer fails or has no weights.
    pub fn forward<T: TensorLike>(&self, pixels: &T, features: ImageFeatures) -> Result<T> {
        let VisionConfig { image_size: size, num_channels, .. } = self.config;
        if !matches!(*pixels.dims(), [b, c, h, w] if b > 0 && [c, h, w] == [num_channels, size, size]) {
            let expected = format!("(b, {num_channels}, {size}, {size})");
            return Err(Error::Pixels { found: pixels.dims().to_vec(), expected });
        }
        let mut x = T::run(&self.embeddings, |embeddings| embeddings.forward(pixels))?;
        let layers = self.layers.len() - usize::from(features == ImageFeatures::Penultimate);
        for layer in &self.layers[..layers] {
            x = T::run(layer, |layer| layer.forward(&x, None))?;
        }
        if features == ImageFeatures::Penultimate {
            return Ok(x);
        }
        Ok(T::run(&self.head, |head| {
            let [b, _, c] = x.size3()?;
            let class = x.narrow(1, 0, 1)?.contiguous()?.reshape(&[b, c])?;
            head.projection.forward(&head.post_layer_norm.forward(&class)?).at(PROJECTION)
        })?)
    }
}
