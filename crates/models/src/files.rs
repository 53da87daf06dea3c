//! The locations of a model's configurations and weights: a folder in the diffusers layout or one file, and other files
//! that replace components.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_clip::ClipPadding;
use kiln_families::{
    Component as ComponentSpec, ComponentKind, FAMILIES, FamilyRef, SD, TokenizerFiles, held_networks, of_class,
    text_components,
};
use kiln_network::DenoiserConfig;
use kiln_weights::ldm::ClipShape;
use kiln_weights::{
    KeyRule, MAX_CONFIG_BYTES, ParamSource, Renamed, component_files, mismatches, open_component, read_small_text,
};
use serde_json::Value;

use crate::components::Component;
use crate::convert::is_bare;
use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::foreign::ForeignModel;
use crate::inspect::{FolderContent, content_of_folder};
use crate::model::INDEX;
use crate::single_file::SingleFile;
use crate::single_file::configs::{Configs, clip_padding, configs, unet_config};
use crate::single_file::kept::Kept;
use crate::single_file::kind::{self, Prediction};

/// Overrides of the contents of a model's folder or file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// A folder in the diffusers layout with the configurations and optionally the tokenizers, for a model in one file
    /// whose tensor shapes do not determine everything. Its weights may be missing.
    pub config: Option<PathBuf>,
    /// The prediction type of the denoiser.
    pub prediction: Option<Prediction>,
    /// A denoiser instead of the model's: a checkpoint file, or a component's folder.
    pub unet: Option<PathBuf>,
    /// An autoencoder instead of the model's: a checkpoint file, or a component's folder.
    pub vae: Option<PathBuf>,
    /// Text encoders that replace those of the same width: checkpoint files.
    pub text_encoders: Vec<PathBuf>,
    /// Whether a model that can do without T5 runs without it.
    pub no_t5: bool,
}

/// A model's files. Clones share the open files.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    path: PathBuf,
    base: Base,
    config: Option<PathBuf>,
    unet: Option<ComponentSource>,
    vae: Option<ComponentSource>,
    text_files: Vec<Arc<SingleFile>>,
    /// Replacements of text encoders by their places: a file, and the index of the encoder in it.
    replaced: BTreeMap<usize, (Arc<SingleFile>, usize)>,
    /// The text encoders of the model: of its family's those that it has.
    texts: Vec<&'static ComponentSpec>,
    family: FamilyRef,
    /// The denoiser of the model's family.
    denoiser: &'static ComponentSpec,
}

#[derive(Debug, Clone)]
enum Base {
    Folder,
    /// With the configurations that are derived from its shapes or stored in its notes.
    File(Arc<SingleFile>, Arc<Configs>, Arc<Kept>),
}

#[derive(Debug, Clone)]
enum ComponentSource {
    Folder(PathBuf),
    File(Arc<SingleFile>),
}

impl ComponentSource {
    fn open(path: &Path, component: ComponentKind) -> Result<Self> {
        if !path.exists() {
            return Err(Error::NoComponent { path: path.to_path_buf(), component });
        }
        if path.is_dir() {
            if let FolderContent::Network(FileKind::Foreign(model)) = content_of_folder(path) {
                return Err(Error::Foreign { path: path.to_path_buf(), model, held: Vec::new() });
            }
            return Ok(Self::Folder(path.to_path_buf()));
        }
        let file = SingleFile::open(path)?;
        refuse_foreign(&file)?;
        Ok(Self::File(Arc::new(file)))
    }
}

/// Refuses a file of a family that Kiln does not run.
fn refuse_foreign(file: &SingleFile) -> Result<()> {
    match ForeignModel::of(file.checkpoint.as_ref()) {
        Some(model) => {
            Err(Error::Foreign { path: file.path.clone(), model, held: held_networks(file.checkpoint.as_ref()) })
        }
        None => Ok(()),
    }
}

fn no_component(path: &Path, what: &str) -> Error {
    Error::model(path, format!("has no {what} with known tensor names"))
}

