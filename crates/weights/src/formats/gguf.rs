//! A `.gguf` file, mapped into memory.
//!
//! The format (ggml's `docs/gguf.md`): magic, version, metadata, a table of tensors, padding, elements. Every count and
//! length is checked against the remaining bytes before memory is allocated for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use kiln_ops::BlockType;
use safetensors::Dtype;

use super::bytes::Reader;
use crate::error::{Error, Result};
use crate::limits::MAX_TENSORS;
use crate::mmap::{self, Mapped};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8] = b"GGUF";
/// The default alignment of elements, in bytes.
const ALIGNMENT: u64 = 32;
/// ggml's own bound.
pub(super) const MAX_DIMS: u32 = 4;
/// Arrays may contain arrays. Deeper nesting is an attack on the stack.
const MAX_DEPTH: usize = 8;
/// ComfyUI's converter stores some tensors in another shape, and the original shape as metadata with this prefix.
pub(super) const ORIGINAL_SHAPE: &str = "comfy.gguf.orig_shape.";

/// A `.gguf` file. Opening it reads and checks only the header; elements are read from the mapping.
pub struct GgufFile {
    path: PathBuf,
    map: Mapped,
    tensors: HashMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

/// A tensor of the file.
#[derive(Debug)]
struct Entry {
    info: ParamInfo,
    /// Its bytes in the file.
    range: Range<usize>,
}

impl GgufFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped, [`Error::Format`] with the problem if it is not a valid GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        let map = mmap::map(path)?;
        let Header { tensors, metadata } =
            Header::read(&map).map_err(|problem| Error::Format { path: path.to_path_buf(), problem })?;
        Ok(Self { path: path.to_path_buf(), map, tensors, metadata })
    }

    /// The file's metadata: only the values that are strings or numbers.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

impl ParamSource for GgufFile {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.tensors.get(key).map(|entry| entry.info.clone())
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(Entry { info, range }) = self.tensors.get(key) else { return Ok(None) };
        Ok(Some(ParamData { info: info.clone(), bytes: Cow::Borrowed(self.map.bytes(range.clone())?) }))
    }

    fn release(&self, key: &str) {
        if let Some(entry) = self.tensors.get(key) {
            self.map.forget(entry.range.clone());
        }
    }

    fn origin(&self, _key: &str) -> String {
        self.path.display().to_string()
    }

    fn keys(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

/// The parsed value, or the problem.
type Parsed<T> = std::result::Result<T, String>;

#[derive(Debug)]
pub(crate) struct Header {
    tensors: HashMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

/// A metadata value. Of arrays, only those that can be shapes are stored.
enum Value {
    Number(i128),
    Text(String),
    Other(String),
    Numbers(Vec<i128>),
    Nothing,
}

impl Header {
    pub(crate) fn read(bytes: &[u8]) -> Parsed<Self> {
        let mut reader = Reader::new(bytes);
        if reader.take(4)? != MAGIC {
            return Err("is not a GGUF file".into());
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("is a GGUF file of version {version}, expected 2 or 3"));
        }
        let (tensor_count, note_count) = (reader.u64()?, reader.u64()?);
        if tensor_count.max(note_count) > MAX_TENSORS as u64 {
            return Err(format!(
                "claims {tensor_count} tensors and {note_count} metadata entries, expected at most {MAX_TENSORS} of each"
            ));
        }
        let mut metadata = BTreeMap::new();
        let mut shapes = HashMap::new();
        let mut alignment = ALIGNMENT;
        for _ in 0..note_count {
            let key = string(&mut reader)?;
            let kind = reader.u32()?;
            match value(&mut reader, kind, 0)? {
                Value::Number(number) => {
                    if key == "general.alignment" {
                        let valid = u64::try_from(number).ok().filter(|a| a.is_power_of_two() && *a <= 1 << 20);
                        alignment = valid.ok_or_else(|| format!("aligns its tensors to {number} bytes"))?;
                    }
                    metadata.insert(key, number.to_string());
                }
                Value::Text(text) | Value::Other(text) => drop(metadata.insert(key, text)),
                Value::Numbers(numbers) => {
                    if let Some(name) = key.strip_prefix(ORIGINAL_SHAPE) {
                        let shape = numbers.iter().map(|&dim| usize::try_from(dim).ok()).collect::<Option<Vec<_>>>();
                        shapes.insert(name.to_string(), shape.ok_or_else(|| format!("has no valid shape in `{key}`"))?);
                    }
                }
                Value::Nothing => {}
            }
        }
        let mut rows = Vec::new();
        for _ in 0..tensor_count {
            let name = string(&mut reader)?;
            let dims = reader.u32()?;
            if dims > MAX_DIMS {
                return Err(format!("gives tensor `{name}` {dims} dimensions, expected at most {MAX_DIMS}"));
            }
            let shape = (0..dims).map(|_| usize::try_from(reader.u64()?).map_err(|_| too_large(&name)));
            let mut shape = shape.collect::<Parsed<Vec<_>>>()?;
            shape.reverse(); // ggml lists the fastest dimension first
            let dtype = stored_type(&name, reader.u32()?)?;
            rows.push((name, shape, dtype, reader.u64()?));
        }
        let start = (reader.position() as u64).checked_next_multiple_of(alignment);
        let mut tensors = HashMap::new();
        for (name, shape, dtype, offset) in rows {
            let size = dtype.bytes(&shape).ok_or_else(|| match dtype {
                StoredType::Blocks(block) if !shape.last().unwrap_or(&1).is_multiple_of(block.elements()) => {
                    let elements = block.elements();
                    format!(
                        "stores tensor `{name}` {shape:?} as {dtype}, whose blocks of {elements} do not divide its rows"
                    )
                }
                _ => too_large(&name),
            })?;
            let range = start
                .and_then(|start| start.checked_add(offset))
                .and_then(|from| usize::try_from(from).ok())
                .and_then(|from| Some(from..from.checked_add(size)?))
                .filter(|range| range.end <= bytes.len());
            let Some(range) = range else {
                return Err(format!(
                    "is cut off: tensor `{name}` ends past the file's {} bytes; download it again",
                    bytes.len()
                ));
            };
            let shape = match shapes.remove(&name) {
                Some(original) => {
                    let count = |shape: &[usize]| shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
                    if count(&original) != count(&shape) {
                        return Err(format!(
                            "has metadata with the shape {original:?} for tensor `{name}`, which has {shape:?}"
                        ));
                    }
                    original
                }
                None => shape,
            };
            let entry = Entry { info: ParamInfo { shape, dtype }, range };
            if tensors.insert(name.clone(), entry).is_some() {
                return Err(format!("names tensor `{name}` twice, which is ambiguous"));
            }
        }
        Ok(Self { tensors, metadata })
    }
}

fn too_large(name: &str) -> String {
    format!("has an impossible size for tensor `{name}`")
}

/// ggml's numbers of the types without blocks.
pub(super) const PLAIN_TYPES: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::BF16),
];

