//! Files of control networks: what a file is follows from its tensors, and whether it belongs to a model is known before its
//! weights are read. Networks of U-Nets have a module each; for others the model's family reads them.

mod adapter;
mod control_lora;
mod controlnet;
mod lllite;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_families::control_of_class;
use kiln_network::ControlConfig;
use kiln_unet::ControlModelConfig;
use kiln_weights::ldm::Named;
use kiln_weights::{Checkpoint, MAX_CONFIG_BYTES, ParamSource, Segments, mismatches, open_component, read_small_text};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::foreign::ForeignModel;
use crate::hub;
use crate::model::ModelFolder;
pub(crate) use controlnet::family;

/// A control network for one model.
#[derive(Clone)]
pub struct ControlFile {
    path: PathBuf,
    config: Arc<dyn ControlConfig>,
    source: Arc<dyn ParamSource>,
}

/// The configuration of a network for a U-Net, and where its weights are under the names that the network declares.
type Opened = (ControlModelConfig, Arc<dyn ParamSource>);
/// A control network of any family, with its weights.
type OpenedAny = (Arc<dyn ControlConfig>, Arc<dyn ParamSource>);

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
            true => open_folder(&path, model)?,
            false => open_file(&path, model)?,
        };
        match config.own() {
            Some(ControlModelConfig::ControlNet(config)) => controlnet::check_family(&path, config, model)?,
            Some(ControlModelConfig::Adapter(config)) => adapter::check_family(&path, config, model)?,
            Some(ControlModelConfig::Lllite(_)) | None => {} // their layers are the model's, or are compared with them below
        }
        let network = config.build();
        if let Err(error) = model.denoiser().with_controls(vec![&*network]) {
            let (label, name) = (network.spec().label, model.name());
            return Err(Error::model(&path, format!("is {label} that does not fit the model {name}: {error}")));
        }
        for segments in [Some(network.step_segments()), network.image_segments()].into_iter().flatten() {
            check_tensors(segments, source.as_ref())?;
        }
        Ok(Self { path, config, source })
    }

    /// The file or the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration of its network.
    pub fn config(&self) -> &Arc<dyn ControlConfig> {
        &self.config
    }

    /// Its weights, under the names that networks declare.
    pub fn weights(&self) -> Arc<dyn ParamSource> {
        self.source.clone()
    }
}

fn open_folder(path: &Path, model: &ModelFolder) -> Result<OpenedAny> {
    let file = path.join("config.json");
    if !file.exists() {
        let looked_for = "the configuration of a control network, in a folder in the diffusers layout".into();
        return Err(Error::not_found(file, looked_for));
    }
    let text = read_small_text(&file, MAX_CONFIG_BYTES).map_err(Error::read(&file))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| Error::model(&file, error))?;
    let (class, known) = (json["_class_name"].as_str(), model.family().control_classes());
    let config = match class.filter(|class| known.iter().any(|(known, _)| known == class)) {
        Some(class) => model.family().control(class, &text).map_err(|error| Error::model(&file, error))?,
        None => {
            if let Some((_, label)) = class.and_then(control_of_class) {
                return Err(refused(path, label, model));
            }
            if let Some(model) = class.and_then(ForeignModel::of_class) {
                return Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() });
            }
            let found = class.map_or_else(|| json["_class_name"].to_string(), String::from);
            let known: Vec<&str> = known.iter().map(|(class, _)| *class).collect();
            let problem = match known.is_empty() {
                true => format!("is for the model {}, which takes no control networks", model.name()),
                false => format!("`_class_name` is {found}, expected one of {}", known.join(", ")),
            };
            return Err(Error::model(&file, problem));
        }
    };
    Ok((config, open_component(path)?.into()))
}

fn open_file(path: &Path, model: &ModelFolder) -> Result<OpenedAny> {
    let checkpoint = Arc::new(Checkpoint::open(path)?);
    let (config, source) = match FileKind::of(checkpoint.as_ref()) {
        FileKind::Control(label) => return open_own(path, label, checkpoint, model),
        FileKind::ControlNet | FileKind::ControlUnion => controlnet::open(path, checkpoint, model)?,
        FileKind::ControlLora => control_lora::open(path, checkpoint, model)?,
        FileKind::ControlLllite => lllite::open(path, checkpoint, model)?,
        FileKind::T2iAdapter => adapter::open(path, checkpoint)?,
        FileKind::Foreign(model) => {
            return Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() });
        }
        kind => {
            let expected = "a ControlNet, a control LoRA, a ControlNet-LLLite or a T2I-Adapter";
            return Err(Error::model(path, format!("is {}, expected {expected}", kind.label())));
        }
    };
    Ok((Arc::new(config), source))
}

/// A file of a family whose denoiser is no U-Net.
fn open_own(path: &Path, label: &str, checkpoint: Arc<Checkpoint>, model: &ModelFolder) -> Result<OpenedAny> {
    let found = model.family().read_control(checkpoint.as_ref()).ok_or_else(|| refused(path, label, model))?;
    let found = found.map_err(|error| Error::model(path, error))?;
    Ok((found.config, Arc::new(Named::new(checkpoint, found.names))))
}

/// The refusal of a network, which is `label`, for another family than the model's.
fn refused(path: &Path, label: &str, model: &ModelFolder) -> Error {
    let own = model.unet_config().map_or_else(|| model.family().label(), family);
    let name = model.name();
    Error::model(path, format!("is {label}, but the model {name} is {own}: give a control network for that family"))
}

/// Refuses tensors that are missing or have other shapes.
fn check_tensors(segments: &Segments, source: &dyn ParamSource) -> Result<()> {
    mismatches(segments, source).into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}
