//! What this machine has, and what Kiln would do with it.

use kiln_mempool::SystemMemory;
use kiln_models::DTypeChoice;
use kiln_ops::device::CpuInfo;
use serde::Serialize;

/// The devices of this machine, as data.
#[derive(Debug, Clone, Serialize)]
pub struct Devices {
    /// The processor's name.
    pub processor: String,
    /// CPUs that this process may use at a time: as its affinity mask and the control group's quota allow.
    pub threads: usize,
    /// Instruction sets that kernels ask for.
    pub features: Vec<&'static str>,
    /// Memory that this process may use in bytes, where the system reports it: all that there is, or in a container its
    /// limit.
    pub memory_total: Option<u64>,
    /// Memory of the machine in bytes, where a container's limit is less.
    pub memory_physical: Option<u64>,
    /// Memory that can be had without swapping, in bytes.
    pub memory_available: Option<u64>,
    /// The cards.
    pub cards: Vec<CardInfo>,
    /// What the cards run on, or why there are none.
    pub cuda: String,
    /// The device and the type that are used here where both are `auto`.
    pub auto: AutoChoice,
}

/// A CUDA card, as data.
#[derive(Debug, Clone, Serialize)]
pub struct CardInfo {
    /// Its number, as in `cuda:N`.
    pub ordinal: usize,
    /// The maker's name for it.
    pub name: String,
    /// Compute capability, as `9.0`.
    pub compute_capability: String,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Free memory in bytes.
    pub memory_free: usize,
    /// Memory in all, in bytes.
    pub memory_total: usize,
}

/// What is chosen where nothing is asked for.
#[derive(Debug, Clone, Serialize)]
pub struct AutoChoice {
    /// The device.
    pub device: String,
    /// The type of weights and activations.
    pub dtype: String,
    /// Which kernels run.
    pub kernels: String,
    /// Why.
    pub reason: String,
}

/// Looks at the machine.
pub fn devices() -> Devices {
    let processor = kiln_ops::device::cpu_info();
    let memory = SystemMemory::now();
    let (cards, cuda) = match kiln_ops::device::gpus() {
        Ok(found) => {
            let versions = format!(
                "driver for CUDA {}.{}, cuBLAS {}",
                found.driver_version / 1000,
                found.driver_version % 1000 / 10,
                found.cublas_version
            );
            (found.gpus, versions)
        }
        Err(error) => (Vec::new(), format!("{error} ({})", driver())),
    };
    let auto = auto(cards.first().map(|card| card.name.as_str()), &cuda, &processor);
    let info = |card: kiln_ops::device::Gpu| CardInfo {
        ordinal: card.ordinal,
        name: card.name,
        compute_capability: format!("{}.{}", card.compute_capability.0, card.compute_capability.1),
        multiprocessors: card.multiprocessors,
        memory_free: card.memory_free,
        memory_total: card.memory_total,
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
        auto,
    }
}

fn auto(card: Option<&str>, cuda: &str, processor: &CpuInfo) -> AutoChoice {
    let dtype = format!("{:?}", DTypeChoice::Auto.resolve(card.is_some())).to_lowercase();
    match card {
        Some(name) => AutoChoice {
            device: "cuda:0".into(),
            dtype,
            kernels: "Kiln's own, cuBLASLt and cuDNN".into(),
            reason: format!("{name} is there, and half precision is its fastest type"),
        },
        None => AutoChoice {
            device: "cpu".into(),
            dtype,
            kernels: format!("Kiln's own, for {}", processor.path),
            reason: match processor.fastest_dtype {
                candle_core::DType::BF16 => format!("no card: {cuda}; this processor multiplies pairs of bf16 at once"),
                _ => format!("no card: {cuda}; without dot products of bf16, f32 is faster than 16-bit types"),
            },
        },
    }
}

/// What of NVIDIA's driver is on this machine.
fn driver() -> String {
    const VERSION: &str = "/proc/driver/nvidia/version";
    match std::fs::read_to_string(VERSION) {
        Ok(text) => format!("the driver is here: {}", text.lines().next().unwrap_or_default().trim()),
        Err(_) => format!("NVIDIA's driver is not loaded: {VERSION} is missing"),
    }
}
