//! ControlNet Union (xinsir's ControlNet++ and ProMax, diffusers' `ControlNetUnionModel`): a ControlNet for several types of
//! control images, one or more at once.

use candle_core::DType;
use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LAYERS};
use kiln_nn::ops::{Activation, TimestepEmbedding};
use kiln_nn::{LayerNorm, Linear, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder, SegmentModule};
use serde::Deserialize;

use super::mean::mean_of_pixels;
use crate::blocks::Builder;
use crate::error::{Error, Result};
use crate::time_embedding::EmbeddingMlp;

/// The additional configuration of a Union network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnionConfig {
    /// How many types of control images it knows: 6, or 8 in ProMax.
    pub types: usize,
    /// Width of the embedding of each type's flag.
    pub flag_dim: usize,
    /// Layers of the transformer over the images' means.
    pub layers: usize,
    /// Its attention heads.
    pub heads: usize,
    /// Its channels: those of the first feature map.
    pub channels: usize,
}

/// diffusers' keys, with its defaults.
#[derive(Deserialize)]
#[serde(default)]
pub(super) struct RawUnion {
    num_control_type: usize,
    num_trans_channel: usize,
    num_trans_head: usize,
    num_trans_layer: usize,
    num_proj_channel: usize,
    addition_time_embed_dim: Option<usize>,
}

impl Default for RawUnion {
    fn default() -> Self {
        Self {
            num_control_type: 6,
            num_trans_channel: 320,
            num_trans_head: 8,
            num_trans_layer: 1,
            num_proj_channel: 320,
            addition_time_embed_dim: None,
        }
    }
}

/// The width of a flag's embedding, where a configuration does not say it.
const FLAG_DIM: usize = 256;
/// The heads of every network that exists: a file without a configuration does not say them.
const HEADS: usize = 8;
/// Types that are looked for.
const MAX_TYPES: usize = 64;

impl UnionConfig {
    pub(super) fn from_raw(raw: &RawUnion) -> Result<Self> {
        let config = Self {
            types: raw.num_control_type,
            flag_dim: raw.addition_time_embed_dim.unwrap_or(FLAG_DIM),
            layers: raw.num_trans_layer,
            heads: raw.num_trans_head,
            channels: raw.num_trans_channel,
        };
        if raw.num_proj_channel != raw.num_trans_channel {
            let expected = format!("{}, as num_trans_channel", raw.num_trans_channel);
            return Err(Error::Config { key: "num_proj_channel", found: raw.num_proj_channel.to_string(), expected });
        }
        Ok(config)
    }

