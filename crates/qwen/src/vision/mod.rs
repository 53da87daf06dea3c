//! The vision tower of Qwen2.5-VL (Bai et al., arXiv 2502.13923): an image to tokens of the language model.
//!
//! Transformers' `Qwen2_5_VisionTransformerPretrainedModel`: patches attend to those of their window, and in a few layers to all of
//! the image. Squares of patches become one token.

mod block;
mod config;
mod patches;
mod windows;

use candle_core::DType;
use kiln_nn::ops::Activation;
use kiln_nn::{Linear, Mlp, RopeTables, TensorLike};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

pub use config::VisionConfig;
pub use patches::{ImagePatches, seen_size};

use crate::layer::Norm;
use block::{Block, Seen};

/// The name of the network in messages.
pub(crate) const NETWORK: &str = "Qwen2.5-VL vision tower";
/// The names in the checkpoint.
const PATCHES: &str = "visual.patch_embed";
const BLOCKS: &str = "visual.blocks";
const MERGER: &str = "visual.merger";
/// The base of the rotary frequencies.
const THETA: f64 = 10_000.0;
/// The epsilon of the normalizations.
const EPS: f64 = 1e-6;

/// The vision tower.
pub(crate) struct VisionTower {
    config: VisionConfig,
    patches: SegmentModule<Linear>,
    blocks: Vec<SegmentModule<Block>>,
    merger: SegmentModule<Merger>,
}

/// The layers after the blocks: squares of patches to tokens.
struct Merger {
    norm: Norm,
    mlp: Mlp,
}

impl Merger {
    fn new(p: &ParamBuilder<'_>, config: &VisionConfig) -> Self {
        let merged = config.hidden_size * config.spatial_merge_size * config.spatial_merge_size;
        let channels = [merged, merged, config.out_hidden_size];
        Self {
            norm: Norm::of(&p.pp("ln_q"), config.hidden_size, EPS),
            mlp: Mlp::new(&p.pp("mlp"), ["0", "2"], channels, Activation::GeluErf, true),
        }
    }
}

impl VisionTower {
    /// Declares the network of a valid configuration: a segment with the patch embedding, one for each block, and one with the
    /// merger.
    pub(crate) fn new(segments: &mut Segments, config: VisionConfig) -> Self {
        // The kernel of a convolution is as large as a patch: a matrix.
        let patches = segments
            .add(PATCHES, |p| Linear::new(&p.pp(PATCHES).pp("proj"), config.patch_len(), config.hidden_size, false));
        let names = (0..config.depth).map(|i| format!("{BLOCKS}.{i}"));
        let blocks = names.map(|name| segments.add(name.as_str(), |p| Block::new(&p.pp(&name), &config))).collect();
        let merger = segments.add(MERGER, |p| Merger::new(&p.pp(MERGER), &config));
        Self { config, patches, blocks, merger }
    }

    /// The configuration.
    pub(crate) fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// The tokens `(1, n, out_hidden_size)` of images, row by row, in the type and on the device of `like`. Each block runs for all
    /// images, one after the other.
    pub(crate) fn forward<T: TensorLike>(&self, images: &[ImagePatches], like: &T) -> kiln_nn::Result<Vec<T>> {
        let dtype = like.dtype();
        let mut states = T::run(&self.patches, |layer| {
            let one = |image: &ImagePatches| layer.forward(&like.new_constant(&image.values)?)?.to_dtype(DType::F32);
            images.iter().map(one).collect::<kiln_nn::Result<Vec<T>>>()
        })?;
        let tables = images.iter().zip(&states).map(|(image, like)| self.tables(image, like));
        let tables = tables.collect::<kiln_nn::Result<Vec<_>>>()?;
        for (i, block) in self.blocks.iter().enumerate() {
            let is_whole = self.config.fullatt_block_indexes.contains(&i);
            T::run(block, |block| {
                for ((x, image), tables) in states.iter_mut().zip(images).zip(&tables) {
                    let windows = (!is_whole).then(|| image.windows.runs());
                    *x = block.forward(x, &Seen { tables, windows, dtype })?;
                }
                Ok(())
            })?;
        }
        T::run(&self.merger, |merger| {
            let one = |(x, image): (T, &ImagePatches)| {
                let normed = merger.norm.forward(&x, dtype)?;
                drop(x);
                let (tokens, width) = (image.tokens(), self.config.out_hidden_size);
                let merged = normed.reshape(&[tokens, image.windows.patches() / tokens * self.config.hidden_size])?;
                let merged = merger.mlp.forward(&merged)?.index_select(&image.windows.row_by_row())?;
                merged.reshape(&[1, tokens, width])
            };
            states.into_iter().zip(images).map(one).collect()
        })
    }

    /// The rotary positions of an image's patches, by row and column, on the device of `like`, which is in f32.
    fn tables<T: TensorLike>(&self, image: &ImagePatches, like: &T) -> kiln_nn::Result<RopeTables<T>> {
        let positions: Vec<[f64; 2]> = image.windows.places().map(|place| place.map(|side| side as f64)).collect();
        let axes = [self.config.head_dim() / 2; 2];
        let RopeTables { cos, sin } = RopeTables::new(&positions, axes, THETA)?;
        Ok(RopeTables { cos: like.new_constant(&cos)?, sin: like.new_constant(&sin)? })
    }
}
