//! The whole network.

use kiln_network::Inputs;
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::block::SingleBlock;
use super::config::Flux2Config;
use super::inputs::StepInputs;
use super::layers::{Embedded, Embedders, Output};
use crate::error::Result;
use crate::flux::block::{DoubleBlock, Vectors};
use crate::tokens::{join_tokens, tokens};

/// FLUX.2's transformer over image and text tokens (diffusers' `Flux2Transformer2DModel`) without a guidance scale: klein. It is
/// built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Flux2Transformer {
    config: Flux2Config,
    segments: Segments,
    embedders: SegmentModule<Embedders>,
    double: Vec<SegmentModule<DoubleBlock>>,
    single: Vec<SegmentModule<SingleBlock>>,
    output: SegmentModule<Output>,
}

impl Flux2Transformer {
    /// Declares the network that `config` describes.
    pub fn new(config: Flux2Config) -> Self {
        let mut segments = Segments::default();
        let embedders = segments.add("embedders", |p| Embedders::new(p, &config));
        let names = |kind: &'static str, count: usize| (0..count).map(move |i| format!("{kind}.{i}"));
        let double = names("transformer_blocks", config.layers)
            .map(|name| {
                segments.add(name.as_str(), |p| DoubleBlock::gated(&p.pp(&name), config.heads(), config.hidden))
            })
            .collect();
        let single = names("single_transformer_blocks", config.single_layers)
            .map(|name| segments.add(name.as_str(), |p| SingleBlock::new(&p.pp(&name), &config)))
            .collect();
        let output = segments.add("proj_out", |p| Output::new(p, &config));
        Self { config, segments, embedders, double, single, output }
    }

    /// The configuration.
    pub fn config(&self) -> &Flux2Config {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, 128, h, w)` of latents `x` `(b, 128, h, w)`.
    ///
    /// `timesteps` are `(1)` or `(b)` in f32: the noise level times 1000. `inputs` are the text `(b, s, context_dim)`
    /// ([`kiln_network::slots::CONTEXT`]), of which all tokens are attended to, and latents of reference images
    /// ([`kiln_network::slots::REFERENCE`]).
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let StepInputs { context, tokens: all, size: [h, w], attending } =
            StepInputs::of(inputs, &self.config, x, timesteps)?;
        let Embedded { mut image, mut text, emb, double, single } =
            T::run(&self.embedders, |layers| layers.forward(&all, &context, timesteps))?;
        drop((all, context));
        let (double, single): ([Vectors<T>; 4], [Vectors<T>; 1]) = (Vectors::of(double)?, Vectors::of(single)?);
        for block in &self.double {
            [image, text] = T::run(block, |block| block.forward([image, text], &double, &attending))?;
        }
        let mut z = if self.single.is_empty() { image } else { join_tokens(&image, &text)? };
        drop(text);
        for block in &self.single {
            z = T::run(block, |block| block.forward(z, &single, &attending))?;
        }
        let image = tokens(&z, 0, h * w)?;
        drop(z);
        let y = T::run(&self.output, |output| output.forward(&image, &emb))?;
        let [b, _, c] = y.size3()?;
        Ok(y.reshape(&[b, h, w, c])?.to_channels_first()?)
    }
}
