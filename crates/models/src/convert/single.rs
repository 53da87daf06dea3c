//! Writing a model to one file with the names of CompVis' code.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use kiln_families::prefixes;
use kiln_weights::ldm::{Names, Piece, Place, VaeShape, transpose};
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
    let first = |folder: &str| prefixes(folder).first().copied().unwrap_or_default();
    let components = parts.family.components();
    let prefix = components.iter().find(|part| part.is_denoiser()).and_then(|part| part.prefixes.first());
    add(&parts.denoiser, prefix.copied().unwrap_or_default(), &parts.denoiser_names)?;
    add(&parts.vae, first("vae"), &VaeShape::ldm_names(parts.vae_levels))?;
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
    // Stored names with their sources: one declared tensor, or three.
    let mut made: BTreeMap<String, Vec<(Piece, &str)>> = BTreeMap::new();
    for key in &part.keys {
        // Tensors that the table does not contain keep their names.
        let Place { name, piece } = names.place(key).unwrap_or(Place { name: key.clone(), piece: Piece::Whole });
        made.entry(name).or_default().push((piece, key));
    }
    let one = |(name, mut pieces): (String, Vec<(Piece, &'a str)>)| {
        pieces.sort_by_key(|(piece, _)| if let Piece::Third(i) = piece { *i } else { 0 });
        let (piece, first) = pieces[0]; // every entry has at least one piece
        let ParamInfo { mut shape, dtype } = part.info(first)?;
        match (piece, shape.as_mut_slice()) {
            (Piece::Third(_), [rows, ..]) => *rows *= 3,
            (Piece::Transposed, [rows, columns]) => std::mem::swap(rows, columns),
            (Piece::Pointwise, [_, _]) => shape.extend([1, 1]),
            _ => {}
        }
        let mut dtype = weight_type.of(dtype, first, &shape, is_gguf);
        if piece == Piece::Transposed && matches!(dtype, StoredType::Blocks(_)) {
            dtype = Dtype::F16.into();
        }
        let keys: Vec<&str> = pieces.into_iter().map(|(_, key)| key).collect();
        // The rows of the declared matrix are the columns of the stored one.
        let (rows, columns) = (shape.last().copied().unwrap_or(1), shape.first().copied().unwrap_or(1));
        let bytes = move || -> kiln_weights::Result<Cow<'a, [u8]>> {
            let mut bytes = part.bytes(keys[0], dtype)?;
            if piece == Piece::Transposed {
                bytes = Cow::Owned(transpose(&bytes, rows, columns));
            }
            for key in &keys[1..] {
                bytes.to_mut().extend_from_slice(&part.bytes(key, dtype)?);
            }
            keys.iter().for_each(|key| part.source.release(key));
            Ok(bytes)
        };
        Ok(NewTensor { name: format!("{prefix}{name}"), shape, dtype, bytes: Box::new(bytes) })
    };
    made.into_iter().map(one).collect()
}
