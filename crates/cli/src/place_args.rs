//! The flags that say where a model runs, in which types and with how many threads: the same for every command.

use clap::Args;
use kiln_engine::{DTypeChoice, DeviceChoice, LinearWeightType, Setup, start_threads};

use crate::values::parse_count;

/// What a user may say of where a model runs.
#[derive(Debug, Clone, Copy, Args)]
pub struct PlaceArgs {
    /// Device: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: DeviceChoice,
    /// The type of weights and activations: auto, f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub dtype: DTypeChoice,
    /// Keeps the weights of linear layers in another type than --dtype, which saves memory and costs time: auto (no), f32,
    /// f16, bf16, f8, q8_0, q5_0, q5_1, q4_0, q4_1, q6_k, q5_k, q4_k, q3_k, q2_k.
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    weight_type: LinearWeightType,
    /// Number of CPU threads, at most four for each CPU. Default: one for each CPU that the process may use.
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = parse_count)]
    threads: Option<usize>,
}

impl PlaceArgs {
    /// A setup with these, and nothing said of all else. The threads are the process's.
    pub fn setup(&self) -> Setup {
        let Self { device, dtype, weight_type, .. } = *self;
        Setup { device, dtype, weight_type, ..Setup::default() }
    }

    /// Starts the threads of the process.
    ///
    /// # Errors
    /// Those of [`start_threads`].
    pub fn start_threads(&self) -> kiln_engine::Result<()> {
        start_threads(self.threads)
    }
}