impl ModelFiles {
    /// Opens the model and the files in `options`. Only the tensor tables of the files are read.
    pub(crate) fn open(path: &Path, options: &ModelOptions) -> Result<Self> {
        let part = |path: &Option<PathBuf>, component| {
            path.as_deref().map(|path| ComponentSource::open(path, component)).transpose()
        };
        let (unet, vae) = (part(&options.unet, ComponentKind::Unet)?, part(&options.vae, ComponentKind::Vae)?);
        let text_file = |path: &PathBuf| match ComponentSource::open(path, ComponentKind::Clip)? {
            ComponentSource::File(file) => Ok(file),
            ComponentSource::Folder(path) => {
                Err(Error::model(&path, "is a folder, expected a checkpoint file with a text encoder"))
            }
        };
        let text_files = options.text_encoders.iter().map(text_file).collect::<Result<Vec<_>>>()?;
        let base = match path.is_dir() {
            true => Base::Folder,
            false => {
                let file = SingleFile::open(path)?;
                refuse_foreign(&file)?;
                let kept = match &options.config {
                    Some(_) => Kept::default(),
                    None => Kept::of(file.checkpoint.metadata()),
                };
                let derived = match (&options.config, &vae) {
                    _ if !kept.is_empty() => Configs::new(),
                    (Some(_), _) => Configs::new(),
                    (None, Some(ComponentSource::File(vae))) => {
                        configs(&file, &[&text_files, std::slice::from_ref(vae)].concat())?
                    }
                    (None, _) => configs(&file, &text_files)?,
                };
                Base::File(Arc::new(file), Arc::new(derived), Arc::new(kept))
            }
        };
        let (path, config) = (path.to_path_buf(), options.config.clone());
        let (family, replaced, texts) = (SD, BTreeMap::new(), text_components());
        let denoiser = denoiser_of(family);
        Ok(Self { path, base, config, unet, vae, text_files, replaced, texts, family, denoiser })
    }

    /// Sets the text encoders that the model has.
    pub(crate) fn set_texts(&mut self, texts: Vec<&'static ComponentSpec>) {
        self.texts = texts;
    }

    /// Sets the family of the model. Returns the name of the denoiser's configuration.
    pub(crate) fn set_family(&mut self, family: FamilyRef) -> String {
        (self.family, self.denoiser) = (family, denoiser_of(family));
        self.denoiser.config()
    }

