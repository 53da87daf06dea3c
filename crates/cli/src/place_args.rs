//! The flags that say where a model runs, in which types and with how many threads: the same for every command.

use std::path::PathBuf;

use clap::Args;
use kiln_engine::{ComputeType, DTypeChoice, DeviceChoice, DeviceList, LinearWeightType, Result, Setup, start_threads};

use crate::values::{DTYPES, named, parse_count};

/// The types of the weights of linear layers.
const WEIGHT_TYPES: &[&str] = &[
    "auto", "f32", "f16", "bf16", "f8", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k",
];

/// Options of the devices.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    /// Device: auto, cpu, cuda, or a GPU of any vendor by gpu, vulkan, metal or dx12; cuda:1 is the second GPU. kiln batch and
    /// kiln serve take several, each with an engine: cuda:0,cuda:1, or all for all GPUs. With --parallel two make one image.
    #[arg(long, value_name = "DEVICE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<DeviceList>(&["auto", "cpu", "cuda", "cuda:0", "gpu", "vulkan", "metal", "dx12", "all"]))]
    device: DeviceList,
    /// The type of weights and activations: auto, f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<DTypeChoice>(DTYPES))]
    pub dtype: DTypeChoice,
    /// Keeps the weights of linear layers in another type than --dtype, which saves memory and costs time: auto (as the file stores
    /// them, if it does in 8 bits or less), f32, f16, bf16, f8, q8_0, q5_0, q5_1, q4_0, q4_1, q6_k, q5_k, q4_k, q3_k, q2_k.
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<LinearWeightType>(WEIGHT_TYPES))]
    weight_type: LinearWeightType,
    /// How the large layers of the denoiser are computed: auto (native, or as the settings of --like say), native (in --dtype),
    /// int8 (in 8-bit integers) or fp8 (in 8-bit floats, on GPUs of compute capability 8.9 and later). Both take
    /// half the memory of bf16, and images differ a little; int8 is faster on CPUs, and fp8 on Hopper GPUs.
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true,
          value_parser = named::<ComputeType>(&["auto", "native", "int8", "fp8"]))]
    compute: ComputeType,
    /// With --compute int8: a file of kiln calibrate with the ranges of the model's layers and those that keep --dtype. Without it
    /// the ranges are measured while it runs.
    #[arg(long, value_name = "FILE")]
    scales: Option<PathBuf>,
    /// Number of CPU threads, at most four for each CPU. Default: one for each core that the process may use.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    threads: Option<usize>,
}

impl PlaceArgs {
    /// A setup with these options and defaults for all others. The threads are the process's. If several devices are named it
    /// has the first that a command with one engine would take.
    pub fn setup(&self) -> Setup {
        let device = self.device.one().unwrap_or(DeviceChoice::Auto);
        Setup {
            device,
            dtype: self.dtype,
            weight_type: self.weight_type,
            compute: self.compute,
            scales: self.scales.clone(),
            ..Setup::default()
        }
    }

    /// A setup with the number of threads that the user asked for, which several engines share.
    pub fn with_threads(&self, setup: Setup) -> Setup {
        Setup { threads: self.threads, ..setup }
    }

    /// The devices.
    pub fn devices(&self) -> &DeviceList {
        &self.device
    }

    /// Refuses several devices, for a command with one engine.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Request`].
    pub fn check_one(&self) -> Result<()> {
        match self.device.one() {
            Some(_) => Ok(()),
            None => {
                let expected =
                    "one device, or two with `parallel` cfg; `kiln batch` and `kiln serve` take several".into();
                Err(kiln_request::Error::Value { name: "device", found: self.device.to_string(), expected }.into())
            }
        }
    }

    /// Starts the threads of the process.
    ///
    /// # Errors
    /// See [`start_threads`].
    pub fn start_threads(&self) -> Result<()> {
        start_threads(self.threads)
    }
}
