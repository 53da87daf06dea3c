//! A folder of packed slabs from earlier runs, from which the next run maps them instead of packing.
//!
//! Each slab on the CPU is a file of its own. Its name follows from the model's file, the segment and its types; a stamp inside of it
//! follows from everything that decides on its bytes. A file that has another stamp, because the model's file has changed or another
//! version of Kiln wrote it, or whose checksum is wrong, is written again. Files are written under another name and renamed, so that
//! a run that maps the old one keeps it.
//!
//! A file is a page of 4096 bytes and the slab's bytes. The page begins with [`MAGIC`], the stamp (64 hexadecimal digits), the length
//! of the slab in bytes (u64), the CRC-32 of the slab, and the CRC-32 of these fields; the rest is zeros. All numbers are little-endian.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use candle_core::{DType, Device, Storage, Tensor};
use half::{bf16, f16};
use kiln_files::{Sha256, open_regular, persist, remove_orphans, sha256, temporary_beside, write_error};
use kiln_ops::WeightLayout;
use parking_lot::Mutex;
use rayon::prelude::*;

use crate::element::Element;
use crate::error::Result;
use crate::param_spec::SlabType;
use crate::segment::Segment;
use crate::shared::slab_name;
use crate::source::ParamSource;

/// The first bytes of a file.
const MAGIC: &[u8; 16] = b"kiln packed slab";
/// The version of the layouts of slabs. It changes with them, so that older files are written again.
const LAYOUTS: u32 = 1;
/// The slab's offset in the file: a page of memory, so that it can be mapped.
const PAGE: usize = 4096;
/// The ends of the page's fields.
const STAMP_END: usize = MAGIC.len() + 64;
const LENGTH_END: usize = STAMP_END + 8;
const SLAB_SUM_END: usize = LENGTH_END + 4;
const HEADER_END: usize = SLAB_SUM_END + 4;
/// The number of places at which a model's file is sampled for its stamp.
const SAMPLES: u64 = 16;
/// Elements that are written at a time.
const CHUNK: usize = 1 << 18;

/// A folder of packed slabs. Its clones are the same.
#[derive(Debug, Clone)]
pub struct SlabCache(Arc<State>);

#[derive(Debug)]
struct State {
    folder: PathBuf,
    /// The identities of the models' files by their paths; `None` for what is no file.
    identities: Mutex<HashMap<String, Option<Identity>>>,
    /// Whether a file could not be written. Then no other is tried.
    refused: AtomicBool,
}

/// The identity of a model's file.
#[derive(Debug, Clone)]
struct Identity {
    path: String,
    /// Size, time of the last change, and a checksum of samples of its bytes.
    content: String,
}

/// The file of a segment's slab.
struct Entry {
    path: PathBuf,
    stamp: String,
}

/// Why a slab is not read.
enum Unread {
    /// There is no such file.
    Missing,
    /// The file is of a model's earlier file, or of another version.
    Outdated,
    Damaged(String),
}

impl SlabCache {
    /// The folder. What a killed process left in it is deleted.
    pub fn new(folder: &Path) -> Self {
        remove_orphans(folder);
        let state = State { folder: folder.into(), identities: Mutex::default(), refused: AtomicBool::new(false) };
        Self(Arc::new(state))
    }

