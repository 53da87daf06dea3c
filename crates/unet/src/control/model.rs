//! Any network that guides a U-Net by an image: what runs once an image, and what runs in every step.

use candle_core::DType;
use kiln_network::Inputs;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};
use kiln_weights::Segments;

use super::ControlNet;
use super::adapter::T2iAdapter;
use super::adapter_config::{AdapterConfig, places};
use super::config::ControlConfig;
use super::hint::ControlHint;
use super::interface::ControlKind;
use super::lllite::{Lllite, LlliteConfig};
use super::union::ControlKinds;
use crate::conditioning::ControlInput;
use crate::config::UnetConfig;
use crate::error::Result;

/// The configuration of a network that guides a U-Net by an image.
#[expect(clippy::large_enum_variant, reason = "there are a few of them, each next to the weights of a network")]
#[derive(Debug, Clone, PartialEq)]
pub enum ControlModelConfig {
    /// A ControlNet, or a Union network.
    ControlNet(ControlConfig),
    /// A T2I-Adapter.
    Adapter(AdapterConfig),
    /// A ControlNet-LLLite.
    Lllite(LlliteConfig),
}

/// A network that guides a U-Net by an image.
pub struct ControlModel {
    parts: Parts,
    /// The segments of a network without weights for steps.
    none: Segments,
}

#[expect(clippy::large_enum_variant, reason = "there are a few of them, each with the weights of a network")]
enum Parts {
    ControlNet(ControlNet, ControlHint),
    Adapter(T2iAdapter),
    Lllite(Lllite),
}

impl ControlModel {
    /// Declares the network that `config` describes.
    pub fn new(config: &ControlModelConfig) -> Self {
        let parts = match config {
            ControlModelConfig::ControlNet(config) => {
                Parts::ControlNet(ControlNet::new(config.clone()), ControlHint::new(config))
            }
            ControlModelConfig::Adapter(config) => Parts::Adapter(T2iAdapter::new(config.clone())),
            ControlModelConfig::Lllite(config) => Parts::Lllite(Lllite::new(config.clone())),
        };
        Self { parts, none: Segments::default() }
    }

    /// Its configuration.
    pub fn config(&self) -> ControlModelConfig {
        match &self.parts {
            Parts::ControlNet(net, _) => ControlModelConfig::ControlNet(net.config().clone()),
            Parts::Adapter(adapter) => ControlModelConfig::Adapter(adapter.config().clone()),
            Parts::Lllite(lllite) => ControlModelConfig::Lllite(lllite.config().clone()),
        }
    }

    /// Its kind.
    pub(super) fn kind(&self) -> ControlKind {
        match &self.parts {
            Parts::ControlNet(..) => ControlKind::Net,
            Parts::Adapter(_) => ControlKind::Adapter,
            Parts::Lllite(_) => ControlKind::Lllite,
        }
    }

    /// The part that runs in every step, of a ControlNet.
    pub fn net(&self) -> Option<&ControlNet> {
        match &self.parts {
            Parts::ControlNet(net, _) => Some(net),
            Parts::Adapter(_) | Parts::Lllite(_) => None,
        }
    }

    /// The networks at the projections of attention layers, of a ControlNet-LLLite.
    pub fn lllite(&self) -> Option<&Lllite> {
        match &self.parts {
            Parts::Lllite(lllite) => Some(lllite),
            Parts::ControlNet(..) | Parts::Adapter(_) => None,
        }
    }

    /// Whether its feature maps are added to the U-Net's, as a T2I-Adapter's.
    pub fn is_adapter(&self) -> bool {
        matches!(self.parts, Parts::Adapter(_))
    }

    /// The types of control images that a Union network knows.
    pub fn types(&self) -> Option<usize> {
        Some(self.net()?.config().union?.types)
    }

    /// Whether residuals are for the conditional rows alone, whatever a request says.
    pub fn is_conditional_only(&self) -> bool {
        self.net().is_some_and(|net| net.config().global_pool)
    }

    /// The segments that run once an image, in their order.
    pub fn image_segments(&self) -> &Segments {
        match &self.parts {
            Parts::ControlNet(_, hint) => hint.segments(),
            Parts::Adapter(adapter) => adapter.segments(),
            Parts::Lllite(lllite) => lllite.image_segments(),
        }
    }

    /// The segments that run in every step, in their order.
    pub fn step_segments(&self) -> &Segments {
        match &self.parts {
            Parts::ControlNet(net, _) => net.segments(),
            Parts::Adapter(_) => &self.none,
            Parts::Lllite(lllite) => lllite.step_segments(),
        }
    }

    /// Channels of the control image.
    pub fn image_channels(&self) -> usize {
        match &self.parts {
            Parts::ControlNet(_, hint) => hint.channels(),
            Parts::Adapter(adapter) => adapter.config().image_channels,
            Parts::Lllite(_) => 3,
        }
    }

    /// How many values it adds to a U-Net: what factors are for.
    pub fn additions(&self) -> usize {
        match &self.parts {
            Parts::ControlNet(net, _) => net.skips().len() + 1,
            Parts::Adapter(adapter) => adapter.config().channels.len(),
            Parts::Lllite(_) => 1,
        }
    }

    /// The result for an image `(b, image_channels, h, w)` of values from 0 to 1, computed once: a ControlNet's embedded
    /// image, or an adapter's feature maps.
    ///
    /// # Errors
    /// [`crate::Error::Input`] for another shape; errors of a layer.
    pub fn embed<T: TensorLike>(&self, image: &T) -> Result<Vec<T>> {
        match &self.parts {
            Parts::ControlNet(_, hint) => Ok(vec![hint.forward(image)?]),
            Parts::Adapter(adapter) => adapter.forward(image),
            Parts::Lllite(lllite) => lllite.embed(image),
        }
    }

    /// Adds the shapes of its inputs at a step to those of `b` images of `(h, w)` latents; it is network number `network` next to
    /// `unet`.
    pub fn add_meta_inputs(
        &self,
        inputs: &mut Inputs<MetaTensor>,
        (network, unet): (usize, &UnetConfig),
        device: &MetaDevice,
        (b, h, w): (usize, usize, usize),
        dtype: DType,
    ) {
        match &self.parts {
            Parts::ControlNet(net, _) => {
                let kinds = net.config().union.map(|union| ControlKinds {
                    images: vec![(0, 1.0)],
                    flags: device.tensor(&[union.types], DType::F32),
                });
                let hints = vec![device.tensor(&[b, h, w, net.config().hint_depth()], dtype)];
                let scales = net.even_scales(1.0);
                ControlInput { network, hints, kinds, scales, text_keys: Vec::new() }.add_to(inputs);
            }
            // Several adapters are one sum.
            Parts::Adapter(adapter) if !ControlInput::has_features(inputs) => {
                let first = places(unet).first().map_or(0, |&(_, halvings)| halvings);
                let map = |(channels, halvings): (usize, usize)| {
                    let unit = 1 << (first + halvings);
                    device.tensor(&[b, h.div_ceil(unit), w.div_ceil(unit), channels], dtype)
                };
                ControlInput::add_features(adapter.config().features().into_iter().map(map).collect(), inputs);
            }
            Parts::Adapter(_) => {}
            Parts::Lllite(lllite) => {
                let hints = lllite.meta_embeddings(unet, device, (b, h, w), dtype);
                let scales = [1.0].into();
                ControlInput { network, hints, kinds: None, scales, text_keys: Vec::new() }.add_to(inputs);
            }
        }
    }
}
