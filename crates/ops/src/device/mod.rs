//! The devices of this machine: the features of the CPU, the installed GPUs, and how a GPU is opened.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
mod open;
mod uninit;

pub use cpu::{CpuInfo, cpu_info};
pub use cuda::{gpu, gpus, supports_w8a8};
pub use open::{OpenDevice, open_gpu, open_second_stream};
pub use uninit::uninit;

/// A CUDA GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The number of the GPU on this machine.
    pub ordinal: usize,
    /// The product name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// The identifier that the manufacturer gave to this GPU, in hexadecimal digits.
    pub uuid: String,
    /// Its place on the PCI bus: domain, bus and device, as `0000:3b:00`.
    pub pci: String,
    /// The newest CUDA version that the driver supports (13.0 is 13000).
    pub driver_version: i32,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// The highest clock rate of the multiprocessors in kHz; 0 where the driver does not say.
    pub clock_khz: usize,
    /// Free memory in bytes.
    pub memory_free: usize,
    /// Total memory in bytes.
    pub memory_total: usize,
}

/// The GPUs that a build with CUDA finds, and the versions of the driver and of cuBLAS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpus {
    /// The GPUs.
    pub gpus: Vec<Gpu>,
    /// The newest CUDA version that the driver supports (13.0 is 13000).
    pub driver_version: i32,
    /// The version of the loaded cuBLAS library.
    pub cublas_version: i32,
    /// The files of the libraries that are loaded: the driver, cuBLAS, cuBLASLt and cuDNN, or why cuDNN is not.
    pub libraries: Vec<String>,
}
