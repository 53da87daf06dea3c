//! The device and type of the parity tests.

use candle_core::{DType, Device, Tensor};

/// The environment variable with the device of the parity tests: `cpu` (default) or `cuda`.
const DEVICE: &str = "KILN_TEST_DEVICE";
/// The environment variable with their type: `f32` (default), `f16` or `bf16`.
const DTYPE: &str = "KILN_TEST_DTYPE";

/// A device and a type. The default is f32 on the CPU.
#[derive(Debug, Clone)]
pub struct Target {
    /// The device of the networks.
    pub device: Device,
    /// The type of weights and activations.
    pub dtype: DType,
}

impl Target {
    /// The target that the environment selects.
    #[track_caller]
    pub fn from_env() -> Self {
        let value = |name| std::env::var(name).unwrap_or_default();
        let device = match value(DEVICE).as_str() {
            "" | "cpu" => Device::Cpu,
            "cuda" => Device::new_cuda_with_stream(0).unwrap_or_else(|error| panic!("{DEVICE}=cuda: {error}")),
            other => panic!("{DEVICE}={other}: expected cpu or cuda"),
        };
        let dtype = match value(DTYPE).as_str() {
            "" | "f32" => DType::F32,
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            other => panic!("{DTYPE}={other}: expected f32, f16 or bf16"),
        };
        Self { device, dtype }
    }

    /// A fixture's tensor on the device and in the type.
    #[track_caller]
    pub fn tensor(&self, tensor: &Tensor) -> Tensor {
        let moved = tensor.to_dtype(self.dtype).and_then(|tensor| tensor.to_device(&self.device));
        moved.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The bound of this target, by its type.
    pub fn bound(&self, f32: f64, f16: f64, bf16: f64) -> f64 {
        match self.dtype {
            DType::F16 => f16,
            DType::BF16 => bf16,
            _ => f32,
        }
    }

    /// Whether this is f32 on the CPU.
    pub fn is_default(&self) -> bool {
        self.device.is_cpu() && self.dtype == DType::F32
    }

    /// A model's name with the target, unless that is f32 on the CPU.
    pub fn label(&self, model: &str) -> String {
        if self.is_default() {
            return model.to_string();
        }
        let device = if self.device.is_cpu() { "cpu" } else { "cuda" };
        format!("{model} ({device} {})", format!("{:?}", self.dtype).to_lowercase())
    }
}
