//! ControlNet-LLLite (kohya-ss' `networks/control_net_lllite.py`): small networks that change what the projections of attention
//! layers get, by an embedding of the control image.

use std::collections::HashMap;

use candle_core::DType;
use kiln_nn::limits::{self, MAX_CHANNELS};
use kiln_nn::ops::{self, Activation};
use kiln_nn::{Attention, Conv2d, Linear, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use crate::conditioning::ControlInput;
use crate::config::{BlockConfig, UnetConfig};
use crate::error::{Error, Result};
use crate::hooks::{AttentionInput, BlockId, LayerId, ProjectionHook};

/// The prefix of its tensors' names.
const PREFIX: &str = "lllite_unet_";
/// Convolutions of the image's embedding, by their numbers.
const CONVS: [usize; 3] = [0, 2, 4];

/// A projection of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// The queries of self-attention.
    Query,
    /// The keys of self-attention.
    Key,
    /// The values of self-attention.
    Value,
    /// The queries of cross-attention.
    TextQuery,
}

impl Projection {
    /// All of them, with their parts of names.
    const ALL: [(Self, &'static str); 4] = [
        (Self::Query, "attn1_to_q"),
        (Self::Key, "attn1_to_k"),
        (Self::Value, "attn1_to_v"),
        (Self::TextQuery, "attn2_to_q"),
    ];
}

/// The network of one projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LlliteModule {
    /// The layer of the U-Net.
    pub layer: LayerId,
    /// Its projection.
    pub projection: Projection,
    /// Its name in files.
    name: String,
    /// Channels of the layer's tokens.
    channels: usize,
    /// Channels of the hidden tokens.
    hidden: usize,
    /// Of each convolution of the image's embedding its number, its channels, and its kernel, which is its stride, too.
    convs: Vec<(usize, usize, usize)>,
}

/// The networks of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LlliteConfig {
    /// In the order in which they run.
    pub modules: Vec<LlliteModule>,
}

impl LlliteConfig {
    /// Derives the configuration from the tensors `keys`, whose shapes `shape` gives, for the U-Net `unet`.
    ///
    /// # Errors
    /// [`Error::Config`] for tensors that belong to no layer of the U-Net, or have shapes of none.
    pub fn from_shapes(keys: &[String], shape: &dyn Fn(&str) -> Option<Vec<usize>>, unet: &UnetConfig) -> Result<Self> {
        let error = |found: String, expected: String| Error::Config { key: "tensors", found, expected };
        let mut modules = Vec::new();
        for (layer, block, stored) in layers(unet) {
            for (projection, part) in Projection::ALL {
                let name = format!("{PREFIX}{stored}_{part}");
                if let Some(down) = shape(&format!("{name}.down.0.weight")) {
                    let [hidden, channels] = *down else {
                        let found = format!("`{name}.down.0.weight` of {down:?}");
                        return Err(error(found, "a matrix".into()));
                    };
                    if channels != block {
                        let found = format!("`{name}` for {channels} channels");
                        return Err(error(found, format!("{block}, those of the model's layer")));
                    }
                    let convs = convs(&name, shape)?;
                    modules.push(LlliteModule { layer, projection, name, channels, hidden, convs });
                }
            }
        }
        let is_known = |key: &&String| {
            let module = key.split('.').next().unwrap_or_default();
            modules.iter().any(|known| known.name == module)
        };
        if let Some(other) = keys.iter().find(|key| key.starts_with(PREFIX) && !is_known(key)) {
            let expected = "names of the attention layers of the model's U-Net, which this file is not for".into();
            return Err(error(format!("`{other}`"), expected));
        }
        if modules.is_empty() {
            return Err(error(format!("without `{PREFIX}`"), "those of a ControlNet-LLLite".into()));
        }
        let range = 1..=MAX_CHANNELS;
        let sizes = |module: &LlliteModule| {
            let convs = module.convs.iter().map(|&(_, channels, _)| channels);
            convs.chain([module.hidden]).find(|size| !range.contains(size))
        };
        match modules.iter().find_map(sizes) {
            Some(size) => Err(error(size.to_string(), limits::expected(&range))),
            None => Ok(Self { modules }),
        }
    }

    /// Pixels of the control image that its sides are multiples of.
    pub fn downscale(&self) -> usize {
        let of = |module: &LlliteModule| module.convs.iter().map(|&(_, _, kernel)| kernel).product();
        self.modules.iter().map(of).max().unwrap_or(1)
    }
}

