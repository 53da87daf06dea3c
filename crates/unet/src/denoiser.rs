//! A U-Net, alone or with control networks, as the denoiser of a sampler.

use std::any::Any;

use candle_core::DType;
use kiln_network::slots::{ATTENTION_MAP, CACHED_FEATURE, CONTEXT};
use kiln_network::{
    Capabilities, Control, ControlImage, Denoiser, DenoiserConfig, Forward, Inputs, LatentSpec, Result, Slot,
    StepShape, TextWidths,
};
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use crate::conditioning::{Conditioning, ControlInput, Residuals};
use crate::config::UnetConfig;
use crate::control::{ControlModel, ControlNet, Lllite};
use crate::error::Error;
use crate::image_prompt::KeysValues;
use crate::unet::Unet;

impl<T: TensorLike> Forward<T> for Unet {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(Unet::forward(self, x, timesteps, &Conditioning::of(inputs)?)?)
    }

    /// Adds the text's keys and values. Weights that are streamed are used in their order, so that each layer makes its own.
    fn prepare(&self, mut inputs: Inputs<T>) -> Result<Inputs<T>> {
        if Unet::segments(self).is_streamed() {
            return Ok(inputs);
        }
        let keys = inputs.get(CONTEXT).map(|context| self.text_keys(context)).transpose()?;
        KeysValues::add_text(keys.unwrap_or_default(), &mut inputs);
        Ok(inputs)
    }
}

impl Denoiser for Unet {
    fn segments(&self) -> &Segments {
        Unet::segments(self)
    }

    /// Sizes that the downsamplings do not divide follow the skip connections.
    fn latents(&self) -> LatentSpec {
        let config = self.config();
        LatentSpec { channels: config.latent_channels(), extra_channels: config.extra_channels(), multiple: 1 }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { controls: true, image_prompts: self.config().context_dim().is_some() }
    }

    /// Feature maps at the skip connection `index`, and that of the middle block for the attention map.
    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        let size = (shape.height, shape.width);
        match slot.name {
            name if name == CACHED_FEATURE.name => self.config().cached_feature(index, shape.rows, size),
            name if name == ATTENTION_MAP.name => Some(self.config().mid_map(shape.rows, size)),
            _ => None,
        }
    }

    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        let StepShape { rows, height, width, tokens } = shape;
        Unet::meta_inputs(self, device, rows, (height, width), tokens, dtype)
    }

    fn with_controls<'a>(&'a self, controls: Vec<&'a dyn Control>) -> Result<Box<dyn Denoiser + 'a>> {
        Ok(Box::new(ControlledUnet::new(self, controls)?))
    }
}

impl DenoiserConfig for UnetConfig {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(Unet::new(self.clone()))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: self.context_dim(), pooled: self.pooled_dim() }
    }

    fn takes_guidance(&self) -> bool {
        self.time_cond_proj_dim.is_some()
    }
}

/// A U-Net, and the control networks whose residuals it takes. All of them run in one call, so that a recorded step has all
/// of them in it.
struct ControlledUnet<'a> {
    unet: &'a Unet,
    /// The networks that [`ControlInput::network`] counts.
    models: Vec<&'a ControlModel>,
}

impl<'a> ControlledUnet<'a> {
    fn new(unet: &'a Unet, controls: Vec<&'a dyn Control>) -> Result<Self> {
        let model = |(number, control): (usize, &'a dyn Control)| {
            let control: &'a dyn Any = control;
            control.downcast_ref().ok_or_else(|| missing(number, "a control network for U-Nets".into()))
        };
        let models = controls.into_iter().enumerate().map(model).collect::<Result<_, Error>>()?;
        Ok(Self { unet, models })
    }

    fn net(&self, number: usize) -> Result<&'a ControlNet, Error> {
        let net = self.models.get(number).and_then(|model| model.net());
        net.ok_or_else(|| {
            missing(number, format!("the number of a ControlNet among {} open networks", self.models.len()))
        })
    }

    fn run<T: TensorLike>(&self, x: &T, timesteps: &T, conditioning: Conditioning<T>) -> Result<T, Error> {
        let mut residuals: Option<Residuals<T>> = conditioning.residuals.clone();
        let mut lllite: Vec<(&Lllite, &ControlInput<T>)> = Vec::new();
        for input in &conditioning.controls {
            if let Some(net) = self.models.get(input.network).and_then(|model| model.lllite()) {
                lllite.push((net, input));
                continue;
            }
            let own = self.net(input.network)?.forward(x, timesteps, &conditioning, input)?;
            residuals = Some(match residuals {
                Some(others) => others.add(&own)?,
                None => own,
            });
        }
        if conditioning.controls.is_empty() {
            return self.unet.forward(x, timesteps, &conditioning);
        }
        let of_unet = Conditioning { residuals, controls: Vec::new(), ..conditioning.clone() };
        self.unet.forward_with(x, timesteps, &of_unet, &lllite)
    }
}

