//! The transformer, alone or with control networks, as the denoiser of a sampler.

use std::any::Any;

use candle_core::DType;
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS, POSITIONS, TEXT_EMBEDS};
use kiln_network::{
    Capabilities, Control, ControlImage, Denoiser, Forward, Inputs, LatentSpec, Result, Slot, StepShape,
};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::NETWORK;
use super::control::{CONTROL_POSITIONS, Running, Sd3ControlInput, Sd3ControlNet};
use super::inputs::{POOLED_EMBEDDING, StepInputs, TEXT_TOKENS, refused, tokens};
use super::transformer::Sd3Transformer;
use crate::block_cache::{BlockCache, is_residual};
use crate::error::Error;

impl<T: TensorLike> Forward<T> for Sd3Transformer {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(Sd3Transformer::forward(self, x, timesteps, inputs)?)
    }

    /// Adds the embedded text. Weights that are streamed are used in their order, so that each step embeds it.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        match (inputs.get(CONTEXT), inputs.get(TEXT_EMBEDS)) {
            (Some(context), Some(pooled)) if !Sd3Transformer::segments(self).is_streamed() => {
                let (text, pooled) = self.embed_text(context, pooled)?;
                Ok(inputs.with(TEXT_TOKENS, text).with(POOLED_EMBEDDING, pooled))
            }
            _ => Ok(inputs),
        }
    }

    /// Adds the vectors of positions, unless their table is streamed.
    fn for_size(&self, inputs: Inputs<T>, size: [usize; 2]) -> Result<Inputs<T>> {
        let of_tokens = tokens(self.config(), size)?;
        let like = inputs.tensors().next().filter(|_| !self.streams_positions());
        let Some(positions) = like.map(|like| self.positions(of_tokens, like)).transpose()? else { return Ok(inputs) };
        // Other sizes may have as many tokens.
        let tag = (size[0] as u64) << 32 | size[1] as u64;
        Ok(inputs.with_shared(POSITIONS, tag, positions))
    }
}

impl Denoiser for Sd3Transformer {
    fn segments(&self) -> &Segments {
        Sd3Transformer::segments(self)
    }

    fn latents(&self) -> LatentSpec {
        let config = self.config();
        let (channels, extra_channels) = (config.out_channels, config.extra_channels());
        LatentSpec { channels, extra_channels, multiple: config.patch_size }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { controls: true, ..Capabilities::default() }
    }

    fn skippable_layers(&self) -> usize {
        self.config().num_layers.min(u64::BITS as usize)
    }

    fn state(&self, slot: Slot, _index: usize, shape: StepShape) -> Option<[usize; 4]> {
        let (patch, channels) = (self.config().patch_size, self.config().channels());
        is_residual(slot).then_some([shape.rows, shape.height / patch, shape.width / patch, channels])
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let StepShape { rows, height, width, tokens } = shape;
        let config = self.config();
        let (image, extra) = ((height / config.patch_size) * (width / config.patch_size), config.extra_channels());
        let inputs = Inputs::new()
            .with(CONTEXT, device.tensor(&[rows, tokens, config.context_dim], dtype))
            .with(TEXT_EMBEDS, device.tensor(&[rows, config.pooled_dim], dtype))
            .with(POSITIONS, device.tensor(&[image, config.channels()], dtype));
        match extra {
            0 => inputs,
            extra => inputs.with(EXTRA_CHANNELS, device.tensor(&[rows, extra, height, width], dtype)),
        }
    }

    fn with_controls<'a>(&'a self, controls: Vec<&'a dyn Control>) -> Result<Box<dyn Denoiser + 'a>> {
        Ok(Box::new(ControlledSd3::new(self, controls)?))
    }
}

/// A transformer, and the control networks whose residuals it takes. All of them run in one call, so that a recorded step has
/// all of them in it.
struct ControlledSd3<'a> {
    transformer: &'a Sd3Transformer,
    /// The networks that [`Sd3ControlInput::network`] counts.
    nets: Vec<&'a Sd3ControlNet>,
}

