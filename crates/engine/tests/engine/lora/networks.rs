//! The networks of a model, without weights.

use std::path::Path;

use kiln_clip::{TextEncoder, TextEncoderConfig};
use kiln_families::{TEXT_ENCODER, TEXT_ENCODER_2, UNET};
use kiln_unet::{Unet, UnetConfig};
use kiln_weights::{Network, Segments, Targets};

/// The networks' segments.
pub struct Networks {
    pub all: Vec<(Network, Segments)>,
}

/// The folders of a model, in the order of the networks.
pub const FOLDERS: [(Network, &str); 3] =
    [(UNET, "unet"), (TEXT_ENCODER, "text_encoder"), (TEXT_ENCODER_2, "text_encoder_2")];

impl Networks {
    /// The segments of a model folder, from its configurations only.
    pub fn of(model: &Path) -> Self {
        let mut all = Vec::new();
        for (network, folder) in FOLDERS {
            let path = model.join(folder).join("config.json");
            let Ok(config) = std::fs::read_to_string(&path) else { continue };
            let segments = match network {
                network if network.is_denoiser() => {
                    Unet::new(UnetConfig::from_json(&config).unwrap()).segments().clone()
                }
                _ => TextEncoder::new(TextEncoderConfig::from_json(&config).unwrap()).unwrap().segments().clone(),
            };
            all.push((network, segments));
        }
        Self { all }
    }

    /// The parameters that LoRA files may change.
    pub fn targets(&self) -> Targets {
        let networks: Vec<_> = self.all.iter().map(|(network, segments)| (*network, &segments[..])).collect();
        Targets::new(&networks)
    }
}
