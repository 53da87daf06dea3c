//! The control network.

use candle_core::DType;
use kiln_network::{Control, ControlConfig, ControlSpec, ControlTakes, Embed, Inputs};
use kiln_nn::{Linear, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{SegmentModule, Segments};

use super::config::Sd3ControlConfig;
use super::input::{CONTROL_POSITIONS, Sd3ControlInput};
use crate::error::{Error, Result};
use crate::sd3::block::{ImageBlock, JointBlock};
use crate::sd3::config::Sd3Config;
use crate::sd3::embedder::{Embedder, PatchEmbed};
use crate::sd3::inputs::{StepInputs, refused, tokens};
use crate::sd3::positions::Positions;

/// The prefix of the names of a control network's segments.
const LABEL: &str = "controlnet";

/// A control network. It is built from its configuration; its [`Segments`] are loaded before it runs.
pub struct Sd3ControlNet {
    config: Sd3ControlConfig,
    segments: Segments,
    /// `None` for a network that takes the tokens of the transformer.
    positions: Option<SegmentModule<Positions>>,
    embedder: SegmentModule<ControlEmbedder>,
    blocks: Vec<SegmentModule<ControlBlock>>,
}

/// The layers before the blocks.
struct ControlEmbedder {
    embedder: Embedder,
    /// Makes tokens of the control image, which have no positions.
    control: PatchEmbed,
}

/// A block and the layer of its residual.
struct ControlBlock {
    block: Block,
    tap: Linear,
}

#[expect(clippy::large_enum_variant, reason = "there are a few of them, each next to the weights of a network")]
enum Block {
    Joint(JointBlock),
    Image(ImageBlock),
}

impl Sd3ControlNet {
    /// Declares the network that `config` describes.
    pub fn new(config: Sd3ControlConfig) -> Self {
        let mut segments = Segments::default();
        let network = &config.network;
        let (side, channels) = (network.pos_embed_max_size, network.channels());
        let name = |part: &str| format!("{LABEL}.{part}");
        let positions =
            config.has_patches.then(|| Positions::segment(&mut segments, &name("pos_embed"), side, channels));
        let embedder = segments.add(name("time_text_embed"), |p| ControlEmbedder {
            embedder: Embedder::new(p, network, config.has_patches, config.has_text),
            control: PatchEmbed::new(&p.pp("pos_embed_input"), network.in_channels + config.extra_channels, network),
        });
        let block = |i: usize| {
            let path = format!("transformer_blocks.{i}");
            segments.add(name(&path), |p| ControlBlock {
                block: match config.has_text {
                    true => {
                        Block::Joint(JointBlock::new(&p.pp(&path), network, network.dual_layers.contains(&i), false))
                    }
                    // These have no normalization of queries and keys, whatever the configuration says.
                    false => {
                        Block::Image(ImageBlock::new(&p.pp(&path), &Sd3Config { qk_norm: false, ..network.clone() }))
                    }
                },
                tap: Linear::new(&p.pp("controlnet_blocks").pp(i), channels, channels, true),
            })
        };
        let blocks = (0..network.num_layers).map(block).collect();
        Self { segments, positions, embedder, blocks, config }
    }

    /// The configuration.
    pub fn config(&self) -> &Sd3ControlConfig {
        &self.config
    }

    /// The segments, in the order in which they run. All of them run in every step.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Channels of the control image's latents, with the extra ones.
    pub fn control_channels(&self) -> usize {
        self.config.network.in_channels + self.config.extra_channels
    }

    /// Adds the shapes of its inputs at a step, as network number `network`, for `b` rows of `(h, w)` latents.
    pub fn add_meta_inputs(
        &self,
        inputs: &mut Inputs<MetaTensor>,
        network: usize,
        device: &MetaDevice,
        (b, h, w): (usize, usize, usize),
        dtype: DType,
    ) {
        let latents = device.tensor(&[b, self.control_channels(), h, w], dtype);
        Sd3ControlInput { network, latents, weight: 1.0 }.add_to(inputs);
        if self.positions.is_some() {
            let (patch, channels) = (self.config.network.patch_size, self.config.network.channels());
            let shape = [(h / patch) * (w / patch), channels];
            inputs.add(CONTROL_POSITIONS, network, device.tensor(&shape, dtype));
        }
    }

    /// Refuses a network whose sizes are not those of the transformer.
    pub(in crate::sd3) fn check_fits(&self, transformer: &Sd3Config) -> Result<()> {
        let own = &self.config.network;
        let sizes = |config: &Sd3Config| [config.channels(), config.patch_size, config.pooled_dim];
        if sizes(own) != sizes(transformer) {
            let expected = format!("{:?}: channels, patches and pooled text of the transformer", sizes(transformer));
            return Err(refused("control network", expected, &sizes(own)));
        }
        if self.config.has_text && own.context_dim != transformer.context_dim {
            let expected = format!("a text of {} channels", transformer.context_dim);
            return Err(refused("control network", expected, &[own.context_dim]));
        }
        Ok(())
    }

    /// The vectors of its positions for latents of `size`, on the device of `like`; `None` if it has none, or if their table is
    /// streamed.
    pub(in crate::sd3) fn positions_for<T: TensorLike>(&self, size: [usize; 2], like: &T) -> Result<Option<T>> {
        let resident = self.positions.as_ref().filter(|positions| !positions.segment().is_streamed());
        let Some(positions) = resident else { return Ok(None) };
        let size = tokens(&self.config.network, size)?;
        Ok(Some(T::run(positions, |positions| positions.crop(size, like.device()))?))
    }

    /// Begins a call for latents `x` `(b, c, h, w)`, of which the transformer has made `image` `(b, n, channels)`.
    ///
    /// # Errors
    /// [`Error::Input`] for a control image that does not fit; errors of a layer.
    pub(in crate::sd3) fn start<T: TensorLike>(
        &self,
        (x, image): (&T, &T),
        timesteps: &T,
        step: &StepInputs<'_, T>,
        positions: Option<&T>,
        input: &Sd3ControlInput<T>,
    ) -> Result<Running<'_, T>> {
        let [b, _, h, w] = x.size4()?;
        let expected = [self.control_channels(), h, w];
        let rows = match *input.latents.dims() {
            [r, ref rest @ ..] if (1..=b).contains(&r) && *rest == expected => r,
            _ => {
                let expected = format!("(up to {b}, {}, {h}, {w})", self.control_channels());
                return Err(Error::Input {
                    network: super::NETWORK,
                    input: "control latents",
                    expected,
                    found: input.latents.dims().to_vec(),
                });
            }
        };
        let last = |x: &T| match x.dims().first() {
            Some(&all) if all > rows => x.narrow(0, all - rows, rows)?.contiguous(),
            _ => Ok(x.clone()),
        };
        // Positions before the other layers: this is their order in a stream.
        let made = match (&self.positions, positions) {
            (Some(own), None) => {
                let size = tokens(&self.config.network, [h, w])?;
                Some(T::run(own, |own| own.crop(size, x.device()))?)
            }
            _ => None,
        };
        let positions = positions.or(made.as_ref());
        let (image, text, emb) = T::run(&self.embedder, |ControlEmbedder { embedder, control }| {
            let own = match positions {
                Some(positions) => embedder.image(&last(x)?, positions)?,
                None => None,
            };
            let image = own.map_or_else(|| last(image), Ok)?;
            let image = image.add(&control.forward(&input.latents.to_dtype(x.dtype())?)?)?;
            let pooled = last(step.pooled)?;
            let pooled = if self.config.zeros_pooled { pooled.affine(0.0, 0.0)? } else { pooled };
            let emb = embedder.modulating(&last_times(timesteps, rows)?, &embedder.pooled(&pooled)?)?;
            Ok((image, embedder.text(&last(step.context)?)?, emb))
        })?;
        Ok(Running { net: self, weight: input.weight, image, text, emb, done: 0, residual: None })
    }
}

