//! The libraries of matrix products and convolutions, one set for each device: cuBLASLt, cuDNN if it is installed,
//! and the workspace of both.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use candle_core::cuda::cudarc::driver::{CudaSlice, DevicePtr};
use candle_core::cuda_backend::{CudaDevice, DeviceId};
use parking_lot::Mutex;

use super::cublaslt::CublasLt;
use super::cudnn::Cudnn;
use super::{bind, driver};
use crate::error::Result;

/// Bytes of the workspace.
pub(crate) use crate::workspace::LIBRARIES as WORKSPACE;

/// The libraries of a device, initialized on first use: outside of a capture, by the first eager step.
pub(crate) struct Libraries {
    pub(crate) blas: CublasLt,
    /// `None` if it is not installed.
    pub(crate) dnn: Option<Cudnn>,
    /// Allocated when it is first used, and again after the device was closed.
    workspace: Option<CudaSlice<u8>>,
}

impl Libraries {
    /// The address of [`WORKSPACE`] bytes. Its users run one after another on the device's one stream.
    pub(crate) fn workspace(&mut self, device: &CudaDevice) -> Result<u64> {
        let workspace = match &mut self.workspace {
            Some(workspace) => workspace,
            // SAFETY: a workspace holds nothing between launches; a kernel writes it before it reads it.
            none => none.insert(unsafe { device.alloc::<u8>(WORKSPACE)? }),
        };
        Ok(workspace.device_ptr(&device.cuda_stream()).0)
    }
}

/// The libraries of a device, behind a lock of its own, so that a device does not wait while another one's libraries are
/// initialized or asked for a plan. `None` before their first use.
type Place = Arc<Mutex<Option<Libraries>>>;

/// Handles, and the code that libraries load for them, live as long as the process, as kernels do. New handles for
/// every engine would each leak some MiB of GPU memory.
static LIBRARIES: LazyLock<Mutex<HashMap<DeviceId, Place>>> = LazyLock::new(Mutex::default);

/// The place of a device's libraries.
fn place(device: &CudaDevice) -> Place {
    LIBRARIES.lock().entry(device.id()).or_default().clone()
}

/// Frees the workspace of a device, after the work that uses it.
pub(crate) fn close(device: &CudaDevice) {
    let _ = bind(device); // if this fails, the GPU's memory is lost anyway
    if let Some(libraries) = place(device).lock().as_mut() {
        libraries.workspace = None;
    }
}

/// Runs `launch` with the libraries of a device, one caller at a time, which their handles require.
pub(crate) fn with<R>(device: &CudaDevice, launch: impl FnOnce(&mut Libraries) -> Result<R>) -> Result<R> {
    bind(device)?;
    let stream = device.cuda_stream();
    let place = place(device);
    let mut libraries = place.lock();
    let libraries = match &mut *libraries {
        Some(made) => made,
        none => {
            let hopper = stream.context().compute_capability().map_err(driver)? == (9, 0);
            none.insert(Libraries { blas: CublasLt::new(hopper)?, dnn: Cudnn::new(&stream)?, workspace: None })
        }
    };
    launch(libraries)
}
