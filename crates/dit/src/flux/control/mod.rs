//! Control networks of FLUX.1 (diffusers' `FluxControlNetModel`): the first blocks of a transformer once more, with the control
//! image's latents added to its tokens, and a linear layer for the image's tokens after each block.

mod config;
mod denoiser;
mod inputs;

use candle_core::DType;
use kiln_network::{Control, ControlConfig, ControlRows, ControlSpec, ControlTakes, ControlTypes, Embed, Inputs};
use kiln_nn::{Linear, MetaDevice, MetaTensor, TensorLike};
use kiln_weights::{Packing, Param, SegmentModule, Segments};

use super::embedders::{TimeTextEmbed, TokenEmbedders};
use super::inputs::{TokenInputs, refused};
use super::packing::pack;
use super::transformer::{guidance_of, modulations, pooled_of};
use super::trunk::{Place, Trunk};
use crate::error::Result;
use crate::tokens::{join_tokens, repeated};
pub use config::FluxControlConfig;
pub(super) use denoiser::ControlledFlux;
pub use inputs::FluxControlInput;
use inputs::Residuals;

/// The name of the network in messages.
const NETWORK: &str = "FLUX ControlNet";
/// The types of a Union network in their order (the page of InstantX's FLUX.1-dev-Controlnet-Union). Networks may have
/// numbers without a meaning behind them.
const TYPES: [&str; 7] = ["canny", "tile", "depth", "blur", "openpose", "gray", "lowquality"];
/// The prefix of the names of its segments.
const LABEL: &str = "controlnet.";

/// A control network of FLUX.1, of one type or Union. It is built from its configuration; its [`Segments`] are loaded before it
/// runs, in the same call as the transformer ([`kiln_network::Denoiser::with_controls`]).
pub struct FluxControlNet {
    config: FluxControlConfig,
    segments: Segments,
    embedders: SegmentModule<Embedders>,
    trunk: Trunk,
    taps: SegmentModule<Taps>,
}

/// The layers before the blocks.
struct Embedders {
    tokens: TokenEmbedders,
    time_text: TimeTextEmbed,
    control: Linear,
    /// A token for each type of control images, `(modes, c)`.
    mode: Option<Param>,
}

/// The linear layers after double and after single blocks.
struct Taps {
    double: Vec<Linear>,
    single: Vec<Linear>,
}

impl FluxControlNet {
    /// Declares the network that `config` describes.
    pub fn new(config: FluxControlConfig) -> Self {
        let FluxControlConfig { dims, pooled_dim, guidance, modes } = config;
        let c = dims.channels();
        let mut segments = Segments::default();
        let embedders = segments.add(format!("{LABEL}embedders"), |p| Embedders {
            tokens: TokenEmbedders::new(p, [dims.in_channels, dims.context_dim, c]),
            time_text: TimeTextEmbed::new(p, pooled_dim, c, guidance),
            control: Linear::new(&p.pp("controlnet_x_embedder"), dims.in_channels, c, true),
            mode: modes.map(|modes| p.pp("controlnet_mode_embedder").param("weight", &[modes, c], Packing::AsStored)),
        });
        let trunk = Trunk::new(&mut segments, LABEL, &dims, true);
        let taps = segments.add(format!("{LABEL}taps"), |p| {
            let taps = |name: &str, count: usize| {
                (0..count).map(|i| Linear::new(&p.pp(format!("{name}.{i}")), c, c, true)).collect()
            };
            Taps {
                double: taps("controlnet_blocks", dims.layers),
                single: taps("controlnet_single_blocks", dims.single_layers),
            }
        });
        Self { config, segments, embedders, trunk, taps }
    }

    /// The configuration.
    pub fn config(&self) -> &FluxControlConfig {
        &self.config
    }

    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Adds the shapes of its input at a step for `b` images of `(h, w)` latents; it is network number `network`.
    pub fn add_meta_inputs(
        &self,
        inputs: &mut Inputs<MetaTensor>,
        network: usize,
        device: &MetaDevice,
        [b, h, w]: [usize; 3],
        dtype: DType,
    ) {
        let latents = device.tensor(&[b, self.config.dims.latent_channels(), h, w], dtype);
        let mode = self.config.modes.map(|_| 0);
        FluxControlInput { network, latents, mode, scale: 1.0 }.add_to(inputs);
    }

