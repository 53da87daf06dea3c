//! Writing a model into a folder of diffusers.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use kiln_clip::Tokenizer;
use kiln_weights::{NewTensor, write_safetensors};

use super::WeightType;
use super::parts::{Part, Parts};
use crate::error::{Error, Result};
use crate::model_files::{ModelFiles, TEXT_FOLDERS, TokenizerFiles};
use crate::output::{persist, temporary_beside};

/// Writes the folder, and gives the number of its tensors.
pub(super) fn write(files: &ModelFiles, parts: &Parts, folder: &Path, weight_type: WeightType) -> Result<usize> {
    let mut count = 0;
    let mut weights = |part: &Part, path: &str| -> Result<()> {
        count += part.keys.len();
        part_file(part, &folder.join(path), weight_type)
    };
    weights(&parts.unet, "unet/diffusion_pytorch_model.safetensors")?;
    weights(&parts.vae, "vae/diffusion_pytorch_model.safetensors")?;
    for ((part, _), (name, _)) in parts.text.iter().zip(TEXT_FOLDERS) {
        weights(part, &format!("{name}/model.safetensors"))?;
    }
    for name in ["model_index.json", "unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"] {
        text_file(&folder.join(name), &pretty(files.config(name)?))?;
    }
    for (i, (name, tokenizer)) in TEXT_FOLDERS.into_iter().enumerate().take(parts.text.len()) {
        let config = format!("{name}/config.json");
        text_file(&folder.join(&config), &pretty(files.config(&config)?))?;
        match files.tokenizer_files(i) {
            TokenizerFiles::Folder(from) => {
                for entry in std::fs::read_dir(&from).map_err(Error::read(&from))? {
                    let from = entry.map_err(Error::read(&from))?.path();
                    let Some(name) = from.file_name().filter(|_| from.is_file()) else { continue };
                    let text = std::fs::read(&from).map_err(Error::read(&from))?;
                    bytes_file(&folder.join(tokenizer).join(name), &text)?;
                }
            }
            TokenizerFiles::Clip(padding) => {
                for (name, text) in Tokenizer::clip_files(padding)? {
                    text_file(&folder.join(tokenizer).join(name), &text)?;
                }
            }
        }
    }
    Ok(count)
}

fn part_file(part: &Part, path: &Path, weight_type: WeightType) -> Result<()> {
    let tensor = |key: &'_ String| -> Result<NewTensor<'_>> {
        let info = part.info(key)?;
        let dtype = weight_type.of(info.dtype, &info.shape, false);
        let key = key.clone();
        let name = key.clone();
        let bytes = move || {
            let bytes = part.bytes(&key, dtype);
            part.source.release(&key);
            bytes
        };
        Ok(NewTensor { name, shape: info.shape, dtype, bytes: Box::new(bytes) })
    };
    let tensors = part.keys.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    replace(path, |file| write_safetensors(file, tensors, &BTreeMap::from([("format".into(), "pt".into())])))
}

/// A configuration as diffusers indents it; the text itself where it is no JSON (Python's infinities).
fn pretty(text: String) -> String {
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(value) if !text.contains('\n') => format!("{value:#}\n"),
        _ => text,
    }
}

fn text_file(path: &Path, text: &str) -> Result<()> {
    bytes_file(path, text.as_bytes())
}

fn bytes_file(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, |file| file.write_all(bytes).map_err(kiln_weights::Error::Write))
}

/// Writes a file under another name beside its place and puts it there at the end, so that none is ever half written.
pub(super) fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> kiln_weights::Result<()>) -> Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::write(folder))?;
    }
    let mut file = BufWriter::with_capacity(1 << 20, temporary_beside(path)?);
    write(&mut file).map_err(|error| match error {
        kiln_weights::Error::Write(source) => Error::write(path)(source),
        other => other.into(),
    })?;
    let file = file.into_inner().map_err(|error| Error::write(path)(error.into_error()))?;
    persist(file, path)
}
