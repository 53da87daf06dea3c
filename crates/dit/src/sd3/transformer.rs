//! The whole network.

use kiln_network::Inputs;
use kiln_nn::{Linear, Modulation, TensorLike, modulate};
use kiln_weights::{ParamBuilder, SegmentModule, Segments};

use super::block::JointBlock;
use super::config::Sd3Config;
use super::embedder::Embedder;
use super::inputs::{SkippedLayers, StepInputs};
use super::positions::Positions;
use super::{EPS, NETWORK};
use crate::block_cache::{BlockCache, Rows, Tokens as BlockTokens, run_blocks};
use crate::error::Result;
use crate::tokens::unpatchify;

/// The transformer. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Sd3Transformer {
    config: Sd3Config,
    segments: Segments,
    positions: SegmentModule<Positions>,
    embedder: SegmentModule<Embedder>,
    blocks: Vec<SegmentModule<JointBlock>>,
    head: SegmentModule<Head>,
}

/// The last normalization and the layer to latents.
struct Head {
    norm_out: Modulation,
    proj_out: Linear,
}

impl Head {
    /// Declares `norm_out.linear` and `proj_out`.
    fn new(p: &ParamBuilder<'_>, config: &Sd3Config) -> Self {
        let (channels, patch) = (config.channels(), config.patch_size);
        Self {
            norm_out: Modulation::new(&p.pp("norm_out.linear"), [channels, channels], 2, true, false),
            proj_out: Linear::new(&p.pp("proj_out"), channels, patch * patch * config.out_channels, true),
        }
    }

    /// `x` `(b, n, c)` to patches `(b, n, patch_size patch_size out_channels)`; `emb` is `(b, c)`.
    fn forward<T: TensorLike>(&self, x: &T, emb: &T) -> kiln_nn::Result<T> {
        let vectors = self.norm_out.forward(emb)?; // the scale first
        self.proj_out.forward(&modulate(x, &vectors[0], Some(&vectors[1]), EPS)?)
    }
}

/// The tensors that run through the blocks.
pub(super) struct Tokens<T> {
    /// Image tokens `(b, n, c)`.
    pub(super) image: T,
    /// Text tokens `(b, s, c)`.
    text: T,
    /// The vector that modulates, `(b, c)` after SiLU.
    emb: T,
}

/// The tensors between two blocks, and the blocks that rows skip.
struct Running<T> {
    tokens: Tokens<T>,
    skipped: SkippedLayers,
}

impl<T: TensorLike> BlockTokens<T> for Running<T> {
    fn image(&self) -> kiln_nn::Result<T> {
        Ok(self.tokens.image.clone())
    }

    fn pick(self, rows: Rows) -> kiln_nn::Result<Self> {
        let Self { tokens: Tokens { image, text, emb }, skipped } = self;
        let [b, ..] = image.size3()?;
        let tokens = Tokens { image: rows.of(&image)?, text: rows.of(&text)?, emb: rows.of(&emb)? };
        Ok(Self { tokens, skipped: skipped.of_last(|last| rows.among(b.saturating_sub(last)..b)) })
    }
}

impl Sd3Transformer {
    /// Declares the network that `config` describes.
    pub fn new(config: Sd3Config) -> Self {
        let mut segments = Segments::default();
        let (side, channels) = (config.pos_embed_max_size, config.channels());
        let positions = Positions::segment(&mut segments, "pos_embed", side, channels);
        let embedder = segments.add("time_text_embed", |p| Embedder::new(p, &config, true, true));
        let block = |i: usize| {
            let name = format!("transformer_blocks.{i}");
            let (is_dual, is_last) = (config.dual_layers.contains(&i), i + 1 == config.num_layers);
            segments.add(name.as_str(), |p| JointBlock::new(&p.pp(&name), &config, is_dual, is_last))
        };
        let blocks = (0..config.num_layers).map(block).collect();
        let head = segments.add("proj_out", |p| Head::new(p, &config));
        Self { config, segments, positions, embedder, blocks, head }
    }

