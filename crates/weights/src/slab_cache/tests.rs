use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;

use kiln_ops::Packing;
use safetensors::Dtype;
use tempfile::TempDir;

use super::*;
use crate::error::Result;
use crate::formats::{NewTensor, write_safetensors};
use crate::load::{Placement, load};
use crate::lora::Patched;
use crate::safetensors_file::SafetensorsFile;
use crate::segment::{Param, SegmentModule, Segments};
use crate::source::{ParamData, ParamInfo};

const TYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A folder with a model's file of two matrices, and the folder of its slabs.
struct Folder {
    root: TempDir,
    name: &'static str,
}

impl Folder {
    fn new() -> Self {
        let this = Self { root: TempDir::new().unwrap(), name: "slabs" };
        this.write_model(1.0);
        fs::create_dir(this.slabs()).unwrap();
        this
    }

    fn model(&self) -> PathBuf {
        self.root.path().join("model.safetensors")
    }

    fn slabs(&self) -> PathBuf {
        self.root.path().join(self.name)
    }

    /// Element `i` of a matrix is `i * scale`.
    fn write_model(&self, scale: f32) {
        let tensor = |name: &str| NewTensor {
            name: format!("{name}.weight"),
            shape: vec![70, 300],
            dtype: Dtype::F32.into(),
            bytes: Box::new(move || {
                Ok(Cow::Owned((0..70 * 300).flat_map(|i| (i as f32 * scale).to_le_bytes()).collect()))
            }),
        };
        let mut bytes = Vec::new();
        write_safetensors(&mut bytes, vec![tensor("a"), tensor("b")], &BTreeMap::new()).unwrap();
        fs::write(self.model(), bytes).unwrap();
    }

    /// The elements of both matrices, loaded with the cache, or without one.
    fn load(&self, dtype: DType, cached: bool) -> Vec<Vec<f32>> {
        let cache = cached.then(|| SlabCache::new(&self.slabs()));
        values(Patched::new(SafetensorsFile::open(&self.model()).unwrap()).cached(cache), dtype)
    }

    /// The files of the slabs with their bytes.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let Ok(entries) = fs::read_dir(self.slabs()) else { return BTreeMap::new() };
        entries.map(|entry| entry.unwrap().path()).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

fn values(source: impl ParamSource, dtype: DType) -> Vec<Vec<f32>> {
    let mut segments = Segments::default();
    let part = |name: &str| segments.add(name, |p| p.pp(name).param("weight", &[70, 300], Packing::Linear));
    let parts: Vec<SegmentModule<Param>> = ["a", "b"].map(part).into();
    load(&segments, &source, &Placement::new(Device::Cpu, dtype)).unwrap();
    let value = |part: &SegmentModule<Param>| {
        let entered = part.enter().unwrap();
        let weight = entered.weight().unwrap();
        weight.tensor().to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    parts.iter().map(value).collect()
}

#[test]
fn slabs_from_files_have_the_bits_of_packed_ones() {
    for dtype in TYPES {
        let folder = Folder::new();
        let expected = folder.load(dtype, false);
        assert!(folder.files().is_empty());
        assert_eq!(folder.load(dtype, true), expected);
        let files = folder.files();
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(folder.load(dtype, true), expected);
        assert_eq!(folder.files(), files, "nothing is written again");
    }
}

/// The slab is the file's, and not packed again: a file with other elements and the right checksum shows that.
#[test]
fn a_current_file_is_what_is_loaded() {
    let folder = Folder::new();
    let expected = folder.load(DType::F32, true);
    for (path, mut bytes) in folder.files() {
        bytes[PAGE..PAGE + 4].copy_from_slice(&5f32.to_le_bytes());
        let sum = crc32fast::hash(&bytes[PAGE..]).to_le_bytes();
        bytes[LENGTH_END..SLAB_SUM_END].copy_from_slice(&sum);
        let sum = crc32fast::hash(&bytes[..SLAB_SUM_END]).to_le_bytes();
        bytes[SLAB_SUM_END..HEADER_END].copy_from_slice(&sum);
        fs::write(path, bytes).unwrap();
    }
    let found = folder.load(DType::F32, true);
    assert!(found.iter().all(|slab| slab[0] == 5.0) && found[0][1..] == expected[0][1..]);
}

#[test]
fn a_changed_model_replaces_its_files() {
    let folder = Folder::new();
    let before = folder.load(DType::BF16, true);
    let files = folder.files();
    folder.write_model(0.5); // of the same size
    let after = folder.load(DType::BF16, true);
    assert!(after != before && after == folder.load(DType::BF16, false));
    let now = folder.files();
    assert!(now.keys().eq(files.keys()) && now.values().ne(files.values()));
}

#[test]
fn types_and_models_have_files_of_their_own() {
    let folder = Folder::new();
    TYPES.iter().for_each(|dtype| drop(folder.load(*dtype, true)));
    assert_eq!(folder.files().len(), 6);
    let other = Folder { root: TempDir::new_in(folder.root.path()).unwrap(), name: "../slabs" };
    other.write_model(2.0);
    assert_eq!(other.load(DType::F32, true), other.load(DType::F32, false));
    assert_eq!(folder.files().len(), 8);
}

#[test]
fn damaged_and_foreign_files_are_written_again() {
    let folder = Folder::new();
    let expected = folder.load(DType::F16, true);
    let files = folder.files();
    let whole = files.values().next().unwrap().len();
    type Damage<'a> = &'a dyn Fn(&mut Vec<u8>);
    let damages: [Damage<'_>; 9] = [
        &|bytes| bytes[PAGE + 1234] ^= 1,
        &|bytes| bytes[whole - 1] ^= 0x80,
        &|bytes| bytes[0] ^= 1,
        &|bytes| bytes[40] ^= 1,
        &|bytes| bytes[STAMP_END] ^= 1,
        &|bytes| bytes.truncate(whole - 1),
        &|bytes| bytes.truncate(50),
        &Vec::clear,
        &|bytes| bytes.resize(whole + 100, 0),
    ];
    for (i, damage) in damages.iter().enumerate() {
        for (path, bytes) in &files {
            let mut bytes = bytes.clone();
            damage(&mut bytes);
            fs::write(path, bytes).unwrap();
        }
        assert_eq!(folder.load(DType::F16, true), expected, "damage {i}");
        assert_eq!(folder.files(), files, "damage {i}");
    }
}

/// A source that says that the parameters of `a` are not the file's.
struct Changed(Patched<SafetensorsFile>);

impl ParamSource for Changed {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.0.info(key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.0.data(key)
    }

    fn origin(&self, key: &str) -> String {
        self.0.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys()
    }

    fn slab_cache(&self) -> Option<&SlabCache> {
        self.0.slab_cache()
    }

    fn is_changed(&self, key: &str) -> bool {
        key.starts_with("a.")
    }
}

#[test]
fn changed_parameters_are_neither_written_nor_read() {
    let folder = Folder::new();
    let source = || Patched::new(SafetensorsFile::open(&folder.model()).unwrap());
    let changed = || Changed(source().cached(Some(SlabCache::new(&folder.slabs()))));
    let expected = values(source(), DType::F32);
    for _ in 0..2 {
        assert_eq!(values(changed(), DType::F32), expected);
        assert_eq!(folder.files().len(), 1);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = Folder { name: "model.safetensors", ..Folder::new() };
    assert_eq!(folder.load(DType::F32, true), folder.load(DType::F32, false));
}
