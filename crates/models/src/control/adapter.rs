//! Files of T2I-Adapters.

use std::path::Path;
use std::sync::Arc;

use kiln_unet::{AdapterConfig, AdapterForm, ControlModelConfig};
use kiln_weights::ldm::{Named, adapter_names};
use kiln_weights::{Checkpoint, ParamSource};

use super::Opened;
use super::controlnet::family;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// A file with the names of diffusers, or of the authors.
pub(super) fn open(path: &Path, checkpoint: Arc<Checkpoint>) -> Result<Opened> {
    let source: Arc<dyn ParamSource> = match adapter_names(checkpoint.as_ref()) {
        Some(names) => Arc::new(Named::new(checkpoint, names)),
        None => checkpoint,
    };
    let shape = |name: &str| source.info(name).map(|info| info.shape);
    let config = AdapterConfig::from_shapes(&shape).map_err(|error| Error::model(path, error))?;
    Ok((ControlModelConfig::Adapter(config), source))
}

/// Refuses an adapter whose feature maps are not those of `model`'s down blocks.
pub(super) fn check_family(path: &Path, config: &AdapterConfig, model: &ModelFolder) -> Result<()> {
    let unet = model.unet_for(path, "a T2I-Adapter")?;
    if config.fits(unet, model.vae_config().downscale()) {
        return Ok(());
    }
    let own = match config.form {
        AdapterForm::FullXl => "Stable Diffusion XL",
        AdapterForm::Full | AdapterForm::Light => "Stable Diffusion 1 or 2",
    };
    let channels = config.channels.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let problem = format!(
        "is a T2I-Adapter for {own} (maps of {channels} channels, the first one of {} pixels), but the model {} is {}: \
         give a T2I-Adapter for that family",
        config.downscale,
        model.name(),
        family(unet)
    );
    Err(Error::model(path, problem))
}
