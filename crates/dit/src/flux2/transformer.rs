//! The whole network.

use std::ops::Range;

use kiln_network::Inputs;
use kiln_nn::TensorLike;
use kiln_weights::{SegmentModule, Segments};

use super::NETWORK;
use super::block::SingleBlock;
use super::config::Flux2Config;
use super::inputs::StepInputs;
use super::layers::{Embedded, Embedders, Output};
use crate::block_cache::{BlockCache, Rows, Tokens, run_blocks};
use crate::error::Result;
use crate::flux::attention::Attending;
use crate::flux::block::{DoubleBlock, Vectors};
use crate::flux::streams::Streams;

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
        let Embedded { image, text, emb, double, single } =
            T::run(&self.embedders, |layers| layers.forward(&all, &context, timesteps))?;
        drop((all, context));
        let [b, _, c] = image.size3()?;
        let cache = BlockCache::of(NETWORK, inputs, [b, h * w, c], timesteps)?;
        let running = Running { streams: Streams::new(image, text, h * w), vectors: [double, single], attending };
        let count = self.double.len() + self.single.len();
        let image = run_blocks(cache, running, count, |running, range| self.run_blocks(running, range))?;
        let y = T::run(&self.output, |output| output.forward(&image, &emb))?;
        let [b, _, c] = y.size3()?;
        Ok(y.reshape(&[b, h, w, c])?.to_channels_first()?)
    }

    /// The blocks of these numbers: double blocks, then single ones.
    fn run_blocks<T: TensorLike>(&self, running: Running<T>, range: Range<usize>) -> kiln_nn::Result<Running<T>> {
        let Running { mut streams, vectors, attending } = running;
        let [double, single] = vectors.clone();
        let (double, single): ([Vectors<T>; 4], [Vectors<T>; 1]) = (Vectors::of(double)?, Vectors::of(single)?);
        for i in range {
            let n = streams.image_tokens();
            streams = match i.checked_sub(self.double.len()) {
                None => {
                    let both = streams.apart()?;
                    let [image, text] = T::run(&self.double[i], |block| block.forward(both, &double, &attending))?;
                    Streams::new(image, text, n)
                }
                Some(i) => {
                    let z = streams.joined()?;
                    Streams::of_all(T::run(&self.single[i], |block| block.forward(z, &single, &attending))?, n)
                }
            };
        }
        Ok(Running { streams, vectors, attending })
    }
}

/// The tensors between two blocks.
struct Running<T> {
    streams: Streams<T>,
    /// The vectors of double and of single blocks.
    vectors: [Vec<T>; 2],
    attending: Attending<T>,
}

impl<T: TensorLike> Tokens<T> for Running<T> {
    fn image(&self) -> kiln_nn::Result<T> {
        self.streams.image()
    }

    fn pick(self, rows: Rows) -> kiln_nn::Result<Self> {
        let [double, single] = &self.vectors;
        let of = |all: &[T]| all.iter().map(|vector| rows.of(vector)).collect::<kiln_nn::Result<Vec<T>>>();
        let vectors = [of(double)?, of(single)?];
        Ok(Self { streams: self.streams.pick(&rows)?, vectors, attending: self.attending.pick(&rows)? })
    }
}
