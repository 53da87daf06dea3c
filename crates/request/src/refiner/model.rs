//! A job's refiner: opened when the request is resolved, checked against the job's model. No weights are read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use kiln_models::{ModelFolder, locate_model};
use serde::{Serialize, Serializer};

use crate::error::{Error, Result};

/// The refiners that jobs hold now: many jobs of a set have the same.
static OPENED: Mutex<Vec<(PathBuf, FileStates, Weak<ModelFolder>)>> = Mutex::new(Vec::new());

/// The files of a model with their sizes and the times at which they changed: they differ where a file was replaced.
type FileStates = Vec<(PathBuf, u64, Option<SystemTime>)>;

/// The most files of a folder whose states are compared; a model has some dozens.
const MOST_FILES: usize = 1_000;

/// The model that takes the last steps of a job over. Clones share its open files.
#[derive(Debug, Clone)]
pub struct Refiner {
    model: Arc<ModelFolder>,
    /// Its files when it was opened.
    files: FileStates,
}

/// Two refiners are one where their paths are, and where no file was replaced in between.
impl PartialEq for Refiner {
    fn eq(&self, other: &Self) -> bool {
        self.model.path() == other.model.path() && self.files == other.files
    }
}

impl Serialize for Refiner {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&self.model.path().display())
    }
}

impl Refiner {
    /// Opens the model at `path`, a path or a name as `model` has it.
    ///
    /// # Errors
    /// [`Error::Files`] if there is none, [`Error::Models`] if it is not valid.
    pub fn open(path: &Path) -> Result<Self> {
        let named = |error| match error {
            kiln_models::Error::Files(kiln_files::Error::NotFound { path, looked_for }) => {
                Error::not_found(path, format!("`refiner`, {looked_for}"))
            }
            other => other.into(),
        };
        let path = locate_model(Some(path)).map_err(named)?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(.., model)| model.strong_count() > 0);
        let files = file_states(&path);
        let is_same =
            |(known, states, _): &&(PathBuf, FileStates, Weak<ModelFolder>)| *known == path && *states == files;
        let known = opened.iter().find(is_same).and_then(|(.., model)| model.upgrade());
        let model = match known {
            Some(model) => model,
            None => {
                let model = Arc::new(ModelFolder::open(&path)?);
                opened.push((path, files.clone(), Arc::downgrade(&model)));
                model
            }
        };
        Ok(Self { model, files })
    }

    /// The model.
    pub fn model(&self) -> &ModelFolder {
        &self.model
    }

    /// Refuses a refiner that cannot continue latents of `base`.
    ///
    /// # Errors
    /// [`Error::Value`] names both models, and says what differs.
    pub(crate) fn check(&self, base: &ModelFolder) -> Result<()> {
        let (name, base_name) = (self.model.name(), base.name());
        let refuse = |found: &str, expected: String| {
            Err(Error::Value { name: "refiner", found: format!("{name}, {found}"), expected })
        };
        if self.model.family() != base.family() {
            let of = |model: &ModelFolder| model.family().label();
            let expected = format!("a model of {}, as {base_name} is: both need the same latents", of(base));
            return refuse(&format!("a model of {}", of(&self.model)), expected);
        }
        let (latents, others) = (Latents::of(&self.model), Latents::of(base));
        if latents != others {
            return refuse(&latents.text(), format!("latents as those of {base_name}: {}", others.text()));
        }
        if self.model.takes_mask() != base.takes_mask() {
            let of =
                |model: &ModelFolder| if model.takes_mask() { "an inpainting model" } else { "no inpainting model" };
            return refuse(of(&self.model), format!("{}, as {base_name} is", of(base)));
        }
        if self.model.has_guidance_inside() != base.has_guidance_inside() {
            let of = |model: &ModelFolder| match model.has_guidance_inside() {
                true => "a model that was distilled with guidance",
                false => "a model that was not distilled with guidance",
            };
            return refuse(of(&self.model), format!("{}, as {base_name} is", of(base)));
        }
        Ok(())
    }
}

/// The state of a model's file, or of the files of its folder and the folders in it.
fn file_states(path: &Path) -> FileStates {
    let mut states = FileStates::new();
    let mut folders = Vec::new();
    let mut add = |path: PathBuf, folders: &mut Vec<PathBuf>| {
        let Ok(metadata) = path.metadata() else { return };
        match metadata.is_dir() {
            true => folders.push(path),
            false if states.len() < MOST_FILES => states.push((path, metadata.len(), metadata.modified().ok())),
            false => {}
        }
    };
    add(path.to_path_buf(), &mut folders);
    for _depth in 0..2 {
        for folder in std::mem::take(&mut folders) {
            let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok());
            entries.take(MOST_FILES).for_each(|entry| add(entry.path(), &mut folders));
        }
    }
    states.sort();
    states
}

/// The properties that two models must share for one to continue latents of the other.
#[derive(PartialEq)]
struct Latents {
    channels: usize,
    downscale: usize,
    scaling_factor: f64,
    shift_factor: f64,
    mean_std: Option<(Vec<f64>, Vec<f64>)>,
}

impl Latents {
    fn of(model: &ModelFolder) -> Self {
        let vae = model.vae_config();
        Self {
            channels: vae.latent_channels,
            downscale: vae.downscale(),
            scaling_factor: vae.scaling_factor,
            shift_factor: vae.shift_factor.unwrap_or(0.0),
            mean_std: vae.latents_mean.clone().zip(vae.latents_std.clone()),
        }
    }

    fn text(&self) -> String {
        let Self { channels, downscale, scaling_factor, shift_factor, mean_std } = self;
        let mut text = format!("{channels} channels for {downscale}x{downscale} pixels, scaled by {scaling_factor}");
        if *shift_factor != 0.0 {
            text += &format!(" after a shift by {shift_factor}");
        }
        if mean_std.is_some() {
            text += ", with a mean and a deviation for each channel";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
            let to = to.join(entry.file_name());
            match entry.path().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }

    #[test]
    fn a_refiner_whose_file_was_replaced_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("refiner");
        copy(&kiln_testkit::fixtures("models/sdxl"), &path);
        let (first, same) = (Refiner::open(&path).unwrap(), Refiner::open(&path).unwrap());
        assert!(first == same && Arc::ptr_eq(&first.model, &same.model));
        let config = path.join("unet/config.json");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, format!("{text}\n")).unwrap();
        let replaced = Refiner::open(&path).unwrap();
        assert!(first != replaced && !Arc::ptr_eq(&first.model, &replaced.model));
    }
}