fn missing(number: usize, expected: String) -> Error {
    Error::Input { input: "controls", expected, found: vec![number] }
}

impl<T: TensorLike> Forward<T> for ControlledUnet<'_> {
    fn forward(&self, x: &T, timesteps: &T, inputs: &Inputs<T>) -> Result<T> {
        Ok(self.run(x, timesteps, Conditioning::of(inputs)?)?)
    }

    /// Adds the text's keys and values of the U-Net and of the ControlNets.
    fn prepare(&self, inputs: Inputs<T>) -> Result<Inputs<T>> {
        let mut inputs = Forward::prepare(self.unet, inputs)?;
        ControlInput::add_text_keys(&mut inputs, |input, context| {
            let net = self.models.get(input.network).and_then(|model| model.net());
            match net.filter(|net| !net.segments().is_streamed()) {
                Some(net) => net.text_keys(context),
                None => Ok(Vec::new()),
            }
        })?;
        Ok(inputs)
    }
}

impl Denoiser for ControlledUnet<'_> {
    fn segments(&self) -> &Segments {
        Unet::segments(self.unet)
    }

    fn is_streamed(&self) -> bool {
        self.unet.is_streamed() || self.models.iter().any(|model| model.step_segments().is_streamed())
    }

    fn latents(&self) -> LatentSpec {
        self.unet.latents()
    }

    fn capabilities(&self) -> Capabilities {
        self.unet.capabilities()
    }

    fn state(&self, slot: Slot, index: usize, shape: StepShape) -> Option<[usize; 4]> {
        self.unet.state(slot, index, shape)
    }

    /// The U-Net's inputs; those of control networks are added to them.
    fn meta_inputs(&self, device: &MetaDevice, shape: StepShape, dtype: DType) -> Inputs<MetaTensor> {
        Denoiser::meta_inputs(self.unet, device, shape, dtype)
    }

    fn add_control(&self, inputs: &mut Inputs, network: usize, images: Vec<ControlImage>) -> Result<()> {
        let expected = || format!("the number of a control network among {} open networks", self.models.len());
        let model = self.models.get(network).ok_or_else(|| missing(network, expected()))?;
        Ok(model.add_images(inputs, network, images)?)
    }

    fn add_meta_controls(
        &self,
        inputs: &mut Inputs<MetaTensor>,
        device: &MetaDevice,
        StepShape { rows, height, width, .. }: StepShape,
        dtype: DType,
    ) {
        for (network, model) in self.models.iter().enumerate() {
            model.add_meta_inputs(inputs, (network, self.unet.config()), device, (rows, height, width), dtype);
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_network::{ControlSpec, ControlTakes, Embed};

    use super::*;

    struct Other(Segments);

    impl<T: Clone> Embed<T> for Other {}

    impl Control for Other {
        fn spec(&self) -> ControlSpec {
            ControlSpec::of_steps("another network", ControlTakes::Pixels { channels: 3 })
        }

        fn step_segments(&self) -> &Segments {
            &self.0
        }
    }

    fn unet() -> Unet {
        let config = r#"{"block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": 48,
            "attention_head_dim": 4, "in_channels": 9, "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
            "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}"#;
        Unet::new(UnetConfig::from_json(config).unwrap())
    }

    #[test]
    fn control_networks_of_other_families_are_refused() {
        let (unet, other) = (unet(), Other(Segments::default()));
        assert!(unet.with_controls(Vec::new()).is_ok());
        let message = unet.with_controls(vec![&other]).err().unwrap().to_string();
        assert!(message.contains("a control network for U-Nets"), "{message}");
    }

    #[test]
    fn a_denoiser_is_described_without_its_type() {
        let unet = unet();
        let denoiser: &dyn Denoiser = &unet;
        assert_eq!(denoiser.latents(), LatentSpec { channels: 4, extra_channels: 5, multiple: 1 });
        let shape = StepShape { rows: 2, height: 8, width: 6, tokens: 77 };
        assert_eq!(denoiser.state(CACHED_FEATURE, 0, shape), Some([2, 8, 6, 32]));
        assert_eq!(denoiser.state(CACHED_FEATURE, 99, shape), None);
        assert_eq!(denoiser.state(ATTENTION_MAP, 0, shape), Some([2, 4, 3, 64]));
        assert_eq!(denoiser.state(CONTEXT, 0, shape), None);
        let inputs = denoiser.meta_inputs(&MetaDevice::new(kiln_nn::ops::Target::Gpu, DType::F16), shape, DType::F16);
        assert_eq!((inputs.batch(), inputs.get(CONTEXT).map(|x| x.dims().to_vec())), (2, Some(vec![2, 77, 48])));
    }
}