/// The convolutions of a module's embedding.
fn convs(name: &str, shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Result<Vec<(usize, usize, usize)>> {
    let of = |&number: &usize| Some((number, shape(&format!("{name}.conditioning1.{number}.weight"))?));
    let mut found = Vec::new();
    for (number, shape) in CONVS.iter().map_while(of) {
        let [channels, _, kernel @ 1..=16, _] = *shape else {
            let found = format!("`{name}.conditioning1.{number}.weight` of {shape:?}");
            let expected = "a kernel of a convolution of at most 16 by 16".into();
            return Err(Error::Config { key: "tensors", found, expected });
        };
        found.push((number, channels, kernel));
    }
    match found.is_empty() {
        true => {
            let found = format!("without `{name}.conditioning1.0.weight`");
            Err(Error::Config { key: "tensors", found, expected: "those of a ControlNet-LLLite".into() })
        }
        false => Ok(found),
    }
}

/// Every layer of the transformers of a U-Net in the order in which they run, with its channels and its name in files: that of
/// CompVis' code.
fn layers(unet: &UnetConfig) -> Vec<(LayerId, usize, String)> {
    let mut all = Vec::new();
    let mut add = |block: BlockId, config: &BlockConfig, transformer: usize, stored: String| {
        let depth = config.transformer.as_ref().and_then(|of| of.layers.get(transformer)).copied().unwrap_or(0);
        for layer in 0..depth {
            let id = LayerId { block, transformer, layer };
            all.push((id, config.channels, format!("{stored}_1_transformer_blocks_{layer}")));
        }
    };
    let mut number = 1;
    for (i, block) in unet.down.iter().enumerate() {
        for j in 0..block.layers {
            add(BlockId::Down(i), block, j, format!("input_blocks_{number}"));
            number += 1;
        }
        number += 1; // the downsampling
    }
    if let Some(block) = &unet.mid {
        add(BlockId::Mid, block, 0, "middle_block".into());
    }
    let mut number = 0;
    for (i, block) in unet.up.iter().enumerate() {
        for j in 0..block.layers {
            add(BlockId::Up(i), block, j, format!("output_blocks_{number}"));
            number += 1;
        }
    }
    all
}

/// ControlNet-LLLite. It is built from its configuration; its segments are loaded before it runs.
pub struct Lllite {
    config: LlliteConfig,
    image_segments: Segments,
    step_segments: Segments,
    embeddings: Vec<SegmentModule<Vec<Conv2d>>>,
    changes: Vec<SegmentModule<Change>>,
    places: HashMap<(LayerId, Projection), usize>,
}

/// `up(relu(mid(embedding, relu(down(x)))))`.
struct Change {
    down: Linear,
    mid: Linear,
    up: Linear,
}

impl Lllite {
    /// Declares the networks that `config` describes.
    pub fn new(config: LlliteConfig) -> Self {
        let (mut image_segments, mut step_segments) = (Segments::default(), Segments::default());
        let (mut embeddings, mut changes) = (Vec::new(), Vec::new());
        let mut places = HashMap::new();
        for (i, module) in config.modules.iter().enumerate() {
            let LlliteModule { layer, projection, name, channels, hidden, convs } = module;
            embeddings.push(image_segments.add(format!("lllite.{name}.conditioning1"), |p| {
                let p = p.pp(name).pp("conditioning1");
                let mut last = 3;
                let conv = |&(number, c_out, kernel): &(usize, usize, usize)| {
                    let c_in = std::mem::replace(&mut last, c_out);
                    let geometry = ops::Conv2d { stride: kernel, pad_before: 0, pad_after: 0 };
                    Conv2d::with_geometry(&p.pp(number.to_string()), c_in, c_out, kernel, geometry)
                };
                convs.iter().map(conv).collect()
            }));
            let embedded = convs.last().map_or(0, |&(_, channels, _)| channels);
            changes.push(step_segments.add(format!("lllite.{name}"), |p| {
                let p = p.pp(name);
                Change {
                    down: Linear::new(&p.pp("down.0"), *channels, *hidden, true),
                    mid: Linear::new(&p.pp("mid.0"), hidden + embedded, *hidden, true),
                    up: Linear::new(&p.pp("up.0"), *hidden, *channels, true),
                }
            }));
            places.insert((*layer, *projection), i);
        }
        Self { config, image_segments, step_segments, embeddings, changes, places }
    }

    /// The configuration.
    pub fn config(&self) -> &LlliteConfig {
        &self.config
    }

    /// The segments that run once an image, in their order.
    pub fn image_segments(&self) -> &Segments {
        &self.image_segments
    }

    /// The segments that run in every step, in their order.
    pub fn step_segments(&self) -> &Segments {
        &self.step_segments
    }

    /// The embeddings of an image `(b, 3, h, w)` of values from 0 to 1 for every module, `(b, h', w', c)` in the sizes of the
    /// feature maps of their layers.
    ///
    /// # Errors
    /// [`Error::Input`] for another shape, and for a size that is no multiple of [`LlliteConfig::downscale`]; errors of a layer.
    pub fn embed<T: TensorLike>(&self, image: &T) -> Result<Vec<T>> {
        let factor = self.config.downscale();
        if !matches!(*image.dims(), [_, 3, h, w] if h % factor == 0 && w % factor == 0) {
            let expected = format!("(b, 3, {factor} h, {factor} w)");
            return Err(Error::Input { input: "control image", expected, found: image.dims().to_vec() });
        }
        let image = image.to_channels_last()?.affine(2.0, -1.0)?;
        let embed = |module: &SegmentModule<Vec<Conv2d>>| {
            T::run(module, |convs| {
                let mut x = image.clone();
                for (i, conv) in convs.iter().enumerate() {
                    x = conv.forward(&x)?;
                    // The last one has no activation.
                    x = if i + 1 < convs.len() { x.activation(Activation::Relu)? } else { x };
                }
                Ok(x)
            })
        };
        Ok(self.embeddings.iter().map(embed).collect::<kiln_nn::Result<_>>()?)
    }

    /// The shapes of the embeddings for `b` images of `(h, w)` latents.
    pub(super) fn meta_embeddings(
        &self,
        unet: &UnetConfig,
        device: &MetaDevice,
        (b, h, w): (usize, usize, usize),
        dtype: DType,
    ) -> Vec<MetaTensor> {
        let last = unet.down.len().saturating_sub(1);
        let level = |block: BlockId| match block {
            BlockId::Down(level) => level,
            BlockId::Mid => last,
            BlockId::Up(block) => last - block.min(last),
        };
        let of = |module: &LlliteModule| {
            let unit = 1 << level(module.layer.block);
            let channels = module.convs.last().map_or(0, |&(_, channels, _)| channels);
            device.tensor(&[b, h.div_ceil(unit), w.div_ceil(unit), channels], dtype)
        };
        self.config.modules.iter().map(of).collect()
    }

    /// The tokens `x` `(b, s, c)` that `projection` of `layer` gets, with the change times `input`'s factor added to the last
    /// rows, as many as the embeddings have; `None` if there is none.
    fn changed<T: TensorLike>(
        &self,
        input: &ControlInput<T>,
        (layer, projection): (LayerId, Projection),
        x: &T,
    ) -> kiln_nn::Result<Option<T>> {
        let Some(&number) = self.places.get(&(layer, projection)) else { return Ok(None) };
        let (Some(embedding), Some(module)) = (input.hints.get(number), self.changes.get(number)) else {
            return Ok(None);
        };
        let scale = input.scales.first().copied().unwrap_or(1.0);
        let [b, s, _] = x.size3()?;
        let [r, h, w, c] = embedding.size4()?;
        let embedding = embedding.to_dtype(x.dtype())?.reshape(&[r, h * w, c])?;
        let rows = r.min(b);
        let last = if rows == b { x.clone() } else { x.narrow(0, b - rows, rows)?.contiguous()? };
        let change = T::run(module, |change| {
            let hidden = change.down.forward(&last)?.activation(Activation::Relu)?;
            let both = T::cat(&[&embedding, &hidden], 2)?;
            let hidden = change.mid.forward(&both)?.activation(Activation::Relu)?;
            change.up.forward(&hidden)
        })?;
        debug_assert_eq!(h * w, s);
        let change = if scale == 1.0 { change } else { change.affine(f64::from(scale), 0.0)? };
        let sum = last.add(&change)?;
        Ok(Some(match b - rows {
            0 => sum,
            first => T::cat(&[&x.narrow(0, 0, first)?.contiguous()?, &sum], 0)?,
        }))
    }
}

/// The networks of a call, in their order: each sees what the one before it has changed.
pub(crate) struct LlliteHook<'a, T>(pub(crate) &'a [(&'a Lllite, &'a ControlInput<T>)]);