    /// Derives it from `shape`, which gives a tensor's shape by its name in diffusers; `None` for a plain ControlNet.
    pub(super) fn from_shapes(shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Option<Self> {
        let [types, channels] = *shape("task_embedding")? else { return None };
        let input = shape("control_add_embedding.linear_1.weight").and_then(|shape| shape.get(1).copied())?;
        let layer = |i: &usize| shape(&format!("transformer_layes.{i}.attn.in_proj_weight")).is_some();
        Some(Self {
            types,
            flag_dim: input.checked_div(types)?,
            layers: (0..MAX_LAYERS).take_while(layer).count(),
            heads: HEADS,
            channels,
        })
    }

    /// Refuses values that no network with `model_channels` in its first feature map has.
    pub(super) fn check(&self, model_channels: usize) -> Result<()> {
        let error =
            |key, found: usize, expected: String| Err(Error::Config { key, found: found.to_string(), expected });
        if !(1..=MAX_TYPES).contains(&self.types) {
            return error("num_control_type", self.types, limits::expected(&(1..=MAX_TYPES)));
        }
        if !(4..=MAX_CHANNELS).contains(&self.flag_dim) {
            return error("addition_time_embed_dim", self.flag_dim, limits::expected(&(4..=MAX_CHANNELS)));
        }
        if !(1..=MAX_LAYERS).contains(&self.layers) {
            return error("num_trans_layer", self.layers, limits::expected(&(1..=MAX_LAYERS)));
        }
        if self.channels != model_channels {
            let expected = format!("{model_channels}, the channels of the first feature map");
            return error("num_trans_channel", self.channels, expected);
        }
        if self.heads == 0 || !self.channels.is_multiple_of(self.heads) {
            return error("num_trans_head", self.heads, format!("a divisor of {}", self.channels));
        }
        Ok(())
    }
}

/// The types of the images of a call, for a Union network.
#[derive(Debug, Clone)]
pub struct ControlKinds<T> {
    /// Of each image the number of its type, and its weight.
    pub images: Vec<(usize, f32)>,
    /// For each type of the network 1 where an image has it, else 0: `(types)` in f32 whatever the network's type.
    pub flags: T,
}

/// The parts of a Union network that a ControlNet does not have.
pub(super) struct Union {
    pub(super) config: UnionConfig,
    pub(super) embedding: SegmentModule<FlagEmbedding>,
    pub(super) fuser: SegmentModule<Fuser>,
}

/// The embedding of the types' flags.
pub(super) struct FlagEmbedding(TimestepEmbedding, EmbeddingMlp);

/// The transformer over the means of the images, and the projection of its tokens to what is added to each channel.
pub(super) struct Fuser {
    tasks: Param,
    layers: Vec<Layer>,
    projection: Linear,
}

/// A residual attention block of PyTorch's `MultiheadAttention` and two linear layers with QuickGELU between.
///
/// diffusers passes tokens `(b, n, c)` to an attention layer that takes `(n, b, c)`, as the networks were trained: a token attends
/// to the same token of the other rows of the batch. These are the same image, and attention to equal tokens gives their
/// value, so that queries and keys have no effect and no row depends on another one.
struct Layer {
    norm_1: LayerNorm,
    in_weight: Param,
    in_bias: Param,
    out: Linear,
    norm_2: LayerNorm,
    wide: Linear,
    back: Linear,
}

impl Layer {
    fn new(p: &ParamBuilder<'_>, channels: usize) -> Self {
        let norm = |name: &str| LayerNorm::new(&p.pp(name), channels, 1e-5);
        let attention = p.pp("attn");
        Self {
            norm_1: norm("ln_1"),
            in_weight: attention.param("in_proj_weight", &[3 * channels, channels], Packing::Linear),
            in_bias: attention.param("in_proj_bias", &[3 * channels], Packing::AsStored),
            out: Linear::new(&attention.pp("out_proj"), channels, channels, true),
            norm_2: norm("ln_2"),
            wide: Linear::new(&p.pp("mlp.c_fc"), channels, 4 * channels, true),
            back: Linear::new(&p.pp("mlp.c_proj"), 4 * channels, channels, true),
        }
    }

    /// `x` `(b, n, c)`, same shape.
    fn forward<T: TensorLike>(&self, x: &T) -> kiln_nn::Result<T> {
        let c = x.size3()?[2];
        let normed = self.norm_1.forward(x)?;
        let qkv = normed.linear(&normed.weight(&self.in_weight)?, Some(&normed.param(&self.in_bias)?), None)?;
        let x = self.out.forward_add(&qkv.narrow(2, 2 * c, c)?.contiguous()?, Some(x))?;
        let wide = self.wide.forward(&self.norm_2.forward(&x)?)?.activation(Activation::QuickGelu)?;
        self.back.forward_add(&wide, Some(&x))
    }
}

impl Union {
    /// Declares the embedding of the flags.
    pub(super) fn embedding(
        builder: &mut Builder<'_>,
        UnionConfig { types, flag_dim, .. }: UnionConfig,
    ) -> SegmentModule<FlagEmbedding> {
        let (flip_sin_to_cos, freq_shift) = (builder.config.flip_sin_to_cos, builder.config.freq_shift);
        let temb_channels = builder.config.temb_channels();
        let form = TimestepEmbedding { dim: flag_dim, flip_sin_to_cos, freq_shift };
        builder.segment("control_add_embedding", |p| {
            FlagEmbedding(form, EmbeddingMlp::new(&p.pp("control_add_embedding"), types * flag_dim, temb_channels))
        })
    }

