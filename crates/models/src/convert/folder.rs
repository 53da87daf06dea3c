//! Writing a model as a folder in the diffusers layout.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_families::{FAMILIES, TokenizerFiles};
use kiln_files::remove_orphans;
use kiln_weights::{NewTensor, read_small, write_safetensors};

use super::WeightType;
use super::keep::MAX_TOKENIZER_FILE;
use super::parts::{ConvertedComponent, ConvertedModel};
use super::write::{NewFolder, Proceed, replace};
use crate::error::{Error, Result};
use crate::files::ModelFiles;

/// Writes the folder and returns the number of its tensors. The files of an existing folder are replaced one by one; a
/// new folder appears with all files at once.
pub(super) fn write(
    files: &ModelFiles,
    parts: &ConvertedModel,
    folder: &Path,
    weight_type: WeightType,
    proceed: Proceed<'_>,
) -> Result<usize> {
    if folder.exists() {
        let components = FAMILIES.iter().flat_map(|family| family.components());
        let folders = components.flat_map(|part| [Some(part.folder), part.tokenizer]).flatten();
        folders.chain(["", "scheduler"]).for_each(|name| remove_orphans(&folder.join(name)));
        return write_into(files, parts, folder, weight_type, proceed);
    }
    let new = NewFolder::new_for(folder)?;
    let count = write_into(files, parts, new.path(), weight_type, proceed)?;
    new.finish()?;
    Ok(count)
}

fn write_into(
    files: &ModelFiles,
    parts: &ConvertedModel,
    folder: &Path,
    weight_type: WeightType,
    proceed: Proceed<'_>,
) -> Result<usize> {
    let mut count = 0;
    let mut weights = |part: &ConvertedComponent, path: &str, is_bare: bool| -> Result<()> {
        count += part.keys.len();
        part_file(part, &folder.join(path), weight_type, is_bare, proceed)
    };
    let denoiser = files.denoiser();
    weights(&parts.denoiser, &format!("{}/diffusion_pytorch_model.safetensors", denoiser.folder), false)?;
    weights(&parts.vae, "vae/diffusion_pytorch_model.safetensors", false)?;
    for (i, text) in parts.text.iter().enumerate() {
        let name = files.text_folder(i);
        weights(&text.part, &format!("{name}/model.safetensors"), files.is_bare(i)?)?;
    }
    let text_file = |path: &Path, text: &str| bytes_file(path, text.as_bytes(), proceed);
    for name in ["model_index.json", &denoiser.config(), "vae/config.json", "scheduler/scheduler_config.json"] {
        text_file(&folder.join(name), &pretty(files.config(name)?))?;
    }
    if let Some((_, text)) = files.defaults("kiln.json")? {
        text_file(&folder.join("kiln.json"), &text)?;
    }
    for i in 0..parts.text.len() {
        let (name, tokenizer) = (files.text_folder(i), files.tokenizer_folder(i));
        let config = format!("{name}/config.json");
        text_file(&folder.join(&config), &pretty(files.config(&config)?))?;
        match files.tokenizer_files(i) {
            None => {}
            Some(TokenizerFiles::Folder(from)) => {
                for entry in std::fs::read_dir(&from).map_err(Error::read(&from))? {
                    let from = entry.map_err(Error::read(&from))?.path();
                    let Some(name) = from.file_name().filter(|_| from.is_file()) else { continue };
                    let text = read_small(&from, MAX_TOKENIZER_FILE).map_err(Error::read(&from))?;
                    bytes_file(&folder.join(tokenizer).join(name), &text, proceed)?;
                }
            }
            Some(TokenizerFiles::Kept { texts, .. }) => {
                for (name, text) in texts {
                    text_file(&folder.join(tokenizer).join(name), &text)?;
                }
            }
            Some(TokenizerFiles::BuiltIn(own)) => {
                for (name, text) in own.files()? {
                    text_file(&folder.join(tokenizer).join(name), &text)?;
                }
            }
        }
    }
    Ok(count)
}

fn part_file(
    part: &ConvertedComponent,
    path: &Path,
    weight_type: WeightType,
    is_bare: bool,
    proceed: Proceed<'_>,
) -> Result<()> {
    let tensor = |key: &'_ String| -> Result<NewTensor<'_>> {
        let info = part.info(key)?;
        let dtype = weight_type.of(info.dtype, key, &info.shape, false);
        let key = key.clone();
        let name = if is_bare { key.strip_prefix("text_model.").unwrap_or(&key).to_string() } else { key.clone() };
        let bytes = move || {
            let bytes = part.bytes(&key, dtype);
            part.source.release(&key);
            bytes
        };
        Ok(NewTensor { name, shape: info.shape, dtype, bytes: Box::new(bytes) })
    };
    let tensors = part.keys.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let notes = BTreeMap::from([("format".into(), "pt".into())]);
    make_folder(path)?;
    replace(path, proceed, |file| write_safetensors(file, tensors, &notes))
}

/// A configuration with the indentation of diffusers, or the original text if it is not JSON (Python's infinities).
fn pretty(text: String) -> String {
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(value) if !text.contains('\n') => format!("{value:#}\n"),
        _ => text,
    }
}

/// Creates the folder of a file.
fn make_folder(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |folder| std::fs::create_dir_all(folder).map_err(Error::write(folder)))
}

fn bytes_file(path: &Path, bytes: &[u8], proceed: Proceed<'_>) -> Result<()> {
    make_folder(path)?;
    replace(path, proceed, |file| file.write_all(bytes).map_err(kiln_weights::Error::Write))
}
