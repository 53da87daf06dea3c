//! The whole network.

use kiln_network::Inputs;
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::config::QwenImageConfig;
use super::layers::{Block, Embedders, Embeddings};
use super::{NETWORK, positions};
use crate::block_cache::{Rows, Tokens, run_blocks};
use crate::error::Result;
use crate::flux::attention::Attending;
use crate::flux::inputs::{Sizes, TokenInputs};
use crate::flux::output::ModulatedOutput;
use crate::flux::packing::unpack;
use crate::rotary;
use crate::tokens::tokens;

/// Qwen-Image's transformer over image and text tokens (diffusers' `QwenImageTransformer2DModel`). It is built from its
/// configuration; its [`Segments`] are loaded before it runs.
pub struct QwenImageTransformer {
    config: QwenImageConfig,
    segments: Segments,
    embedders: SegmentModule<Embedders>,
    blocks: Vec<SegmentModule<Block>>,
    output: SegmentModule<ModulatedOutput>,
}

impl QwenImageTransformer {
    /// Declares the network that `config` describes.
    pub fn new(config: QwenImageConfig) -> Self {
        let dims = config.dims;
        let mut segments = Segments::default();
        let embedders = segments.add("embedders", |p| Embedders::new(p, &dims));
        let names = (0..dims.layers).map(|i| format!("transformer_blocks.{i}"));
        let blocks = names.map(|name| segments.add(name.as_str(), |p| Block::new(&p.pp(&name), &dims))).collect();
        let output = segments.add("proj_out", |p| ModulatedOutput::new(p, &dims));
        Self { config, segments, embedders, blocks, output }
    }

    /// The configuration.
    pub fn config(&self) -> &QwenImageConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, 16, h, w)` of latents `x` `(b, 16, h, w)` with even `h` and `w`.
    ///
    /// `timesteps` are `(1)` or `(b)` in f32, from 0 to 1000: the noise level times 1000. `inputs` are the text
    /// `(b, s, context_dim)` ([`kiln_network::slots::CONTEXT`]) and, if some of its tokens are masked, the number of those that are
    /// not, the first ones, `(b)` in f32 ([`kiln_network::slots::TEXT_LENGTHS`]); and latents of reference images
    /// ([`kiln_network::slots::REFERENCE`]).
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let dims = &self.config.dims;
        let (prepared, all) = (rotary::prepared(inputs), inputs);
        let inputs = TokenInputs::of(NETWORK, inputs)?;
        let sizes @ Sizes { image, text, .. } = inputs.check(NETWORK, dims, x, timesteps)?;
        let cache = sizes.cache(NETWORK, all, dims, timesteps)?;
        let grids = inputs.grids(sizes)?;
        let (n, all_tokens) = (image.tokens(), grids.iter().map(|grid| grid.tokens()).sum::<usize>());
        let lengths = inputs.text_lengths.as_ref();
        let attending = Attending {
            num_heads: dims.num_heads,
            tables: positions::tables(prepared, dims, &grids, text, timesteps)?,
            lengths: lengths.map(|text| text.affine(1.0, all_tokens as f64)).transpose()?,
        };
        let (packed, dtype) = (inputs.image_tokens(x)?, x.dtype());
        let (tokens, emb_of) = T::run(&self.embedders, |layers| {
            let emb = layers.timestep(timesteps, dtype)?;
            // References have no noise.
            let clean = match self.config.zero_cond_t && all_tokens > n {
                true => Some(layers.timestep(&timesteps.affine(0.0, 0.0)?, dtype)?),
                false => None,
            };
            Ok((layers.tokens(&packed, &inputs.context.to_dtype(dtype)?)?, Embeddings { emb, clean }))
        })?;
        drop(packed);
        let emb = emb_of.emb.clone();
        let running = Running { tokens, n, emb: emb_of, attending };
        let image_tokens = run_blocks(cache, running, self.blocks.len(), |running, range| {
            let Running { mut tokens, n, emb, attending } = running;
            for block in &self.blocks[range] {
                tokens = T::run(block, |block| block.forward(tokens, n, &emb, &attending))?;
            }
            Ok(Running { tokens, n, emb, attending })
        })?;
        let y = T::run(&self.output, |output| output.forward(&image_tokens, &emb))?;
        Ok(unpack(&y, (image.height, image.width))?)
    }
}

/// The tensors between two blocks.
struct Running<T> {
    /// Of the images and of the text.
    tokens: [T; 2],
    /// The number of the image's tokens, which are before those of references.
    n: usize,
    emb: Embeddings<T>,
    attending: Attending<T>,
}

impl<T: TensorLike> Tokens<T> for Running<T> {
    fn image(&self) -> kiln_nn::Result<T> {
        tokens(&self.tokens[0], 0, self.n)
    }

    fn pick(self, rows: Rows) -> kiln_nn::Result<Self> {
        let [image, text] = &self.tokens;
        let tokens = [rows.of(image)?, rows.of(text)?];
        let clean = self.emb.clean.as_ref().map(|clean| rows.of(clean)).transpose()?;
        let emb = Embeddings { emb: rows.of(&self.emb.emb)?, clean };
        Ok(Self { tokens, emb, attending: self.attending.pick(&rows)?, n: self.n })
    }
}
