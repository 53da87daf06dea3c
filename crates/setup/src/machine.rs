//! The machine that a measurement or a trace ran on.

use candle_core::{Device, DeviceLocation};
use kiln_ops::device::{cpu_info, gpu};
use serde::Serialize;

/// A machine, as far as it matters to speed.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Threads that were used.
    pub threads: usize,
    /// `cpu`, or the card's name.
    pub device: String,
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
        Self { processor: cpu_info().name, threads: rayon::current_num_threads(), device }
    }
}