/// ggml's number of a block layout. `None` for those of other programs.
pub(super) fn block_id(block: BlockType) -> Option<u32> {
    Some(match block {
        BlockType::Q4_0 => 2,
        BlockType::Q4_1 => 3,
        BlockType::Q5_0 => 6,
        BlockType::Q5_1 => 7,
        BlockType::Q8_0 => 8,
        BlockType::Q2_K => 10,
        BlockType::Q3_K => 11,
        BlockType::Q4_K => 12,
        BlockType::Q5_K => 13,
        BlockType::Q6_K => 14,
        BlockType::IQ4_NL => 20,
        BlockType::IQ4_XS => 23,
        BlockType::NF4 | BlockType::FP4 => return None,
    })
}

fn stored_type(name: &str, id: u32) -> Parsed<StoredType> {
    let plain = PLAIN_TYPES.into_iter().find(|(plain, _)| *plain == id).map(|(_, dtype)| dtype.into());
    let block = || BlockType::ALL.into_iter().find(|&block| block_id(block) == Some(id)).map(StoredType::Blocks);
    plain.or_else(block).ok_or_else(|| {
        let known = BlockType::ALL.into_iter().filter(|&block| block_id(block).is_some());
        let known = known.map(|block| format!("{block:?}")).collect::<Vec<_>>().join(", ");
        format!("stores tensor `{name}` as ggml's type {id}, expected F32, F16, BF16, {known}")
    })
}

fn string(reader: &mut Reader<'_>) -> Parsed<String> {
    let length = reader.u64()?;
    let bytes = reader.take_u64(length)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| "has a name that is not valid UTF-8".into())
}

/// Reads a metadata value of ggml's type `kind`.
fn value(reader: &mut Reader<'_>, kind: u32, depth: usize) -> Parsed<Value> {
    Ok(match kind {
        0 => Value::Number(reader.array::<1>()?[0].into()),
        1 => Value::Number(i8::from_le_bytes(reader.array()?).into()),
        2 => Value::Number(u16::from_le_bytes(reader.array()?).into()),
        3 => Value::Number(i16::from_le_bytes(reader.array()?).into()),
        4 => Value::Number(reader.u32()?.into()),
        5 => Value::Number(i32::from_le_bytes(reader.array()?).into()),
        6 => Value::Other(f32::from_le_bytes(reader.array()?).to_string()),
        7 => Value::Other((reader.array::<1>()?[0] != 0).to_string()),
        8 => Value::Text(string(reader)?),
        9 => {
            if depth >= MAX_DEPTH {
                return Err("has arrays that are nested too deeply".into());
            }
            let (kind, count) = (reader.u32()?, reader.u64()?);
            let mut numbers = Vec::new();
            for _ in 0..count {
                // Every element takes at least a byte, so that a wrong count ends with the file.
                match value(reader, kind, depth + 1)? {
                    Value::Number(number) if numbers.len() < MAX_DIMS as usize * 2 => numbers.push(number),
                    _ => {}
                }
            }
            if count as usize == numbers.len() { Value::Numbers(numbers) } else { Value::Nothing }
        }
        10 => Value::Number(reader.u64()?.into()),
        11 => Value::Number(i64::from_le_bytes(reader.array()?).into()),
        12 => Value::Other(f64::from_le_bytes(reader.array()?).to_string()),
        _ => return Err(format!("has metadata of the unknown type {kind}")),
    })
}