    /// The slabs of `segments`, in panels: those with a current file are mapped, and `make` packs the others, which are then written.
    /// Slabs with a changed parameter have no file. Problems of files are logged and are no errors.
    pub(crate) fn slabs(
        &self,
        segments: &[Segment],
        source: &dyn ParamSource,
        types: SlabType,
        make: impl FnOnce(&[Segment]) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        /// A slab's file, and the slab.
        type Found = Option<(Entry, std::result::Result<Tensor, Unread>)>;
        let find = |segment| {
            let entry = self.entry(segment, source, types)?;
            let found = match types.dtype {
                DType::F32 => entry.read::<f32>(segment.bytes(types)),
                DType::F16 => entry.read::<f16>(segment.bytes(types)),
                _ => entry.read::<bf16>(segment.bytes(types)),
            };
            Some((entry, found))
        };
        let found: Vec<Found> = segments.par_iter().map(find).collect();
        let is_missing =
            |found: &Option<(Entry, std::result::Result<Tensor, Unread>)>| !matches!(found, Some((_, Ok(_))));
        let missing = segments.iter().zip(&found).filter(|(_, found)| is_missing(found));
        let missing: Vec<Segment> = missing.map(|(segment, _)| segment.clone()).collect();
        if missing.is_empty() {
            return Ok(found.into_iter().flatten().filter_map(|(_, slab)| slab.ok()).collect());
        }
        let mut made = make(&missing)?.into_iter();
        let mut slabs = Vec::with_capacity(segments.len());
        for found in found {
            match found {
                Some((_, Ok(slab))) => slabs.push(slab),
                Some((entry, Err(unread))) => {
                    let Some(slab) = made.next() else { break };
                    self.write(&entry, &unread, &slab);
                    slabs.push(slab);
                }
                None => slabs.extend(made.next()),
            }
        }
        Ok(slabs)
    }

