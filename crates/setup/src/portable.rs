//! GPUs of any vendor: by Vulkan, Metal or DirectX 12.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use kiln_wgpu::{Adapter, Api, Gpu, adapters};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::kernel_files::KernelFiles;

/// A GPU that is driven by Vulkan, Metal or DirectX 12.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortableDevice {
    /// The interface; `None` for any.
    pub api: Option<Api>,
    /// Its number among the GPUs with this interface: those with memory of their own come first.
    pub number: usize,
}

impl fmt::Display for PortableDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.api {
            Some(api) => write!(f, "{api}:{}", self.number),
            None => write!(f, "gpu:{}", self.number),
        }
    }
}

impl FromStr for PortableDevice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let api = match name {
            "gpu" => None,
            "vulkan" => Some(Api::Vulkan),
            "metal" => Some(Api::Metal),
            "dx12" => Some(Api::Dx12),
            _ => return Err("expected gpu, vulkan, metal or dx12, or one of them with a number, as in vulkan:1".into()),
        };
        let number = number.parse().map_err(|_| format!("expected a number after {name}:, found `{number}`"))?;
        Ok(Self { api, number })
    }
}

impl PortableDevice {
    /// The name without the number.
    pub fn interface(self) -> String {
        self.api.map_or_else(|| "gpu".into(), |api| api.to_string())
    }

    /// The GPU, which is not opened.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such GPU.
    pub fn find(self) -> Result<Adapter> {
        let found: Vec<&Adapter> =
            listed().iter().filter(|adapter| self.api.is_none_or(|api| adapter.api == api)).collect();
        if let Some(adapter) = found.get(self.number) {
            return Ok((*adapter).clone());
        }
        let names: Vec<String> = found.iter().map(|adapter| format!("{} ({})", adapter.name, adapter.api)).collect();
        let problem = match names.as_slice() {
            [] => "no GPU was found; install its driver, and on Linux the Vulkan loader (libvulkan1)".to_string(),
            names => format!("there are {}: {}", names.len(), names.join(", ")),
        };
        Err(Error::Device(format!("`device` {self}: {problem}")))
    }

    /// Opens the GPU, whose compiled kernels are kept in `cache_dir`. Engines of one process share it, and the folder of the first one.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such GPU, and errors of its driver.
    pub fn open(self, cache_dir: Option<&Path>) -> Result<Arc<Gpu>> {
        static OPEN: Mutex<Option<HashMap<PortableDevice, Weak<Gpu>>>> = Mutex::new(None);
        let mut open = OPEN.lock();
        let open = open.get_or_insert_default();
        if let Some(gpu) = open.get(&self).and_then(Weak::upgrade) {
            return Ok(gpu);
        }
        let adapter = self.find()?;
        let store = cache_dir.map(|folder| Box::new(KernelFiles::new(folder)) as _);
        let gpu =
            Gpu::open_with(&adapter, store).map_err(|error| Error::Device(format!("`device` {self}: {error}")))?;
        open.insert(self, Arc::downgrade(&gpu));
        Ok(gpu)
    }
}

/// Set if the GPU of [`automatic`] cannot be opened.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);

/// The GPU that is taken if none is named and there is no CUDA GPU: the first one that is hardware, those with memory of their own
/// before others. Programs on the CPU are never taken.
pub(crate) fn automatic() -> Option<PortableDevice> {
    static FOUND: OnceLock<Option<PortableDevice>> = OnceLock::new();
    let find = || match kiln_ops::device::gpu(0) {
        Ok(_) => None,
        Err(_) => hardware().first().copied(),
    };
    FOUND.get_or_init(find).filter(|_| !IS_BROKEN.load(Ordering::Relaxed))
}

/// Takes that GPU no more.
pub(crate) fn leave_automatic() {
    IS_BROKEN.store(true, Ordering::Relaxed);
}

/// The GPUs of a run on all of them without CUDA: those with memory of their own, or else those without. They have one interface, since
/// Windows lists a GPU for each.
pub(crate) fn hardware() -> Vec<PortableDevice> {
    all_of(listed().iter().map(Kind::of))
}

/// A GPU for the choice among several.
#[derive(Debug, Clone, Copy)]
struct Kind {
    api: Api,
    is_hardware: bool,
    is_discrete: bool,
}

impl Kind {
    fn of(adapter: &Adapter) -> Self {
        Self { api: adapter.api, is_hardware: adapter.is_hardware, is_discrete: adapter.is_discrete }
    }
}

/// The GPUs that are hardware as the first one that is, with the same interface and kind of memory, with their numbers among those with
/// the interface.
fn all_of(found: impl Iterator<Item = Kind> + Clone) -> Vec<PortableDevice> {
    let Some(first) = found.clone().find(|kind| kind.is_hardware) else { return Vec::new() };
    let of_interface = found.filter(|kind| kind.api == first.api).enumerate();
    let taken = of_interface.filter(|(_, kind)| kind.is_hardware && kind.is_discrete == first.is_discrete);
    taken.map(|(number, kind)| PortableDevice { api: Some(kind.api), number }).collect()
}

/// The GPUs of this machine. They are listed once for a process: drivers take milliseconds, and servers are asked often.
pub(crate) fn listed() -> &'static [Adapter] {
    static LISTED: OnceLock<Vec<Adapter>> = OnceLock::new();
    LISTED.get_or_init(adapters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for (text, name) in [("gpu", "gpu:0"), ("vulkan:2", "vulkan:2"), ("metal", "metal:0"), ("dx12:1", "dx12:1")] {
            assert_eq!(text.parse::<PortableDevice>().unwrap().to_string(), name);
        }
        for wrong in ["opencl", "vulkan:", "vulkan:-1", "gpu:x"] {
            assert!(wrong.parse::<PortableDevice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn programs_are_never_taken() {
        let names = |found: &[(Api, bool, bool)]| {
            let kinds = found.iter().map(|&(api, is_hardware, is_discrete)| Kind { api, is_hardware, is_discrete });
            all_of(kinds).iter().map(PortableDevice::to_string).collect::<Vec<_>>()
        };
        use Api::{Dx12, Vulkan};
        assert!(names(&[]).is_empty() && names(&[(Vulkan, false, false)]).is_empty(), "lavapipe alone");
        assert_eq!(names(&[(Vulkan, false, false), (Dx12, false, false), (Vulkan, true, false)]), ["vulkan:1"]);
        let of_windows = [(Dx12, true, true), (Vulkan, true, true), (Dx12, true, true), (Dx12, true, false)];
        assert_eq!(names(&of_windows), ["dx12:0", "dx12:1"], "each GPU once, and none without memory of its own");
        assert_eq!(names(&[(Vulkan, true, false), (Vulkan, true, false)]), ["vulkan:0", "vulkan:1"]);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_that_names_it() {
        let error = PortableDevice { api: None, number: 99 }.find().unwrap_err().to_string();
        assert!(error.contains("`device` gpu:99: "), "{error}");
    }
}
