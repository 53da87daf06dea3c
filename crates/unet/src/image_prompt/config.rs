//! What an IP-Adapter is, from the shapes of its tensors.

use std::ops::RangeInclusive;

use kiln_nn::limits::MAX_CHANNELS;

use crate::config::UnetConfig;
use crate::error::{Error, Result};

/// Channels of a head of a resampler, in every published file.
const HEAD_DIM: usize = 64;
/// The largest number of tokens, of layers of a resampler, and of cross-attention layers.
const MOST: RangeInclusive<usize> = 1..=4096;

/// An IP-Adapter's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePromptConfig {
    /// From an image's features to tokens.
    pub projection: Projection,
    /// Channels of a token, which are those of the text's.
    pub context_dim: usize,
    /// Channels of the cross-attention layers in the order of the file: those of the way down, of the way up, of the middle.
    pub layers: Vec<usize>,
}

/// How an IP-Adapter makes tokens of an image's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// The image's embedding to some tokens (the plain IP-Adapter).
    Plain {
        /// Channels of the embedding.
        embed_dim: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// Each token of the image encoder to one token (full face).
    Full {
        /// Channels of the encoder's tokens.
        embed_dim: usize,
        /// Channels between the two linear layers.
        inner: usize,
    },
    /// Learned queries that attend to the encoder's tokens (Plus).
    Plus(ResamplerConfig),
    /// The vector of a face's identity to some tokens (FaceID).
    Face(FaceConfig),
    /// The same, whose tokens then attend to those of the image encoder (FaceID Plus).
    FacePlus(FaceConfig, ResamplerConfig),
}

/// From a vector of an identity to tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaceConfig {
    /// Channels of the vector: 512.
    pub embed_dim: usize,
    /// Channels between the two linear layers.
    pub inner: usize,
    /// The number of tokens.
    pub tokens: usize,
}

/// Layers of attention from some queries to the tokens of an image encoder (a perceiver resampler).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResamplerConfig {
    /// Channels of the encoder's tokens.
    pub embed_dim: usize,
    /// Channels of the queries.
    pub hidden: usize,
    /// The number of queries.
    pub queries: usize,
    /// Attention heads.
    pub heads: usize,
    /// Channels of all heads.
    pub inner: usize,
    /// Channels of the hidden layer of the feed-forward blocks.
    pub feed_forward: usize,
    /// The number of layers.
    pub depth: usize,
}

/// What an IP-Adapter takes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptFeatures {
    /// The image encoder's embedding, `(b, embed_dim)`.
    Embedding,
    /// The tokens that the image encoder's last layer takes, `(b, t, embed_dim)`.
    Tokens,
    /// The vector of a face's identity, `(b, embed_dim)`.
    Identity,
    /// That vector, and the encoder's tokens.
    IdentityAndTokens,
}

impl Projection {
    /// What it takes of an image.
    pub fn features(&self) -> PromptFeatures {
        match self {
            Self::Plain { .. } => PromptFeatures::Embedding,
            Self::Full { .. } | Self::Plus(_) => PromptFeatures::Tokens,
            Self::Face(_) => PromptFeatures::Identity,
            Self::FacePlus(..) => PromptFeatures::IdentityAndTokens,
        }
    }

    /// Channels of what it takes of the image encoder: of its embedding, or of its tokens. `None` if it takes nothing.
    pub fn encoder_dim(&self) -> Option<usize> {
        match *self {
            Self::Plain { embed_dim, .. } | Self::Full { embed_dim, .. } => Some(embed_dim),
            Self::Plus(resampler) | Self::FacePlus(_, resampler) => Some(resampler.embed_dim),
            Self::Face(_) => None,
        }
    }

    /// Channels of the vector of an identity, if it takes one.
    pub fn identity_dim(&self) -> Option<usize> {
        match self {
            Self::Face(face) | Self::FacePlus(face, _) => Some(face.embed_dim),
            _ => None,
        }
    }

    /// Tokens of an image whose encoder has `encoder_tokens` tokens.
    pub fn tokens(&self, encoder_tokens: usize) -> usize {
        match *self {
            Self::Plain { tokens, .. } => tokens,
            Self::Full { .. } => encoder_tokens,
            Self::Plus(resampler) => resampler.queries,
            Self::Face(face) | Self::FacePlus(face, _) => face.tokens,
        }
    }

    /// Its name in messages.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Plain { .. } => "IP-Adapter",
            Self::Full { .. } => "IP-Adapter full face",
            Self::Plus(_) => "IP-Adapter Plus",
            Self::Face(_) => "IP-Adapter FaceID",
            Self::FacePlus(..) => "IP-Adapter FaceID Plus",
        }
    }
}

