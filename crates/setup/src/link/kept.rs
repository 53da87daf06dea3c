//! The file with a measured link: JSON, one for each GPU, in the cache folder.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use kiln_files::{MAX_CONFIG_BYTES, read_small, replace_file};
use kiln_ops::device::Gpu;
use kiln_ops::stream::LinkSpeed;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The value of `format`.
const FORMAT: &str = "kiln-link";
/// The version of the file and of the measurement.
const VERSION: u32 = 1;
/// Possible rates in bytes per second: the first is slower than any link of a GPU, the last faster.
pub(super) const RATES: RangeInclusive<f64> = 1e7..=1e13;
/// Possible seconds of a copy and of a wait.
const DELAYS: RangeInclusive<f64> = 0.0..=0.1;

/// The properties that a measurement belongs to. If any of them changes, the link is measured again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GpuIdentity {
    /// The product name.
    pub(super) name: String,
    /// The GPU's identifier in hexadecimal digits.
    pub(super) uuid: String,
    /// Its place on the PCI bus: another slot may have fewer lanes.
    pub(super) pci: String,
    /// The driver, with its version.
    pub(super) driver: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    gpu: GpuIdentity,
    pinned_bytes_per_second: f64,
    pageable_bytes_per_second: f64,
    seconds_per_copy: f64,
    seconds_per_wait: f64,
}

impl GpuIdentity {
    pub(super) fn of(gpu: &Gpu) -> Self {
        let Gpu { name, uuid, pci, driver_version, .. } = gpu;
        let driver = format!("CUDA {driver_version}; {}", driver());
        Self { name: name.clone(), uuid: uuid.clone(), pci: pci.clone(), driver }
    }

    /// The GPU's file in the cache folder.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        // An identifier of the driver has digits only.
        let id: String = self.uuid.chars().filter(char::is_ascii_alphanumeric).collect();
        folder.join(format!("link-{id}.json"))
    }
}

/// The state of NVIDIA's driver on this machine.
fn driver() -> String {
    const VERSION: &str = "/proc/driver/nvidia/version";
    match std::fs::read_to_string(VERSION) {
        Ok(text) => format!("the driver is installed: {}", text.lines().next().unwrap_or_default().trim()),
        Err(_) => format!("NVIDIA's driver is not loaded: {VERSION} is missing"),
    }
}

/// Whether all figures are possible.
pub(super) fn is_plausible(speed: &LinkSpeed) -> bool {
    let LinkSpeed { pinned, pageable, seconds_per_copy, seconds_per_wait } = speed;
    RATES.contains(pinned)
        && RATES.contains(pageable)
        && DELAYS.contains(seconds_per_copy)
        && DELAYS.contains(seconds_per_wait)
}

/// The link in a GPU's file; `None` without a file, and else why it does not count.
pub(super) fn read(path: &Path, identity: &GpuIdentity) -> std::result::Result<Option<LinkSpeed>, String> {
    let bytes = match read_small(path, MAX_CONFIG_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let file: File = serde_json::from_slice(&bytes).map_err(|error| format!("no speed of a link: {error}"))?;
    let File { format, version, gpu, .. } = &file;
    if (format.as_str(), *version) != (FORMAT, VERSION) {
        return Err(format!("`format` is {format:?} version {version}, expected {FORMAT:?} version {VERSION}"));
    }
    if gpu != identity {
        return Err(format!("it is of {gpu:?}, expected {identity:?}"));
    }
    let speed = LinkSpeed {
        pinned: file.pinned_bytes_per_second,
        pageable: file.pageable_bytes_per_second,
        seconds_per_copy: file.seconds_per_copy,
        seconds_per_wait: file.seconds_per_wait,
    };
    if is_plausible(&speed) { Ok(Some(speed)) } else { Err(format!("its figures are impossible: {speed:?}")) }
}

/// Writes a GPU's file, which others see whole or not at all. Its folder is created.
///
/// # Errors
/// [`crate::Error::Files`] where the folder is not writable.
pub(super) fn write(path: &Path, identity: &GpuIdentity, speed: &LinkSpeed) -> Result<()> {
    let file = File {
        format: FORMAT.into(),
        version: VERSION,
        gpu: identity.clone(),
        pinned_bytes_per_second: speed.pinned,
        pageable_bytes_per_second: speed.pageable,
        seconds_per_copy: speed.seconds_per_copy,
        seconds_per_wait: speed.seconds_per_wait,
    };
    let json = serde_json::to_vec_pretty(&file).unwrap_or_default();
    Ok(replace_file(path, &json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEED: LinkSpeed = LinkSpeed { pinned: 25e9, pageable: 9e9, seconds_per_copy: 4e-6, seconds_per_wait: 12e-6 };

    fn identity() -> GpuIdentity {
        let [name, uuid, pci, driver] = ["A GPU", "00ff", "0000:01:00", "580"].map(String::from);
        GpuIdentity { name, uuid, pci, driver }
    }

    #[test]
    fn a_file_holds_the_figures() {
        let folder = tempfile::tempdir().unwrap();
        let path = identity().path(folder.path());
        assert_eq!(path.file_name().unwrap(), "link-00ff.json");
        assert_eq!(read(&path, &identity()), Ok(None));
        write(&path, &identity(), &SPEED).unwrap();
        assert_eq!(read(&path, &identity()), Ok(Some(SPEED)));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn damaged_and_foreign_files_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = identity().path(folder.path());
        write(&path, &identity(), &SPEED).unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        let others = [
            GpuIdentity { name: "Another".into(), ..identity() },
            GpuIdentity { pci: "0000:02:00".into(), ..identity() },
            GpuIdentity { driver: "590".into(), ..identity() },
        ];
        for other in others {
            assert!(read(&path, &other).unwrap_err().contains("it is of"), "{other:?}");
        }
        for (text, reason) in [
            (String::new(), "no speed of a link"),
            ("\0".into(), "no speed of a link"),
            (good[..good.len() / 2].into(), "no speed of a link"),
            (good.replace("kiln-link", "kiln-scales"), "expected \"kiln-link\""),
            (good.replace("\"version\": 1", "\"version\": 2"), "version 2"),
            (good.replace("25000000000.0", "0.0"), "impossible"),
            (good.replace("25000000000.0", "1e99"), "impossible"),
            (good.replace("25000000000.0", "\"fast\""), "no speed of a link"),
            (good.replace("\"version\"", "\"more\": 1, \"version\""), "no speed of a link"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let found = read(&path, &identity()).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(read(&path, &identity()).is_err());
    }
}
