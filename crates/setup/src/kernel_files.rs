//! The files with compiled kernels of GPUs by Vulkan, in the cache folder: one for each kind of GPU.

use std::path::{Path, PathBuf};

use kiln_files::{read_small, replace_file, sha256};
use kiln_wgpu::KernelStore;

/// The first line. The second one is the SHA-256 of what follows it: drivers trust these bytes.
const FORMAT: &str = "kiln-kernels 1\n";
/// Kernels of earlier versions of Kiln stay in a file. A larger one is left out.
const MOST_BYTES: u64 = 256 << 20;

/// Keeps compiled kernels in a folder. What cannot be read or written is compiled again.
#[derive(Debug)]
pub(crate) struct KernelFiles(PathBuf);

impl KernelFiles {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.to_path_buf())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("kernels-{name}.bin"))
    }
}

impl KernelStore for KernelFiles {
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let path = self.path(name);
        let bytes = match read_small(&path, MOST_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::debug!("{} is left out: {error}", path.display());
                return None;
            }
        };
        let kernels = kernels(&bytes).map(<[u8]>::to_vec);
        if kernels.is_none() {
            tracing::debug!("{} is left out: it is no file of compiled kernels, or damaged", path.display());
        }
        kernels
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        let file = [FORMAT.as_bytes(), sha256(bytes).as_bytes(), b"\n", bytes].concat();
        if let Err(error) = replace_file(&path, &file) {
            tracing::debug!("compiled kernels are not kept: {error}");
        }
    }
}

/// The kernels in the bytes of a file that is whole.
fn kernels(file: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = file.strip_prefix(FORMAT.as_bytes())?.split_at_checked(64)?;
    let kernels = rest.strip_prefix(b"\n")?;
    (sha256(kernels).as_bytes() == sum).then_some(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_kernels_and_a_damaged_one_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let files = KernelFiles::new(&folder.path().join("cache"));
        assert_eq!(files.read("gpu"), None);
        files.write("gpu", b"first");
        files.write("gpu", b"second");
        files.write("other", b"");
        assert_eq!((files.read("gpu").unwrap(), files.read("other").unwrap()), (b"second".to_vec(), Vec::new()));
        assert_eq!(std::fs::read_dir(&files.0).unwrap().count(), 2, "nothing else stays");
        let path = files.path("gpu");
        let good = std::fs::read(&path).unwrap();
        let mut changed = good.clone();
        *changed.last_mut().unwrap() ^= 1;
        let longer = [&good[..], b"x"].concat();
        for bad in [&good[..good.len() - 1], &good[..20], &changed, &longer, b""] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(files.read("gpu"), None, "{bad:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(files.read("gpu"), None);
        files.write("gpu", b"not possible");
    }
}
