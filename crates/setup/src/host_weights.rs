//! Weights of models that are larger than host memory, and how fast the disk reads them, for plans.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use crate::room::DeviceMemory;

/// Parts of a file that are read to measure its disk.
const PARTS: u64 = 8;
/// Bytes of a part: several times what systems read ahead.
const PART: u64 = 8 << 20;

/// The memory of the host for streamed weights, and the rate at which those without room are read in every step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HostWeights {
    /// Bytes of host memory.
    pub room: u64,
    /// Bytes that the disk reads per second.
    pub disk: f64,
}

impl HostWeights {
    /// Of weights in these files. `None` if host memory has room for all of them, so that no step reads the disk, and if the disk
    /// could not be measured. A measurement reads 64 MiB.
    pub fn of(files: &[PathBuf]) -> Option<Self> {
        let room = host_bytes();
        let size = |path: &&PathBuf| path.metadata().map_or(0, |file| file.len());
        if files.iter().map(|path| size(&path)).sum::<u64>() <= room {
            return None;
        }
        let largest = files.iter().max_by_key(size)?;
        Some(Self { room, disk: disk_rate(largest)? })
    }

    /// Bytes that a step reads, if it copies so many.
    pub fn read_per_step(&self, copied: usize) -> usize {
        copied.saturating_sub(usize::try_from(self.room).unwrap_or(usize::MAX))
    }

    /// Seconds of reading `bytes`.
    pub fn reading(&self, bytes: usize) -> f64 {
        bytes as f64 / self.disk
    }
}

/// The host memory for weights that are copied to a GPU: what is free, less a part for other programs, and less a quarter, for
/// pages of the file that are read ahead. Weights beyond it are read from their files in every pass.
pub fn host_bytes() -> u64 {
    DeviceMemory::of_processor().map_or(u64::MAX, |memory| memory.free.bytes as u64 / 4 * 3)
}

/// Bytes per second at which parts of a file, spread over it, are read from its disk. They leave the system's cache before. `None`
/// for a small file, and on systems that cannot drop parts of a file from their cache.
fn disk_rate(path: &Path) -> Option<f64> {
    let mut file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let starts: Vec<u64> = (0..PARTS).map(|part| size / PARTS * part).collect();
    if size < PARTS * PART || !starts.iter().all(|start| leave_cache(&file, *start, PART)) {
        return None;
    }
    let mut bytes = vec![0; PART as usize];
    let begun = Instant::now();
    for start in starts {
        file.seek(SeekFrom::Start(start)).ok()?;
        file.read_exact(&mut bytes).ok()?;
    }
    Some((PARTS * PART) as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn leave_cache(file: &File, start: u64, length: u64) -> bool {
    let length = std::num::NonZeroU64::new(length);
    rustix::fs::fadvise(file, start, length, rustix::fs::Advice::DontNeed).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn leave_cache(_file: &File, _start: u64, _length: u64) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_read() {
        let host = HostWeights { room: 10 << 30, disk: 2e9 };
        assert_eq!((host.read_per_step(9 << 30), host.read_per_step(14 << 30)), (0, 4 << 30));
        assert_eq!(host.reading(4_000_000_000), 2.0);
    }

    #[test]
    fn only_files_beyond_host_memory_are_measured() {
        let folder = tempfile::tempdir().unwrap();
        let small = folder.path().join("small");
        std::fs::write(&small, [1; 4096]).unwrap();
        assert_eq!(HostWeights::of(std::slice::from_ref(&small)), None);
        assert_eq!(HostWeights::of(&[folder.path().join("missing")]), None);
        assert_eq!(disk_rate(&small), None);
        let large = folder.path().join("large");
        std::fs::write(&large, vec![1; (PARTS * PART) as usize]).unwrap();
        let rate = disk_rate(&large);
        assert_eq!(rate.is_some(), cfg!(any(target_os = "linux", target_os = "android")));
        assert!(rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()), "{rate:?} bytes per second");
    }
}
