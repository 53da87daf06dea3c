//! The devices of this machine, and the defaults that Kiln chooses for them.

use std::collections::HashMap;

use kiln_mempool::SystemMemory;
use kiln_models::DTypeChoice;
use kiln_ops::device::CpuInfo;
use serde::Serialize;

use crate::portable::{PortableDevice, automatic, listed};

/// The devices of this machine, as data.
#[derive(Debug, Clone, Serialize)]
pub struct Devices {
    /// The CPU's name.
    pub processor: String,
    /// The number of CPUs that this process may use, by its affinity mask and the control group's quota.
    pub threads: usize,
    /// Instruction sets that kernels check for.
    pub features: Vec<&'static str>,
    /// Memory that this process may use in bytes, if the system reports it: the total, or in a container its limit.
    pub memory_total: Option<u64>,
    /// Memory of the machine in bytes, if a container's limit is smaller.
    pub memory_physical: Option<u64>,
    /// Memory that is available without swapping, in bytes.
    pub memory_available: Option<u64>,
    /// The GPUs.
    pub cards: Vec<CardInfo>,
    /// The CUDA version, or the reason why there is no GPU and what to do about it.
    pub cuda: String,
    /// The files of CUDA's libraries that are loaded; for one that is missing, what that means and what installs it.
    pub libraries: Vec<String>,
    /// GPUs of any vendor, by Vulkan, Metal or DirectX 12.
    pub portable: Vec<PortableInfo>,
    /// The device and the type that are used here where both are `auto`.
    pub auto: AutoChoice,
}

/// A CUDA GPU, as data.
#[derive(Debug, Clone, Serialize)]
pub struct CardInfo {
    /// Its number, as in `cuda:N`.
    pub ordinal: usize,
    /// The manufacturer's name of the GPU.
    pub name: String,
    /// Compute capability, as `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Free memory in bytes.
    pub memory_free: usize,
    /// Total memory in bytes.
    pub memory_total: usize,
}

/// A GPU by Vulkan, Metal or DirectX 12, as data.
#[derive(Debug, Clone, Serialize)]
pub struct PortableInfo {
    /// Its name as a device, as `vulkan:0`.
    pub device: String,
    /// The name that the driver gives.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Whether it has memory of its own.
    pub is_discrete: bool,
    /// Whether it is a program that computes on the CPU.
    pub is_software: bool,
    /// Whether it computes with f16.
    pub has_f16: bool,
    /// Free memory in bytes, if its driver reports it.
    pub memory_free: Option<u64>,
    /// Total memory in bytes, if its driver reports it.
    pub memory_total: Option<u64>,
}

/// The defaults.
#[derive(Debug, Clone, Serialize)]
pub struct AutoChoice {
    /// The device.
    pub device: String,
    /// The type of weights and activations.
    pub dtype: String,
    /// The kernels that run.
    pub kernels: String,
    /// The reason.
    pub reason: String,
}

/// Detects the devices.
pub fn devices() -> Devices {
    let processor = kiln_ops::device::cpu_info();
    let memory = SystemMemory::now();
    let (cards, cuda, libraries) = match kiln_ops::device::gpus() {
        Ok(found) => {
            let versions = format!(
                "driver for CUDA {}.{}, cuBLAS {}",
                found.driver_version / 1000,
                found.driver_version % 1000 / 10,
                found.cublas_version
            );
            (found.gpus, versions, found.libraries)
        }
        Err(error) => (Vec::new(), error.to_string(), Vec::new()),
    };
    let portable = portable();
    let automatic = automatic().map(|device| device.to_string());
    let automatic = portable.iter().find(|gpu| Some(&gpu.device) == automatic.as_ref());
    let auto = auto((cards.first().map(|gpu| gpu.name.as_str()), automatic), &cuda, &processor);
    let info = |gpu: kiln_ops::device::Gpu| CardInfo {
        ordinal: gpu.ordinal,
        name: gpu.name,
        compute_capability: format!("{}.{}", gpu.compute_capability.0, gpu.compute_capability.1),
        multiprocessors: gpu.multiprocessors,
        memory_free: gpu.memory_free,
        memory_total: gpu.memory_total,
    };
    Devices {
        processor: processor.name,
        threads: processor.threads,
        features: processor.features,
        memory_total: memory.map(|memory| memory.total),
        memory_physical: memory.filter(SystemMemory::is_limited).map(|memory| memory.physical),
        memory_available: memory.map(|memory| memory.available),
        cards: cards.into_iter().map(info).collect(),
        cuda,
        libraries,
        portable,
        auto,
    }
}

/// GPUs by Vulkan, Metal or DirectX 12.
fn portable() -> Vec<PortableInfo> {
    let mut counts = HashMap::new();
    let info = |adapter: &kiln_wgpu::Adapter| {
        let number = counts.entry(adapter.api).or_insert(0);
        let device = PortableDevice { api: Some(adapter.api), number: *number }.to_string();
        *number += 1;
        let kiln_wgpu::Adapter { name, driver, is_discrete, is_software, has_f16, .. } = adapter.clone();
        let memory = adapter.memory();
        let (memory_free, memory_total) = (memory.map(|memory| memory.free), memory.map(|memory| memory.total));
        PortableInfo { device, name, driver, is_discrete, is_software, has_f16, memory_free, memory_total }
    };
    listed().iter().map(info).collect()
}

fn auto((gpu, portable): (Option<&str>, Option<&PortableInfo>), cuda: &str, processor: &CpuInfo) -> AutoChoice {
    let dtype = format!("{:?}", DTypeChoice::Auto.resolve(gpu.is_some())).to_lowercase();
    match (gpu, portable) {
        (Some(name), _) => AutoChoice {
            device: "cuda:0".into(),
            dtype,
            kernels: "Kiln's own, cuBLASLt and cuDNN".into(),
            reason: format!("{name} is available, and half precision is its fastest type"),
        },
        (None, Some(gpu)) => AutoChoice {
            device: gpu.device.clone(),
            dtype: if gpu.has_f16 { "f16" } else { "f32" }.into(),
            kernels: "Kiln's own, by wgpu".into(),
            reason: format!("{} is a GPU of this machine; no CUDA: {cuda}", gpu.name),
        },
        (None, None) => AutoChoice {
            device: "cpu".into(),
            dtype,
            kernels: format!("Kiln's own, for {}", processor.path),
            reason: match processor.fastest_dtype {
                candle_core::DType::BF16 => format!("no GPU: {cuda}; this CPU has bf16 dot products"),
                _ => format!("no GPU: {cuda}; without bf16 dot products, f32 is faster than 16-bit types"),
            },
        },
    }
}
