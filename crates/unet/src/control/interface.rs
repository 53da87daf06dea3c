//! Control networks of U-Nets behind the interface of all control networks.

use candle_core::{Device, Tensor};
use kiln_network::{
    Control, ControlConfig, ControlImage, ControlModes, ControlRole, ControlRows, ControlSpec, ControlTakes,
    ControlTypes, Embed, Inputs,
};
use kiln_nn::TensorLike;
use kiln_weights::Segments;

use super::model::{ControlModel, ControlModelConfig};
use super::union::ControlKinds;
use crate::conditioning::ControlInput;
use crate::error::Result;

/// The types of a Union network in their order (`control_mode` of diffusers). Networks with fewer have the first ones.
const TYPES: [&str; 8] = ["openpose", "depth", "softedge", "canny", "normal", "segment", "tile", "inpaint"];

impl ControlConfig for ControlModelConfig {
    fn build(&self) -> Box<dyn Control> {
        Box::new(ControlModel::new(self))
    }
}

impl<T: TensorLike> Embed<T> for ControlModel {
    /// A ControlNet's embedded image, or an adapter's feature maps.
    fn embed(&self, image: &T) -> kiln_network::Result<Vec<T>> {
        Ok(ControlModel::embed(self, image)?)
    }
}

impl Control for ControlModel {
    fn spec(&self) -> ControlSpec {
        let takes = ControlTakes::Pixels { channels: self.image_channels() };
        let of =
            |label, modes| ControlSpec { modes, additions: self.additions(), ..ControlSpec::of_steps(label, takes) };
        match self.kind() {
            ControlKind::Net => ControlSpec {
                // The rows without a condition get no means over all pixels (diffusers: `global_pool_conditions`).
                rows: if self.is_conditional_only() { ControlRows::Conditional } else { ControlRows::All },
                types: self
                    .types()
                    .map(|types| ControlTypes { names: TYPES.get(..types).unwrap_or(&TYPES), joins: true }),
                ..of("a ControlNet", ControlModes::ALL)
            },
            ControlKind::Adapter => ControlSpec {
                role: ControlRole::Features,
                ..of("a T2I-Adapter", ControlModes { guess: false, ..ControlModes::ALL })
            },
            ControlKind::Lllite => of("a ControlNet-LLLite", ControlModes { control: true, ..ControlModes::NONE }),
        }
    }

    fn step_segments(&self) -> &Segments {
        ControlModel::step_segments(self)
    }

    fn image_segments(&self) -> Option<&Segments> {
        Some(ControlModel::image_segments(self))
    }
}

/// The kinds of networks.
pub(super) enum ControlKind {
    Net,
    Adapter,
    Lllite,
}

impl ControlModel {
    /// Adds its inputs as network number `network`: for several images of a Union network one, and else for the only image.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub(crate) fn add_images(&self, inputs: &mut Inputs, network: usize, images: Vec<ControlImage>) -> Result<()> {
        if self.is_adapter() {
            images.into_iter().for_each(|image| ControlInput::add_features(image.embedded, inputs));
            return Ok(());
        }
        let Some(first) = images.first() else { return Ok(()) };
        let numbers = images.iter().map(|image| Some((image.kind?, image.weight))).collect::<Option<Vec<_>>>();
        // With several images their weights are in the sum of the images.
        let scales = if images.len() > 1 { first.plain.clone() } else { first.scales.clone() };
        let kinds = match (self.types(), numbers) {
            (Some(types), Some(images)) => {
                let device = first.embedded.first().map_or(&Device::Cpu, Tensor::device);
                let flag = |kind| if images.iter().any(|&(number, _)| number == kind) { 1.0f32 } else { 0.0 };
                let flags = Tensor::from_vec((0..types).map(flag).collect::<Vec<_>>(), types, &Device::Cpu);
                let flags = flags.and_then(|flags| flags.to_device(device)).map_err(kiln_nn::Error::from)?;
                Some(ControlKinds { images, flags })
            }
            _ => None,
        };
        let hints = images.into_iter().flat_map(|image| image.embedded).collect();
        ControlInput { network, hints, kinds, scales, text_keys: Vec::new() }.add_to(inputs);
        Ok(())
    }
}
