//! Writing a model to one file with the names of CompVis' code.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use kiln_families::{ComponentKind, prefixes_of_kind};
use kiln_weights::ldm::{Names, Piece};
use kiln_weights::{NewTensor, ParamInfo, StoredType, write_gguf, write_safetensors};
use safetensors::Dtype;

use super::WeightType;
use super::parts::{ConvertedComponent, ConvertedModel};
use super::write::{Proceed, replace};
use crate::error::Result;

/// Writes the file with `notes` and returns the number of its tensors.
pub(super) fn write(
    parts: &ConvertedModel,
    path: &Path,
    is_gguf: bool,
    weight_type: WeightType,
    mut notes: BTreeMap<String, String>,
    proceed: Proceed<'_>,
) -> Result<usize> {
    let mut tensors = Vec::new();
    let mut add = |part, prefix, names: &Names| -> Result<()> {
        tensors.extend(stored(part, prefix, names, is_gguf, weight_type)?);
        Ok(())
    };
    let vae_prefix = prefixes_of_kind(ComponentKind::Vae).first().copied().unwrap_or_default();
    let prefix = parts.family.denoiser_component().and_then(|part| part.prefixes.first());
    add(&parts.denoiser, prefix.copied().unwrap_or_default(), &parts.denoiser_names)?;
    add(&parts.vae, vae_prefix, &parts.vae_names)?;
    for text in &parts.text {
        let (prefix, names) = &text.place;
        add(&text.part, prefix, names)?;
    }
    let count = tensors.len();
    let architecture = parts.family.derived_config().map_or("sd1", |config| config.gguf);
    let (key, value) = if is_gguf { ("general.architecture", architecture) } else { ("format", "pt") };
    notes.insert(key.into(), value.into());
    replace(path, proceed, |file| match is_gguf {
        true => write_gguf(file, tensors, &notes),
        false => write_safetensors(file, tensors, &notes),
    })?;
    Ok(count)
}

/// The tensors of `part` under single-file names.
fn stored<'a>(
    part: &'a ConvertedComponent,
    prefix: &str,
    names: &Names,
    is_gguf: bool,
    weight_type: WeightType,
) -> Result<Vec<NewTensor<'a>>> {
    let one = |(name, pieces): (String, Vec<(Piece, &'a str)>)| {
        let (piece, first) = pieces[0]; // every entry has at least one piece
        let ParamInfo { shape: declared, dtype } = part.info(first)?;
        let shape = piece.stored_shape(&declared);
        let mut dtype = weight_type.of(dtype, first, &shape, is_gguf);
        if piece == Piece::Transposed && !matches!(dtype, StoredType::Plain(_)) {
            dtype = Dtype::F16.into();
        }
        let keys: Vec<&str> = pieces.into_iter().map(|(_, key)| key).collect();
        let bytes = move || -> kiln_weights::Result<Cow<'a, [u8]>> {
            let mut bytes = piece.stored_bytes(part.bytes(keys[0], dtype)?, &declared);
            for key in &keys[1..] {
                bytes.to_mut().extend_from_slice(&part.bytes(key, dtype)?);
            }
            keys.iter().for_each(|key| part.source.release(key));
            Ok(bytes)
        };
        Ok(NewTensor { name: format!("{prefix}{name}"), shape, dtype, bytes: Box::new(bytes) })
    };
    names.stored(part.keys.iter().map(String::as_str)).into_iter().map(one).collect()
}
