//! The whole network.

use kiln_network::Inputs;
use kiln_network::slots::REFERENCE;
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::config::QwenImageConfig;
use super::layers::{Block, Embedders};
use super::{NETWORK, positions};
use crate::block_cache::{Rows, Tokens, run_blocks};
use crate::error::Result;
use crate::flux::attention::Attending;
use crate::flux::inputs::{Sizes, TokenInputs, refused};
use crate::flux::output::ModulatedOutput;
use crate::flux::packing::unpack;
use crate::rotary;

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
    /// not, the first ones, `(b)` in f32 ([`kiln_network::slots::TEXT_LENGTHS`]).
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let dims = &self.config.dims;
        if let Some(reference) = inputs.all(REFERENCE).next() {
            return Err(refused(NETWORK, REFERENCE.name, "none".into(), reference.dims()));
        }
        let (prepared, all) = (rotary::prepared(inputs), inputs);
        let inputs = TokenInputs::of(NETWORK, inputs)?;
        let sizes @ Sizes { image, text, .. } = inputs.check(NETWORK, dims, x, timesteps)?;
        let cache = sizes.cache(NETWORK, all, dims, timesteps)?;
        let lengths = inputs.text_lengths.as_ref();
        let attending = Attending {
            num_heads: dims.num_heads,
            tables: positions::tables(prepared, dims, [image.height, image.width], text, timesteps)?,
            lengths: lengths.map(|text| text.affine(1.0, image.tokens() as f64)).transpose()?,
        };
        let (packed, dtype) = (inputs.image_tokens(x)?, x.dtype());
        let (tokens, emb) = T::run(&self.embedders, |layers| {
            let emb = layers.timestep(timesteps, dtype)?;
            Ok((layers.tokens(&packed, &inputs.context.to_dtype(dtype)?)?, emb))
        })?;
        drop(packed);
        let running = Running { tokens, emb: emb.clone(), attending };
        let image_tokens = run_blocks(cache, running, self.blocks.len(), |running, range| {
            let Running { mut tokens, emb, attending } = running;
            for block in &self.blocks[range] {
                tokens = T::run(block, |block| block.forward(tokens, &emb, &attending))?;
            }
            Ok(Running { tokens, emb, attending })
        })?;
        let y = T::run(&self.output, |output| output.forward(&image_tokens, &emb))?;
        Ok(unpack(&y, (image.height, image.width))?)
    }
}

/// The tensors between two blocks.
struct Running<T> {
    /// Of the image and of the text.
    tokens: [T; 2],
    emb: T,
    attending: Attending<T>,
}

impl<T: TensorLike> Tokens<T> for Running<T> {
    fn image(&self) -> kiln_nn::Result<T> {
        Ok(self.tokens[0].clone())
    }

    fn pick(self, rows: Rows) -> kiln_nn::Result<Self> {
        let [image, text] = &self.tokens;
        let (tokens, emb) = ([rows.of(image)?, rows.of(text)?], rows.of(&self.emb)?);
        Ok(Self { tokens, emb, attending: self.attending.pick(&rows)? })
    }
}
