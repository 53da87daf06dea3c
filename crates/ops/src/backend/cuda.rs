//! CUDA as a back end.

use candle_core::cuda_backend::CudaDevice;
use candle_core::{DType, Device, Tensor};

use super::Backend;
use crate::cuda::runs_on;
use crate::error::Result;

/// A CUDA device that this build has machine code for. Kernels are launched on its one stream.
pub(crate) struct Cuda {
    pub(crate) device: CudaDevice,
}

impl Backend for Cuda {
    fn of(x: &Tensor) -> Result<Option<Self>> {
        match (x.device(), x.dtype()) {
            (Device::Cuda(device), DType::F32 | DType::F16 | DType::BF16) => {
                Ok(runs_on(device)?.then(|| Self { device: device.clone() }))
            }
            _ => Ok(None),
        }
    }
}