    /// The configuration.
    pub fn config(&self) -> &Sd3Config {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, out_channels, h, w)` for noisy latents `x` `(b, out_channels, h, w)` in the network's type.
    ///
    /// `timesteps` are 1000 times the noise level, `(1)` or `(b)` in f32. `inputs` have the text [`kiln_network::slots::CONTEXT`]
    /// `(b, s, context_dim)` and the pooled text [`kiln_network::slots::TEXT_EMBEDS`] `(b, pooled_dim)`, and may have
    /// [`kiln_network::slots::SKIPPED_LAYERS`] and those that [`kiln_network::Forward::prepare`] and
    /// [`kiln_network::Forward::for_size`] add.
    ///
    /// # Errors
    /// [`crate::Error::Input`] for inputs that do not fit the configuration; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let step = StepInputs::of(inputs, &self.config, x, timesteps)?;
        let tokens = self.embed(x, timesteps, &step)?;
        let cache = BlockCache::of(NETWORK, inputs, tokens.image.size3()?, timesteps)?;
        Ok(self.finish(tokens, &step, cache, |_, image| Ok(image))?)
    }

    /// The tensors that run through the blocks, from latents `x` `(b, c, h, w)`.
    pub(super) fn embed<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        step: &StepInputs<'_, T>,
    ) -> kiln_nn::Result<Tokens<T>> {
        let made;
        let positions = match step.positions {
            Some(positions) => positions,
            None => {
                made = self.positions(step.size, x)?;
                &made
            }
        };
        let joined = step.extra.map(|extra| T::cat(&[x, &extra.to_dtype(x.dtype())?], 1)).transpose()?;
        T::run(&self.embedder, |embedder| {
            let (text, pooled) = match step.embedded {
                Some((text, pooled)) => (text.clone(), pooled.clone()),
                None => embed_text(embedder, step.context, step.pooled)?,
            };
            let image = embedder.image(joined.as_ref().unwrap_or(x), positions)?;
            // The transformer has the layers that control networks may lack.
            Ok(Tokens {
                image: image.unwrap_or_else(|| x.clone()),
                text,
                emb: embedder.modulating(timesteps, &pooled)?,
            })
        })
    }

    /// The output for `tokens`. `after` gets the number of each block but the last, and the image after it, to which it may add.
    pub(super) fn finish<T: TensorLike>(
        &self,
        tokens: Tokens<T>,
        step: &StepInputs<'_, T>,
        cache: Option<BlockCache<T>>,
        mut after: impl FnMut(usize, T) -> kiln_nn::Result<T>,
    ) -> kiln_nn::Result<T> {
        let (emb, count) = (tokens.emb.clone(), self.blocks.len());
        let running = Running { tokens, skipped: step.skipped };
        let image = run_blocks(cache, running, count, |running, range| {
            let Running { tokens: Tokens { mut image, mut text, emb }, skipped } = running;
            for (i, block) in self.blocks.iter().enumerate().take(range.end).skip(range.start) {
                (image, text) = T::run(block, |block| forward_first(block, (image, text), &emb, skipped.rows(i)))?;
                if i + 1 < count {
                    image = after(i, image)?;
                }
            }
            Ok(Running { tokens: Tokens { image, text, emb }, skipped })
        })?;
        let patches = T::run(&self.head, |head| head.forward(&image, &emb))?;
        drop(image);
        unpatchify(&patches, step.size, self.config.patch_size)?.to_channels_first()
    }

    /// The text `(b, s, context_dim)` and the pooled text `(b, pooled_dim)` embedded: `(b, s, c)` and `(b, c)`.
    pub(super) fn embed_text<T: TensorLike>(&self, context: &T, pooled: &T) -> kiln_nn::Result<(T, T)> {
        T::run(&self.embedder, |embedder| embed_text(embedder, context, pooled))
    }

    /// The vectors of the positions of an image of `size` tokens, `(n, c)`, on the device of `like`.
    pub(super) fn positions<T: TensorLike>(&self, size: [usize; 2], like: &T) -> kiln_nn::Result<T> {
        T::run(&self.positions, |positions| positions.crop(size, like.device()))
    }

    /// Whether the table of positions is in memory only while it is its turn.
    pub(super) fn streams_positions(&self) -> bool {
        self.positions.segment().is_streamed()
    }
}

fn embed_text<T: TensorLike>(embedder: &Embedder, context: &T, pooled: &T) -> kiln_nn::Result<(T, T)> {
    let text = embedder.text(context)?.unwrap_or_else(|| context.clone());
    Ok((text, embedder.pooled(pooled)?))
}

/// `block` for all rows of image and text but the last `skipping`, which stay as they are.
fn forward_first<T: TensorLike>(
    block: &JointBlock,
    (image, text): (T, T),
    emb: &T,
    skipping: usize,
) -> kiln_nn::Result<(T, T)> {
    let [b, ..] = image.size3()?;
    let n = b.saturating_sub(skipping);
    if n == b {
        return block.forward(image, text, emb);
    }
    if n == 0 {
        return Ok((image, text));
    }
    let first = |x: &T| x.narrow(0, 0, n);
    let joined = |new: &T, old: &T| T::cat(&[new, &old.narrow(0, n, skipping)?], 0);
    let (new_image, new_text) = block.forward(first(&image)?, first(&text)?, &first(emb)?)?;
    Ok((joined(&new_image, &image)?, joined(&new_text, &text)?))
}
