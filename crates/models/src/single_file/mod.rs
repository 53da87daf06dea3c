//! A checkpoint in one file: its components, their naming schemes, and the kind of model.

pub(crate) mod configs;
pub(crate) mod kept;
pub(crate) mod kind;
#[cfg(test)]
mod tests;
mod vae_config;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_families::{
    ComponentKind, FAMILIES, FamilyRef, FileDenoiser, FileText, prefixes, prefixes_of_kind, text_components,
};
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

/// A denoiser in a file.
#[derive(Clone)]
pub(crate) enum DenoiserPart {
    /// A U-Net with CompVis' names.
    Ldm(FilePart<UnetShape>),
    /// The prefix of a U-Net with diffusers' names.
    Diffusers(&'static str),
    /// A denoiser that its family recognizes.
    OfFamily(FamilyRef, FilePart<FileDenoiser>),
}

/// An open checkpoint and its components.
#[derive(Clone)]
pub(crate) struct SingleFile {
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) denoiser: Option<DenoiserPart>,
    pub(crate) vae: Option<FilePart<VaeShape>>,
    /// The text encoders.
    pub(crate) texts: Vec<(ComponentKind, FilePart<FileText>)>,
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
        let vae = prefixes_of_kind(ComponentKind::Vae)
            .into_iter()
            .find_map(|prefix| Some(FilePart { prefix, shape: VaeShape::read(&below(prefix))? }));
        let (denoiser, texts) = (denoiser(&below), texts(&below));
        Ok(Self { path: path.to_path_buf(), checkpoint, denoiser, vae, texts })
    }

    /// The place in [`Self::texts`] of the text encoder that a model has in `folder`.
    pub(crate) fn text_of(&self, folder: &str, kind: ComponentKind) -> Option<usize> {
        let prefixes = prefixes(folder, kind);
        let place = |prefix: &str| self.texts.iter().position(|(own, part)| *own == kind && part.prefix == prefix);
        prefixes.into_iter().find_map(place)
    }

    /// The place of the only text encoder of this kind.
    pub(crate) fn only_text(&self, kind: ComponentKind) -> Option<usize> {
        let mut places = self.texts.iter().enumerate().filter(|(_, (own, _))| *own == kind).map(|(place, _)| place);
        places.next().filter(|_| places.next().is_none())
    }

    /// The shape of the encoder of CLIP that a model has in `folder`.
    pub(crate) fn clip_of(&self, folder: &str) -> Option<&ClipShape> {
        self.texts.get(self.text_of(folder, ComponentKind::Clip)?)?.1.shape.clip()
    }

    fn below(&self, prefix: &str) -> Subset<Arc<Checkpoint>> {
        Subset::new(self.checkpoint.clone(), prefix)
    }

    /// The denoiser under the names that networks declare.
    pub(crate) fn denoiser(&self) -> Option<Box<dyn ParamSource>> {
        Some(match self.denoiser.as_ref()? {
            DenoiserPart::Ldm(FilePart { prefix, shape }) => Box::new(Named::new(self.below(prefix), shape.names())),
            DenoiserPart::Diffusers(prefix) => Box::new(self.below(prefix)),
            DenoiserPart::OfFamily(_, FilePart { prefix, shape }) => {
                Box::new(Named::new(self.below(prefix), shape.names.clone()))
            }
        })
    }

    /// The shape of a U-Net with CompVis' names.
    pub(crate) fn unet_shape(&self) -> Option<&UnetShape> {
        match self.denoiser.as_ref()? {
            DenoiserPart::Ldm(FilePart { shape, .. }) => Some(shape),
            DenoiserPart::Diffusers(_) | DenoiserPart::OfFamily(..) => None,
        }
    }

    /// A denoiser that its family recognizes.
    pub(crate) fn of_family(&self) -> Option<(FamilyRef, &FileDenoiser)> {
        match self.denoiser.as_ref()? {
            DenoiserPart::OfFamily(family, part) => Some((*family, &part.shape)),
            DenoiserPart::Ldm(_) | DenoiserPart::Diffusers(_) => None,
        }
    }

    /// The autoencoder under the names that networks declare.
    pub(crate) fn vae(&self) -> Option<Box<dyn ParamSource>> {
        let FilePart { prefix, shape } = self.vae.as_ref()?;
        Some(Box::new(Named::new(self.below(prefix), shape.names())))
    }

    /// The text encoder at this place of [`Self::texts`] under the names that networks declare.
    pub(crate) fn text_encoder(&self, i: usize) -> Option<Box<dyn ParamSource>> {
        let (_, FilePart { prefix, shape }) = self.texts.get(i)?;
        Some(Box::new(Named::new(self.below(prefix), shape.names())))
    }

    /// The tensors that belong to no component and are not remains of training, sorted.
    pub(crate) fn unexpected(&self) -> Vec<String> {
        let mut known = BTreeSet::new();
        let mut add = |prefix: &str, names: &dyn Fn(&str) -> bool| {
            let keys = self.checkpoint.keys().into_iter();
            known.extend(keys.filter(|key| key.strip_prefix(prefix).is_some_and(names)));
        };
        match &self.denoiser {
            Some(DenoiserPart::Ldm(FilePart { prefix, shape })) => {
                let names = shape.names();
                add(prefix, &|name| !names.declared(name).is_empty());
            }
            Some(DenoiserPart::Diffusers(prefix)) => add(prefix, &|_| true),
            Some(DenoiserPart::OfFamily(_, FilePart { prefix, shape })) => {
                add(prefix, &|name| !shape.names.declared(name).is_empty());
            }
            None => {}
        }
        if let Some(FilePart { prefix, shape }) = &self.vae {
            let names = shape.names();
            add(prefix, &|name| !names.declared(name).is_empty());
        }
        for (_, FilePart { prefix, shape }) in &self.texts {
            let names = shape.names();
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

/// The denoiser of a file whose tensors `below` has without a prefix.
fn denoiser(below: &dyn Fn(&'static str) -> Subset<Arc<Checkpoint>>) -> Option<DenoiserPart> {
    let unets = prefixes_of_kind(ComponentKind::Unet);
    let ldm = unets.iter().find_map(|&prefix| Some(FilePart { prefix, shape: UnetShape::read(&below(prefix))? }));
    let diffusers = || {
        let is_unet = |source: &dyn ParamSource| {
            DIFFUSERS_UNET.iter().chain(&["conv_norm_out.weight"]).all(|key| source.info(key).is_some())
        };
        unets.iter().copied().find(|&prefix| is_unet(&below(prefix)))
    };
    let of_family = || {
        prefixes_of_kind(ComponentKind::Transformer).into_iter().find_map(|prefix| {
            let source = below(prefix);
            let read = |family: &FamilyRef| Some((*family, family.read_denoiser(&source)?));
            let (family, shape) = FAMILIES.iter().find_map(read)?;
            Some(DenoiserPart::OfFamily(family, FilePart { prefix, shape }))
        })
    };
    ldm.map(DenoiserPart::Ldm).or_else(|| diffusers().map(DenoiserPart::Diffusers)).or_else(of_family)
}

/// The text encoders of a file, as [`denoiser`].
fn texts(below: &dyn Fn(&'static str) -> Subset<Arc<Checkpoint>>) -> Vec<(ComponentKind, FilePart<FileText>)> {
    let mut kinds: Vec<ComponentKind> = Vec::new();
    for component in text_components() {
        if !kinds.contains(&component.kind) {
            kinds.push(component.kind);
        }
    }
    let mut all = Vec::new();
    for kind in kinds {
        for prefix in prefixes_of_kind(kind) {
            let source = below(prefix);
            let shape =
                FAMILIES.iter().filter(|family| family.runs()).find_map(|family| family.read_text(kind, &source));
            all.extend(shape.map(|shape| (kind, FilePart { prefix, shape })));
        }
    }
    all
}
