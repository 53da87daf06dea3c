//! Where a run happens: the device, its threads and its link, the types of weights and of products, the memory that may be used, and
//! the errors of a run.
//!
//! This crate knows no plan, no stage and no network.
#![forbid(unsafe_code)]

pub mod ceiling;
pub mod compute;
pub mod cpu_set;
pub mod device_list;
pub mod devices;
pub mod error;
pub mod host_memory;
pub mod host_weights;
mod kernel_files;
pub mod linear_weights;
pub mod link;
pub mod machine;
pub mod memory;
pub mod mode;
pub mod portable;
mod previews;
pub mod room;
pub mod scales_file;
pub mod second_device;
pub mod setup;
pub mod threads;
pub mod topology;

pub use compute::ComputeType;
pub use cpu_set::CpuSet;
pub use device_list::DeviceList;
pub use devices::{AutoChoice, CardInfo, Devices, PortableInfo, devices};
pub use error::{Error, Result, proceed};
pub use host_weights::{HostWeights, host_bytes};
pub use linear_weights::LinearWeightType;
pub use link::{Link, LinkChoice, LinkRate, LinkSource};
pub use machine::Machine;
pub use memory::{MemoryOptions, ModeChoice, VaeMemory};
pub use mode::Mode;
pub use portable::PortableDevice;
pub use previews::{PreviewMethod, PreviewOptions};
pub use room::{DeviceMemory, Room};
pub use scales_file::{ComputeScales, LayerScales};
pub use second_device::{Parallel, SecondDevice};
pub use setup::{DeviceChoice, Overlap, ResolvedDevice, Setup};
pub use threads::{Threads, start_threads, usual_threads};
