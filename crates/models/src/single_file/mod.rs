//! A checkpoint in one file: its components, their naming schemes, and the kind of model.

pub(crate) mod configs;
pub(crate) mod kept;
pub(crate) mod kind;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_families::{prefixes, text_components};
use kiln_weights::ldm::{ClipShape, Named, Subset, UnetShape, VaeShape};
use kiln_weights::{Checkpoint, ParamInfo, ParamSource};

use crate::error::Result;
use crate::file_kind::DIFFUSERS_UNET;

/// Tensors of whole models that no component needs, by prefix or suffix.
const IGNORED_PREFIXES: [&str; 16] = [
    "model_ema.",
    "alphas_cumprod",
    "betas",
    "log_one_minus_alphas_cumprod",
    "posterior_",
    "sqrt_",
    "logvar",
    "scale_factor",
    "denoiser.",
    "loss.",
    "first_stage_model.loss.",
    "control_model.",
    "lvlb_weights",
    "v_pred",
    "ztsnr",
    "depth_model.",
];
const IGNORED_SUFFIXES: [&str; 5] =
    ["position_ids", "logit_scale", "text_projection", "attn_mask", "text_projection.weight"];

/// A component of a file: the prefix of its names, and its shape.
#[derive(Debug, Clone)]
pub(crate) struct FilePart<S> {
    pub(crate) prefix: &'static str,
    pub(crate) shape: S,
}

/// A U-Net, with CompVis' names or diffusers'.
#[derive(Debug, Clone)]
pub(crate) enum UnetPart {
    Ldm(FilePart<UnetShape>),
    /// The prefix of its names.
    Diffusers(&'static str),
}

/// An open checkpoint and its components.
#[derive(Clone)]
pub(crate) struct SingleFile {
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) unet: Option<UnetPart>,
    pub(crate) vae: Option<FilePart<VaeShape>>,
    /// The text encoders by their places in [`text_components`].
    pub(crate) text: Vec<Option<FilePart<ClipShape>>>,
}

impl std::fmt::Debug for SingleFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SingleFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SingleFile {
    /// Opens a file and detects its components, by names and shapes only.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let below = |prefix: &'static str| Subset::new(checkpoint.clone(), prefix);
        let unets = prefixes("unet");
        let ldm = unets.iter().find_map(|&prefix| Some(FilePart { prefix, shape: UnetShape::read(&below(prefix))? }));
        let diffusers = || {
            let is_unet = |source: &dyn ParamSource| {
                DIFFUSERS_UNET.iter().chain(&["conv_norm_out.weight"]).all(|key| source.info(key).is_some())
            };
            unets.iter().copied().find(|&prefix| is_unet(&below(prefix)))
        };
        let unet = ldm.map(UnetPart::Ldm).or_else(|| diffusers().map(UnetPart::Diffusers));
        let vae = prefixes("vae")
            .into_iter()
            .find_map(|prefix| Some(FilePart { prefix, shape: VaeShape::read(&below(prefix))? }));
        let text = |folder: &str| {
            let part = |prefix| Some(FilePart { prefix, shape: ClipShape::read(&below(prefix))? });
            prefixes(folder).into_iter().find_map(part)
        };
        let text = text_components().into_iter().map(|component| text(component.folder)).collect();
        Ok(Self { path: path.to_path_buf(), checkpoint, unet, vae, text })
    }

    /// Text encoder `i`.
    pub(crate) fn text(&self, i: usize) -> Option<&FilePart<ClipShape>> {
        self.text.get(i)?.as_ref()
    }

    fn below(&self, prefix: &str) -> Subset<Arc<Checkpoint>> {
        Subset::new(self.checkpoint.clone(), prefix)
    }

    /// The U-Net under the names that networks declare.
    pub(crate) fn unet(&self) -> Option<Box<dyn ParamSource>> {
        Some(match self.unet.as_ref()? {
            UnetPart::Ldm(FilePart { prefix, shape }) => Box::new(Named::new(self.below(prefix), shape.names())),
            UnetPart::Diffusers(prefix) => Box::new(self.below(prefix)),
        })
    }

    /// The shape of a U-Net with CompVis' names.
    pub(crate) fn unet_shape(&self) -> Option<&UnetShape> {
        match self.unet.as_ref()? {
            UnetPart::Ldm(FilePart { shape, .. }) => Some(shape),
            UnetPart::Diffusers(_) => None,
        }
    }

    /// The autoencoder under the names that networks declare.
    pub(crate) fn vae(&self) -> Option<Box<dyn ParamSource>> {
        let FilePart { prefix, shape } = self.vae.as_ref()?;
        Some(Box::new(Named::new(self.below(prefix), shape.names())))
    }

    /// Text encoder `i` under the names that networks declare.
    pub(crate) fn text_encoder(&self, i: usize) -> Option<Box<dyn ParamSource>> {
        let FilePart { prefix, shape } = self.text(i)?;
        Some(Box::new(Named::new(self.below(prefix), shape.dialect.names())))
    }

    /// The tensors that belong to no component and are not remains of training, sorted.
    pub(crate) fn unexpected(&self) -> Vec<String> {
        let mut known = BTreeSet::new();
        let mut add = |prefix: &str, names: &dyn Fn(&str) -> bool| {
            let keys = self.checkpoint.keys().into_iter();
            known.extend(keys.filter(|key| key.strip_prefix(prefix).is_some_and(names)));
        };
        match &self.unet {
            Some(UnetPart::Ldm(FilePart { prefix, shape })) => {
                let names = shape.names();
                add(prefix, &|name| !names.declared(name).is_empty());
            }
            Some(UnetPart::Diffusers(prefix)) => add(prefix, &|_| true),
            None => {}
        }
        if let Some(FilePart { prefix, shape }) = &self.vae {
            let names = shape.names();
            add(prefix, &|name| !names.declared(name).is_empty());
        }
        for FilePart { prefix, shape } in self.text.iter().flatten() {
            let names = shape.dialect.names();
            add(prefix, &|name| !names.declared(name).is_empty());
        }
        let ignored = |key: &str| {
            IGNORED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
                || IGNORED_SUFFIXES.iter().any(|suffix| key.ends_with(suffix))
        };
        let mut unexpected = self.checkpoint.keys();
        unexpected.retain(|key| !known.contains(key) && !ignored(key));
        unexpected.sort();
        unexpected
    }

    /// The elements of a small tensor.
    fn values(&self, key: &str) -> Option<Vec<f32>> {
        let ParamInfo { shape, .. } = self.checkpoint.info(key)?;
        if shape.iter().product::<usize>() > 1 << 16 {
            return None;
        }
        self.checkpoint.data(key).ok()??.to_f32()
    }
}
