//! Files of `torch.save` (`.ckpt`, `.pt`, `.pth`, `.bin`), mapped into memory.
//!
//! Since PyTorch 1.6 they are zip archives: `data.pkl` describes the tensors, and each storage is a separate,
//! uncompressed entry. Older files are a few pickles in sequence, with the storages' bytes at the end. An interpreter
//! that runs no code ([`pickle`]) reads both, and tensors are read directly from the mapping.

mod pickle;
mod strided;
mod values;
pub(crate) mod zip;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::bytes::Reader;
use crate::error::{Error, Result};
use crate::limits::{MAX_NAME_BYTES, MAX_TENSORS};
use crate::mmap::{self, Mapped};
use crate::source::{ParamData, ParamInfo, ParamSource};
use pickle::Machine;
use strided::Layout;
use values::Value;

/// The first byte of a pickle of protocol 2 or later.
pub(crate) const PICKLE_MAGIC: u8 = 0x80;
/// The magic number of PyTorch's old files, little-endian.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const LEGACY_VERSION: i64 = 1001;
/// The names under which training programs save a network's weights among other data, in order of preference.
const STATE_DICTS: [&str; 5] = ["state_dict", "params_ema", "params", "model", "module"];
/// The maximum depth of nested dictionaries that are searched.
const MAX_DEPTH: usize = 3;

/// A file of `torch.save`. Opening it reads only the descriptions of its tensors.
pub struct TorchFile {
    path: PathBuf,
    map: Mapped,
    tensors: HashMap<String, Stored>,
    metadata: BTreeMap<String, String>,
}

struct Stored {
    info: ParamInfo,
    /// The byte range of its elements.
    range: Range<usize>,
    layout: Layout,
}

impl TorchFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped, [`Error::Format`] if it is damaged, or contains instructions that
    /// weights do not need.
    pub fn open(path: &Path) -> Result<Self> {
        let map = mmap::map(path)?;
        let (tensors, metadata) =
            contents(&map).map_err(|problem| Error::Format { path: path.to_path_buf(), problem })?;
        Ok(Self { path: path.to_path_buf(), map, tensors, metadata })
    }

    /// Numbers and strings that are stored next to the weights: `global_step`, `epoch`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

