//! The CPU.

use candle_core::DType;

use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::permission::tile_products;

/// The CPU that this process runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuInfo {
    /// The product name.
    pub name: String,
    /// Threads that this process may run in parallel.
    pub threads: usize,
    /// The supported instruction sets among those that kernels use, by their usual names.
    pub features: Vec<&'static str>,
    /// The instruction path of the kernels: the widest, or the choice of `KILN_ISA`.
    pub path: &'static str,
    /// The type in which the networks run fastest on it: bf16 with dot products of bf16, otherwise f32.
    pub fastest_dtype: DType,
}

/// The CPU of this machine.
pub fn cpu_info() -> CpuInfo {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name.trim());
    CpuInfo {
        name: name.unwrap_or(std::env::consts::ARCH).to_string(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        features: features(),
        path: Isa::current().name(),
        fastest_dtype: if Isa::current().has_bf16() { DType::BF16 } else { DType::F32 },
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let (amx_bf16, amx_int8) = tile_products();
    let all = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ("amx_bf16", amx_bf16),
        ("amx_int8", amx_int8),
    ];
    all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