    /// The residuals for all rows of the batch. `x`, `timesteps` and `inputs` are the transformer's.
    fn residuals<T: TensorLike>(
        &self,
        x: &T,
        timesteps: &T,
        inputs: &Inputs<T>,
        input: &FluxControlInput<T>,
    ) -> Result<Residuals<T>> {
        let (config, dtype) = (&self.config, x.dtype());
        let b = x.dims().first().copied().unwrap_or(0);
        let rows = self.check(x, input)?;
        let last = |tensor: &T| match tensor.dims().first() {
            Some(&found) if found > rows => tensor.narrow(0, found - rows, rows)?.contiguous(),
            _ => Ok(tensor.clone()),
        };
        let (x, timesteps) = (last(x)?, last(timesteps)?);
        let mut inputs = TokenInputs::of(NETWORK, inputs)?.of_image(last)?;
        let mut sizes = inputs.check(NETWORK, &config.dims, &x, &timesteps)?;
        let pooled = pooled_of(NETWORK, &inputs, rows, config.pooled_dim)?;
        let guidance = if config.guidance { Some(guidance_of(NETWORK, &inputs)?) } else { None };
        let (packed, hint) = (pack(&x)?, pack(&input.latents.to_dtype(dtype)?)?);
        let (tokens, emb) = T::run(&self.embedders, |layers| {
            let emb = layers.time_text.forward(&timesteps, guidance, pooled, dtype)?;
            let [image, text] = layers.tokens.forward(&packed, &inputs.context.to_dtype(dtype)?)?;
            let image = layers.control.forward_add(&hint, Some(&image))?;
            let text = match layers.mode.as_ref().zip(input.mode) {
                Some((table, mode)) => {
                    let token = image.param(table)?.narrow(0, mode, 1)?.contiguous()?; // (1, c)
                    let token = token.reshape(&[1, 1, config.dims.channels()])?;
                    join_tokens(&repeated(token, rows)?, &text)?
                }
                None => text,
            };
            Ok(([image, text], emb))
        })?;
        drop((packed, hint));
        if input.mode.is_some() {
            sizes.text += 1;
            inputs.text_lengths = inputs.text_lengths.map(|lengths| lengths.affine(1.0, 1.0)).transpose()?;
        }
        let attending = inputs.attending(&config.dims, sizes, &timesteps)?;
        let vectors = |_, own: &[kiln_nn::Modulation]| modulations(own, &emb);
        let (mut double, mut single) = (Vec::new(), Vec::new());
        let mut keep = |place, image: &T| {
            match place {
                Place::Double(_) => double.push(image.clone()),
                Place::Single(_) => single.push(image.clone()),
            }
            Ok(None)
        };
        self.trunk.run(tokens, sizes.image.tokens(), &vectors, attending, Some(&mut keep), None)?;
        let residuals = T::run(&self.taps, |taps| {
            let tapped = |taps: &[Linear], kept: Vec<T>| {
                let one = |(tap, image): (&Linear, T)| scaled(tap.forward(&image)?, input.scale);
                taps.iter().zip(kept).map(one).collect::<kiln_nn::Result<_>>()
            };
            Ok(Residuals { double: tapped(&taps.double, double)?, single: tapped(&taps.single, single)? })
        })?;
        Ok(residuals.for_rows(b)?)
    }

    /// Checks the input for latents `x`, and returns the rows that the network runs for.
    fn check<T: TensorLike>(&self, x: &T, input: &FluxControlInput<T>) -> Result<usize> {
        let fail = |input, expected: String, found: &[usize]| Err(refused(NETWORK, input, expected, found));
        let (b, found) = (x.dims().first().copied().unwrap_or(0), input.latents.dims());
        let rows = match (x.dims(), found) {
            ([_, image @ ..], [rows, own @ ..]) if image == own && *rows > 0 && b.is_multiple_of(*rows) => *rows,
            _ => return fail("control latents", format!("{:?}, or a divisor of the rows", x.dims()), found),
        };
        match (self.config.modes, input.mode) {
            (None, None) => Ok(rows),
            (Some(modes), Some(mode)) if mode < modes => Ok(rows),
            (Some(modes), mode) => {
                let expected = format!("a type below {modes}: the network is a Union network");
                fail("control mode", expected, &mode.map_or(Vec::new(), |mode| vec![mode]))
            }
            (None, Some(mode)) => fail("control mode", "none: the network is no Union network".into(), &[mode]),
        }
    }
}

/// `residual`, times a weight.
fn scaled<T: TensorLike>(residual: T, weight: f32) -> kiln_nn::Result<T> {
    if weight == 1.0 { Ok(residual) } else { residual.affine(f64::from(weight), 0.0) }
}

impl ControlConfig for FluxControlConfig {
    fn build(&self) -> Box<dyn Control> {
        Box::new(FluxControlNet::new(*self))
    }
}

impl<T: TensorLike> Embed<T> for FluxControlNet {}

impl Control for FluxControlNet {
    fn spec(&self) -> ControlSpec {
        let takes = ControlTakes::Latents { sample: true, shifted: true, masked: false };
        ControlSpec {
            rows: ControlRows::Repeated,
            types: self
                .config
                .modes
                .map(|modes| ControlTypes { names: TYPES.get(..modes).unwrap_or(&TYPES), joins: false }),
            ..ControlSpec::of_steps("a FLUX.1 ControlNet", takes)
        }
    }

    fn step_segments(&self) -> &Segments {
        &self.segments
    }
}
