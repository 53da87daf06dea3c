//! On what and in which type a model runs.

use candle_core::{DType, Device};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// A CUDA card where this build can use one, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The CUDA card of this number.
    Cuda(usize),
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|number| number.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| "expected auto, cpu, cuda or cuda:N".into()),
        }
    }
}

/// The type of weights and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DTypeChoice {
    /// f16 on a CUDA card, f32 on the processor.
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

/// How a model is run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Setup {
    /// Where.
    pub device: DeviceChoice,
    /// In which type.
    pub dtype: DTypeChoice,
    /// Threads of the processor; `None` is one for each core. The first setup of a process decides.
    pub threads: Option<usize>,
}

impl Setup {
    /// Starts the threads, and gives the device and the type.
    pub(crate) fn resolve(&self) -> Result<(Device, DType)> {
        if self.threads == Some(0) {
            let expected = "at least 1".into();
            return Err(Error::Value { name: "--threads", found: "0".into(), expected });
        }
        // A second call in one process finds the pool there; its size stays.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0)).build_global();
        let device = match self.device {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Auto if !candle_core::utils::cuda_is_available() => Device::Cpu,
            DeviceChoice::Auto => Device::new_cuda_with_stream(0).unwrap_or(Device::Cpu),
            DeviceChoice::Cuda(_) if !candle_core::utils::cuda_is_available() => {
                let message = "--device cuda: this build of Kiln has no CUDA; use kiln-cuda, or --device cpu";
                return Err(Error::Device(message.into()));
            }
            DeviceChoice::Cuda(number) => Device::new_cuda_with_stream(number)
                .map_err(|error| Error::Device(format!("--device cuda:{number}: {error}")))?,
        };
        let dtype = match self.dtype {
            DTypeChoice::Auto if device.is_cuda() => DType::F16,
            DTypeChoice::Auto | DTypeChoice::F32 => DType::F32,
            DTypeChoice::Bf16 => DType::BF16,
            DTypeChoice::F16 => DType::F16,
        };
        Ok((device, dtype))
    }
}
