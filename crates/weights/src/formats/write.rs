//! Writes checkpoints one tensor at a time, so that at most one is in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::json;

use super::gguf::{MAGIC, MAX_DIMS, ORIGINAL_SHAPE, PLAIN_TYPES, block_id};
use crate::error::{Error, Result};
use crate::source::ParamData;
use crate::stored_type::StoredType;

/// A tensor to write.
pub struct NewTensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The type in the file.
    pub dtype: StoredType,
    /// Its elements, of the size that shape and type require. Called once.
    pub bytes: Box<dyn Fn() -> Result<Cow<'a, [u8]>> + 'a>,
}

/// Writes a safetensors file, byte for byte as the format's own library does: the widest types first, then by name.
///
/// # Errors
/// Errors from reading a tensor, and [`Error::Write`]; also for a type that the format does not have.
pub fn write_safetensors(
    out: &mut dyn Write,
    mut tensors: Vec<NewTensor<'_>>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let plain = |tensor: &NewTensor<'_>| match tensor.dtype {
        StoredType::Plain(dtype) => Some(dtype),
        StoredType::Blocks(_) | StoredType::Rows(_) => None,
    };
    tensors.sort_by(|a, b| plain(b).cmp(&plain(a)).then_with(|| a.name.cmp(&b.name)));
    let mut rows = Vec::new();
    if !metadata.is_empty() {
        rows.push(format!("\"__metadata__\":{}", json!(metadata)));
    }
    let mut offset = 0;
    for tensor in &tensors {
        let (Some(dtype), Some(size)) = (plain(tensor), tensor.dtype.bytes(&tensor.shape)) else {
            return Err(unwritable(tensor, "safetensors"));
        };
        let (name, dtype, shape) = (json!(tensor.name), json!(dtype), json!(tensor.shape));
        let end = offset + size;
        rows.push(format!("{name}:{{\"dtype\":{dtype},\"shape\":{shape},\"data_offsets\":[{offset},{end}]}}"));
        offset = end;
    }
    let mut header = format!("{{{}}}", rows.join(",")).into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(Error::Write)?;
    out.write_all(&header).map_err(Error::Write)?;
    write_elements(out, &tensors, 1)
}

