//! The instruction set of CPU kernels.

use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use super::permission;

/// The environment variable that forces a path: `amx`, `avx512bf16`, `avx512`, `avx2` or `portable`, on 64-bit ARM
/// `neonbf16`, `neon` or `portable`.
const VARIABLE: &str = "KILN_ISA";

/// An instruction path, from narrow to wide. The order of a sum depends on the path and on the number of its terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Code of the compiler for every CPU of the architecture.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW and VL.
    Avx512,
    /// AVX-512 with dot products of bf16 pairs.
    Avx512Bf16,
    /// AVX-512 with products of bf16 tiles.
    Amx,
    /// Advanced SIMD of 64-bit ARM.
    Neon,
    /// NEON with dot products of bf16 pairs.
    NeonBf16,
}

impl Isa {
    /// The paths of this architecture.
    pub const ALL: &[Self] = if cfg!(target_arch = "x86_64") {
        &[Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx]
    } else if cfg!(target_arch = "aarch64") {
        &[Self::Portable, Self::Neon, Self::NeonBf16]
    } else {
        &[Self::Portable]
    };

    /// The path of this process: the widest that the CPU supports, or the environment's choice among those.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let widest = Self::widest();
            let requested = std::env::var(VARIABLE).ok();
            let requested = requested.and_then(|name| Self::ALL.iter().copied().find(|isa| isa.name() == name));
            requested.map_or(widest, |isa| isa.min(widest))
        })
    }

    /// Whether it has dot products of bf16 pairs.
    pub fn has_bf16(self) -> bool {
        matches!(self, Self::Avx512Bf16 | Self::Amx | Self::NeonBf16)
    }

    /// The name in the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::NeonBf16 => "neonbf16",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn widest() -> Self {
        let avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        match (avx2, avx512, avx512 && is_x86_feature_detected!("avx512bf16")) {
            (_, _, true) if permission::may_use_tiles() => Self::Amx,
            (_, _, true) => Self::Avx512Bf16,
            (_, true, _) => Self::Avx512,
            (true, ..) => Self::Avx2,
            _ => Self::Portable,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn widest() -> Self {
        if std::arch::is_aarch64_feature_detected!("bf16") { Self::NeonBf16 } else { Self::Neon }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn widest() -> Self {
        Self::Portable
    }
}
