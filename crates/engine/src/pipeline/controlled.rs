//! The denoiser with control networks next to it.

use candle_core::DType;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_unet::{Conditioning, ControlInput, ControlNet, Residuals, Unet};
use kiln_weights::Segments;

use crate::error::{Error, Result};
use crate::pipeline::denoiser::{Denoiser, Forward};

/// A U-Net, and the control networks whose residuals it gets. All of them run in one call, so that a recorded step has all
/// of them in it.
pub(crate) struct Controlled<'a> {
    unet: &'a Unet,
    nets: Vec<&'a ControlNet>,
}

impl<'a> Controlled<'a> {
    /// `nets` are those that [`ControlInput::network`] counts.
    pub(crate) fn new(unet: &'a Unet, nets: Vec<&'a ControlNet>) -> Self {
        Self { unet, nets }
    }
}

impl<T: TensorLike> Forward<T> for Controlled<'_> {
    fn forward(&self, x: &T, timesteps: &T, conditioning: &Conditioning<T>) -> Result<T> {
        let mut residuals: Option<Residuals<T>> = conditioning.residuals.clone();
        for ControlInput { network, hint, scales } in &conditioning.controls {
            let net = self.nets.get(*network).ok_or_else(|| {
                let expected = format!("one of {} open networks", self.nets.len());
                Error::value("controls", format!("network {network}"), expected)
            })?;
            let own = net.forward(x, timesteps, conditioning, hint, scales)?;
            residuals = Some(match residuals {
                Some(others) => others.add(&own)?,
                None => own,
            });
        }
        if conditioning.controls.is_empty() {
            return Ok(self.unet.forward(x, timesteps, conditioning)?);
        }
        let conditioning = Conditioning { residuals, controls: Vec::new(), ..conditioning.clone() };
        Ok(self.unet.forward(x, timesteps, &conditioning)?)
    }
}

impl Denoiser for Controlled<'_> {
    fn segments(&self) -> &Segments {
        Denoiser::segments(self.unet)
    }

    fn is_streamed(&self) -> bool {
        Denoiser::segments(self.unet).is_streamed() || self.nets.iter().any(|net| net.segments().is_streamed())
    }

    fn latent_channels(&self) -> usize {
        Denoiser::latent_channels(self.unet)
    }

    fn extra_channels(&self) -> usize {
        Denoiser::extra_channels(self.unet)
    }

    fn meta_conditioning(
        &self,
        device: &MetaDevice,
        b: usize,
        (h, w): (usize, usize),
        tokens: usize,
        dtype: DType,
    ) -> Conditioning<MetaTensor> {
        let control = |(network, net): (usize, &&ControlNet)| ControlInput {
            network,
            hint: device.tensor(&[b, h, w, net.config().hint_depth()], dtype),
            scales: net.even_scales(1.0),
        };
        Conditioning {
            controls: self.nets.iter().enumerate().map(control).collect(),
            ..self.unet.meta_conditioning(device, b, (h, w), tokens, dtype)
        }
    }
}
