//! A folder that is no model: one network with its configuration, or files and folders of several kinds.

use std::path::{Path, PathBuf};

use kiln_families::{control_of_class, of_class, of_unet};
use kiln_weights::{Checkpoint, MAX_CONFIG_BYTES, read_small_text};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::file_kind::FileKind;
use crate::foreign::ForeignModel;
use crate::inspect::LoraNotes;
use crate::locate::ENDINGS;
use crate::model::INDEX;
use crate::single_file::SingleFile;

/// The most entries that are opened.
const MOST: usize = 1000;
/// The most files of one folder in it that are opened.
const MOST_OF_FOLDER: usize = 100;

/// The models, networks and adapters in a folder, a line for each.
#[derive(Debug, Clone, Serialize)]
pub struct ListReport {
    /// The folder.
    pub path: PathBuf,
    /// Its files and folders that have one, sorted by name.
    pub entries: Vec<ListEntry>,
    /// Entries that were not opened because there are too many.
    pub left_out: usize,
    /// The pipeline, if the folder has a `model_index.json` of a family that Kiln does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<ForeignModel>,
}

/// A file or folder in a [`ListReport`].
#[derive(Debug, Clone, Serialize)]
pub struct ListEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its kind.
    pub what: String,
    /// The bytes of a file, or of the weights in a folder.
    pub bytes: u64,
}

/// The content of a folder without `model_index.json`.
pub(crate) enum FolderContent {
    /// The network that its `config.json` describes, or the only one in it.
    Network(FileKind),
    /// Files and folders with these names.
    List(Vec<String>),
}

/// The content of the folder `path`. Errors of reading are no content.
pub(crate) fn content_of_folder(path: &Path) -> FolderContent {
    if let Some(kind) = network_of_folder(path) {
        return FolderContent::Network(kind);
    }
    let (files, _) = candidates(path);
    match files.as_slice() {
        [only] if only.is_file() => match Checkpoint::open(only).map(|file| FileKind::of(&file)) {
            Ok(FileKind::Checkpoint | FileKind::Unknown) | Err(_) => FolderContent::List(names(&files)),
            Ok(kind) => FolderContent::Network(kind),
        },
        all => FolderContent::List(names(all)),
    }
}

/// The only file with weights in a folder, which a report of the folder describes.
pub(super) fn only_file(path: &Path) -> Option<PathBuf> {
    match candidates(path).0.as_slice() {
        [only] if only.is_file() => Some(only.clone()),
        _ => None,
    }
}

/// Lists the entries of a folder; `pipeline` is what its `model_index.json` names, if Kiln does not run that.
///
/// # Errors
/// [`Error::Files`] for a folder without models, networks and adapters.
pub(super) fn report(path: &Path, pipeline: Option<ForeignModel>) -> Result<ListReport> {
    let (found, left_out) = candidates(path);
    let entries: Vec<ListEntry> = found.iter().map(|path| entry(path)).collect();
    if entries.is_empty() && pipeline.is_none() {
        let looked_for = format!("{INDEX}, config.json, or files with weights ({})", ENDINGS.join(", "));
        return Err(Error::not_found(path.to_path_buf(), looked_for));
    }
    Ok(ListReport { path: path.to_path_buf(), entries, left_out, pipeline })
}

/// The files with weights and the folders with a configuration, sorted by name, and the number of those that are left out.
fn candidates(path: &Path) -> (Vec<PathBuf>, usize) {
    let is_one = |path: &PathBuf| match path.is_dir() {
        true => path.join(INDEX).is_file() || path.join("config.json").is_file() || !weights(path).is_empty(),
        false => is_weights(path),
    };
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(is_one).collect();
    found.sort();
    let left_out = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    (found, left_out)
}

fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

/// Whether a path is a regular file with an extension of weights.
pub(crate) fn is_weights(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_lowercase();
    (ENDINGS.contains(&ending.as_str()) || ending == "pth") && path.is_file()
}

/// The files with weights directly in a folder.
fn weights(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| is_weights(path)).collect()
}

