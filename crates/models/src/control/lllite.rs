//! Files of ControlNet-LLLite.

use std::path::Path;
use std::sync::Arc;

use kiln_unet::{ControlModelConfig, LlliteConfig};
use kiln_weights::{Checkpoint, ParamSource};

use super::Opened;
use super::controlnet::family;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// A file with the names of kohya-ss' scripts.
pub(super) fn open(path: &Path, checkpoint: Arc<Checkpoint>, model: &ModelFolder) -> Result<Opened> {
    let unet = model.unet_for(path, "a ControlNet-LLLite")?;
    let shape = |name: &str| checkpoint.info(name).map(|info| info.shape);
    let config = LlliteConfig::from_shapes(&checkpoint.keys(), &shape, unet).map_err(|error| {
        let problem = format!(
            "is a ControlNet-LLLite that does not fit the model {}, which is {}: {error}",
            model.name(),
            family(unet)
        );
        Error::model(path, problem)
    })?;
    Ok((ControlModelConfig::Lllite(config), checkpoint))
}