impl ImagePromptConfig {
    /// The configuration of the file whose tensors have the shapes that `shape` gives. Whether it is one for a model,
    /// [`Self::fits`] says.
    ///
    /// # Errors
    /// [`Error::ImagePrompt`] names the tensor that is missing or impossible.
    pub fn from_shapes(shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<Self> {
        let shapes = Shapes(shape);
        let layers = (0..*MOST.end()).map_while(|i| shapes.rows(&key_name(i)));
        let layers = layers.collect::<Vec<_>>();
        let context_dim = shapes.need(&key_name(0), 1)?;
        let config = Self { projection: shapes.projection(context_dim)?, context_dim, layers };
        config.check()?;
        Ok(config)
    }

    /// Whether it is for a U-Net of this configuration: the same text, the same layers.
    pub fn fits(&self, unet: &UnetConfig) -> bool {
        let layers = unet.cross_layers();
        let channels: Vec<usize> = unet.image_prompt_order().iter().map(|&i| layers[i].channels).collect();
        unet.context_dim() == Some(self.context_dim) && channels == self.layers
    }

    /// Refuses sizes that no file has.
    fn check(&self) -> Result<()> {
        let channels = |name: &str, value: usize| match (1..=MAX_CHANNELS).contains(&value) {
            true => Ok(()),
            false => Err(Error::ImagePrompt(format!("{name} is {value}, expected 1 to {MAX_CHANNELS}"))),
        };
        let count = |name: &str, value: usize| match MOST.contains(&value) {
            true => Ok(()),
            false => Err(Error::ImagePrompt(format!("{name} is {value}, expected 1 to {}", MOST.end()))),
        };
        let resampler = |config: &ResamplerConfig| {
            count("the number of queries", config.queries)?;
            count("the number of layers of the resampler", config.depth)?;
            channels("the width of the resampler", config.hidden)?;
            channels("the width of its feed-forward layers", config.feed_forward)?;
            if config.heads * HEAD_DIM != config.inner || config.heads == 0 {
                let found = config.inner;
                return Err(Error::ImagePrompt(format!(
                    "the queries of the resampler have {found} channels, expected a multiple of {HEAD_DIM}"
                )));
            }
            Ok(())
        };
        let face = |config: &FaceConfig| {
            count("the number of tokens", config.tokens)?;
            channels("the width of the projection", config.inner)
        };
        channels("the width of the text", self.context_dim)?;
        match &self.projection {
            Projection::Plain { tokens, .. } => count("the number of tokens", *tokens)?,
            Projection::Full { inner, .. } => channels("the width of the projection", *inner)?,
            Projection::Plus(config) => resampler(config)?,
            Projection::Face(config) => face(config)?,
            Projection::FacePlus(config, plus) => {
                face(config)?;
                resampler(plus)?;
            }
        }
        self.projection.encoder_dim().map_or(Ok(()), |dim| channels("the width of the image's features", dim))
    }
}

/// The weight of the keys of layer `i` of the file. The numbers count attention layers, of which every second is a
/// cross-attention.
fn key_name(i: usize) -> String {
    format!("{}.to_k_ip.weight", layer_name(i))
}

/// What the names of layer `i` of the file begin with.
pub(super) fn layer_name(i: usize) -> String {
    format!("ip_adapter.{}", 2 * i + 1)
}

/// Shapes of a file's tensors by name.
struct Shapes<'a>(&'a dyn Fn(&str) -> Option<Vec<usize>>);