fn bytes(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

fn entry(path: &Path) -> ListEntry {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if path.is_dir() {
        let parts = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let inside = parts.filter(|path| path.is_dir()).flat_map(|part| weights(&part));
        let bytes = weights(path).into_iter().chain(inside).map(|file| bytes(&file)).sum();
        return ListEntry { name: format!("{name}/"), what: folder(path), bytes };
    }
    let what = file(path).unwrap_or_else(|error| format!("cannot be read: {error}"));
    ListEntry { name, what, bytes: bytes(path) }
}

/// The kinds of the files with weights in a folder with their numbers: `2 LoRAs for Stable Diffusion 1`, `an IP-Adapter`.
fn kinds(path: &Path) -> String {
    let mut files = weights(path);
    files.sort();
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for file in files.iter().take(MOST_OF_FOLDER) {
        let kind = kind_of(file).unwrap_or_else(|_| "a file that cannot be read".into());
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let mut texts: Vec<String> = kinds.into_iter().map(|(kind, count)| several(&kind, count)).collect();
    if files.len() > MOST_OF_FOLDER {
        texts.push(format!("and {} more files", files.len() - MOST_OF_FOLDER));
    }
    texts.join(", ")
}

/// The kind of a file by the names of its tensors, of a LoRA with its model.
fn kind_of(path: &Path) -> Result<String> {
    Ok(match FileKind::of(&Checkpoint::open(path)?) {
        FileKind::Lora => lora(path),
        kind => described(kind),
    })
}

/// A LoRA with the model that it is for, if its file names one.
fn lora(path: &Path) -> String {
    let LoraNotes { base, unsupported: family, .. } = LoraNotes::read(path).unwrap_or_default();
    let name = base.map_or_else(|| "a LoRA".into(), |base| format!("a LoRA for {base}"));
    if family.is_some() { unsupported(&name) } else { name }
}

/// A name with its article as that of several: `a LoRA for X` as `2 LoRAs for X`.
fn several(name: &str, count: usize) -> String {
    let plain = name.strip_prefix("an ").or_else(|| name.strip_prefix("a ")).unwrap_or(name);
    // The noun ends before what describes it.
    let end = [" for ", " (", " in ", " that "].iter().filter_map(|word| plain.find(word)).min().unwrap_or(plain.len());
    match count {
        1 => name.into(),
        _ => format!("{count} {}s{}", &plain[..end], &plain[end..]),
    }
}

/// The kind of a file.
fn file(path: &Path) -> Result<String> {
    let file = SingleFile::open(path)?;
    let kind = FileKind::of(file.checkpoint.as_ref());
    let unet = file.unet_shape().map(|shape| of_unet(shape).variant(shape).label);
    let model = unet.or_else(|| file.of_family().map(|(_, denoiser)| denoiser.variant.label));
    Ok(match model {
        Some(model) if matches!(kind, FileKind::Checkpoint | FileKind::Unet) => format!("{}: {model}", kind.label()),
        _ if kind == FileKind::Lora => lora(path),
        _ => described(kind),
    })
}

/// A kind in a line of the list.
fn described(kind: FileKind) -> String {
    match kind {
        FileKind::Foreign(model) => unsupported(model.label()),
        kind => kind.label().into(),
    }
}

fn unsupported(what: &str) -> String {
    format!("{what}: not supported yet")
}

/// The kind of a folder.
fn folder(path: &Path) -> String {
    if let Some(class) = class_in(&path.join(INDEX)) {
        return match of_class(&class) {
            Some(family) => format!("a model folder: {}", family.label()),
            None => match ForeignModel::of_class(&class) {
                Some(model) => unsupported(model.label()),
                None => format!("a model folder of another class: {class}"),
            },
        };
    }
    match network_of_folder(path) {
        Some(kind) => described(kind),
        None => kinds(path),
    }
}

/// The network that the `config.json` of a folder describes.
fn network_of_folder(path: &Path) -> Option<FileKind> {
    let class = class_in(&path.join("config.json"))?;
    Some(match class.as_str() {
        "ControlNetModel" => FileKind::ControlNet,
        "ControlNetUnionModel" => FileKind::ControlUnion,
        "T2IAdapter" | "MultiAdapter" => FileKind::T2iAdapter,
        "UNet2DConditionModel" => FileKind::Unet,
        "AutoencoderKL" => FileKind::Vae,
        "AutoencoderTiny" => FileKind::Taesd,
        "CLIPTextModel" | "CLIPTextModelWithProjection" => FileKind::TextEncoder,
        "CLIPVisionModel" | "CLIPVisionModelWithProjection" => FileKind::ImageEncoder,
        other => match control_of_class(other) {
            Some((_, label)) => FileKind::Control(label),
            None => return ForeignModel::of_class(other).map(FileKind::Foreign),
        },
    })
}

/// The class that a configuration of diffusers or transformers names.
fn class_in(file: &Path) -> Option<String> {
    let json: Value = serde_json::from_str(&read_small_text(file, MAX_CONFIG_BYTES).ok()?).ok()?;
    let class = json["_class_name"].as_str().or_else(|| json["architectures"][0].as_str())?;
    Some(crate::error::shortened(class, 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_networks_have_a_plural() {
        for (name, expected) in [
            ("a LoRA", "2 LoRAs"),
            ("a LoRA for Stable Diffusion 1", "2 LoRAs for Stable Diffusion 1"),
            ("an IP-Adapter", "2 IP-Adapters"),
            ("an embedding (textual inversion)", "2 embeddings (textual inversion)"),
            ("a whole model in one file", "2 whole models in one file"),
        ] {
            assert_eq!((several(name, 1).as_str(), several(name, 2).as_str()), (name, expected));
        }
    }
}
