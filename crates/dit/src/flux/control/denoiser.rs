//! FLUX.1's transformer with control networks, as one denoiser: all of them run in one call, so that a recorded step has all of them
//! in it.

use std::any::Any;

use candle_core::DType;
use kiln_network::{
    Capabilities, Control, ControlImage, Denoiser, ExtraChannels, Forward, Inputs, LatentSpec, Result, Slot, StepShape,
};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::inputs::{FluxControlInput, Residuals};
use super::{FluxControlNet, NETWORK};
use crate::error::Error;
use crate::flux::dims::FluxDims;
use crate::flux::inputs::refused;
use crate::flux::transformer::FluxTransformer;
use crate::flux::trunk::Place;

/// A transformer and its control networks.
pub(in crate::flux) struct ControlledFlux<'a> {
    flux: &'a FluxTransformer,
    /// The networks that [`FluxControlInput::network`] counts.
    nets: Vec<&'a FluxControlNet>,
}

impl<'a> ControlledFlux<'a> {
    /// The transformer with control networks of its sizes.
    ///
    /// # Errors
    /// [`Error::Input`] for other networks.
    pub(in crate::flux) fn new(flux: &'a FluxTransformer, controls: Vec<&'a dyn Control>) -> Result<Self, Error> {
        let sizes = |dims: &FluxDims| (dims.channels(), dims.num_heads, dims.axes);
        let of_flux = sizes(&flux.config().dims);
        let net = |(number, control): (usize, &'a dyn Control)| {
            let control: &'a dyn Any = control;
            let net: Option<&FluxControlNet> = control.downcast_ref();
            let net = net.ok_or_else(|| missing("a control network for FLUX.1".into(), number))?;
            match sizes(&net.config().dims) {
                found if found == of_flux => Ok(net),
                (found, ..) => {
                    let (c, heads, axes) = of_flux;
                    let expected = format!("a control network with {c} channels, {heads} heads and the axes {axes:?}");
                    Err(missing(expected, found))
                }
            }
        };
        Ok(Self { flux, nets: controls.into_iter().enumerate().map(net).collect::<Result<_, Error>>()? })
    }

    fn run<T: TensorLike>(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T, Error> {
        let mut sum: Option<Residuals<T>> = None;
        for input in FluxControlInput::all(inputs) {
            let expected = || format!("the number of a ControlNet among {} open networks", self.nets.len());
            let net = self.nets.get(input.network).ok_or_else(|| missing(expected(), input.network))?;
            let own = net.residuals(x, timesteps, inputs, &input)?;
            sum = Some(match sum {
                Some(others) => others.add(&own)?,
                None => own,
            });
        }
        let Some(residuals) = sum else { return self.flux.forward(x, timesteps, inputs) };
        let dims = &self.flux.config().dims;
        let mut add = |place: Place, image: &T| {
            residuals.at(place, [dims.layers, dims.single_layers]).map(|residual| image.add(residual)).transpose()
        };
        self.flux.forward_with(x, timesteps, inputs, Some(&mut add))
    }
}

fn missing(expected: String, found: usize) -> Error {
    refused(NETWORK, "controls", expected, &[found])
}

impl<T: TensorLike> Forward<T> for ControlledFlux<'_> {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(self.run(x, timesteps, inputs)?)
    }

    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        self.flux.prepare(inputs)
    }
}

impl Denoiser for ControlledFlux<'_> {
    fn segments(&self) -> &Segments {
        self.flux.segments()
    }

    fn is_streamed(&self) -> bool {
        self.flux.is_streamed() || self.nets.iter().any(|net| net.segments().is_streamed())
    }

    fn latents(&self) -> LatentSpec {
        self.flux.latents()
    }

    fn extra_channels(&self) -> ExtraChannels {
        self.flux.extra_channels()
    }

    fn capabilities(&self) -> Capabilities {
        self.flux.capabilities()
    }

    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        if self.nets.is_empty() { self.flux.state(slot, index, shape) } else { None }
    }

    /// The transformer's inputs; those of control networks are added to them.
    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        self.flux.meta_inputs(device, shape, dtype)
    }

    fn add_control(&self, inputs: &mut Inputs, network: usize, images: Vec<ControlImage>) -> Result<()> {
        for ControlImage { embedded, scales, weight, kind: mode, .. } in images {
            let scale = scales.first().copied().unwrap_or(weight);
            for latents in embedded {
                FluxControlInput { network, latents, mode, scale }.add_to(inputs);
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
            net.add_meta_inputs(inputs, network, device, [rows, height, width], dtype);
        }
    }
}
