//! The choice of mode and batch size.

use kiln_models::ModelFolder;

use super::planner::Planner;
use super::{ExecutionTarget, Plan, Workload};
use kiln_request::{Job, Refiner};

use crate::error::Result;
use crate::loaded_controls::control_configs;
use crate::loaded_prompts::prompt_plans;
use crate::mode::Mode;
use crate::plan_chooser::PlanChooser;
use crate::room::Room;
use crate::setup::Setup;

/// The maximum batch size to try: a GPU is fully used before it.
const MAX_BATCH: usize = 64;
/// The smallest batch is chosen whose time per image is within this fraction of the best, because memory and latency
/// matter as well.
const WORTH: f64 = 1.01;

impl Planner {
    /// The plan for `mode`, with everything at its best size, or as large as fits into the budget.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn plan(&self, mode: Mode, work: &Workload, on: ExecutionTarget, budget: Option<usize>) -> Result<Plan> {
        Ok(self.measure(work, on)?.plan(mode, budget.unwrap_or(usize::MAX)))
    }

    /// The plans for all modes and for some numbers of resident bytes between them, the fastest first, with everything as large
    /// as fits into `budget` bytes if there is one: a plan that is chosen within this budget is as large as its row.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub fn modes(&self, work: &Workload, on: ExecutionTarget, budget: Option<usize>) -> Result<Vec<Plan>> {
        Ok(self.measure(work, on)?.modes(budget.unwrap_or(usize::MAX)))
    }

    /// The fastest plan that fits into `budget` bytes. In the smallest mode the budget determines the resident part of
    /// the U-Net.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] with the numbers if none fits.
    pub fn choose(&self, work: &Workload, on: ExecutionTarget, budget: usize) -> Result<Plan> {
        self.choose_within(work, on, Room::given(budget))
    }

    /// Chooses within a limit by a budget or by the device.
    ///
    /// # Errors
    /// See [`Planner::choose`].
    pub fn choose_within(&self, work: &Workload, on: ExecutionTarget, room: Room) -> Result<Plan> {
        self.fit(work, on, room.bytes)?.map_err(|smallest| smallest.refusal(work.described(), room))
    }

    /// The fastest plan that fits into `bytes`, or as inner error the smallest plan.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn fit(
        &self,
        work: &Workload,
        on: ExecutionTarget,
        bytes: usize,
    ) -> Result<std::result::Result<Plan, Plan>> {
        Ok(self.measure(work, on)?.choose(bytes))
    }

    /// The plan for `mode` if that is requested to save memory and `bytes` are free: never larger than the plan that
    /// would be chosen without a request. Also returns the bytes that limit it, if any do.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn requested(
        &self,
        mode: Mode,
        work: &Workload,
        on: ExecutionTarget,
        bytes: usize,
    ) -> Result<(Plan, Option<usize>)> {
        Ok(self.measure(work, on)?.requested(mode, bytes))
    }

    /// The networks that `job` needs: those of `model`, its refiner, its control networks and its IP-Adapters.
    ///
    /// # Errors
    /// Errors of their files and configurations.
    pub fn of_job(model: &ModelFolder, job: &Job, setup: &Setup) -> Result<Self> {
        let refiner = job.refiner.as_ref().map(Refiner::model);
        let planner = Self::new(model, setup.taesd.as_deref())?;
        let planner = planner.with_stored_types(model, setup.keeps_stored());
        let mut planner = planner.with_refiner(refiner)?;
        planner.set_controls(&control_configs(model, job.controls.iter().map(|control| control.using.net.as_path()))?);
        planner.set_prompts(prompt_plans(model, job.ip_adapters.iter().map(|adapter| &adapter.using))?);
        Ok(planner)
    }

    /// Refuses a job for which not even the smallest mode has memory, as [`crate::Engine::load_for`] does, before anything is
    /// opened for it.
    ///
    /// # Errors
    /// [`crate::Error::Budget`], and those of [`Planner::of_job`].
    pub fn check(model: &ModelFolder, job: &Job, setup: &Setup) -> Result<()> {
        let planner = Self::of_job(model, job, setup)?;
        let (on, memory) = ExecutionTarget::with_memory(setup);
        let on = planner.place_texts(on, &setup.memory, memory)?;
        let planner = planner.with_8_bits(setup.scaled_layers(Some(model), on.target.is_gpu())?);
        let work = Workload { vae: setup.memory.vae, ..Workload::of(job) };
        PlanChooser::new(planner, on, setup.memory.clone(), memory).choose(&work).map(drop)
    }

    /// [`Planner::batch_size`] for images of `job`, within the setup's budget or the free memory.
    ///
    /// # Errors
    /// See [`Planner::batch_size`].
    pub fn auto_batch_size(model: &ModelFolder, job: &Job, setup: &Setup) -> Result<usize> {
        let planner = Self::of_job(model, job, setup)?;
        let (on, room) = planner.target(setup)?;
        let work = Workload { vae: setup.memory.vae, ..Workload::of(job) };
        Ok(planner.batch_size(&work, on, room.unwrap_or(Room::given(usize::MAX)), usize::MAX)?.batch_size)
    }

    /// The batch size with the most images per second within `room`, and its plan. Larger batches are faster per image
    /// until they leave less memory for weights than they save. At most `most` images are tried; `work.batch_size` is
    /// ignored.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] if not even one image fits.
    pub fn batch_size(&self, work: &Workload, on: ExecutionTarget, room: Room, most: usize) -> Result<Plan> {
        let one = self.choose_within(&Workload { batch_size: 1, ..*work }, on, room)?;
        let mut plans = vec![one.clone()];
        for batch_size in 2..=most.min(MAX_BATCH) {
            // A mode that does not fit for some images does not fit for more.
            let Ok(plan) = self.fit(&Workload { batch_size, ..*work }, on, room.bytes)? else { break };
            plans.push(plan);
        }
        let best = plans.iter().map(Plan::pictures_per_second).fold(0.0, f64::max);
        Ok(plans.into_iter().find(|plan| WORTH * plan.pictures_per_second() >= best).unwrap_or(one))
    }
}
