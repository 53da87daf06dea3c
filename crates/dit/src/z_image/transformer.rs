//! The whole network.

use kiln_network::Inputs;
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::block::Block;
use super::config::ZImageConfig;
use super::embedders::{Embedders, Output};
use super::inputs::StepInputs;
use super::{NETWORK, PATCH};
use crate::block_cache::{BlockCache, Rows, Tokens, run_blocks};
use crate::error::Result;
use crate::flux::attention::Attending;
use crate::tokens::{join_tokens, patchify, tokens, unpatchify};

/// Z-Image's transformer (diffusers' `ZImageTransformer2DModel`). It is built from its configuration; its [`Segments`] are loaded
/// before it runs.
pub struct ZImageTransformer {
    config: ZImageConfig,
    segments: Segments,
    embedders: SegmentModule<Embedders>,
    noise_refiner: Vec<SegmentModule<Block>>,
    context_refiner: Vec<SegmentModule<Block>>,
    layers: Vec<SegmentModule<Block>>,
    output: SegmentModule<Output>,
}

impl ZImageTransformer {
    /// Declares the network that `config` describes.
    pub fn new(config: ZImageConfig) -> Self {
        let mut segments = Segments::default();
        let embedders = segments.add("embedders", |p| Embedders::new(p, &config));
        let mut blocks = |kind: &str, count: usize, modulated: bool| {
            let names = (0..count).map(|i| format!("{kind}.{i}"));
            names.map(|name| segments.add(name.as_str(), |p| Block::new(&p.pp(&name), &config, modulated))).collect()
        };
        let noise_refiner = blocks("noise_refiner", config.refiner_layers, true);
        let context_refiner = blocks("context_refiner", config.refiner_layers, false);
        let layers = blocks("layers", config.layers, true);
        let output = segments.add("all_final_layer", |p| Output::new(p, &config));
        Self { config, segments, embedders, noise_refiner, context_refiner, layers, output }
    }

    /// The configuration.
    pub fn config(&self) -> &ZImageConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, 16, h, w)` of latents `x` `(b, 16, h, w)` with even `h` and `w`.
    ///
    /// `timesteps` are `(1)` or `(b)` in f32: the noise level times 1000. `inputs` are the text `(b, s, context_dim)`
    /// ([`kiln_network::slots::CONTEXT`]) and the number of each text's tokens, `(b)` ([`kiln_network::slots::TEXT_LENGTHS`]).
    /// Without it all tokens belong to the texts. A text gives the same result with more rows behind it.
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let StepInputs { context, is_real, size, attending } = StepInputs::of(inputs, &self.config, x, timesteps)?;
        let [of_image, of_text, of_all] = attending;
        let patches = patchify(&x.to_channels_last()?)?;
        let [_, n, _] = patches.size3()?;
        let (mut image, mut text, emb) = T::run(&self.embedders, |layers| {
            let text = layers.text(&context, is_real.as_ref())?;
            Ok((layers.image(&patches)?, text, layers.time(timesteps, x.dtype())?))
        })?;
        drop((patches, context));
        for block in &self.noise_refiner {
            image = T::run(block, |block| block.forward(image, &emb, &of_image))?;
        }
        for block in &self.context_refiner {
            text = T::run(block, |block| block.forward(text, &emb, &of_text))?;
        }
        let all = join_tokens(&image, &text)?;
        drop((image, text));
        let [b, _, c] = all.size3()?;
        let cache = BlockCache::of(NETWORK, inputs, [b, n, c], timesteps)?;
        let running = Running { all, n, emb: emb.clone(), attending: of_all };
        let image = run_blocks(cache, running, self.layers.len(), |running, range| {
            let Running { mut all, n, emb, attending } = running;
            for block in &self.layers[range] {
                all = T::run(block, |block| block.forward(all, &emb, &attending))?;
            }
            Ok(Running { all, n, emb, attending })
        })?;
        let patches = T::run(&self.output, |output| output.forward(&image, &emb))?;
        drop(image);
        // The network predicts the way from noise to image.
        Ok(unpatchify(&patches, size, PATCH)?.to_channels_first()?.affine(-1.0, 0.0)?)
    }
}

/// The tensors between two blocks.
struct Running<T> {
    /// Tokens of the image with their filling, then of the text.
    all: T,
    /// The image's tokens without their filling.
    n: usize,
    emb: T,
    attending: Attending<T>,
}

impl<T: TensorLike> Tokens<T> for Running<T> {
    fn image(&self) -> kiln_nn::Result<T> {
        tokens(&self.all, 0, self.n)
    }

    fn pick(self, rows: Rows) -> kiln_nn::Result<Self> {
        let (all, emb) = (rows.of(&self.all)?, rows.of(&self.emb)?);
        Ok(Self { all, emb, attending: self.attending.pick(&rows)?, ..self })
    }
}
