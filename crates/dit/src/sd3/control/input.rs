//! The inputs of control networks.

use candle_core::Tensor;
use kiln_network::{Inputs, Slot};
use kiln_nn::TensorLike;

/// The latents of the control image, with extra channels if the network takes some.
const LATENTS: Slot = Slot::last("control latents");
/// The number of a control network.
const CONTROL: &str = "control network";
/// The bits of its weight.
const WEIGHT: &str = "control weight";
/// The vectors of the positions of network `index`, `(n, channels)`.
pub(in crate::sd3) const CONTROL_POSITIONS: Slot = Slot::shared("control positions");

/// The input of a control network in a call.
#[derive(Debug, Clone)]
pub struct Sd3ControlInput<T = Tensor> {
    /// Which of the control networks ([`kiln_network::Denoiser::with_controls`]).
    pub network: usize,
    /// The latents of the control image `(r, c, h, w)`, scaled as the denoiser's. The network runs for the last `r` rows of the batch.
    pub latents: T,
    /// The factor of the residuals.
    pub weight: f32,
}

impl<T: TensorLike> Sd3ControlInput<T> {
    /// Adds the input to those of other control networks.
    pub fn add_to(self, inputs: &mut Inputs<T>) {
        let index = inputs.count_of(CONTROL);
        inputs.add_constant(CONTROL, index, self.network as u64);
        inputs.add_constant(WEIGHT, index, u64::from(self.weight.to_bits()));
        inputs.add(LATENTS, index, self.latents);
    }

    /// The inputs of all control networks that run for some of the rows.
    pub(in crate::sd3) fn all_of(inputs: &Inputs<T>) -> Vec<Self> {
        let one = |index: usize| {
            let network = inputs.constants_of(CONTROL, index).next()?;
            let weight = inputs.constants_of(WEIGHT, index).next()?;
            let latents = inputs.all_of(LATENTS, index).next()?.clone();
            Some(Self { network: network as usize, latents, weight: f32::from_bits(weight as u32) })
        };
        (0..inputs.count_of(CONTROL)).filter_map(one).collect()
    }
}
