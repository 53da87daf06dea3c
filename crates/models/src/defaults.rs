//! Defaults of a model's requests: the family's, and those of the file `kiln.json`.

use kiln_families::{FamilyDefaults, FamilyRef, ModelTraits};
use kiln_vae::VaeConfig;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::files::ModelFiles;
use crate::latent_rgb::LatentRgb;
use crate::limits::{self, MAX_STEPS, OutOfRange};
use crate::model::json;

/// The file with a model folder's own defaults; every key is optional.
const DEFAULTS_FILE: &str = "kiln.json";

/// Defaults of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Defaults {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The number of steps.
    pub steps: usize,
    /// The guidance scale.
    pub cfg_scale: f64,
    /// The guidance scale that the denoiser takes as an input with it, if it takes one.
    pub guidance: Option<f64>,
    /// The fraction of the steps that runs on an input image.
    pub strength: f64,
    /// The fraction of the steps that runs on an input image with a mask.
    pub mask_strength: f64,
    /// Whether the model was made to change reference images as a prompt says.
    pub edits: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DefaultsFile {
    width: Option<usize>,
    height: Option<usize>,
    steps: Option<usize>,
    cfg_scale: Option<f64>,
    guidance: Option<f64>,
    /// Factors from latents to colors, a row for each channel, and perhaps an offset.
    latent_rgb: Option<Vec<[f32; 3]>>,
}

impl DefaultsFile {
    /// Fails for defaults that a request could not use; a later error would name an option that the user did not set.
    fn check(&self, multiple: usize) -> std::result::Result<(), String> {
        let named = |name: &str, checked: std::result::Result<(), OutOfRange>| {
            checked.map_err(|error| format!("`{name}` {error}"))
        };
        for (name, length) in [("width", self.width), ("height", self.height)] {
            named(name, length.map_or(Ok(()), |length| limits::side(length, multiple).map(drop)))?;
        }
        named("steps", self.steps.map_or(Ok(()), |steps| limits::in_range(steps, 1, MAX_STEPS).map(drop)))?;
        for (name, scale) in [("cfg_scale", self.cfg_scale), ("guidance", self.guidance)] {
            named(name, scale.map_or(Ok(()), |scale| limits::guidance(scale).map(drop)))?;
        }
        Ok(())
    }
}

/// The defaults of the family for a model with `traits`, overridden by those of the folder, and the colors of its previews.
/// `size` is width and height.
///
/// # Errors
/// [`Error::Model`] with the file and the key of what is wrong in it.
pub(crate) fn defaults(
    files: &ModelFiles,
    family: FamilyRef,
    traits: &ModelTraits<'_>,
    size: (usize, usize),
    vae: &VaeConfig,
) -> Result<(Defaults, Option<LatentRgb>)> {
    let (own, latent_rgb) = match files.defaults(DEFAULTS_FILE)? {
        None => (DefaultsFile::default(), None),
        Some((file, text)) => {
            let own: DefaultsFile = json(&text, &file)?;
            let blame = |problem| Error::model(&file, problem);
            own.check(vae.downscale().max(8)).map_err(blame)?;
            let rows = own.latent_rgb.as_deref();
            let colors = rows.map(|rows| LatentRgb::from_rows(rows, vae.latent_channels)).transpose().map_err(blame)?;
            (own, colors)
        }
    };
    let FamilyDefaults { steps, cfg_scale, guidance, strength, mask_strength, edits } = family.defaults(traits);
    let latent_rgb = latent_rgb.or_else(|| LatentRgb::of_family(family, vae));
    let defaults = Defaults {
        width: own.width.unwrap_or(size.0),
        height: own.height.unwrap_or(size.1),
        steps: own.steps.unwrap_or(steps),
        cfg_scale: own.cfg_scale.unwrap_or(cfg_scale),
        guidance: guidance.map(|guidance| own.guidance.unwrap_or(guidance)),
        strength,
        mask_strength,
        edits,
    };
    Ok((defaults, latent_rgb))
}
