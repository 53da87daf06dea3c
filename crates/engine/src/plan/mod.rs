//! Peak memory of a run before it starts: for each stage and mode, from configurations only.
//!
//! Weights are exact: segments know their bytes. All else is counted by a dry run: the networks' own code runs with
//! tensors that have no elements ([`kiln_nn::MetaTensor`]), in the order of a run. What is counted is what pools count: on a GPU the tensors and the libraries' workspace, on the CPU slabs, tensors and buffers. Code, the
//! driver's context and mapped files are not in it.

mod batch_size;
mod choice;
mod component_set;
mod dry_run;
mod execution_target;
mod flop;
#[cfg(test)]
mod link_tests;
mod measures;
mod network_weights;
mod network_work;
mod passes;
mod planner;
mod prompts;
mod report;
#[cfg(test)]
mod tests;
mod text_work;
mod time;

use kiln_mempool::{HostPool, ProcessMemory};
use kiln_ops::Target;
use kiln_vae::Tiling;
use serde::Serialize;

use crate::memory::VaeMemory;
use crate::mode::Mode;
use crate::pipeline::event::Stage;
use kiln_files::ByteSize;
use kiln_request::Job;

pub use batch_size::BatchSize;
pub use execution_target::ExecutionTarget;
pub use flop::{control_flop, decoder_flop, text_flop, text_keys_flop, unet_flop};
pub use network_work::NetworkWork;
pub use passes::{Enlargement, Pass, SecondPassWork};
pub use planner::Planner;
pub use report::PlanReport;
pub use text_work::TextWork;
pub use time::Rates;

/// The workload, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Width of the images in pixels.
    pub width: usize,
    /// Height of the images in pixels.
    pub height: usize,
    /// The batch size.
    pub batch_size: usize,
    /// Sampler steps.
    pub steps: usize,
    /// The texts.
    pub text: TextWork,
    /// Whether the images begin with images, which are encoded.
    pub encodes_image: bool,
    /// Whether the images have image prompts.
    pub has_image_prompts: bool,
    /// The second pass over the images, if there is one.
    pub second: Option<SecondPassWork>,
    /// Pixels of the input that is pasted around each result, which may be larger than it; 0 without one.
    pub pasted: usize,
    /// Those of the steps that a refiner makes; 0 without one.
    pub refiner_steps: usize,
    /// What changes within the network.
    pub network: NetworkWork,
    /// What is said of the autoencoder's memory.
    pub vae: VaeMemory,
}

impl Workload {
    /// One batch of a job with prompts of one chunk.
    pub fn of(job: &Job) -> Self {
        let Job { width, height, batch_size, steps, .. } = *job;
        Self {
            width,
            height,
            batch_size,
            steps,
            text: TextWork::short(job.is_guided()),
            encodes_image: job.init.image().is_some() || job.takes_mask,
            has_image_prompts: !job.ip_adapters.is_empty(),
            second: job.second_pass().map(|pass| SecondPassWork::of(job, pass)),
            pasted: job.input.as_ref().map_or(0, |input| input.pasted),
            refiner_steps: job.refiner.as_ref().map_or(0, |_| Self::refined(steps, job.refining.switch)),
            network: NetworkWork::of(&job.network),
            vae: VaeMemory::default(),
        }
    }

    /// The stages that memory is planned for, in their order, over all passes.
    pub fn stages(&self) -> Vec<Stage> {
        self.passes().into_iter().flat_map(|(_, _, stages)| stages).collect()
    }

    /// Of so many steps about those that a refiner makes from the part `switch` of the run on: one at least.
    pub fn refined(steps: usize, switch: f64) -> usize {
        ((steps as f64 * (1.0 - switch)).round() as usize).clamp(1, steps.max(1))
    }

    /// The work of a batch that does the work of both at once.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            width: self.width.max(other.width),
            height: self.height.max(other.height),
            batch_size: self.batch_size + other.batch_size,
            steps: self.steps.max(other.steps),
            text: self.text.with(other.text),
            encodes_image: self.encodes_image || other.encodes_image,
            has_image_prompts: self.has_image_prompts || other.has_image_prompts,
            second: match (self.second, other.second) {
                (Some(one), Some(other)) => Some(one.with(other)),
                (one, other) => one.or(other),
            },
            pasted: self.pasted.max(other.pasted),
            refiner_steps: self.refiner_steps.max(other.refiner_steps),
            network: self.network.with(other.network),
            vae: self.vae,
        }
    }

    /// Rows of the U-Net's batch.
    fn images(&self) -> usize {
        self.batch_size * self.rows_of_image()
    }

    /// Rows of the U-Net's batch for each image.
    fn rows_of_image(&self) -> usize {
        let perturbed = if self.network.perturbed { self.text.parts } else { 0 };
        self.text.usual() + perturbed
    }
}

