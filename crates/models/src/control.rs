//! Files of control networks: what a file is follows from its tensors, and whether it belongs to a model is known before its
//! weights are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_unet::{ControlConfig, ControlHint, ControlNet, UnetConfig};
use kiln_weights::ldm::{Named, Subset, UnetShape};
use kiln_weights::{
    Checkpoint, MAX_CONFIG_BYTES, ParamSource, Segments, Sum, mismatches, open_component, read_small_text,
};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::hub;
use crate::model::ModelFolder;

/// The prefixes of tensor names in files of a ControlNet: diffusers' and bare ones, and those of its authors.
const PREFIXES: [&str; 3] = ["", "control_model.", "module.control_model."];
/// A tensor of files whose weights are differences from the U-Net's.
const DIFFERENCE: &str = "difference";

/// A control network for one model.
#[derive(Clone)]
pub struct ControlFile {
    path: PathBuf,
    network: ControlNetwork,
    source: Arc<dyn ParamSource>,
}

/// What a control file has.
#[derive(Debug, Clone, PartialEq)]
pub enum ControlNetwork {
    /// A ControlNet.
    ControlNet(ControlConfig),
}

impl ControlFile {
    /// Opens a ControlNet for `model`: a folder in the diffusers layout, or a file with the names of diffusers or of
    /// ControlNet's authors, in any format of [`Checkpoint::open`]. `hf:OWNER/NAME` is looked up in the Hub's cache. Only
    /// the tables of the tensors are read.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Model`] if it is something else or belongs to another family of
    /// models, [`Error::Weights`] if it cannot be read or its tensors do not match.
    pub fn open(path: &Path, model: &ModelFolder) -> Result<Self> {
        let path = hub::cached(path)?.unwrap_or_else(|| path.to_path_buf());
        if !path.exists() {
            let looked_for = "`net` of a control: a ControlNet's file, or its folder in the diffusers layout";
            return Err(Error::not_found(path, looked_for.into()));
        }
        let (config, source) = match path.is_dir() {
            true => open_folder(&path)?,
            false => open_file(&path, model)?,
        };
        check_family(&path, &config, model)?;
        let (net, hint) = (ControlNet::new(config.clone()), ControlHint::new(&config));
        for segments in [net.segments(), hint.segments()] {
            check_tensors(segments, source.as_ref())?;
        }
        Ok(Self { path, network: ControlNetwork::ControlNet(config), source })
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has.
    pub fn network(&self) -> &ControlNetwork {
        &self.network
    }

    /// Its weights, under the names that networks declare.
    pub fn weights(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }
}

fn open_folder(path: &Path) -> Result<(ControlConfig, Arc<dyn ParamSource>)> {
    let file = path.join("config.json");
    if !file.exists() {
        let looked_for = "the configuration of a ControlNet, in a folder in the diffusers layout".into();
        return Err(Error::not_found(file, looked_for));
    }
    let text = read_small_text(&file, MAX_CONFIG_BYTES).map_err(Error::read(&file))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| Error::model(&file, error))?;
    match json["_class_name"].as_str() {
        Some("ControlNetModel") => {}
        other => {
            let problem = format!(
                "`_class_name` is {}, expected ControlNetModel",
                other.map_or_else(|| json["_class_name"].to_string(), String::from)
            );
            return Err(Error::model(&file, problem));
        }
    }
    let config = ControlConfig::from_json(&text).map_err(|error| Error::model(&file, error))?;
    Ok((config, open_component(path)?.into()))
}

fn open_file(path: &Path, model: &ModelFolder) -> Result<(ControlConfig, Arc<dyn ParamSource>)> {
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    let kind = FileKind::of(&checkpoint.keys());
    if kind != FileKind::ControlNet {
        let problem = format!("is {}, expected a ControlNet", kind.label());
        return Err(Error::model(path, problem));
    }
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
    let shape = |name: &str| source.info(name).map(|info| info.shape);
    if shape("add_embedding.linear_1.weight").is_some() && model.unet_config().pooled_dim().is_none() {
        let problem = format!(
            "is a ControlNet for Stable Diffusion XL, but the model {} is {}: give a ControlNet for that family",
            model.name(),
            family(model.unet_config())
        );
        return Err(Error::model(path, problem));
    }
    let config = ControlConfig::from_shapes(&shape, model.unet_config()).map_err(|error| Error::model(path, error))?;
    if has(DIFFERENCE) {
        source = Arc::new(Sum::new(source, model.files().unet()?));
    }
    Ok((config, source))
}

/// Refuses a network for another family of models than `model`'s.
fn check_family(path: &Path, config: &ControlConfig, model: &ModelFolder) -> Result<()> {
    let (own, base) = (&config.network, model.unet_config());
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
fn family(unet: &UnetConfig) -> &'static str {
    match (unet.context_dim(), unet.pooled_dim()) {
        (_, Some(_)) => "Stable Diffusion XL",
        (Some(1024), None) => "Stable Diffusion 2",
        (Some(768), None) => "Stable Diffusion 1",
        _ => "Stable Diffusion of another shape",
    }
}

/// Refuses tensors that are missing or have other shapes.
fn check_tensors(segments: &Segments, source: &dyn ParamSource) -> Result<()> {
    mismatches(segments, source).into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}