/// The last `rows` of `timesteps`, or the only one.
fn last_times<T: TensorLike>(timesteps: &T, rows: usize) -> kiln_nn::Result<T> {
    match *timesteps.dims() {
        [n] if n > rows => timesteps.narrow(0, n - rows, rows)?.contiguous(),
        _ => Ok(timesteps.clone()),
    }
}

impl ControlConfig for Sd3ControlConfig {
    fn build(&self) -> Box<dyn Control> {
        Box::new(Sd3ControlNet::new(self.clone()))
    }
}

impl<T: TensorLike> Embed<T> for Sd3ControlNet {}

impl Control for Sd3ControlNet {
    /// diffusers draws the sample of the latents from the global generator, which no seed sets; the mean stands for it.
    fn spec(&self) -> ControlSpec {
        let takes = ControlTakes::Latents {
            sample: false,
            shifted: !self.config.zeros_pooled,
            masked: self.config.extra_channels > 0,
        };
        ControlSpec::of_steps("a Stable Diffusion 3 ControlNet", takes)
    }

    fn step_segments(&self) -> &Segments {
        &self.segments
    }
}

/// A control network within a call. Its blocks run when the transformer needs their residuals, so that one residual is in memory at
/// a time.
pub(in crate::sd3) struct Running<'a, T> {
    net: &'a Sd3ControlNet,
    weight: f32,
    /// Tokens of the control image and the latents `(r, n, c)`.
    image: T,
    /// The text `(r, s, c)`, if the blocks take it.
    text: Option<T>,
    /// The vector that modulates, `(r, c)` after SiLU.
    emb: T,
    /// Blocks that have run.
    done: usize,
    /// The residual of the last of them.
    residual: Option<T>,
}