    /// Declares what runs after the first convolution.
    pub(super) fn fuser(
        builder: &mut Builder<'_>,
        UnionConfig { types, layers, channels, .. }: UnionConfig,
    ) -> SegmentModule<Fuser> {
        let layer = |p: &ParamBuilder<'_>, i: usize| Layer::new(&p.pp("transformer_layes").pp(i.to_string()), channels);
        builder.segment("fuser", |p| Fuser {
            tasks: p.param("task_embedding", &[types, channels], Packing::AsStored),
            layers: (0..layers).map(|i| layer(p, i)).collect(),
            projection: Linear::new(&p.pp("spatial_ch_projs"), channels, channels, true),
        })
    }

    /// The addition to the time embedding, `(1, temb_channels)`.
    pub(super) fn embed<T: TensorLike>(&self, kinds: &ControlKinds<T>, dtype: DType) -> Result<T> {
        Ok(T::run(&self.embedding, |FlagEmbedding(form, mlp)| {
            let embedded = kinds.flags.timestep_embedding(*form, dtype)?; // (types, flag_dim)
            let [types, dim] = embedded.size2()?;
            mlp.forward(&embedded.reshape(&[1, types * dim])?)
        })?)
    }

    /// The first feature map `x` `(r, h, w, c)` with the embedded images `hints` of the same shape.
    pub(super) fn fuse<T: TensorLike>(&self, x: &T, hints: &[T], kinds: &ControlKinds<T>) -> Result<T> {
        let [r, h, w, c] = x.size4()?;
        let is_alone = hints.len() == 1;
        // diffusers weighs the images if there are several, and the residuals if there is one.
        let weighed = |tensor: T, weight: f32| match is_alone || weight == 1.0 {
            true => Ok(tensor),
            false => tensor.affine(f64::from(weight), 0.0),
        };
        let fused = T::run(&self.fuser, |fuser| {
            let tasks = x.param(&fuser.tasks)?; // (types, c)
            let mut tokens = Vec::with_capacity(hints.len() + 1);
            for (hint, &(number, weight)) in hints.iter().zip(&kinds.images) {
                let task = tasks.narrow(0, number, 1)?.contiguous()?.reshape(&[1, 1, c])?;
                let task = T::cat(&vec![&task; r], 0)?;
                tokens.push(weighed(mean_of_pixels(hint)?.add(&task)?, weight)?);
            }
            let mut tokens = T::cat(&tokens.iter().collect::<Vec<_>>(), 1)?; // (r, images, c)
            for layer in &fuser.layers {
                tokens = layer.forward(&tokens)?;
            }
            let mut sum: Option<T> = None;
            for (i, (hint, &(_, weight))) in hints.iter().zip(&kinds.images).enumerate() {
                let token = tokens.narrow(1, i, 1)?.contiguous()?;
                let shift = weighed(fuser.projection.forward(&token)?, weight)?; // (r, 1, c)
                let shift = shift.reshape(&[r, 1, 1, c])?.upsample_nearest((h, w), None)?;
                let one = weighed(hint.clone(), weight)?.add(&shift)?;
                sum = Some(match sum {
                    Some(sum) => sum.add(&one)?,
                    None => one,
                });
            }
            match sum {
                Some(sum) => x.add(&sum),
                None => Ok(x.clone()),
            }
        });
        Ok(fused?)
    }

    /// Refuses images of types that the network does not have.
    pub(super) fn check<T: TensorLike>(&self, kinds: Option<&ControlKinds<T>>, hints: usize) -> Result<()> {
        let types = self.config.types;
        let fail =
            |expected: String, found: &[usize]| Err(Error::Input { input: "kinds", expected, found: found.to_vec() });
        let Some(kinds) = kinds else { return fail(format!("({types}), the flags of the types"), &[]) };
        if kinds.flags.dims() != [types] {
            return fail(format!("({types})"), kinds.flags.dims());
        }
        let numbers: Vec<usize> = kinds.images.iter().map(|&(number, _)| number).collect();
        if numbers.len() != hints || numbers.iter().any(|&number| number >= types) {
            return fail(format!("{hints} numbers of types below {types}"), &numbers);
        }
        Ok(())
    }
}
