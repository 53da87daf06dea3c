//! Peak memory of a run before it starts: for each stage and mode, from configurations only.
//!
//! Weights are exact: segments know their bytes. All else is counted by a dry run: the networks' own code runs with
//! tensors that have no elements ([`kiln_nn::MetaTensor`]), in the order of a run. What is counted is what pools count: on a GPU the tensors and the libraries' workspace, on the CPU slabs, tensors and buffers. Code, the
//! driver's context and mapped files are not in it.

mod choice;
mod dry_run;
mod flop;
mod known;
#[cfg(test)]
mod link_tests;
mod network_work;
mod passes;
mod planner;
mod prompts;
mod references;
mod report;
mod stored_types;
#[cfg(test)]
mod tests;
mod text_place;
mod text_work;

use kiln_mempool::{HostPool, ProcessMemory};

use crate::memory::VaeMemory;
use crate::pipeline::event::Stage;
use kiln_models::ExtraChannels;
use kiln_request::Job;

pub use flop::{control_flop, decoder_flop, denoiser_flop, preparation_flop, text_flop};
pub use kiln_memory::{BatchSize, ExecutionTarget, Pass, Plan, Rates, StagePlan};

pub(crate) use known::Known;
pub use network_work::NetworkWork;
pub use passes::{Enlargement, SecondPassWork};
pub use planner::Planner;
pub use references::ReferenceWork;
pub use report::PlanReport;
pub use text_work::TextWork;

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
    /// Whether images are encoded: those that images begin with, and reference images.
    pub encodes_image: bool,
    /// The reference images.
    pub references: ReferenceWork,
    /// Whether the images have image prompts.
    pub has_image_prompts: bool,
    /// The second pass over the images, if there is one.
    pub second: Option<SecondPassWork>,
    /// Pixels of the input that is pasted around each result, which may be larger than it; 0 without one.
    pub pasted: usize,
    /// The steps that a refiner makes; 0 without one.
    pub refiner_steps: usize,
    /// Changes of the network.
    pub network: NetworkWork,
    /// VAE tiling options.
    pub vae: VaeMemory,
}

impl Workload {
    /// One batch of a job with the shortest prompts.
    pub fn of(job: &Job) -> Self {
        let Job { width, height, batch_size, steps, .. } = *job;
        Self {
            width,
            height,
            batch_size,
            steps,
            text: TextWork::short(job.is_guided()),
            encodes_image: job.init.image().is_some()
                || job.extra_channels != ExtraChannels::None
                || !job.references.is_empty(),
            references: ReferenceWork::of(job),
            has_image_prompts: !job.ip_adapters.is_empty(),
            second: job.second_pass().map(|pass| SecondPassWork::of(job, pass)),
            pasted: job.input.as_ref().map_or(0, |input| input.pasted),
            refiner_steps: job.refiner.as_ref().map_or(0, |_| Self::refined(steps, job.refining.switch)),
            network: NetworkWork::of(&job.network, &job.guidance),
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
            references: self.references.with(other.references),
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
        let repeated = if self.network.repeats() { self.text.parts } else { 0 };
        self.text.usual() + repeated
    }
}

/// Peak physical memory of this process outside of the host pool, if the system reports it: code, stacks, and
/// allocations that are too small for the pool. Plans do not include it.
pub fn process_bytes() -> Option<u64> {
    let resident = ProcessMemory::now()?.peak_resident;
    Some(resident.saturating_sub(HostPool::statistics().peak_reserved as u64))
}