impl<'a> ControlledSd3<'a> {
    fn new(transformer: &'a Sd3Transformer, controls: Vec<&'a dyn Control>) -> Result<Self> {
        let net = |(number, control): (usize, &'a dyn Control)| {
            let control: &'a dyn Any = control;
            let net: &Sd3ControlNet =
                control.downcast_ref().ok_or_else(|| missing(number, "a control network for SD3".into()))?;
            net.check_fits(transformer.config()).map(|()| net)
        };
        let nets = controls.into_iter().enumerate().map(net).collect::<Result<_, Error>>()?;
        Ok(Self { transformer, nets })
    }

    fn run<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T, Error> {
        let step = StepInputs::of(inputs, self.transformer.config(), x, timesteps)?;
        let tokens = self.transformer.embed(x, timesteps, &step)?;
        let controls = Sd3ControlInput::all_of(inputs);
        let mut running: Vec<Running<'_, T>> = Vec::with_capacity(controls.len());
        for input in &controls {
            let expected = || format!("the number of a control network among {} open networks", self.nets.len());
            let net = self.nets.get(input.network).ok_or_else(|| missing(input.network, expected()))?;
            let positions = inputs.all_of(CONTROL_POSITIONS, input.network).next();
            running.push(net.start((x, &tokens.image), timesteps, &step, positions, input)?);
        }
        let blocks = self.transformer.config().num_layers;
        // Control networks add to blocks that the cache skips.
        let cache = match running.is_empty() {
            true => BlockCache::of(NETWORK, inputs, tokens.image.size3()?, timesteps)?,
            false => None,
        };
        let add =
            |block: usize, image: T| running.iter_mut().try_fold(image, |image, net| net.add(image, block, blocks));
        Ok(self.transformer.finish(tokens, &step, cache, add)?)
    }
}

fn missing(number: usize, expected: String) -> Error {
    refused("controls", expected, &[number])
}

impl<T: TensorLike> Forward<T> for ControlledSd3<'_> {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(self.run(x, timesteps, inputs)?)
    }

    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        Forward::prepare(self.transformer, inputs)
    }

    fn for_size(&self, inputs: Inputs<T>, size: [usize; 2]) -> Result<Inputs<T>> {
        let mut inputs = Forward::for_size(self.transformer, inputs, size)?;
        let Some(like) = inputs.tensors().next().cloned() else { return Ok(inputs) };
        for (number, net) in self.nets.iter().enumerate() {
            if let Some(positions) = net.positions_for(size, &like)? {
                inputs.add(CONTROL_POSITIONS, number, positions);
            }
        }
        Ok(inputs)
    }
}

impl Denoiser for ControlledSd3<'_> {
    fn segments(&self) -> &Segments {
        Sd3Transformer::segments(self.transformer)
    }

    fn is_streamed(&self) -> bool {
        self.transformer.is_streamed() || self.nets.iter().any(|net| net.segments().is_streamed())
    }

    fn latents(&self) -> LatentSpec {
        self.transformer.latents()
    }

    fn capabilities(&self) -> Capabilities {
        self.transformer.capabilities()
    }

    fn skippable_layers(&self) -> usize {
        self.transformer.skippable_layers()
    }

    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        if self.nets.is_empty() { self.transformer.state(slot, index, shape) } else { None }
    }

    /// The transformer's inputs; those of control networks are added to them.
    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        self.transformer.meta_inputs(device, shape, dtype)
    }

    fn add_control(&self, inputs: &mut Inputs, network: usize, images: Vec<ControlImage>) -> Result<()> {
        for ControlImage { embedded, scales, weight, .. } in images {
            let weight = scales.first().copied().unwrap_or(weight);
            for latents in embedded {
                Sd3ControlInput { network, latents, weight }.add_to(inputs);
            }
        }
        Ok(())
    }

    fn add_meta_controls(
        &self,
        inputs: &mut Inputs<MetaTensor>,
        device: &MetaDevice,
        StepShape { rows, height, width, .. }: StepShape,
        dtype: DType,
    ) {
        for (network, net) in self.nets.iter().enumerate() {
            net.add_meta_inputs(inputs, network, device, (rows, height, width), dtype);
        }
    }
}