impl ParamSource for TorchFile {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.tensors.get(key).map(|stored| stored.info.clone())
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(Stored { info, range, layout }) = self.tensors.get(key) else { return Ok(None) };
        let bytes = self.map.bytes(range.clone())?;
        let bytes = match layout {
            Layout::RowMajor => Cow::Borrowed(bytes),
            Layout::Strided { strides, size } => Cow::Owned(strided::gather(bytes, &info.shape, strides, *size)),
        };
        Ok(Some(ParamData { info: info.clone(), bytes }))
    }

    fn release(&self, key: &str) {
        if let Some(Stored { range, .. }) = self.tensors.get(key) {
            self.map.forget(range.clone());
        }
    }

    fn origin(&self, _key: &str) -> String {
        self.path.display().to_string()
    }

    fn keys(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

type Parsed<T> = std::result::Result<T, String>;
type Contents = (HashMap<String, Stored>, BTreeMap<String, String>);

/// Reads the descriptions in a file's pickles.
fn contents(bytes: &[u8]) -> Parsed<Contents> {
    let mut machine = Machine::default();
    if bytes.starts_with(zip::MAGIC) {
        let entries = zip::entries(bytes)?;
        let description = entries.iter().find_map(|(name, range)| {
            let folder = name.strip_suffix("data.pkl")?;
            (folder.is_empty() || folder.ends_with('/')).then_some((folder, range.clone()))
        });
        let Some((folder, range)) = description else {
            return Err("is a zip archive without data.pkl, so not a torch.save file; unpack it first".into());
        };
        let order = entries.get(&format!("{folder}byteorder")).and_then(|range| bytes.get(range.clone()));
        if order.is_some_and(|order| order != b"little") {
            return Err("was saved on a big-endian machine; save it again on another".into());
        }
        let root = machine.run(&mut Reader::new(bytes.get(range).unwrap_or_default()))?;
        let place = |key: &str| entries.get(&format!("{folder}data/{key}")).cloned();
        return collect(&machine, root, &place);
    }
    let mut reader = Reader::new(bytes);
    if machine.run(&mut reader)? != Value::Long(&LEGACY_MAGIC) {
        return Err("is a pickle, but not a torch.save file".into());
    }
    if machine.run(&mut reader)? != Value::Int(LEGACY_VERSION) {
        return Err("was saved by an unknown version of PyTorch".into());
    }
    machine.run(&mut reader)?; // sizes of integers on the machine that wrote the file
    let root = machine.run(&mut reader)?;
    let keys = machine.run(&mut reader)?;
    let keys = machine.items(keys).ok_or("has no list of its storages")?.to_vec();
    let sizes: HashMap<&str, usize> =
        machine.storages.iter().map(|storage| (storage.key, storage.dtype.bitsize() / 8)).collect();
    let mut places = HashMap::new();
    for key in keys {
        let Value::Text(key) = key else { return Err("has a storage whose key is not a string".into()) };
        let length = reader.u64()?;
        let size = sizes.get(key).copied().ok_or_else(|| format!("has the storage `{key}` that no tensor uses"))?;
        let start = reader.position();
        reader.take_u64(length.saturating_mul(size as u64))?;
        places.insert(key, start..reader.position());
    }
    collect(&machine, root, &|key| places.get(key).cloned())
}

/// The tensors and metadata below `root`. `place` returns the byte range of a storage.
fn collect(machine: &Machine<'_>, root: Value<'_>, place: &dyn Fn(&str) -> Option<Range<usize>>) -> Parsed<Contents> {
    if let Some(tensors) = listed(machine, root, place)? {
        return Ok((tensors, BTreeMap::new()));
    }
    let entries = machine.dict(root).ok_or("contains no dictionary of tensors")?;
    let mut metadata = BTreeMap::new();
    for (key, value) in entries {
        let note = match value {
            Value::Int(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Text(text) => (*text).to_string(),
            _ => continue,
        };
        if let Value::Text(key) = key {
            metadata.insert((*key).to_string(), note);
        }
    }
    let below = |name: &str| {
        let (_, value) = entries.iter().find(|(key, _)| *key == Value::Text(name))?;
        machine.dict(*value).map(|_| *value)
    };
    let state = STATE_DICTS.into_iter().find_map(below).unwrap_or(root);
    let mut tensors = HashMap::new();
    let mut open = vec![(String::new(), state, 0)];
    // One dictionary may be an entry of many, and is then visited as often: a few hundred entries can expand to
    // billions.
    let (mut entries, mut name_bytes) = (0, 0);
    while let Some((prefix, value, depth)) = open.pop() {
        for &(key, value) in machine.dict(value).unwrap_or_default() {
            let Value::Text(key) = key else { continue };
            entries += 1;
            name_bytes += prefix.len() + key.len();
            if entries > MAX_TENSORS || name_bytes > MAX_NAME_BYTES {
                return Err(format!(
                    "has more than {MAX_TENSORS} entries, or {} MiB of names, in its dictionaries, which no checkpoint \
                     needs",
                    MAX_NAME_BYTES >> 20
                ));
            }
            let name = format!("{prefix}{key}");
            match value {
                Value::Tensor(i) => {
                    let stored = stored(machine, i, place).map_err(|problem| format!("tensor `{name}` {problem}"))?;
                    tensors.insert(name, stored); // as in Python, the last one of a name wins
                }
                Value::Dict(_) if depth < MAX_DEPTH => open.push((format!("{name}."), value, depth + 1)),
                _ => {}
            }
        }
    }
    Ok((tensors, metadata))
}

/// The tensors of a file that is a tensor, of the name `tensor`, or a list of some, of their numbers as names.
fn listed(
    machine: &Machine<'_>,
    root: Value<'_>,
    place: &dyn Fn(&str) -> Option<Range<usize>>,
) -> Parsed<Option<HashMap<String, Stored>>> {
    let items: Vec<(String, Value<'_>)> = match (root, machine.items(root)) {
        (Value::Tensor(_), _) => vec![("tensor".into(), root)],
        (_, Some(items)) if items.len() <= MAX_TENSORS => {
            items.iter().enumerate().map(|(i, value)| (i.to_string(), *value)).collect()
        }
        _ => return Ok(None),
    };
    let mut tensors = HashMap::new();
    for (name, value) in items {
        if let Value::Tensor(i) = value {
            let stored = stored(machine, i, place).map_err(|problem| format!("tensor `{name}` {problem}"))?;
            tensors.insert(name, stored);
        }
    }
    Ok(Some(tensors).filter(|tensors| !tensors.is_empty()))
}

fn stored(machine: &Machine<'_>, i: usize, place: &dyn Fn(&str) -> Option<Range<usize>>) -> Parsed<Stored> {
    let view = machine.tensors.get(i).ok_or("was never created")?;
    let storage = machine.storages.get(view.storage).ok_or("has no storage")?;
    let bytes = place(storage.key).ok_or_else(|| format!("is in the storage `{}`, which is missing", storage.key))?;
    let size = storage.dtype.bitsize() / 8;
    if storage.length.checked_mul(size as u64).is_none_or(|needed| needed > bytes.len() as u64) {
        return Err(format!(
            "is in the storage `{}`, which should have {} elements and is cut off; download the file again",
            storage.key, storage.length
        ));
    }
    let (range, layout) = strided::layout(view, size, bytes.len())?;
    let range = bytes.start + range.start..bytes.start + range.end;
    Ok(Stored { info: ParamInfo { shape: view.shape.clone(), dtype: storage.dtype.into() }, range, layout })
}
