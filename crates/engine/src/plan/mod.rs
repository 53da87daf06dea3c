//! Peak memory of a run before it starts: for each stage and mode, from configurations only.
//!
//! Weights are exact: segments know their bytes. All else is counted by a dry run: the networks' own code runs with
//! tensors that have no elements ([`kiln_nn::MetaTensor`]), in the order of a run. What is counted is what pools count: on a GPU the tensors and the libraries' workspace, on the CPU slabs, tensors and buffers. Code, the
//! driver's context and mapped files are not in it.

mod batch_size;
mod choice;
mod dry_run;
mod flop;
mod planner;
mod runs_on;
#[cfg(test)]
mod tests;
mod time;

use kiln_mempool::{HostPool, ProcessMemory};
use kiln_vae::Tiling;
use serde::Serialize;

use crate::event::Stage;
use crate::memory::VaeMemory;
use crate::mode::Mode;
use crate::resolved::Job;
use kiln_files::ByteSize;

pub use batch_size::BatchSize;
pub(crate) use flop::{decoder_flop, text_flop, unet_flop};
pub use planner::Planner;
pub use runs_on::RunsOn;
pub use time::Rates;

/// The workload, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Width of the images in pixels.
    pub width: usize,
    /// Height of the images in pixels.
    pub height: usize,
    /// The batch size.
    pub batch_size: usize,
    /// Sampler steps.
    pub steps: usize,
    /// Whether the U-Net also runs without the prompt.
    pub guided: bool,
    /// Prompts of each image: more than one with `AND`.
    pub parts: usize,
    /// Token chunks of the longest text.
    pub chunks: usize,
    /// Chunks of tokens that the U-Net sees for each text: as many, or more where texts of unequal length are repeated.
    pub context: usize,
    /// Different texts that are encoded before the first step and stored until the last, including those of schedules.
    /// The minimum is one for each part, and one more with guidance.
    pub texts: usize,
    /// The decoder's memory options.
    pub vae: VaeMemory,
}

impl Work {
    /// One batch of a job with prompts of one chunk.
    pub fn of(job: &Job) -> Self {
        let Job { width, height, batch_size, steps, .. } = *job;
        Self {
            width,
            height,
            batch_size,
            steps,
            guided: job.is_guided(),
            parts: 1,
            chunks: 1,
            context: 1,
            texts: 1,
            vae: VaeMemory::default(),
        }
    }

    /// Encoded texts, at least one for each row of an image.
    fn encoded_texts(&self) -> usize {
        self.texts.max(self.usual_texts())
    }

    /// Texts of an image without schedules.
    fn usual_texts(&self) -> usize {
        if self.guided { 1 + self.parts } else { 1 }
    }

    /// Rows of the U-Net's batch.
    fn images(&self) -> usize {
        self.batch_size * self.usual_texts()
    }
}

/// The memory and time of a run in one mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The mode.
    pub mode: Mode,
    /// The batch size.
    pub batch_size: usize,
    /// The stages in order: encode, denoise, decode.
    pub stages: [StagePlan; 3],
    /// The tiling of the decoder.
    #[serde(serialize_with = "as_text")]
    pub tiling: Tiling,
    /// Bytes of weights that are copied to the device in every sampler step.
    pub copied_per_step: usize,
    /// Bytes of weights that are copied in addition, once per batch.
    pub copied_per_batch: usize,
    /// The copy time of a step.
    pub copy_seconds_per_step: f64,
    /// The time of a batch by a simple model, used only to compare plans.
    pub seconds_per_batch: f64,
}

/// Peak bytes of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StagePlan {
    /// The stage.
    pub stage: Stage,
    /// Resident weights.
    pub weights: usize,
    /// The ring buffer of streamed weights.
    pub ring: usize,
    /// Tensors of the networks and of the sampler.
    pub activations: usize,
    /// Memory of operators: thread buffers, the workspace of a GPU's libraries.
    pub workspace: usize,
    /// Encoded prompts, cached for the next batch.
    pub conditions: usize,
    /// Fragmentation: free memory in the pool that is too fragmented for the next request.
    pub waiting: usize,
}

fn as_text<S: serde::Serializer>(tiling: &Tiling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(tiling)
}

impl StagePlan {
    /// The sum.
    pub fn total(&self) -> usize {
        self.weights + self.ring + self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Plan {
    /// Logs the plan.
    pub(crate) fn log(&self) {
        let Self { mode, tiling, copied_per_step, copy_seconds_per_step, .. } = self;
        let [encode, denoise, decode] = self.stages.each_ref().map(|stage| ByteSize(stage.total()).to_string());
        tracing::info!(
            %mode,
            %tiling,
            peak = %ByteSize(self.peak()),
            encode,
            denoise,
            decode,
            copied_per_step = %ByteSize(*copied_per_step),
            copy_seconds_per_step,
            "plan"
        );
    }

    /// The stage with the highest memory.
    pub fn largest(&self) -> &StagePlan {
        let [encode, denoise, decode] = &self.stages;
        [denoise, decode]
            .into_iter()
            .fold(encode, |most, stage| if stage.total() > most.total() { stage } else { most })
    }

    /// The peak bytes.
    pub fn peak(&self) -> usize {
        self.largest().total()
    }

    /// Images per second by the same model as [`Plan::seconds_per_batch`].
    pub fn pictures_per_second(&self) -> f64 {
        self.batch_size as f64 / self.seconds_per_batch.max(f64::MIN_POSITIVE)
    }
}

/// Peak physical memory of this process outside of the host pool, if the system reports it: code, stacks, and
/// allocations that are too small for the pool. Plans do not include it.
pub fn process_bytes() -> Option<u64> {
    let resident = ProcessMemory::now()?.peak_resident;
    Some(resident.saturating_sub(HostPool::statistics().peak_reserved as u64))
}
