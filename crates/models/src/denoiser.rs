//! The denoiser of a model.

use kiln_network::Denoiser;
use kiln_unet::Unet;

use crate::model::ModelFolder;
use crate::presets::Architecture;

impl Architecture {
    /// The denoiser, without weights.
    pub fn denoiser(&self) -> Box<dyn Denoiser> {
        Box::new(Unet::new(self.unet.clone()))
    }
}

impl ModelFolder {
    /// The denoiser, without weights.
    pub fn denoiser(&self) -> Box<dyn Denoiser> {
        Box::new(Unet::new(self.unet_config().clone()))
    }
}
