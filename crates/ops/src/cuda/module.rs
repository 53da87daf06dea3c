//! Machine code for GPUs, loaded once for each context.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use candle_core::DType;
use candle_core::cuda::cudarc::driver::{CudaFunction, CudaModule};
use candle_core::cuda::cudarc::nvrtc::Ptx;
use candle_core::cuda_backend::CudaDevice;
use parking_lot::Mutex;

use super::{bind, driver};
use crate::error::Result;
use crate::w8a8::ByteNumber;

/// The architectures of the build: `90` machine code, `90+` PTX that drivers compile for this and later GPUs.
const CODE: &str = env!("KILN_CUDA_CODE");

/// The embedded kernels of an operator.
pub(crate) struct Module {
    /// The folder of the operator.
    pub(crate) name: &'static str,
    /// A fat binary.
    pub(crate) image: &'static [u8],
}

/// The kernels that were compiled from a folder's `kernel.cu`.
macro_rules! kernels {
    ($name:literal) => {
        $crate::cuda::Module { name: $name, image: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")) }
    };
}
pub(crate) use kernels;

/// The code of a context, by name. It lives as long as the process, and keeps its context alive, and with it its primary
/// context.
#[derive(Default)]
struct Loaded {
    modules: HashMap<&'static str, Arc<CudaModule>>,
    functions: HashMap<String, CudaFunction>,
    usable: Option<bool>,
}

/// The code of a context, behind a lock of its own: every launch looks here, and must not wait while code is loaded for another GPU.
type Place = Arc<Mutex<Loaded>>;

static LOADED: LazyLock<Mutex<HashMap<usize, Place>>> = LazyLock::new(Mutex::default);

/// The place of a device's context.
fn place(device: &CudaDevice) -> Place {
    LOADED.lock().entry(device.cuda_stream().context().cu_ctx() as usize).or_default().clone()
}

impl Module {
    /// The kernel `name` for elements of `dtype`: `name_f32`, `name_f16` or `name_bf16` in the source.
    pub(crate) fn typed(&self, device: &CudaDevice, name: &str, dtype: DType) -> Result<CudaFunction> {
        self.function(device, &format!("{name}_{}", dtype.as_str()))
    }

    /// The kernel of this name. Names are unique over all operators. The calling thread has the device's context afterwards, so that
    /// the kernel's attributes can be set.
    pub(crate) fn function(&self, device: &CudaDevice, name: &str) -> Result<CudaFunction> {
        bind(device)?;
        let place = place(device);
        let mut loaded = place.lock();
        if let Some(function) = loaded.functions.get(name) {
            return Ok(function.clone());
        }
        let module = match loaded.modules.get(self.name) {
            Some(module) => module.clone(),
            None => {
                let image = Ptx::from_binary(self.image.to_vec());
                let module = device.cuda_stream().context().load_module(image).map_err(driver)?;
                loaded.modules.insert(self.name, module.clone());
                module
            }
        };
        let function = module.load_function(name).map_err(driver)?;
        loaded.functions.insert(name.into(), function.clone());
        Ok(function)
    }
}

/// The compute capability of a GPU, major and minor.
fn capability(device: &CudaDevice) -> Result<(i32, i32)> {
    device.cuda_stream().context().compute_capability().map_err(driver)
}

/// Whether this build has code for the GPU. Otherwise it logs that once.
pub(crate) fn runs_on(device: &CudaDevice) -> Result<bool> {
    let place = place(device);
    let mut loaded = place.lock();
    if let Some(usable) = loaded.usable {
        return Ok(usable);
    }
    let (major, minor) = capability(device)?;
    let usable = covers(CODE, (major, minor));
    if !usable {
        tracing::warn!(
            "no kernels for compute capability {major}.{minor} in this build (only {CODE}): falling back to candle's"
        );
    }
    loaded.usable = Some(usable);
    Ok(usable)
}

/// Whether kernels of Hopper's architecture-specific variant run: the GPU is a Hopper, and the build has machine code
/// for it, since PTX and code for other architectures lack them.
pub(crate) fn has_hopper_code(device: &CudaDevice) -> Result<bool> {
    /// `KILN_HOPPER=off` runs the kernels of other GPUs, so that a Hopper tests them.
    static IS_ON: LazyLock<bool> = LazyLock::new(|| std::env::var_os("KILN_HOPPER").is_none_or(|value| value != "off"));
    Ok(*IS_ON && capability(device)? == (9, 0) && CODE.split(',').any(|entry| entry == "90"))
}

/// Whether the GPU multiplies such numbers, and this build has code for that: signed integers since compute capability 7.5,
/// e4m3 since 8.9.
pub(crate) fn has_byte_products(device: &CudaDevice, number: ByteNumber) -> Result<bool> {
    let least = match number {
        ByteNumber::Int8 => 75,
        ByteNumber::E4m3 => 89,
    };
    let capability = capability(device)?;
    let is_late = |entry: &&str| entry.trim_end_matches('+').parse::<u32>().is_ok_and(|arch| arch >= least);
    Ok(CODE.split(',').filter(is_late).any(|entry| covers(entry, capability)))
}

/// Whether `code` runs on a GPU: machine code of the same major version and no later minor one (Hopper's variant on
/// Hopper alone, which is the same condition), or PTX of no later version.
fn covers(code: &str, (major, minor): (i32, i32)) -> bool {
    let capability = major * 10 + minor;
    code.split(',').any(|entry| match entry.strip_suffix('+') {
        Some(ptx) => ptx.parse().is_ok_and(|ptx: i32| ptx <= capability),
        None => entry.parse().is_ok_and(|arch: i32| arch / 10 == major && arch <= capability),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_code_runs_within_a_major_version_and_ptx_on_later_gpus() {
        assert!(covers("90", (9, 0)) && covers("80,86", (8, 9)) && covers("80,90,90+", (12, 0)));
        assert!(!covers("90", (8, 9)) && !covers("86", (8, 0)) && !covers("90", (10, 0)) && !covers("90,90+", (8, 6)));
    }
}