/// Writes a GGUF file of version 3. Tensors with more dimensions than the format has are written with the first ones joined, and their
/// shapes as ComfyUI's metadata.
///
/// # Errors
/// See [`write_safetensors`].
pub fn write_gguf(out: &mut dyn Write, tensors: Vec<NewTensor<'_>>, notes: &BTreeMap<String, String>) -> Result<()> {
    let string = |header: &mut Vec<u8>, text: &str| {
        header.extend((text.len() as u64).to_le_bytes());
        header.extend(text.as_bytes());
    };
    let mut header = MAGIC.to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    let joined: Vec<&NewTensor<'_>> = tensors.iter().filter(|tensor| tensor.shape.len() > MAX_DIMS as usize).collect();
    header.extend(((notes.len() + joined.len()) as u64).to_le_bytes());
    for (key, value) in notes {
        string(&mut header, key);
        header.extend(8u32.to_le_bytes()); // a string
        string(&mut header, value);
    }
    for NewTensor { name, shape, .. } in joined {
        string(&mut header, &format!("{ORIGINAL_SHAPE}{name}"));
        header.extend(9u32.to_le_bytes()); // an array
        header.extend(5u32.to_le_bytes()); // of 32-bit integers
        header.extend((shape.len() as u64).to_le_bytes());
        shape.iter().for_each(|&dim| header.extend((dim as i32).to_le_bytes()));
    }
    let mut offset = 0;
    for tensor in &tensors {
        let (Some(id), Some(size)) = (gguf_id(tensor.dtype), tensor.dtype.bytes(&tensor.shape)) else {
            return Err(unwritable(tensor, "GGUF"));
        };
        string(&mut header, &tensor.name);
        let shape = joined_shape(&tensor.shape);
        header.extend((shape.len() as u32).to_le_bytes());
        for dim in shape.iter().rev() {
            header.extend((*dim as u64).to_le_bytes());
        }
        header.extend(id.to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        offset += size.next_multiple_of(GGUF_ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(GGUF_ALIGNMENT), 0);
    out.write_all(&header).map_err(Error::Write)?;
    write_elements(out, &tensors, GGUF_ALIGNMENT)
}

/// `shape` with the first dimensions joined if it has more than GGUF.
fn joined_shape(shape: &[usize]) -> Cow<'_, [usize]> {
    match shape.len().checked_sub(MAX_DIMS as usize) {
        None | Some(0) => Cow::Borrowed(shape),
        Some(extra) => {
            let (first, rest) = shape.split_at(extra + 1);
            Cow::Owned(std::iter::once(first.iter().product()).chain(rest.iter().copied()).collect())
        }
    }
}

/// The default alignment of a tensor's elements, in bytes.
const GGUF_ALIGNMENT: usize = 32;

fn write_elements(out: &mut dyn Write, tensors: &[NewTensor<'_>], alignment: usize) -> Result<()> {
    for tensor in tensors {
        let bytes = (tensor.bytes)()?;
        if tensor.dtype.bytes(&tensor.shape) != Some(bytes.len()) {
            return Err(unwritable(tensor, "a file of another size"));
        }
        let padding = vec![0; bytes.len().next_multiple_of(alignment) - bytes.len()];
        out.write_all(&bytes).and_then(|()| out.write_all(&padding)).map_err(Error::Write)?;
    }
    Ok(())
}

fn unwritable(tensor: &NewTensor<'_>, format: &str) -> Error {
    let problem =
        format!("tensor `{}` {:?} cannot be written as {} to {format}", tensor.name, tensor.shape, tensor.dtype);
    Error::Write(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

fn gguf_id(dtype: StoredType) -> Option<u32> {
    match dtype {
        StoredType::Plain(dtype) => PLAIN_TYPES.into_iter().find(|(_, plain)| *plain == dtype).map(|(id, _)| id),
        StoredType::Blocks(block) => block_id(block),
        StoredType::Rows(_) => None,
    }
}

/// Whether a GGUF file can have tensors of this type.
pub fn gguf_has(dtype: StoredType) -> bool {
    gguf_id(dtype).is_some()
}

/// The elements of a tensor in another type. `None` if its own type is not a weight type, if the other cannot be
/// written, or if its blocks do not divide the rows.
pub fn encode(data: &ParamData<'_>, dtype: StoredType) -> Option<Vec<u8>> {
    let values = data.to_f32()?;
    let bytes = match dtype {
        StoredType::Plain(Dtype::F32) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        StoredType::Plain(Dtype::F16) => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            halves.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        StoredType::Plain(Dtype::BF16) => {
            let mut halves = vec![bf16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            halves.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        StoredType::Plain(_) | StoredType::Rows(_) => return None,
        StoredType::Blocks(block) => {
            dtype.bytes(&data.info.shape)?;
            // The quantizers are candle's.
            let tensor = Tensor::from_vec(values, data.info.shape.as_slice(), &Device::Cpu).ok()?;
            QTensor::quantize(&tensor, block.quantizer()?).ok()?.data().ok()?.into_owned()
        }
    };
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::gguf::GgufFile;
    use super::*;
    use crate::source::ParamSource;

    #[test]
    fn gguf_keeps_shapes_of_five_dimensions() {
        let bytes: Vec<u8> = (0..2 * 3 * 2 * 2 * 4).collect();
        let shape = vec![2, 3, 1, 2, 2];
        let own = bytes.clone();
        let tensor = NewTensor {
            name: "a.weight".into(),
            shape: shape.clone(),
            dtype: Dtype::F32.into(),
            bytes: Box::new(move || Ok(Cow::Owned(own.clone()))),
        };
        let mut file = Vec::new();
        write_gguf(&mut file, vec![tensor], &BTreeMap::new()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        std::fs::write(&path, file).unwrap();
        let found = GgufFile::open(&path).unwrap();
        let data = found.data("a.weight").unwrap().unwrap();
        assert_eq!((data.info.shape, data.bytes.into_owned()), (shape, bytes));
    }
}
