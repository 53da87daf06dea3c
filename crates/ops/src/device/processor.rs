//! The processor.

use candle_core::DType;

use crate::cpu::isa::Isa;

/// What this process runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processor {
    /// The maker's name for it.
    pub name: String,
    /// Threads that it runs at a time, as far as this process may use them.
    pub threads: usize,
    /// The instruction sets among those that kernels ask for, by their usual names.
    pub features: Vec<&'static str>,
    /// The instruction path that kernels take: the widest, or what `KILN_ISA` asks for.
    pub path: &'static str,
    /// The type in which the networks run fastest here: bf16 where there are dot products of it, else f32.
    pub fastest_dtype: DType,
}

/// The processor of this machine.
pub fn processor() -> Processor {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name.trim());
    Processor {
        name: name.unwrap_or(std::env::consts::ARCH).to_string(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        features: features(),
        path: Isa::current().name(),
        fastest_dtype: if Isa::current() == Isa::Avx512Bf16 { DType::BF16 } else { DType::F32 },
    }
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let all = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
    ];
    all.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    Vec::new()
}