    /// The file of a segment's slab. `None` where a parameter is changed, or is not from a file.
    fn entry(&self, segment: &Segment, source: &dyn ParamSource, types: SlabType) -> Option<Entry> {
        let name = slab_name(segment, source, types, WeightLayout::Panels)?;
        let mut files: Vec<Identity> = Vec::new();
        for param in segment.params() {
            let file = self.identity(&source.origin(&param.key))?;
            if files.iter().all(|known| known.path != file.path) {
                files.push(file);
            }
        }
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let place = sha256(format!("{name} {}", paths.join(" ")).as_bytes());
        let mut stamp = Sha256::default();
        stamp.update(format!("{LAYOUTS} {} {} {place}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH).as_bytes());
        files.iter().for_each(|file| stamp.update(file.content.as_bytes()));
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let segment: String = segment.name().chars().map(|c| if is_plain(&c) { c } else { '_' }).take(64).collect();
        let path = self.0.folder.join(format!("{segment}-{}.slab", place.get(..16)?));
        Some(Entry { path, stamp: stamp.finish() })
    }

    fn identity(&self, origin: &str) -> Option<Identity> {
        if let Some(known) = self.0.identities.lock().get(origin) {
            return known.clone();
        }
        let found = Identity::of(Path::new(origin)).ok();
        self.0.identities.lock().insert(origin.into(), found.clone());
        found
    }

    fn write(&self, entry: &Entry, unread: &Unread, slab: &Tensor) {
        match unread {
            Unread::Missing => {}
            Unread::Outdated => tracing::info!("{}: from other files, is written again", entry.path.display()),
            Unread::Damaged(problem) => {
                tracing::warn!("{}: {problem}; it is not used, and is written again", entry.path.display());
            }
        }
        if self.0.refused.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = entry.write(slab) {
            self.0.refused.store(true, Ordering::Relaxed);
            tracing::warn!("the weight cache is not written: {error}");
        }
    }
}

impl Identity {
    fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let mut file = open_regular(&path)?;
        let metadata = file.metadata()?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // A file may be replaced by another one of the same size and time, as copies that keep times are.
        let (mut sum, mut bytes) = (crc32fast::Hasher::new(), Vec::new());
        for i in 0..SAMPLES {
            file.seek(SeekFrom::Start(metadata.len() / SAMPLES * i))?;
            bytes.clear();
            (&mut file).take(PAGE as u64).read_to_end(&mut bytes)?;
            sum.update(&bytes);
        }
        let content = format!("{} {changed} {:08x};", metadata.len(), sum.finalize());
        Ok(Self { path: path.to_string_lossy().into_owned(), content })
    }
}

impl Entry {
    /// The slab of `expected` bytes.
    fn read<T: Element>(&self, expected: usize) -> std::result::Result<Tensor, Unread> {
        let damaged = |problem: String| Unread::Damaged(problem);
        let mut file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unread::Missing),
            Err(error) => return Err(damaged(format!("cannot be opened ({error})"))),
        };
        let sum = self.check_header(&mut file, expected)?;
        let mut is_right = true;
        let check = |bytes: &[u8]| {
            is_right = crc32fast::hash(bytes) == sum;
            is_right
        };
        let values = match T::mapped(&file, PAGE as u64, expected / size_of::<T>(), check) {
            Some(values) => values,
            None if is_right => self.read_copy(&mut file, expected, sum)?,
            None => return Err(damaged("has the wrong checksum".into())),
        };
        let length = values.len();
        Tensor::from_vec(values, length, &Device::Cpu).map_err(|error| damaged(error.to_string()))
    }

    /// Returns the checksum of the slab.
    fn check_header(&self, file: &mut File, expected: usize) -> std::result::Result<u32, Unread> {
        let mut page = [0; PAGE];
        file.read_exact(&mut page).map_err(|error| Unread::Damaged(format!("cannot be read ({error})")))?;
        let number = |start: usize, end: usize| {
            page[start..end].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        let sum = crc32fast::hash(&page[..SLAB_SUM_END]);
        if &page[..MAGIC.len()] != MAGIC || number(SLAB_SUM_END, HEADER_END) != u64::from(sum) {
            return Err(Unread::Damaged("is damaged, or no file of the weight cache".into()));
        }
        if page[MAGIC.len()..STAMP_END] != *self.stamp.as_bytes() {
            return Err(Unread::Outdated);
        }
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if number(STAMP_END, LENGTH_END) != expected as u64 || length != (PAGE + expected) as u64 {
            return Err(Unread::Damaged(format!("has {length} bytes, expected {}", PAGE + expected)));
        }
        Ok(number(LENGTH_END, SLAB_SUM_END) as u32)
    }

    /// The slab in memory of its own, if it cannot be mapped. `file` is at its first byte.
    fn read_copy<T: Element>(&self, file: &mut File, expected: usize, sum: u32) -> std::result::Result<Vec<T>, Unread> {
        let mut bytes = vec![0; expected];
        file.read_exact(&mut bytes).map_err(|error| Unread::Damaged(format!("cannot be read ({error})")))?;
        if crc32fast::hash(&bytes) != sum {
            return Err(Unread::Damaged("has the wrong checksum".into()));
        }
        let mut values = T::zeros(expected / size_of::<T>());
        T::copy(&bytes, &mut values);
        Ok(values)
    }

    fn write(&self, slab: &Tensor) -> std::result::Result<(), kiln_files::Error> {
        let failed = write_error(&self.path);
        let mut file = temporary_beside(&self.path)?;
        match slab.dtype() {
            DType::F32 => self.write_to::<f32>(file.as_file_mut(), slab),
            DType::F16 => self.write_to::<f16>(file.as_file_mut(), slab),
            _ => self.write_to::<bf16>(file.as_file_mut(), slab),
        }
        .map_err(failed)?;
        persist(file, &self.path)
    }

    fn write_to<T: Element>(&self, file: &mut File, slab: &Tensor) -> io::Result<()> {
        let (storage, layout) = slab.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { return Err(io::Error::other("the slab is not on the CPU")) };
        let values = storage.as_slice::<T>().map_err(io::Error::other)?;
        let values = &values[layout.start_offset()..][..slab.elem_count()];
        file.write_all(&[0; PAGE])?;
        let (mut sum, mut bytes) = (crc32fast::Hasher::new(), Vec::with_capacity(CHUNK * size_of::<T>()));
        for chunk in values.chunks(CHUNK) {
            bytes.clear();
            T::append(chunk, &mut bytes);
            sum.update(&bytes);
            file.write_all(&bytes)?;
        }
        let mut header = MAGIC.to_vec();
        header.extend(self.stamp.as_bytes());
        header.extend((size_of_val(values) as u64).to_le_bytes());
        header.extend(sum.finalize().to_le_bytes());
        header.extend(crc32fast::hash(&header).to_le_bytes());
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header)
    }
}

#[cfg(test)]
mod tests;