/// The memory and time of a run in one mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The mode.
    pub mode: Mode,
    /// The batch size.
    pub batch_size: usize,
    /// The stages of the run, in their order.
    pub stages: Vec<StagePlan>,
    /// How images are decoded.
    #[serde(serialize_with = "as_text")]
    pub tiling: Tiling,
    /// How initial images are encoded.
    #[serde(serialize_with = "as_text", skip_serializing_if = "is_whole")]
    pub encode_tiling: Tiling,
    /// Whether the text's keys and values are made once for all steps, which takes memory.
    pub keeps_text_keys: bool,
    /// Whether text encoders stay in memory once texts are encoded; only where all networks do, on a GPU. If they leave, their
    /// weights are read again for the next texts.
    pub keeps_text_encoders: bool,
    /// Bytes of weights that are copied to the device in every step of the sampler.
    pub copied_per_step: usize,
    /// Bytes of weights that are copied in addition, once per batch.
    pub copied_per_batch: usize,
    /// The copy time of a step.
    pub copy_seconds_per_step: f64,
    /// The time of a step by a simple model; where weights stream to a GPU, that of a simulated ring.
    pub seconds_per_step: f64,
    /// The time of a batch by a simple model, used only to compare plans.
    pub seconds_per_batch: f64,
}

/// Peak bytes of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StagePlan {
    /// The stage.
    pub stage: Stage,
    /// The pass that it belongs to.
    #[serde(skip_serializing_if = "Pass::is_first")]
    pub pass: Pass,
    /// Resident weights.
    pub weights: usize,
    /// The ring buffer of streamed weights.
    pub ring: usize,
    /// Tensors of the networks and of the sampler.
    pub activations: usize,
    /// What operators keep: buffers of threads, the workspace of a GPU's libraries.
    pub workspace: usize,
    /// Encoded prompts, cached for the next batch.
    pub conditions: usize,
    /// Fragmentation: free memory in the pool that is too fragmented for the next request.
    pub waiting: usize,
}

fn as_text<S: serde::Serializer>(tiling: &Tiling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(tiling)
}

/// Whether nothing is tiled, as where nothing is encoded.
fn is_whole(tiling: &Tiling) -> bool {
    *tiling == Tiling::Whole
}

impl StagePlan {
    /// A stage that has nothing.
    fn empty(stage: Stage) -> Self {
        Self { stage, pass: Pass::First, weights: 0, ring: 0, activations: 0, workspace: 0, conditions: 0, waiting: 0 }
    }

    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.ring + self.activations + self.workspace + self.conditions + self.waiting
    }
}

impl Plan {
    /// The mode in words, with what leaves memory in it.
    pub fn described(&self, target: Target) -> String {
        let leave = target.is_gpu() && self.mode.is_fully_resident() && !self.keeps_text_encoders;
        if leave { format!("{}, text encoders leave", self.mode) } else { self.mode.to_string() }
    }

    /// Logs the plan.
    pub(crate) fn log(&self) {
        let Self { mode, tiling, copied_per_step, copy_seconds_per_step, .. } = self;
        let stages: Vec<String> =
            self.stages.iter().map(|stage| format!("{} {}", stage.stage.id(), ByteSize(stage.total()))).collect();
        tracing::info!(
            %mode,
            %tiling,
            peak = %ByteSize(self.peak()),
            stages = stages.join(", "),
            copied_per_step = %ByteSize(*copied_per_step),
            copy_seconds_per_step,
            "plan"
        );
    }

    /// The plan of a stage, where the run has that stage: that of the pass which takes the most.
    pub fn stage(&self, stage: Stage) -> Option<&StagePlan> {
        self.stages.iter().filter(|plan| plan.stage == stage).max_by_key(|plan| plan.total())
    }

    /// The plan of a stage in a pass; where that pass does not have it, that of the other one.
    pub(crate) fn stage_of(&self, stage: Stage, pass: Pass) -> Option<&StagePlan> {
        self.stages.iter().find(|plan| plan.stage == stage && plan.pass == pass).or(self.stage(stage))
    }

    /// The first of the stages that have the most.
    pub fn largest(&self) -> StagePlan {
        let most = |most: StagePlan, stage: &StagePlan| if stage.total() > most.total() { *stage } else { most };
        self.stages.iter().fold(StagePlan::empty(Stage::Encode), most)
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