impl<T: TensorLike> LlliteHook<'_, T> {
    /// The hook, if there are networks.
    pub(crate) fn acts(&self) -> Option<&dyn ProjectionHook<T>> {
        if self.0.is_empty() { None } else { Some(self) }
    }

    fn changed(&self, layer: LayerId, projection: Projection, x: &T) -> kiln_nn::Result<Option<T>> {
        let mut changed: Option<T> = None;
        for (net, input) in self.0 {
            let seen = changed.as_ref().unwrap_or(x);
            if let Some(next) = net.changed(input, (layer, projection), seen)? {
                changed = Some(next);
            }
        }
        Ok(changed)
    }
}

impl<T: TensorLike> ProjectionHook<T> for LlliteHook<'_, T> {
    fn self_attention(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> kiln_nn::Result<T> {
        let of = |projection| self.changed(input.id, projection, input.x);
        match [of(Projection::Query)?, of(Projection::Key)?, of(Projection::Value)?] {
            [None, None, None] => attention.forward(input.x, None, input.residual),
            [q, k, v] => {
                let or_x = |changed: &Option<T>| changed.clone().unwrap_or_else(|| input.x.clone());
                attention.forward_each([&or_x(&q), &or_x(&k), &or_x(&v)], input.residual)
            }
        }
    }

    fn text_query(&self, input: &AttentionInput<'_, T>) -> kiln_nn::Result<Option<T>> {
        self.changed(input.id, Projection::TextQuery, input.x)
    }
}
