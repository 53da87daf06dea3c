//! A job's refiner: opened when the request is resolved, checked against the job's model. No weights are read.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use kiln_models::{Family, ModelFolder, locate_model};
use serde::{Serialize, Serializer};

use crate::error::{Error, Result};

/// The refiners that jobs hold now: many jobs of a set have the same.
static OPENED: Mutex<Vec<(PathBuf, Weak<ModelFolder>)>> = Mutex::new(Vec::new());

/// The model that takes the last steps of a job over. Clones share its open files.
#[derive(Debug, Clone)]
pub struct Refiner(Arc<ModelFolder>);

/// Two refiners are one where their paths are.
impl PartialEq for Refiner {
    fn eq(&self, other: &Self) -> bool {
        self.0.path() == other.0.path()
    }
}

impl Serialize for Refiner {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.path().display())
    }
}

impl Refiner {
    /// Opens the model at `path`, a path or a name as `model` has it.
    ///
    /// # Errors
    /// [`Error::Models`] where there is none, or where it is not valid.
    pub fn open(path: &Path) -> Result<Self> {
        let path = locate_model(Some(path))?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(_, model)| model.strong_count() > 0);
        let known = opened.iter().find(|(known, _)| *known == path).and_then(|(_, model)| model.upgrade());
        let model = match known {
            Some(model) => model,
            None => {
                let model = Arc::new(ModelFolder::open(&path)?);
                opened.push((path, Arc::downgrade(&model)));
                model
            }
        };
        Ok(Self(model))
    }

    /// The model.
    pub fn model(&self) -> &ModelFolder {
        &self.0
    }

    /// Refuses a refiner that cannot continue latents of `base`.
    ///
    /// # Errors
    /// [`Error::Value`] names both models, and says what differs.
    pub(crate) fn check(&self, base: &ModelFolder) -> Result<()> {
        let (name, base_name) = (self.0.name(), base.name());
        let refuse = |found: &str, expected: String| {
            Err(Error::Value { name: "refiner", found: format!("{name}, {found}"), expected })
        };
        if self.0.family() != base.family() {
            let of = |model: &ModelFolder| match model.family() {
                Family::Sd => "Stable Diffusion 1 or 2",
                Family::Sdxl => "Stable Diffusion XL",
            };
            let expected = format!("a model of {}, as {base_name} is: both need the same latents", of(base));
            return refuse(&format!("a model of {}", of(&self.0)), expected);
        }
        let (latents, others) = (Latents::of(&self.0), Latents::of(base));
        if latents != others {
            return refuse(&latents.text(), format!("latents as those of {base_name}: {}", others.text()));
        }
        if self.0.takes_mask() != base.takes_mask() {
            let of =
                |model: &ModelFolder| if model.takes_mask() { "an inpainting model" } else { "no inpainting model" };
            return refuse(of(&self.0), format!("{}, as {base_name} is", of(base)));
        }
        if self.0.has_guidance_inside() != base.has_guidance_inside() {
            let of = |model: &ModelFolder| match model.has_guidance_inside() {
                true => "a model that was distilled with guidance",
                false => "a model that was not distilled with guidance",
            };
            return refuse(of(&self.0), format!("{}, as {base_name} is", of(base)));
        }
        Ok(())
    }
}

/// What two models need to have in common for one to continue latents of the other.
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
