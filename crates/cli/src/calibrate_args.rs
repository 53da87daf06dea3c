//! The arguments of `kiln calibrate`.

use std::path::PathBuf;

use clap::Args;
use kiln_batch::Assignment;
use kiln_engine::{HubOptions, Result, Setup, cache_folder};

use crate::place_args::PlaceArgs;
use crate::values::parse_number;

/// `kiln calibrate`.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// A model folder in the diffusers layout, a checkpoint file (.safetensors, .ckpt, .gguf), a name in KILN_MODELS,
    /// or hf:OWNER/NAME[@REVISION][/FILE] on the Hugging Face Hub.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Prompts, one a line, or jobs as kiln batch takes them: JSON Lines (.jsonl) or CSV. - is the standard input.
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// The file with scales: .safetensors.
    #[arg(short, long, value_name = "SCALES")]
    pub output: PathBuf,
    /// Replaces an existing file.
    #[arg(long)]
    pub overwrite: bool,
    /// Sets a field of every job, whatever the file has: steps=8. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub set: Vec<Assignment>,
    /// The least mean of the images' peak signal-to-noise ratios in dB, in 8 bits against --dtype. Layers with large errors keep
    /// --dtype until the images have it; 0 keeps none.
    #[arg(long, value_name = "DB", default_value = "40", allow_negative_numbers = true, value_parser = parse_number)]
    pub budget: f64,
    /// Fixes the range of a layer's input where the squared error is at most X times that with a range that each call measures: 1.2
    /// fixes some, 1000 all, which takes less time and costs quality.
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true, value_parser = parse_number)]
    pub tolerance: f64,
    /// Does not access the network; uses cached files only.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    place: PlaceArgs,
}

impl CalibrateArgs {
    /// Starts the threads of the process, for one device.
    ///
    /// # Errors
    /// See [`kiln_engine::start_threads`] and of several devices.
    pub fn start_threads(&self) -> Result<()> {
        self.place.check_one()?;
        self.place.start_threads()
    }

    /// How files come from the Hub.
    pub fn hub(&self) -> HubOptions {
        HubOptions { offline: self.offline, dtype: self.place.dtype }
    }

    /// How the model is run.
    pub fn setup(&self) -> Setup {
        Setup { cache_dir: cache_folder(), ..self.place.setup() }
    }
}
