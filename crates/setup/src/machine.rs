//! The machine that a measurement or a trace ran on.

use std::sync::Arc;

use candle_core::{Device, DeviceLocation};
use kiln_ops::device::{cpu_info, gpu};
use kiln_ops::portable::Backend;
use serde::Serialize;

/// A machine, as far as it matters to speed.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Threads that were used.
    pub threads: usize,
    /// `cpu`, or the GPU's name.
    pub device: String,
    /// The driver and the features of a GPU that is not candle's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
}

impl Machine {
    /// The machine that `device` belongs to.
    pub fn new(device: &Device) -> Self {
        // The other GPUs are left alone: looking at one that is not open takes a large part of a second.
        let device = match device.location() {
            DeviceLocation::Cpu => "cpu".into(),
            DeviceLocation::Cuda { gpu_id } => gpu(gpu_id).map_or_else(|_| "card".into(), |gpu| gpu.name),
            DeviceLocation::Metal { .. } => "card".into(),
        };
        Self { processor: cpu_info().name, threads: rayon::current_num_threads(), device, features: None }
    }

    /// With the name and the features of a GPU that is not candle's, if there is one.
    pub fn with_backend(self, backend: Option<&Arc<dyn Backend>>) -> Self {
        match backend {
            Some(backend) => Self { device: backend.name().into(), features: Some(backend.features().into()), ..self },
            None => self,
        }
    }
}
