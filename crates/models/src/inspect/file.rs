//! Inspection of one checkpoint file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_families::{TextPart, Variant, held_networks, of_class, of_unet};
use kiln_vae::{Decoder, VaeConfig};
use kiln_weights::{ParamSource, Segments, mismatches};
use serde::Serialize;
use serde_json::Value;

use super::{LoraNotes, Stored, stored};
use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::model::INDEX;
use crate::single_file::SingleFile;
use crate::single_file::configs::configs;
use crate::single_file::kept::{self, Kept};
use crate::single_file::kind::{self, ModelInput, Prediction};

/// The contents of a checkpoint file.
#[derive(Debug, Clone, Serialize)]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, including the header.
    pub bytes: u64,
    /// Its format: safetensors, GGUF or PyTorch's.
    pub format: &'static str,
    /// Its kind, by tensor names.
    pub kind: FileKind,
    /// The model, if the file has a U-Net with the names of a single-file checkpoint.
    pub model: Option<FileModel>,
    /// Other networks in a file of a family that Kiln does not run, with their articles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<&'static str>,
    /// The metadata of a LoRA, if it is one.
    pub lora: Option<LoraNotes>,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of elements.
    pub parameters: usize,
    /// The stored types.
    pub stored: Vec<Stored>,
    /// The file's own notes.
    pub metadata: BTreeMap<String, String>,
    /// The files of a model folder that `kiln convert` stored in the notes: configurations and tokenizers.
    pub kept: Vec<String>,
}

/// A model in a file.
#[derive(Debug, Clone, Serialize)]
pub struct FileModel {
    /// The variant of its family.
    pub kind: Variant,
    /// The inputs of its U-Net in addition to latents.
    pub input: ModelInput,
    /// The prediction type of its U-Net.
    pub prediction: Prediction,
    /// A distillation that the file's name or notes contain; tensors do not show it.
    pub distilled: Option<&'static str>,
    /// The components in the file.
    pub parts: Vec<&'static str>,
    /// Missing tensors and tensors with wrong shapes: the model cannot be loaded with any of them.
    pub problems: Vec<String>,
    /// Tensors that belong to no known component.
    pub unexpected: Vec<String>,
}

pub(crate) fn report(path: &Path) -> Result<FileReport> {
    let file = SingleFile::open(path)?;
    let (keys, notes) = (file.checkpoint.keys(), file.checkpoint.metadata());
    let stored = stored(keys.iter().filter_map(|key| file.checkpoint.info(key)));
    let kind = match FileKind::of(file.checkpoint.as_ref()) {
        // A U-Net file with the names of a whole model.
        FileKind::Checkpoint if file.vae.is_none() && file.texts.is_empty() => FileKind::Unet,
        kind => kind,
    };
    Ok(FileReport {
        path: path.to_path_buf(),
        bytes: std::fs::metadata(path).map_err(Error::read(path))?.len(),
        format: file.checkpoint.format().label(),
        kind,
        held: match kind {
            FileKind::Foreign(_) => held_networks(file.checkpoint.as_ref()),
            _ => Vec::new(),
        },
        lora: (kind == FileKind::Lora)
            .then(|| LoraNotes::of(notes, &keys, &|key| Some(file.checkpoint.info(key)?.shape))),
        model: model(&file).filter(|_| !matches!(kind, FileKind::Foreign(_))),
        tensors: keys.len(),
        parameters: stored.iter().map(|stored| stored.parameters).sum(),
        stored,
        metadata: notes.clone().into_iter().filter(|(key, _)| !kept::is_note(key)).collect(),
        kept: Kept::of(notes).files.into_keys().collect(),
    })
}

fn model(file: &SingleFile) -> Option<FileModel> {
    let (variant, input, family) = match (file.unet_shape(), file.of_family()) {
        (Some(shape), _) => (of_unet(shape).variant(shape), ModelInput::of(shape), of_unet(shape)),
        (None, Some((family, denoiser))) => (denoiser.variant, ModelInput::Latents, family),
        (None, None) => return None,
    };
    let denoiser = family.denoiser_component();
    let mut parts: Vec<&'static str> = denoiser.iter().map(|component| component.kind.label()).collect();
    parts.extend(file.vae.is_some().then_some("autoencoder"));
    let mut texts = ["text encoder", "second text encoder", "third text encoder"].into_iter();
    for component in family.text_components() {
        let name = texts.next();
        parts.extend(name.filter(|_| file.text_of(component.folder, component.kind).is_some()));
    }
    let kept = Kept::of(file.checkpoint.metadata());
    let problems = match configs(file, &[]) {
        _ if !kept.is_empty() => problems(file, &|name| kept.files.get(name).cloned()),
        Ok(configs) => problems(file, &|name| configs.get(name).map(|config| config.to_string())),
        Err(_) => Vec::new(), // only a denoiser
    };
    Some(FileModel {
        kind: variant,
        input,
        prediction: kind::prediction(file),
        distilled: kind::distilled(file).map(|(kind, _)| kind.id()),
        parts,
        problems,
        unexpected: file.unexpected(),
    })
}

/// Mismatches with the networks that the shapes describe; if a network cannot be built, the reason.
fn problems(file: &SingleFile, json: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let fit = |segments: &Segments, source: Option<Box<dyn ParamSource>>| -> Vec<String> {
        let mismatches = source.map(|source| mismatches(segments, &source)).unwrap_or_default();
        mismatches.iter().map(ToString::to_string).collect()
    };
    let index = json(INDEX).and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(family) = index.as_ref().and_then(|index| of_class(index["_class_name"].as_str()?)) else {
        return problems;
    };
    let denoiser =
        family.denoiser_component().and_then(|part| json(&part.config())).map(|json| family.denoiser(&json, None));
    let denoiser = match denoiser {
        Some(Ok(config)) => config,
        Some(Err(error)) => return vec![error.to_string()],
        None => return problems,
    };
    for component in family.text_components() {
        let Some(json) = json(&component.config()) else { continue };
        let i = file.text_of(component.folder, component.kind);
        let part = family.text_encoder(component, &json);
        let part = part.map(|config| TextPart { component, config, tokenizer: None });
        problems.extend(match part.and_then(|part| family.text_stage(&[part], denoiser.as_ref())) {
            Ok(stage) => {
                let fit = |segments| fit(segments, i.and_then(|i| file.text_encoder(i)));
                stage.networks().iter().flat_map(|network| fit(network.segments)).collect()
            }
            Err(error) => vec![error.to_string()],
        });
    }
    problems.extend(fit(denoiser.build().segments(), file.denoiser()));
    problems.extend(match json("vae/config.json").map(|json| VaeConfig::from_json(&json)) {
        None => Vec::new(),
        Some(Ok(config)) => fit(Decoder::new(&config).segments(), file.vae()),
        Some(Err(error)) => vec![error.to_string()],
    });
    problems
}
