//! One model: its family, the type of its weights, its size, and the option that takes it.

use std::path::Path;

use kiln_families::of_unet;
use kiln_weights::ParamSource;

use super::InstalledModel;
use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::inspect::{count_files, stored};
use crate::locate::argument;
use crate::model::ModelFolder;
use crate::single_file::SingleFile;

/// The content of a path.
pub(super) enum Found {
    /// A model or a denoiser, perhaps a damaged one.
    Model(Box<InstalledModel>),
    /// Something that is no model.
    Other,
}

impl Found {
    fn model(path: &Path, bytes: u64, facts: Facts) -> Self {
        let Facts { what, dtype, option, problem } = facts;
        let option = option.filter(|_| problem.is_none());
        let (argument, path) = (argument(path), path.to_path_buf());
        Self::Model(Box::new(InstalledModel { what, dtype, bytes, option, argument, path, problem }))
    }
}

#[derive(Default)]
struct Facts {
    what: String,
    dtype: Option<String>,
    option: Option<&'static str>,
    problem: Option<String>,
}

impl Facts {
    /// A model of a family that Kiln does not run.
    fn unsupported(label: &str) -> Self {
        Self { what: label.into(), problem: Some("not supported yet".into()), ..Self::default() }
    }

    /// A file or folder that cannot be used.
    fn damaged(what: &str, error: &Error) -> Self {
        Self { what: what.into(), problem: Some(error.to_string()), ..Self::default() }
    }
}

/// A folder in the layout of diffusers.
pub(super) fn describe_folder(path: &Path) -> Found {
    let facts = of_folder(path).unwrap_or_else(|error| Facts::damaged("a model folder", &error));
    Found::model(path, count_files(path).1, facts)
}

fn of_folder(path: &Path) -> Result<Facts> {
    let model = match ModelFolder::open(path) {
        Ok(model) => model,
        Err(Error::Foreign { model, .. }) => return Ok(Facts::unsupported(model.label())),
        Err(error) => return Err(error),
    };
    let weights = model.files().denoiser_weights();
    Ok(Facts {
        what: model.family().model_label(model.is_refiner()).into(),
        dtype: weights.as_ref().ok().and_then(|weights| dtype(weights.as_ref())),
        option: Some("model"),
        problem: weights.err().map(|error| error.to_string()),
    })
}

/// A file with weights.
pub(super) fn describe_file(path: &Path) -> Found {
    let bytes = path.metadata().map_or(0, |metadata| metadata.len());
    match of_file(path) {
        Ok(Some(facts)) => Found::model(path, bytes, facts),
        Ok(None) => Found::Other,
        Err(error) => Found::model(path, bytes, Facts::damaged("a file with weights", &error)),
    }
}

fn of_file(path: &Path) -> Result<Option<Facts>> {
    let file = SingleFile::open(path)?;
    let kind = FileKind::of(file.checkpoint.as_ref());
    let unet = file.unet_shape().map(|shape| of_unet(shape).variant(shape).label);
    let model = unet.or_else(|| file.of_family().map(|(_, denoiser)| denoiser.variant.label));
    let is_denoiser = file.vae.is_none() && file.texts.is_empty();
    let (what, option) = match (kind, model) {
        (FileKind::Checkpoint, Some(model)) if !is_denoiser => (model.into(), Some("model")),
        (FileKind::Checkpoint | FileKind::Unet, Some(model)) => (format!("{model}: denoiser"), Some("unet")),
        (FileKind::Denoiser(label), _) => (label.into(), Some("unet")),
        (FileKind::Unet, None) => (kind.label().into(), Some("unet")),
        (FileKind::Foreign(model), _) => return Ok(Some(Facts::unsupported(model.label()))),
        _ => return Ok(None),
    };
    Ok(Some(Facts { what, dtype: dtype(file.checkpoint.as_ref()), option, problem: None }))
}

/// The type of most of the bytes.
fn dtype(weights: &dyn ParamSource) -> Option<String> {
    let tensors = weights.keys().into_iter().filter_map(|key| weights.info(&key));
    stored(tensors).first().map(|stored| stored.dtype.clone())
}
