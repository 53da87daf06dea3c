//! The device of a text encoder.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_nn::ops::graph::RecordedCalls;
use kiln_nn::ops::portable::{Backend, PortableTensor};
use kiln_weights::Placement;

/// The device that has the weights of a text encoder and runs it.
#[derive(Debug, Clone)]
pub enum TextDevice {
    /// One of candle's: the CPU or a CUDA GPU.
    Candle {
        /// The device.
        device: Device,
        /// The work that a GPU has recorded with the weights where they are, if they stay there.
        recorded: Option<RecordedCalls>,
    },
    /// A GPU by Vulkan, Metal or DirectX 12. Texts come from host memory, and the results go there.
    Backend(Arc<dyn Backend>),
}

impl TextDevice {
    /// The device of weights with this placement.
    pub fn of(placement: &Placement) -> Self {
        match &placement.backend {
            Some(backend) => Self::Backend(backend.clone()),
            None => placement.device.clone().into(),
        }
    }

    /// This device for weights that stay in their place until `calls` are cleared: it may record work.
    #[must_use]
    pub fn recording(self, calls: RecordedCalls) -> Self {
        match self {
            Self::Candle { device, .. } => Self::Candle { device, recorded: Some(calls) },
            Self::Backend(backend) => Self::Backend(backend),
        }
    }

    /// Whether it is the CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Candle { device: Device::Cpu, .. })
    }

    /// The results of a network in host memory.
    ///
    /// # Errors
    /// [`kiln_nn::Error::Ops`] if the device failed.
    pub fn download(results: impl IntoIterator<Item = PortableTensor>) -> kiln_nn::Result<Vec<Tensor>> {
        results.into_iter().map(|result| Ok(result.download()?)).collect()
    }
}

impl From<Device> for TextDevice {
    fn from(device: Device) -> Self {
        Self::Candle { device, recorded: None }
    }
}
