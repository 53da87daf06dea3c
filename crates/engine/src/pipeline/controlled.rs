//! The denoiser with control networks next to it.

use candle_core::DType;
use kiln_network::Inputs;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, ControlModel, ControlNet, Residuals, Unet};
use kiln_weights::Segments;

use crate::error::{Error, Result};
use crate::pipeline::denoiser::{Denoiser, Forward};

/// A U-Net, and the control networks whose residuals it gets. All of them run in one call, so that a recorded step has all
/// of them in it.
pub struct Controlled<'a> {
    unet: &'a Unet,
    models: Vec<&'a ControlModel>,
    /// Whether the text's keys and values are made once for all steps.
    keeps_text_keys: bool,
}

impl<'a> Controlled<'a> {
    /// `models` are those that [`kiln_unet::ControlInput::network`] counts.
    pub fn new(unet: &'a Unet, models: Vec<&'a ControlModel>) -> Self {
        Self { unet, models, keeps_text_keys: true }
    }

    /// The same with the text's keys and values made once for all steps, where `keeps`, or in each step.
    pub(crate) fn keeping_text_keys(self, keeps: bool) -> Self {
        Self { keeps_text_keys: keeps, ..self }
    }

    fn net(&self, number: usize) -> Result<&'a ControlNet> {
        self.models.get(number).and_then(|model| model.net()).ok_or_else(|| {
            let expected = format!("a ControlNet among {} open networks", self.models.len());
            Error::value("controls", format!("network {number}"), expected)
        })
    }
}

impl<T: TensorLike> Forward<T> for Controlled<'_> {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        let conditioning = &Conditioning::of(inputs)?;
        let mut residuals: Option<Residuals<T>> = conditioning.residuals.clone();
        let mut lllite = Vec::new();
        for input in &conditioning.controls {
            if let Some(net) = self.models.get(input.network).and_then(|model| model.lllite()) {
                lllite.push((net, input));
                continue;
            }
            let own = self.net(input.network)?.forward(x, timesteps, conditioning, input)?;
            residuals = Some(match residuals {
                Some(others) => others.add(&own)?,
                None => own,
            });
        }
        if conditioning.controls.is_empty() {
            return Ok(self.unet.forward(x, timesteps, conditioning)?);
        }
        let conditioning = &Conditioning { residuals, controls: Vec::new(), ..conditioning.clone() };
        Ok(self.unet.forward_with(x, timesteps, conditioning, &lllite)?)
    }

    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        if self.keeps_text_keys { Forward::prepare(self.unet, inputs) } else { Ok(inputs) }
    }
}

impl Denoiser for Controlled<'_> {
    fn segments(&self) -> &Segments {
        Denoiser::segments(self.unet)
    }

    fn is_streamed(&self) -> bool {
        Denoiser::segments(self.unet).is_streamed()
            || self.models.iter().any(|model| model.step_segments().is_streamed())
    }

    fn latent_channels(&self) -> usize {
        Denoiser::latent_channels(self.unet)
    }

    fn extra_channels(&self) -> usize {
        Denoiser::extra_channels(self.unet)
    }

    fn cached_feature(&self, branch: usize, b: usize, size: (usize, usize)) -> Option<[usize; 4]> {
        self.unet.cached_feature(branch, b, size)
    }

    fn mid_map(&self, b: usize, size: (usize, usize)) -> [usize; 4] {
        self.unet.mid_map(b, size)
    }

    /// Those of the U-Net: what control networks get is made when the steps begin ([`ControlModel::add_meta_inputs`]).
    fn meta_inputs(
        &self,
        device: &MetaDevice,
        b: usize,
        size: (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Inputs<MetaTensor> {
        self.unet.meta_inputs(device, b, size, tokens, dtype)
    }
}
