//! The type of a model's weights and activations.

use candle_core::DType;
use kiln_vae::VaeConfig;
use serde::{Deserialize, Serialize};

use crate::model::Family;

/// The type of weights and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DTypeChoice {
    /// f16 on a CUDA card; on the processor bf16 where it multiplies pairs of it at once, else f32.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// 16 bits, the exponent of f32.
    Bf16,
    /// 16 bits, IEEE.
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
    /// The type that is meant, on a GPU or on the CPU.
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

/// The type in which an `AutoencoderKL` decodes at first, in a model that runs in `dtype`.
///
/// As in diffusers `force_upcast` counts for SDXL alone: it is true unless a configuration says otherwise, and those of
/// Stable Diffusion 1 and 2 say nothing and decode well in f16. diffusers goes to f32; bf16, its own type where the
/// whole model is in bf16, has the range too.
pub fn decoder_dtype(family: Family, config: &VaeConfig, dtype: DType) -> DType {
    if dtype == DType::F16 && family == Family::Sdxl && config.force_upcast { DType::BF16 } else { dtype }
}
