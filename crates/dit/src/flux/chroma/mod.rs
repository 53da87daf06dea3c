//! Chroma (diffusers' `ChromaTransformer2DModel`): FLUX.1's blocks without layers for their vectors. One small network makes the
//! vectors of all blocks from the timestep. It takes no pooled text and no guidance scale.

mod approximator;
mod config;

use candle_core::DType;
use kiln_network::slots::TEXT_LENGTHS;
use kiln_network::{Denoiser, Forward, Inputs, LatentSpec, Slot, StepShape};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use super::denoiser::{latents, residual, with_meta_inputs};
use super::embedders::TokenEmbedders;
use super::inputs::TokenInputs;
use super::output::Output;
use super::packing::unpack;
use super::positions;
use super::trunk::Trunk;
use crate::block_cache::is_residual;
use crate::error::{Error, Result};
use approximator::Approximator;
pub use config::ChromaConfig;

/// The name of the network in messages.
const NETWORK: &str = "Chroma transformer";

/// Chroma's transformer. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct ChromaTransformer {
    config: ChromaConfig,
    segments: Segments,
    embedders: SegmentModule<TokenEmbedders>,
    approximator: Approximator,
    trunk: Trunk,
    output: SegmentModule<Output>,
}

impl ChromaTransformer {
    /// Declares the network that `config` describes.
    pub fn new(config: ChromaConfig) -> Self {
        let dims = &config.dims;
        let mut segments = Segments::default();
        let sizes = [dims.in_channels, dims.context_dim, dims.channels()];
        let embedders = segments.add("embedders", |p| TokenEmbedders::new(p, sizes));
        let approximator = Approximator::new(&mut segments, &config);
        let trunk = Trunk::new(&mut segments, "", dims, false);
        let output = segments.add("proj_out", |p| Output::new(p, dims));
        Self { config, segments, embedders, approximator, trunk, output }
    }

    /// The configuration.
    pub fn config(&self) -> &ChromaConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Predicts the velocity `(b, 16, h, w)` of latents `x` `(b, 16, h, w)` with even `h` and `w`.
    ///
    /// `timesteps` are `(1)` or `(b)` in f32: the noise level times 1000. `inputs` are the text `(b, s, context_dim)`
    /// ([`kiln_network::slots::CONTEXT`]) and the number of its tokens that are not masked, `(b)` ([`TEXT_LENGTHS`]): those of the
    /// prompt and one of the filling. Without it no token is masked. Masked tokens are not attended, as in training; diffusers
    /// 0.42 adds 1 to the scores of the others instead.
    ///
    /// # Errors
    /// [`crate::Error::Input`] for an input that does not fit; errors of a layer, with the layer's path.
    pub fn forward<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let dims = &self.config.dims;
        let (rows, all) = (approximator::prepared(inputs), inputs);
        let inputs = TokenInputs::of(NETWORK, inputs)?;
        let sizes = inputs.check(NETWORK, dims, x, timesteps)?;
        let cache = sizes.cache(NETWORK, all, dims, timesteps)?;
        let packed = inputs.image_tokens(x)?;
        let context = inputs.context.to_dtype(x.dtype())?;
        let tokens = T::run(&self.embedders, |layers| layers.forward(&packed, &context))?;
        drop(packed);
        let vectors = self.approximator.forward(timesteps, rows, x.dtype())?;
        let attending = inputs.attending(dims, sizes, timesteps)?;
        let of_block = |place, _: &[_]| vectors.of_block(place);
        let y = self.trunk.run(tokens, sizes.image.tokens(), &of_block, attending, None, cache)?;
        let [shift, scale] = vectors.of_output()?;
        let y = T::run(&self.output, |output| output.forward(&y, [&scale, &shift]))?;
        Ok(unpack(&y, (sizes.image.height, sizes.image.width))?)
    }
}

impl<T: TensorLike> Forward<T> for ChromaTransformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> kiln_network::Result<T> {
        Ok(ChromaTransformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the angles of positions and the embedded numbers of the vectors, which depend on no size.
    fn prepare(&self, inputs: Inputs<T>) -> kiln_network::Result<Inputs<T>> {
        let inputs = positions::prepare(inputs, &self.config.dims).map_err(Error::from)?;
        Ok(approximator::prepare(inputs, &self.config).map_err(Error::from)?)
    }
}

impl Denoiser for ChromaTransformer {
    fn segments(&self) -> &Segments {
        ChromaTransformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        latents(&self.config.dims)
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        is_residual(slot).then(|| residual(&self.config.dims, shape))
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let inputs = Inputs::new().with(TEXT_LENGTHS, device.tensor(&[shape.rows], DType::F32));
        with_meta_inputs(inputs, &self.config.dims, device, shape, dtype)
    }
}
