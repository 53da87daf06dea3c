//! The type of a model's weights and activations.

use candle_core::DType;
use kiln_families::FamilyRef;
use kiln_vae::VaeConfig;
use serde::{Deserialize, Serialize};

/// The type of weights and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DTypeChoice {
    /// f16 on a CUDA GPU; on the CPU bf16 if it has instructions for pairs of bf16, else f32.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// 16 bits, with the exponent of f32.
    Bf16,
    /// 16 bits, IEEE half precision.
    F16,
}

impl std::str::FromStr for DTypeChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "f32" | "fp32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" | "fp16" => Ok(Self::F16),
            _ => Err("expected auto, f32, bf16 or f16".into()),
        }
    }
}

impl DTypeChoice {
    /// Resolves the type for a GPU or the CPU.
    pub fn resolve(self, on_gpu: bool) -> DType {
        match self {
            Self::Auto if on_gpu => DType::F16,
            Self::Auto => kiln_ops::device::cpu_info().fastest_dtype,
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }
}

/// The type in which an `AutoencoderKL` decodes first in a model that runs in `dtype`.
///
/// As in diffusers, `force_upcast` applies to some families only ([`Family::obeys_force_upcast`](crate::Family)): it defaults
/// to true, and the configurations of Stable Diffusion 1 and 2 omit it and decode well in f16. diffusers upcasts to f32; bf16, which it uses if the whole model
/// is in bf16, has the same range.
pub fn decoder_dtype(family: FamilyRef, config: &VaeConfig, dtype: DType) -> DType {
    if dtype == DType::F16 && family.obeys_force_upcast() && config.force_upcast { DType::BF16 } else { dtype }
}
