//! Files of control networks: what a file is follows from its tensors, and whether it belongs to a model is known before its
//! weights are read.

mod adapter;
mod control_lora;
mod controlnet;
mod lllite;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_unet::{ControlModel, ControlModelConfig};
use kiln_weights::{Checkpoint, MAX_CONFIG_BYTES, ParamSource, Segments, mismatches, open_component, read_small_text};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::foreign::ForeignModel;
use crate::hub;
use crate::model::ModelFolder;
pub(crate) use controlnet::family;

/// The classes of diffusers that a folder may be of.
const CLASSES: [&str; 3] = ["ControlNetModel", "ControlNetUnionModel", "T2IAdapter"];

/// A control network for one model.
#[derive(Clone)]
pub struct ControlFile {
    path: PathBuf,
    config: ControlModelConfig,
    source: Arc<dyn ParamSource>,
}

/// A configuration, and where its weights are under the names that the network declares.
type Opened = (ControlModelConfig, Arc<dyn ParamSource>);

impl ControlFile {
    /// Opens a control network for `model`: a folder in the diffusers layout, or a file with the names of diffusers or of the
    /// network's authors, in any format of [`Checkpoint::open`]. `hf:OWNER/NAME` is looked up in the Hub's cache. Only the
    /// tables of the tensors are read.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Model`] if it is something else or belongs to another family of
    /// models, [`Error::Weights`] if it cannot be read or its tensors do not match.
    pub fn open(path: &Path, model: &ModelFolder) -> Result<Self> {
        let path = hub::cached(path)?.unwrap_or_else(|| path.to_path_buf());
        if !path.exists() {
            let looked_for = "`net` of a control: a control network's file, or its folder in the diffusers layout";
            return Err(Error::not_found(path, looked_for.into()));
        }
        let (config, source) = match path.is_dir() {
            true => open_folder(&path)?,
            false => open_file(&path, model)?,
        };
        match &config {
            ControlModelConfig::ControlNet(config) => controlnet::check_family(&path, config, model)?,
            ControlModelConfig::Adapter(config) => adapter::check_family(&path, config, model)?,
            ControlModelConfig::Lllite(_) => {} // its layers are the model's
        }
        let network = ControlModel::new(&config);
        for segments in [network.step_segments(), network.image_segments()] {
            check_tensors(segments, source.as_ref())?;
        }
        Ok(Self { path, config, source })
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration of its network.
    pub fn config(&self) -> &ControlModelConfig {
        &self.config
    }

    /// Its weights, under the names that networks declare.
    pub fn weights(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }
}

fn open_folder(path: &Path) -> Result<Opened> {
    let file = path.join("config.json");
    if !file.exists() {
        let looked_for = "the configuration of a control network, in a folder in the diffusers layout".into();
        return Err(Error::not_found(file, looked_for));
    }
    let text = read_small_text(&file, MAX_CONFIG_BYTES).map_err(Error::read(&file))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| Error::model(&file, error))?;
    let class = json["_class_name"].as_str();
    let config = match class.filter(|class| CLASSES.contains(class)) {
        Some("T2IAdapter") => adapter::config(&text).map_err(|error| Error::model(&file, error))?,
        Some(_) => controlnet::config(&text).map_err(|error| Error::model(&file, error))?,
        None => {
            if let Some(model) = class.and_then(ForeignModel::of_class) {
                return Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() });
            }
            let found = class.map_or_else(|| json["_class_name"].to_string(), String::from);
            let problem = format!("`_class_name` is {found}, expected one of {}", CLASSES.join(", "));
            return Err(Error::model(&file, problem));
        }
    };
    Ok((config, open_component(path)?.into()))
}

fn open_file(path: &Path, model: &ModelFolder) -> Result<Opened> {
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    match FileKind::of(checkpoint.as_ref()) {
        FileKind::ControlNet | FileKind::ControlUnion => controlnet::open(path, checkpoint, model),
        FileKind::ControlLora => control_lora::open(path, checkpoint, model),
        FileKind::ControlLllite => lllite::open(path, checkpoint, model),
        FileKind::T2iAdapter => adapter::open(path, checkpoint),
        FileKind::Foreign(model) => Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() }),
        kind => {
            let expected = "a ControlNet, a control LoRA, a ControlNet-LLLite or a T2I-Adapter";
            Err(Error::model(path, format!("is {}, expected {expected}", kind.label())))
        }
    }
}

/// Refuses tensors that are missing or have other shapes.
fn check_tensors(segments: &Segments, source: &dyn ParamSource) -> Result<()> {
    mismatches(segments, source).into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}
