//! The arguments of `kiln batch`.

use std::path::PathBuf;

use clap::Args;
use kiln_batch::{Assignment, Axis, BatchOptions, ContactSheet, JobFormat, Shard};
use kiln_engine::{BatchSize, Result};

use crate::run_args::RunArgs;
use crate::values::parse_count;

/// `kiln batch`.
#[derive(Debug, Args)]
pub struct BatchArgs {
    /// Jobs: JSON Lines (.jsonl), CSV, or a prompt a line; - is the standard input. Fields are those of a request, such as
    /// prompt, negative, seed, steps, cfg_scale, width, height, sampler, scheduler, lora; model; and output, a name.
    #[arg(value_name = "JOBS", required_unless_present_any = ["set", "grid", "fields"])]
    pub jobs: Option<PathBuf>,
    /// The folder for the images, the journal and the index. Created if it does not exist. --check needs none, and then takes all
    /// jobs for new ones.
    #[arg(short, long, value_name = "DIR", required_unless_present_any = ["fields", "check"])]
    output: Option<PathBuf>,
    /// Reports all errors of the jobs, and generates, writes and downloads nothing.
    #[arg(long)]
    pub check: bool,
    /// Lists the fields of a job.
    #[arg(long, exclusive = true)]
    pub fields: bool,
    /// Format of the jobs: jsonl, csv or text. Default: by the file's name, else by its first character.
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<JobFormat>,
    /// Sets a field of every job, whatever the file has: steps=30. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", allow_hyphen_values = true)]
    pub set: Vec<Assignment>,
    /// A field with several values, each of which is used for every job: seed=1..4, steps=10..30:10, cfg=3,7. Can be
    /// repeated for all combinations. The last one runs across the contact sheet.
    #[arg(long, value_name = "KEY=VALUES", allow_hyphen_values = true)]
    pub grid: Vec<Axis>,
    /// A part of the set, to divide it between machines: 2/8 is the second of eight.
    #[arg(long, value_name = "I/N", allow_hyphen_values = true)]
    pub shard: Option<Shard>,
    /// Retries images that failed before.
    #[arg(long)]
    retry: bool,
    /// Replaces existing files that are not of this set.
    #[arg(long)]
    overwrite: bool,
    /// Number of images in a batch, of jobs that differ only in prompts and seeds; auto finds the fastest number while images are
    /// generated, and remembers it.
    #[arg(long, value_name = "N", default_value = "auto", allow_negative_numbers = true)]
    batch_size: BatchSize,
    /// Runs an engine on each NUMA node of the CPU, whose threads and memory stay in the node. Each has weights of its own.
    #[arg(long, conflicts_with = "parallel")]
    pub per_node: bool,
    /// Generates one image at a time, so that its bits do not depend on the others on a GPU. On the CPU they never do.
    #[arg(long)]
    deterministic: bool,
    /// Writes all images, small and labeled, into one .png file, which is replaced if it exists. Default with --grid:
    /// contact-sheet.png in the folder.
    #[arg(long, value_name = "FILE")]
    contact_sheet: Option<PathBuf>,
    /// The longest side of an image on the contact sheet, 24 to 1024.
    #[arg(long, value_name = "PIXELS", default_value = "256", allow_negative_numbers = true, value_parser = parse_count)]
    thumbnail: usize,

    #[command(flatten)]
    pub run: RunArgs,
}

impl BatchArgs {
    /// The engine's options.
    ///
    /// # Errors
    /// Errors if all GPUs are requested and CUDA cannot list them, or for a GPU with an engine for each NUMA node.
    pub fn options(&self) -> Result<BatchOptions> {
        let whole_grid = !self.grid.is_empty() && self.shard.is_none();
        let setups = if self.per_node { self.run.setups_of_nodes() } else { self.run.setups() };
        // A check without a folder is that of one which is not there.
        let nowhere = || std::env::temp_dir().join(format!("kiln-check-{}", std::process::id()));
        let folder = self.output.clone().unwrap_or_else(nowhere);
        let in_folder = || whole_grid.then(|| folder.join("contact-sheet.png"));
        let sheet = self.contact_sheet.clone().or_else(in_folder);
        Ok(BatchOptions {
            folder,
            shard: self.shard,
            retry: self.retry,
            overwrite: self.overwrite,
            batch_size: self.batch_size,
            deterministic: self.deterministic,
            model_options: self.run.model_options(),
            setups: setups?,
            sheet: sheet.map(|file| ContactSheet { file, side: self.thumbnail }),
        })
    }
}
