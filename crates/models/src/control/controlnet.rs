//! Files of ControlNets and of Union networks.

use std::path::Path;
use std::sync::Arc;

use kiln_unet::{ControlConfig, ControlModelConfig, UnetConfig};
use kiln_weights::ldm::{Named, Subset, UnetShape};
use kiln_weights::{Checkpoint, ParamSource, Sum};

use super::Opened;
use crate::error::{Error, Result};
use crate::model::ModelFolder;

/// The prefixes of tensor names in files of a ControlNet: diffusers' and bare ones, and those of its authors.
const PREFIXES: [&str; 3] = ["", "control_model.", "module.control_model."];
/// A tensor of files whose weights are differences from the U-Net's.
const DIFFERENCE: &str = "difference";
/// A part of the names of single files whose residuals are means over all pixels. Their tensors do not show it: the ControlNet
/// extension for AUTOMATIC1111's web UI goes by the name, too (`global_average_pooling` in `scripts/global_state.py`).
const SHUFFLE: &str = "shuffle";

/// A file with the names of diffusers, or of ControlNet's authors.
pub(super) fn open(path: &Path, checkpoint: Arc<Checkpoint>, model: &ModelFolder) -> Result<Opened> {
    let has = |name: &str| checkpoint.info(name).is_some();
    let found = PREFIXES.into_iter().find_map(|prefix| {
        let below = || Subset::new(checkpoint.clone(), prefix);
        if has(&format!("{prefix}controlnet_cond_embedding.conv_in.weight")) {
            return Some(Arc::new(below()) as Arc<dyn ParamSource>);
        }
        has(&format!("{prefix}input_hint_block.0.weight")).then_some(())?;
        let names = UnetShape::read_encoder(&below())?.control_names();
        Some(Arc::new(Named::new(below(), names)))
    });
    let Some(mut source) = found else {
        return Err(Error::model(path, "has no first convolution, expected the tensors of a ControlNet"));
    };
    let unet = model.unet_for(path, "a ControlNet")?;
    let shape = |name: &str| source.info(name).map(|info| info.shape);
    if shape("add_embedding.linear_1.weight").is_some() && unet.pooled_dim().is_none() {
        return Err(refused_xl(path, "a ControlNet", (model, unet)));
    }
    let mut config = ControlConfig::from_shapes(&shape, unet).map_err(|error| Error::model(path, error))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    config.global_pool = name.contains(SHUFFLE);
    if has(DIFFERENCE) {
        source = Arc::new(Sum::new(source, model.files().denoiser_weights()?));
    }
    Ok((ControlModelConfig::ControlNet(config), source))
}

/// The refusal of a network for Stable Diffusion XL.
pub(super) fn refused_xl(path: &Path, what: &str, (model, unet): (&ModelFolder, &UnetConfig)) -> Error {
    let problem = format!(
        "is {what} for Stable Diffusion XL, but the model {} is {}: give {what} for that family",
        model.name(),
        family(unet)
    );
    Error::model(path, problem)
}

/// Refuses a network for another family of models than `model`'s.
pub(super) fn check_family(path: &Path, config: &ControlConfig, model: &ModelFolder) -> Result<()> {
    let (own, base) = (&config.network, model.unet_for(path, "a ControlNet")?);
    let facts = |unet: &UnetConfig| (unet.context_dim(), unet.pooled_dim(), unet.skips());
    // A network without transformers sees no text, whatever the model's is.
    let same_text = own.context_dim().is_none() || own.context_dim() == base.context_dim();
    let same_added = own.pooled_dim() == base.pooled_dim();
    if same_text && same_added && own.skips() == base.skips() && own.in_channels == base.latent_channels() {
        return Ok(());
    }
    let described = |unet: &UnetConfig| {
        let (text, pooled, skips) = facts(unet);
        let text = text.map_or_else(|| "no text".into(), |dim| format!("text of {dim} channels"));
        let pooled = pooled.map_or_else(String::new, |dim| format!(", pooled text of {dim}"));
        format!("{} ({text}{pooled}, {} skip connections)", family(unet), skips.len())
    };
    let problem = format!(
        "is a ControlNet for {}, but the model {} is {}: give a ControlNet for that family",
        described(own),
        model.name(),
        described(base)
    );
    Err(Error::model(path, problem))
}

/// The family of models that a network of this shape belongs to.
pub(crate) fn family(unet: &UnetConfig) -> &'static str {
    match (unet.context_dim(), unet.pooled_dim()) {
        (_, Some(_)) => "Stable Diffusion XL",
        (Some(1024), None) => "Stable Diffusion 2",
        (Some(768), None) => "Stable Diffusion 1",
        _ => "Stable Diffusion of another shape",
    }
}