impl Shapes<'_> {
    fn dim(&self, name: &str, i: usize) -> Option<usize> {
        (self.0)(name)?.get(i).copied()
    }

    fn rows(&self, name: &str) -> Option<usize> {
        self.dim(name, 0)
    }

    fn has(&self, name: &str) -> bool {
        (self.0)(name).is_some()
    }

    fn need(&self, name: &str, i: usize) -> Result<usize> {
        let missing = || match (self.0)(name) {
            Some(shape) => Error::ImagePrompt(format!("`{name}` has the shape {shape:?}, which no IP-Adapter has")),
            None => Error::ImagePrompt(format!("has no tensor `{name}`, expected those of an IP-Adapter")),
        };
        self.dim(name, i).filter(|&size| size > 0).ok_or_else(missing)
    }

    /// The kinds of files, distinguished as in diffusers (`_convert_ip_adapter_image_proj_to_diffusers` of
    /// `loaders/unet.py`).
    fn projection(&self, context_dim: usize) -> Result<Projection> {
        if self.has("image_proj.proj.weight") {
            let embed_dim = self.need("image_proj.proj.weight", 1)?;
            return Ok(Projection::Plain { embed_dim, tokens: self.need("image_proj.proj.weight", 0)? / context_dim });
        }
        if self.has("image_proj.proj.3.weight") {
            let embed_dim = self.need("image_proj.proj.0.weight", 1)?;
            return Ok(Projection::Full { embed_dim, inner: self.need("image_proj.proj.0.weight", 0)? });
        }
        let face = || -> Result<FaceConfig> {
            Ok(FaceConfig {
                embed_dim: self.need("image_proj.proj.0.weight", 1)?,
                inner: self.need("image_proj.proj.0.weight", 0)?,
                tokens: self.need("image_proj.proj.2.weight", 0)? / self.need("image_proj.norm.weight", 0)?,
            })
        };
        if self.has("image_proj.perceiver_resampler.proj_in.weight") {
            let face = face()?;
            return Ok(Projection::FacePlus(face, self.resampler(FACE_RESAMPLER, face.tokens)?));
        }
        if self.has("image_proj.norm.weight") {
            return Ok(Projection::Face(face()?));
        }
        let queries = self.need("image_proj.latents", 1)?;
        Ok(Projection::Plus(self.resampler(PLUS_RESAMPLER, queries)?))
    }

    fn resampler(&self, name: &str, queries: usize) -> Result<ResamplerConfig> {
        let inner = self.need(&format!("{name}.layers.0.0.to_q.weight"), 0)?;
        let layer = |i: &usize| {
            ["0.to_q", "0.to_kv", "1.1"].iter().any(|part| self.has(&format!("{name}.layers.{i}.{part}.weight")))
        };
        Ok(ResamplerConfig {
            embed_dim: self.need(&format!("{name}.proj_in.weight"), 1)?,
            hidden: self.need(&format!("{name}.proj_in.weight"), 0)?,
            queries,
            heads: inner / HEAD_DIM,
            inner,
            feed_forward: self.need(&format!("{name}.layers.0.1.1.weight"), 0)?,
            depth: (0..=*MOST.end()).take_while(layer).count(),
        })
    }
}

/// What the names of the resampler of a Plus file begin with.
pub(super) const PLUS_RESAMPLER: &str = "image_proj";
/// The same of a FaceID Plus file.
pub(super) const FACE_RESAMPLER: &str = "image_proj.perceiver_resampler";

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tensors: &[(&str, &[usize])]) -> Result<ImagePromptConfig> {
        ImagePromptConfig::from_shapes(&|name| {
            tensors.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape.to_vec())
        })
    }

    const KEYS: (&str, &[usize]) = ("ip_adapter.1.to_k_ip.weight", &[320, 768]);

    #[test]
    fn a_file_s_kind_follows_from_its_tensors() {
        let plain = config(&[KEYS, ("image_proj.proj.weight", &[3072, 1024])]).unwrap();
        assert_eq!(plain.projection, Projection::Plain { embed_dim: 1024, tokens: 4 });
        assert_eq!((plain.context_dim, plain.layers.as_slice()), (768, [320].as_slice()));
        let full = [
            KEYS,
            ("image_proj.proj.0.weight", &[1280, 1280][..]),
            ("image_proj.proj.2.weight", &[768, 1280]),
            ("image_proj.proj.3.weight", &[768]),
        ];
        let full = config(&full).unwrap().projection;
        assert_eq!((full, full.tokens(257)), (Projection::Full { embed_dim: 1280, inner: 1280 }, 257));
        let plus = [
            KEYS,
            ("image_proj.latents", &[1, 16, 768][..]),
            ("image_proj.proj_in.weight", &[768, 1280]),
            ("image_proj.layers.0.0.to_q.weight", &[768, 768]),
            ("image_proj.layers.0.1.1.weight", &[3072, 768]),
        ];
        let plus = config(&plus).unwrap().projection;
        let Projection::Plus(resampler) = plus else { panic!("{plus:?}") };
        assert_eq!((resampler.heads, resampler.depth, resampler.queries, plus.encoder_dim()), (12, 1, 16, Some(1280)));
        let face = [
            KEYS,
            ("image_proj.proj.0.weight", &[1024, 512][..]),
            ("image_proj.proj.2.weight", &[3072, 1024]),
            ("image_proj.norm.weight", &[768]),
        ];
        let face = config(&face).unwrap().projection;
        assert_eq!((face.identity_dim(), face.encoder_dim(), face.tokens(0)), (Some(512), None, 4));
    }

    #[test]
    fn impossible_files_are_named() {
        let message = |tensors: &[(&str, &[usize])]| config(tensors).unwrap_err().to_string();
        assert!(message(&[]).contains("ip_adapter.1.to_k_ip.weight"));
        assert!(message(&[KEYS]).contains("image_proj.latents"));
        assert!(message(&[KEYS, ("image_proj.proj.weight", &[700, 1024])]).contains("the number of tokens is 0"));
        assert!(message(&[("ip_adapter.1.to_k_ip.weight", &[320])]).contains("has the shape [320]"));
    }
}
