//! The denoiser of a model.

use std::path::Path;

use kiln_families::Component as ComponentSpec;
use kiln_network::{Denoiser, LatentSpec};
use kiln_unet::UnetConfig;

use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::presets::Architecture;

impl Architecture {
    /// The denoiser, without weights.
    pub fn denoiser(&self) -> Box<dyn Denoiser> {
        self.denoiser.build()
    }

    /// The latents of the denoiser.
    pub fn latents(&self) -> LatentSpec {
        self.denoiser().latents()
    }

    /// The configuration of the denoiser; `None` if it is no U-Net.
    pub fn unet(&self) -> Option<&UnetConfig> {
        self.denoiser.own()
    }
}

impl ModelFolder {
    /// The denoiser, without weights.
    pub fn denoiser(&self) -> Box<dyn Denoiser> {
        self.denoiser_config().build()
    }

    /// The place of the denoiser among the components of the family.
    pub fn denoiser_component(&self) -> &'static ComponentSpec {
        self.files().denoiser()
    }

    /// The configuration of the denoiser; `None` if it is no U-Net.
    pub fn unet_config(&self) -> Option<&UnetConfig> {
        self.denoiser_config().own()
    }

    /// The configuration of the U-Net that the network in `path` is for; `what` has the article of the network.
    ///
    /// # Errors
    /// [`Error::Model`] names the network and the model if the model has no U-Net.
    pub fn unet_for(&self, path: &Path, what: &str) -> Result<&UnetConfig> {
        self.unet_config().ok_or_else(|| {
            let (name, label) = (self.name(), self.family().label());
            Error::model(path, format!("is {what} for U-Nets, but the model {name} is {label}, which has none"))
        })
    }
}
