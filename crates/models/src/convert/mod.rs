//! Conversion of models between layouts: a diffusers folder, a single safetensors file, a GGUF file.
//!
//! Tensors keep their types and bits if the new format supports the type. Fused projections are joined or split as
//! bytes. Values are computed only if another type is requested or required.

mod folder;
mod keep;
mod parts;
mod single;
mod write;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kiln_files::remove_orphans;
use kiln_weights::{BlockType, StoredType};

use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::files::{ModelFiles, ModelOptions};
pub(crate) use keep::is_bare;
use parts::ConvertedModel;

/// The type of a converted model's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// Keeps the stored types.
    Keep,
    /// One type for all floating-point tensors.
    Plain(Dtype),
    /// Quantized blocks for matrices whose rows the block size divides, f32 for vectors, f16 for other weights and for
    /// token tables. Only in GGUF files.
    Blocks(BlockType),
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let block = BlockType::writable().find(|block| format!("{block:?}").to_lowercase() == text);
        match (text, block) {
            ("auto", _) => Ok(Self::Keep),
            ("f32", _) => Ok(Self::Plain(Dtype::F32)),
            ("f16", _) => Ok(Self::Plain(Dtype::F16)),
            ("bf16", _) => Ok(Self::Plain(Dtype::BF16)),
            (_, Some(block)) => Ok(Self::Blocks(block)),
            _ => {
                let blocks: Vec<_> = BlockType::writable().map(|block| format!("{block:?}").to_lowercase()).collect();
                Err(format!("expected auto, f32, f16, bf16 or, for GGUF, {}", blocks.join(", ")))
            }
        }
    }
}

/// The layout of a converted model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Folder,
    Safetensors,
    Gguf,
}

/// The result of a conversion.
#[derive(Debug, Clone)]
pub struct Converted {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The number of tensors that were written.
    pub tensors: usize,
    /// Tensors of the input that belong to no part of a model and were not written.
    pub left_out: Vec<String>,
    /// Tokenizers that do not fit into a single file. To use the file, set [`ModelOptions::config`] to the folder that
    /// contains them.
    pub not_kept: Vec<String>,
}

/// Converts the model at `input` to `output`: a file if the name ends in `.safetensors` or `.gguf`, else a folder. An
/// existing output is replaced if `overwrite`. `proceed` is called repeatedly; the conversion stops if it returns
/// `false`.
///
/// A single file made from a folder contains the folder's configurations, its tokenizers if they differ from CLIP's,
/// and its `kiln.json` as notes: Kiln opens it as the same model.
///
/// # Errors
/// [`Error::Files`] if the folder of `output` is missing, [`Error::Interrupted`], and errors of the model: if a tensor
/// is missing, nothing is written.
pub fn convert(
    input: &Path,
    output: &Path,
    options: &ModelOptions,
    weight_type: WeightType,
    overwrite: bool,
    proceed: &dyn Fn() -> ControlFlow<()>,
) -> Result<Converted> {
    let extension = output.extension().map(|extension| extension.to_ascii_lowercase());
    let layout = match extension.as_deref().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Layout::Safetensors,
        Some("gguf") => Layout::Gguf,
        Some(other @ ("ckpt" | "pt" | "pth" | "bin")) => {
            let expected = "a .safetensors or .gguf file or a folder (PyTorch files can only be read)".into();
            return Err(Error::Value { field: "output", found: format!("a .{other} file"), expected });
        }
        _ => Layout::Folder,
    };
    if matches!(weight_type, WeightType::Blocks(_)) && layout != Layout::Gguf {
        let expected = "auto, f32, f16 or bf16: block types need a .gguf file".into();
        return Err(Error::Value { field: "weight_type", found: "a type of blocks".into(), expected });
    }
    if output.exists() && !overwrite {
        return Err(kiln_files::Error::Exists(output.to_path_buf()).into());
    }
    if output.exists() && (if layout == Layout::Folder { !output.is_dir() } else { !output.is_file() }) {
        let expected =
            if layout == Layout::Folder { "a folder, or a name that does not exist" } else { "a regular file" };
        return Err(Error::Value { field: "output", found: output.display().to_string(), expected: expected.into() });
    }
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        let looked_for = "a folder for the model; create it first".into();
        return Err(Error::not_found(parent.to_path_buf(), looked_for));
    }
    if !input.exists() {
        let looked_for = "a model folder in the diffusers layout, or a checkpoint file".into();
        return Err(Error::not_found(input.to_path_buf(), looked_for));
    }
    let mut files = ModelFiles::open(input, options)?;
    files.find_family();
    let parts = match (ConvertedModel::open(&files), layout) {
        // Between two files the tensors are only renamed, which needs no valid configuration.
        (Err(error @ Error::Model { .. }), Layout::Safetensors | Layout::Gguf) => {
            files.single().filter(|_| !files.has_own_configs()).and_then(ConvertedModel::of_names).ok_or(error)?
        }
        (parts, _) => parts?,
    };
    remove_orphans(parent);
    let (mut tensors, mut not_kept) = (0, Vec::new());
    match layout {
        Layout::Folder => tensors += folder::write(&files, &parts, output, weight_type, proceed)?,
        Layout::Safetensors | Layout::Gguf => {
            let (kept, without_room) = keep::files_to_keep(&files, &parts)?;
            not_kept.extend(without_room);
            let is_gguf = layout == Layout::Gguf;
            tensors += single::write(&parts, output, is_gguf, weight_type, kept.notes(), proceed)?;
        }
    }
    Ok(Converted { path: output.to_path_buf(), tensors, left_out: files.unexpected(), not_kept })
}

impl WeightType {
    /// The type to write the tensor `key` in, which is stored as `stored`.
    fn of(self, stored: StoredType, key: &str, shape: &[usize], is_gguf: bool) -> StoredType {
        let is_float = match stored {
            StoredType::Plain(dtype) => {
                use Dtype::{BF16, F8_E4M3, F8_E5M2, F16, F32, F64};
                [F64, F32, F16, BF16, F8_E4M3, F8_E5M2].contains(&dtype)
            }
            StoredType::Blocks(_) | StoredType::Rows(_) => true,
        };
        let is_plain = matches!(stored, StoredType::Plain(_));
        match self {
            _ if !is_float => stored,
            Self::Keep if is_plain && is_gguf && !kiln_weights::gguf_has(stored) => Dtype::F16.into(), // 8-bit floats fit into f16
            Self::Keep if !(is_plain || is_gguf && kiln_weights::gguf_has(stored)) => Dtype::F32.into(),
            Self::Keep => stored,
            Self::Plain(dtype) => dtype.into(),
            Self::Blocks(block) => {
                let blocks = StoredType::Blocks(block);
                match shape {
                    // Token and position tables are read row by row and are never used in blocks.
                    [_, _] if key.contains(".embeddings.") => Dtype::F16.into(),
                    [_, _] if blocks.bytes(shape).is_some() => blocks,
                    [_] => Dtype::F32.into(), // vectors are small, and other programs expect f32
                    _ => Dtype::F16.into(),
                }
            }
        }
    }
}