impl<T: TensorLike> Running<'_, T> {
    /// `image` `(b, n, c)` after block `block` of a transformer of `blocks`, with the residual for it added to its last rows.
    pub(in crate::sd3) fn add(&mut self, image: T, block: usize, blocks: usize) -> kiln_nn::Result<T> {
        let own = self.net.blocks.len();
        // As diffusers: a division of floating-point numbers, since blocks need not be a multiple.
        let index = (block as f64 / (blocks as f64 / own as f64)) as usize;
        while self.done <= index.min(own.saturating_sub(1)) {
            self.advance()?;
        }
        match &self.residual {
            Some(residual) => add_to_last_rows(&image, residual),
            None => Ok(image),
        }
    }

    /// Runs the next block.
    fn advance(&mut self) -> kiln_nn::Result<()> {
        let Some(block) = self.net.blocks.get(self.done) else { return Ok(()) };
        self.residual = None;
        let (weight, image, text, emb) = (self.weight, self.image.clone(), self.text.take(), &self.emb);
        let (image, text, residual) = T::run(block, |ControlBlock { block, tap }| {
            let (image, text) = match (block, text) {
                (Block::Joint(block), Some(text)) => {
                    let (image, text) = block.forward(image, text, emb)?;
                    (image, Some(text))
                }
                (Block::Joint(_), None) => (image, None),
                (Block::Image(block), text) => (block.forward(image, emb)?, text),
            };
            let residual = tap.forward(&image)?;
            let residual = if weight == 1.0 { residual } else { residual.affine(f64::from(weight), 0.0)? };
            Ok((image, text, residual))
        })?;
        (self.image, self.text, self.residual) = (image, text, Some(residual));
        self.done += 1;
        Ok(())
    }
}

/// `x` `(b, n, c)` with `y` `(r, n, c)` added to its last rows.
fn add_to_last_rows<T: TensorLike>(x: &T, y: &T) -> kiln_nn::Result<T> {
    let ([b, ..], [r, ..]) = (x.size3()?, y.size3()?);
    if r >= b {
        return x.add(y);
    }
    T::cat(&[&x.narrow(0, 0, b - r)?, &x.narrow(0, b - r, r)?.add(y)?], 0)
}