    /// Finds the model's family by its index, or by the configurations that exist, and its text encoders.
    pub(crate) fn find_family(&mut self) {
        let index: Option<Value> = self.config(INDEX).ok().and_then(|text| serde_json::from_str(&text).ok());
        let by_index = index.as_ref().and_then(|index| of_class(index["_class_name"].as_str()?));
        let texts = |family: FamilyRef| -> Vec<&'static ComponentSpec> {
            let texts = family.text_components().into_iter();
            texts.filter(|text| self.has_config(&text.config())).collect()
        };
        let runs = FAMILIES.iter().copied().filter(|family| family.runs());
        let by_configs = || {
            let mut best = (SD, 0);
            for family in runs.filter(|&family| self.has_config(&denoiser_of(family).config())) {
                let count = texts(family).len();
                if count > best.1 {
                    best = (family, count);
                }
            }
            best.0
        };
        let family = by_index.unwrap_or_else(by_configs);
        let texts = texts(family);
        self.set_family(family);
        if !texts.is_empty() {
            self.texts = texts;
        }
    }

    /// The family of the model.
    pub(crate) fn family(&self) -> FamilyRef {
        self.family
    }

    /// Whether the model is a single file of another program that has this text encoder.
    pub(crate) fn is_in_file(&self, text: &ComponentSpec) -> bool {
        match &self.base {
            Base::File(file, _, kept) => kept.is_empty() && file.text_of(text.folder, text.kind).is_some(),
            Base::Folder => false,
        }
    }

    /// The place of text encoder `i` in `file`: by its prefix, or the only one if the model has one of its kind.
    fn place_in(&self, file: &SingleFile, i: usize) -> Option<usize> {
        let text = self.text(i)?;
        let of_kind = |other: &&&'static ComponentSpec| other.kind == text.kind;
        let is_only = self.texts.iter().filter(of_kind).count() == 1;
        file.text_of(text.folder, text.kind).or_else(|| file.only_text(text.kind).filter(|_| is_only))
    }

    /// The denoiser of the model.
    pub(crate) fn denoiser(&self) -> &'static ComponentSpec {
        self.denoiser
    }

    /// The text encoders of the model, in the order in which their channels are joined.
    pub(crate) fn texts(&self) -> &[&'static ComponentSpec] {
        &self.texts
    }

    /// The folder of text encoder `i`.
    pub(crate) fn text_folder(&self, i: usize) -> &'static str {
        self.text(i).map_or("text_encoder", |text| text.folder)
    }

    /// The folder of the tokenizer of text encoder `i`.
    pub(crate) fn tokenizer_folder(&self, i: usize) -> &'static str {
        self.text(i).and_then(|text| text.tokenizer).unwrap_or("tokenizer")
    }

    /// Text encoder `i`, or the last one.
    fn text(&self, i: usize) -> Option<&'static ComponentSpec> {
        self.texts.get(i).or(self.texts.last()).copied()
    }

    /// The file that contains the configuration `name`, for messages: a single file contains all of them.
    pub fn config_path(&self, name: &str) -> PathBuf {
        match (&self.config, &self.base) {
            (Some(folder), _) => folder.join(name),
            (None, Base::Folder) => self.path.join(name),
            (None, Base::File(..)) => self.path.clone(),
        }
    }

    /// The text of a configuration, or `None` if a single file does not have it.
    pub(crate) fn config(&self, name: &str) -> Result<String> {
        match &self.base {
            Base::File(_, configs, kept) if self.config.is_none() => {
                let found = kept.files.get(name).cloned().or_else(|| configs.get(name).map(Value::to_string));
                found.ok_or_else(|| Error::model(&self.path, format!("has no component for `{name}`")))
            }
            _ => read(&self.config_path(name)),
        }
    }

    /// The text of the model's own defaults, if it has one, and the path of its file.
    pub(crate) fn defaults(&self, name: &str) -> Result<Option<(PathBuf, String)>> {
        let path = self.config_path(name);
        if let Base::File(_, _, kept) = &self.base
            && self.config.is_none()
        {
            return Ok(kept.files.get(name).map(|text| (path, text.clone())));
        }
        if !path.exists() {
            return Ok(None);
        }
        let text = read_small_text(&path, MAX_CONFIG_BYTES).map_err(Error::read(&path))?;
        Ok(Some((path, text)))
    }

    /// Whether the configurations are in the model's own folder.
    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.base, Base::Folder) && self.config.is_none()
    }

    /// Whether the configurations come from a folder, and were not derived from tensors.
    pub(crate) fn has_own_configs(&self) -> bool {
        match &self.base {
            Base::Folder => true,
            Base::File(_, _, kept) => self.config.is_some() || !kept.is_empty(),
        }
    }

    /// Whether the tensor names of text encoder `i` lack, or in their folder lacked, `text_model.`.
    pub(crate) fn is_bare(&self, i: usize) -> Result<bool> {
        match (self.replaced.get(&i), &self.base) {
            (None, Base::Folder) => is_bare(&self.path.join(self.text_folder(i))),
            (None, Base::File(_, _, kept)) => Ok(kept.bare.contains(self.text_folder(i))),
            (Some(_), _) => Ok(false),
        }
    }

    /// The checkpoint, if the model is one.
    pub(crate) fn single(&self) -> Option<&SingleFile> {
        match &self.base {
            Base::Folder => None,
            Base::File(file, ..) => Some(file),
        }
    }

    /// The configuration of the denoiser that replaces `base`'s: `base` itself if the tensors match it, because it
    /// contains more than the shapes show. `pooled` are the channels of the pooled text.
    pub(crate) fn denoiser_config(
        &self,
        family: FamilyRef,
        base: Arc<dyn DenoiserConfig>,
        (pooled, prediction): (usize, Option<Prediction>),
    ) -> Result<Arc<dyn DenoiserConfig>> {
        match &self.unet {
            None => Ok(base),
            Some(ComponentSource::Folder(folder)) => {
                let path = folder.join("config.json");
                family.denoiser(&read(&path)?, Some(pooled)).map_err(|error| Error::model(&path, error))
            }
            Some(ComponentSource::File(file)) => {
                let source = file.denoiser().ok_or_else(|| no_component(&file.path, self.denoiser.kind.label()))?;
                let fits = mismatches(base.build().segments(), &source).is_empty();
                let unet = || {
                    let prediction = prediction.unwrap_or_else(|| kind::prediction(file));
                    Some(unet_config(file.unet_shape()?, prediction))
                };
                let of_family = || file.of_family().map(|(_, denoiser)| denoiser.config.clone());
                match unet().or_else(of_family).filter(|_| !fits) {
                    None => Ok(base), // if it does not match, loading names the tensor
                    Some(json) => family
                        .denoiser(&json.to_string(), Some(pooled))
                        .map_err(|error| Error::model(&file.path, error)),
                }
            }
        }
    }

    /// Replaces text encoders by the given ones of the same kind and width; `widths` are the model's.
    pub(crate) fn replace_text_encoders(&mut self, widths: &[usize]) -> Result<()> {
        for file in &self.text_files {
            let mut used = false;
            for (i, (kind, part)) in file.texts.iter().enumerate() {
                let own = |(text, &width): (&&ComponentSpec, &usize)| text.kind == *kind && width == part.shape.width();
                if let Some(place) = self.texts.iter().zip(widths).position(own) {
                    self.replaced.insert(place, (file.clone(), i));
                    used = true;
                }
            }
            if !used {
                let problem = format!("has no text encoder of {widths:?} channels, the width of the model's");
                return Err(Error::model(&file.path, problem));
            }
        }
        Ok(())
    }

    /// The denoiser's weights.
    pub fn denoiser_weights(&self) -> Result<Box<dyn ParamSource>> {
        match (&self.unet, &self.base) {
            (Some(ComponentSource::Folder(folder)), _) => Ok(open_component(folder)?),
            (Some(ComponentSource::File(file)), _) | (None, Base::File(file, ..)) => {
                file.denoiser().ok_or_else(|| no_component(&file.path, self.denoiser.kind.label()))
            }
            (None, Base::Folder) => Ok(open_component(&self.path.join(self.denoiser.folder))?),
        }
    }

    /// The files of the denoiser's weights; empty if its folder cannot be read.
    pub fn denoiser_files(&self) -> Vec<PathBuf> {
        let of_folder = |folder: &Path| component_files(folder).unwrap_or_default();
        match (&self.unet, &self.base) {
            (Some(ComponentSource::Folder(folder)), _) => of_folder(folder),
            (Some(ComponentSource::File(file)), _) | (None, Base::File(file, ..)) => vec![file.path.clone()],
            (None, Base::Folder) => of_folder(&self.path.join(self.denoiser.folder)),
        }
    }

    /// The autoencoder's weights.
    pub fn vae(&self) -> Result<Box<dyn ParamSource>> {
        let source = match (&self.vae, &self.base) {
            (Some(ComponentSource::Folder(folder)), _) => open_component(folder)?,
            (Some(ComponentSource::File(file)), _) | (None, Base::File(file, ..)) => {
                file.vae().ok_or_else(|| no_component(&file.path, "autoencoder (VAE)"))?
            }
            (None, Base::Folder) => open_component(&self.path.join("vae"))?,
        };
        Ok(Box::new(Renamed::new(source, KeyRule::VAE_ATTENTION)))
    }

    /// The weights of text encoder `i`.
    pub fn text_encoder(&self, i: usize) -> Result<Box<dyn ParamSource>> {
        let source = match (self.replaced.get(&i), &self.base) {
            (Some((file, i)), _) => file.text_encoder(*i).ok_or_else(|| no_component(&file.path, "text encoder"))?,
            (None, Base::File(file, ..)) => {
                let found = self.place_in(file, i).and_then(|place| file.text_encoder(place));
                found.ok_or_else(|| no_component(&file.path, "text encoder"))?
            }
            (None, Base::Folder) => open_component(&self.path.join(self.text_folder(i)))?,
        };
        let rules = match self.text(i).map(|text| text.kind) {
            Some(ComponentKind::T5) => KeyRule::T5_TABLE,
            Some(ComponentKind::LanguageModel) => KeyRule::LANGUAGE_MODEL,
            _ => KeyRule::TEXT_MODEL,
        };
        Ok(Box::new(Renamed::new(source, rules)))
    }

    /// The weights of a network.
    ///
    /// # Errors
    /// If it has no weights, or they cannot be read.
    pub fn weights(&self, component: Component) -> Result<Box<dyn ParamSource>> {
        match component {
            Component::TextEncoder(i) => self.text_encoder(i),
            Component::Denoiser => self.denoiser_weights(),
            Component::Vae => self.vae(),
        }
    }

    /// The location of the tokenizer of text encoder `i`: a folder, the notes of the file, or the program. The padding of CLIP's
    /// depends on the origin of the encoder. `None` if the encoder needs none.
    pub(crate) fn tokenizer_files(&self, i: usize) -> Option<TokenizerFiles> {
        let text = self.text(i)?;
        let name = text.tokenizer?;
        let folder = self.config.as_ref().unwrap_or(&self.path).join(name);
        let Base::File(file, _, kept) = &self.base else { return Some(TokenizerFiles::Folder(folder)) };
        if folder.is_dir() {
            return Some(TokenizerFiles::Folder(folder));
        }
        if let Some(texts) = kept.tokenizer(name).filter(|_| !self.replaced.contains_key(&i)) {
            return Some(TokenizerFiles::Kept { origin: self.path.clone(), texts });
        }
        let (file, place) = match self.replaced.get(&i) {
            Some((file, place)) => (file, Some(*place)),
            None => (file, self.place_in(file, i)),
        };
        let shape = place.and_then(|place| file.texts.get(place)).and_then(|(_, part)| part.shape.clip());
        let padding = |shape: &ClipShape| clip_padding(shape.dialect, shape.hidden_size);
        let padding = shape.map_or(ClipPadding::End, padding);
        self.family.built_in_tokenizer(text.kind, padding).map(TokenizerFiles::BuiltIn)
    }

    /// Whether the configuration `name` exists.
    pub(crate) fn has_config(&self, name: &str) -> bool {
        match &self.base {
            Base::File(_, configs, kept) if self.config.is_none() => {
                kept.files.contains_key(name) || configs.contains_key(name)
            }
            _ => self.config_path(name).exists(),
        }
    }

    /// The tensors of a single file that belong to no part of a model.
    pub(crate) fn unexpected(&self) -> Vec<String> {
        match &self.base {
            Base::Folder => Vec::new(),
            Base::File(file, ..) => file.unexpected(),
        }
    }
}

/// The denoiser of a family; that of Stable Diffusion for a family without networks.
fn denoiser_of(family: FamilyRef) -> &'static ComponentSpec {
    family.denoiser_component().or_else(|| SD.denoiser_component()).unwrap_or(&FAMILIES[0].components()[0])
}

fn read(path: &Path) -> Result<String> {
    if !path.exists() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        return Err(Error::not_found(
            path.to_path_buf(),
            format!("{name}, required by the pipeline class in model_index.json"),
        ));
    }
    read_small_text(path, MAX_CONFIG_BYTES).map_err(Error::read(path))
}
