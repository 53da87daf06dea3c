//! Memory management of a model: the plan for its runs, and the reaction to out-of-memory errors.

use std::sync::{Mutex, PoisonError};

use candle_core::Device;
use kiln_mempool::HostPool;
use kiln_models::ModelFolder;
use kiln_unet::ControlModelConfig;
use kiln_vae::Tiling;

use crate::component::WeightResidency;
use crate::error::{Error, Result};
use crate::loaded_prompts::PromptPlan;
use crate::memory::{MemoryOptions, ModeChoice};
use crate::mode::Mode;
use crate::pipeline::event::Stage;
use crate::plan::{ExecutionTarget, Pass, Plan, Planner, Workload};
use crate::residency::StreamBudget;
use crate::room::{DeviceMemory, Room};
use crate::setup::Setup;

/// Chooses the memory plan of runs.
pub(crate) struct MemoryManager {
    planner: Planner,
    on: ExecutionTarget,
    options: MemoryOptions,
    /// The device's memory before anything was loaded, if known.
    memory: Option<DeviceMemory>,
    /// The plan of the current workload.
    plan: Plan,
    work: Workload,
    /// The pass that runs.
    pass: Pass,
    /// Whether the workload is that of a run and fits, and not only the initial expectation.
    is_prepared: bool,
    /// Whether memory was exhausted: larger plans are then not tried again.
    hit_oom: bool,
    /// The GPU whose link is found when a plan streams for the first time; `None` afterwards, and for the CPU.
    unknown_link: Option<(Device, Setup)>,
    /// Whether a stage without memory runs again with less of the model in memory, and does not fail.
    may_shrink: bool,
}

impl MemoryManager {
    /// A plan for the expected workload, or for one image of the model's default size. Nothing is refused yet: a
    /// workload that does not fit has the smallest plan until [`MemoryManager::prepare`] refuses it.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn new(
        planner: Planner,
        device: &Device,
        on: ExecutionTarget,
        setup: &Setup,
        expected: Option<Workload>,
    ) -> Result<Self> {
        let memory = DeviceMemory::of(device).map(|memory| memory.shared_by(setup.memory.shared_by));
        let unknown_link = device.is_cuda().then(|| (device.clone(), setup.clone()));
        Self::within(planner, memory, on, (setup.memory.clone(), unknown_link), expected)
    }

    fn within(
        planner: Planner,
        memory: Option<DeviceMemory>,
        on: ExecutionTarget,
        (options, unknown_link): (MemoryOptions, Option<(Device, Setup)>),
        expected: Option<Workload>,
    ) -> Result<Self> {
        let work = expected.map_or_else(|| planner.work([None, None], None, 1), Ok)?;
        let work = Workload { vae: options.vae, ..work };
        let plan = planner.plan(Mode::LOWVRAM, &work, on, Some(0))?;
        let (is_prepared, hit_oom, may_shrink, pass) = (false, false, true, Pass::First);
        let mut this =
            Self { planner, on, options, memory, plan, work, pass, is_prepared, hit_oom, unknown_link, may_shrink };
        match this.choose(&work) {
            Ok(plan) => this.plan = plan,
            Err(Error::Budget { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(this)
    }

    /// Plans for `work`. Returns whether the mode has changed, so that loaded weights must be dropped. Logs a warning
    /// if more than the free memory is needed without a budget, because the free memory is an estimate.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] if not even the smallest mode fits into the budget or into the device's total memory.
    pub(crate) fn prepare(&mut self, work: Workload) -> Result<bool> {
        let work = Workload { vae: self.options.vae, ..work };
        self.pass = Pass::First;
        if work == self.work && self.is_prepared {
            return Ok(false);
        }
        let before = self.plan.mode;
        self.plan = if self.hit_oom { self.plan_for_mode(before, &work)? } else { self.choose(&work)? };
        (self.work, self.is_prepared) = (work, true);
        if let Some(memory) =
            self.memory.filter(|memory| self.options.budget.is_none() && self.plan.peak() > memory.free.bytes)
        {
            tracing::warn!("{}; the system may end the run", self.plan.refusal(&work, memory.free));
        }
        Ok(self.plan.mode != before)
    }

    /// Says which pass of the run its next stages belong to.
    pub(crate) fn begin_pass(&mut self, pass: Pass) {
        self.pass = pass;
    }

    /// The number of images for which `work` has the most images per second by the plan's estimate, at most `most`.
    ///
    /// # Errors
    /// As [`Planner::batch_size`].
    pub(crate) fn batch_size(&self, work: Workload, most: usize) -> Result<usize> {
        let work = Workload { vae: self.options.vae, ..work };
        let room = self.room().unwrap_or(Room::given(usize::MAX));
        Ok(self.planner.batch_size(&work, self.on, room, most)?.batch_size)
    }

    /// Whether `work` fits into the budget or the free memory.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn has_room_for(&self, work: Workload) -> Result<bool> {
        let Some(room) = self.room() else { return Ok(true) };
        let work = Workload { vae: self.options.vae, ..work };
        match self.options.mode {
            ModeChoice::Auto => Ok(self.planner.fit(&work, self.on, room.bytes)?.is_ok()),
            choice => Ok(self.plan_for_mode(Mode::asked(choice), &work)?.peak() <= room.bytes),
        }
    }

    /// What plans are made for, in words: the networks, the types, and the options.
    pub(crate) fn describe_all(&self) -> String {
        let Self { planner, on, options, .. } = self;
        format!("{}, {}, {options:?}, {}", on.device(), on.types(), planner.describe())
    }

    /// Whether a stage for which memory is out runs again with less of the model in memory; else it fails.
    pub(crate) fn may_shrink(&self) -> bool {
        self.may_shrink
    }

    /// Sets that. It is so at first.
    pub(crate) fn set_may_shrink(&mut self, may: bool) {
        self.may_shrink = may;
    }

    /// The memory options.
    pub(crate) fn options(&self) -> &MemoryOptions {
        &self.options
    }

    /// Plans with this refiner from now on, or without one.
    ///
    /// # Errors
    /// Those of its configurations.
    pub(crate) fn set_refiner(&mut self, refiner: Option<&ModelFolder>) -> Result<()> {
        if self.planner.refiner_path() != refiner.map(ModelFolder::path) {
            self.planner.set_refiner(refiner)?;
            self.is_prepared = false;
        }
        Ok(())
    }

    /// The current plan.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The current mode.
    pub(crate) fn mode(&self) -> Mode {
        self.plan.mode
    }

    /// Whether the text encoders stay in memory once texts are encoded: on a GPU, where all networks do and there is room for
    /// them in the stages that follow.
    pub(crate) fn keeps_text_encoders(&self) -> bool {
        self.mode().is_fully_resident() && self.plan.keeps_text_encoders
    }

    /// Whether texts may be encoded and images decoded while the steps of others run: all weights stay, and there is
    /// room for what steps and the larger of the two have at once.
    pub(crate) fn fits_overlap(&self) -> bool {
        let of = |stage| self.plan.stage(stage);
        let activations = [of(Stage::Encode), of(Stage::Decode)].into_iter().flatten().map(|stage| stage.activations);
        let workspace = of(Stage::Decode).map_or(0, |decode| decode.workspace);
        let both = self.plan.peak() + activations.max().unwrap_or(0) + workspace;
        // On the CPU text encoders leave, and encoding in parallel with steps is not the default.
        let stays = self.plan.keeps_text_encoders || !self.on.target.is_gpu();
        self.mode().is_fully_resident() && stays && self.room().is_some_and(|room| both <= room.bytes)
    }

    /// Plans from now on with these control networks next to the U-Net. The next [`MemoryManager::prepare`] plans again.
    pub(crate) fn set_controls(&mut self, controls: &[ControlModelConfig]) {
        self.planner.set_controls(controls);
        self.is_prepared = false;
    }

    /// Plans from now on with these IP-Adapters. The next [`MemoryManager::prepare`] plans again.
    pub(crate) fn set_prompts(&mut self, prompts: Vec<PromptPlan>) {
        self.planner.set_prompts(prompts);
        self.is_prepared = false;
    }

    /// The residency of control network `i` while it runs. A streamed one has no resident segments: the U-Net's are of as
    /// much use, and there are more of them.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn keep_control(&self, i: usize) -> Result<WeightResidency> {
        if !self.plan.mode.streams() {
            return Ok(WeightResidency::Whole);
        }
        let estimate = self.planner.control_estimate(i, &self.work, self.on)?;
        Ok(WeightResidency::Streamed { share: StreamBudget::LEAST, estimate, pins: self.pins() })
    }

    /// The residency of the network of `stage` while it runs.
    ///
    /// # Errors
    /// Errors of the U-Net's dry run.
    pub(crate) fn keep(&self, stage: Stage) -> Result<WeightResidency> {
        let Mode::Lowvram { resident } = self.plan.mode else { return Ok(WeightResidency::Whole) };
        let (resident, estimate) = match stage {
            Stage::Denoise => (resident, self.planner.unet_estimate(&self.work.of_pass(self.pass), self.on)?),
            Stage::Refine => {
                (self.planner.refiner_resident(resident, self.on), self.planner.refiner_estimate(&self.work, self.on)?)
            }
            _ => (0, self.on.rates.estimate(&[])),
        };
        let planned = self.plan.stage_of(stage, self.pass).map_or(usize::MAX, |planned| planned.weights + planned.ring);
        let planned = match stage {
            Stage::Denoise => planned.saturating_sub(self.planner.streamed_controls(&self.work, self.on)?),
            _ => planned,
        };
        let room = self.budget().map_or(usize::MAX, |_| planned);
        Ok(WeightResidency::Streamed { share: StreamBudget { resident, room }, estimate, pins: self.pins() })
    }

    /// Whether weights that are copied to a GPU are in pinned memory, as far as the options allow it.
    fn pins(&self) -> bool {
        self.on.link.is_none_or(|link| link.pinning_pays())
    }

    /// The next smaller way to run `stage`: with smaller strips where the autoencoder runs, else in a smaller mode. `None`
    /// where there is none.
    ///
    /// # Errors
    /// Errors of a dry run.
    pub(crate) fn shrink(&mut self, stage: Stage) -> Result<Option<()>> {
        self.hit_oom = true;
        let tilings = self.work.vae.tilings(self.work.max_height(), self.on.target);
        if let Some(tiling) = self.tiling_of(stage) {
            let mut ways = tilings.into_iter();
            ways.find(|known| *known == *tiling);
            if let Some(smaller) = ways.next() {
                *tiling = smaller;
                return Ok(Some(()));
            }
        }
        let Some(mode) = self.mode().smaller(self.planner.unet_bytes(self.on)) else { return Ok(None) };
        let tried = self.tiling_of(stage).copied();
        self.plan = self.plan_for_mode(mode, &self.work)?;
        if let (Some(tiling), Some(tried)) = (self.tiling_of(stage), tried) {
            *tiling = tried; // the smallest
        }
        Ok(Some(()))
    }

    /// How the plan has the autoencoder run in `stage`, if it does.
    fn tiling_of(&mut self, stage: Stage) -> Option<&mut Tiling> {
        match stage {
            Stage::Decode => Some(&mut self.plan.tiling),
            Stage::EncodeImage => Some(&mut self.plan.encode_tiling),
            _ => None,
        }
    }

    /// The way of running in words.
    pub(crate) fn describe(&self, stage: Stage) -> String {
        match stage {
            Stage::Decode => format!("{}, decoding {}", self.plan.mode, self.plan.tiling),
            Stage::EncodeImage => format!("{}, encoding {}", self.plan.mode, self.plan.encode_tiling),
            _ => self.plan.mode.to_string(),
        }
    }

    /// The plan for `work`, with the link of the GPU if it streams.
    fn choose(&mut self, work: &Workload) -> Result<Plan> {
        let plan = self.choose_with_link(work)?;
        match self.unknown_link.take_if(|_| plan.mode.streams()) {
            Some((device, setup)) => {
                self.on = self.on.with_device(&device, &setup);
                self.choose_with_link(work)
            }
            None => Ok(plan),
        }
    }

    /// The plan for `work` in the requested mode, or the fastest that fits. Without a budget it may need more than the
    /// free memory but not more than the total: then the smallest mode is accepted if it fits into that.
    fn choose_with_link(&self, work: &Workload) -> Result<Plan> {
        let plan = match (self.options.mode, self.room()) {
            (ModeChoice::Auto, Some(room)) => match self.planner.fit(work, self.on, room.bytes)? {
                Ok(plan) => return Ok(plan),
                Err(smallest) => smallest,
            },
            (choice, _) => self.plan_for_mode(Mode::asked(choice), work)?,
        };
        match (Room::of_budget(&self.options, self.on.target), self.memory) {
            (Some(budget), _) if plan.peak() > budget.bytes => Err(plan.refusal(work, budget)),
            // A requested mode is replaced by a smaller one that fits when an allocation fails.
            (None, Some(DeviceMemory { total, .. })) if plan.peak() > total.bytes => {
                match self.planner.fit(work, self.on, total.bytes)? {
                    Ok(_) => self.planner.plan(plan.mode, work, self.on, Some(total.bytes)),
                    Err(smallest) => Err(smallest.refusal(work, total)),
                }
            }
            _ => Ok(plan),
        }
    }

    fn plan_for_mode(&self, mode: Mode, work: &Workload) -> Result<Plan> {
        self.planner.plan(mode, work, self.on, self.budget())
    }

    /// The part of the budget for plans.
    fn budget(&self) -> Option<usize> {
        Room::of_budget(&self.options, self.on.target).map(|room| room.bytes)
    }

    /// The bytes that inputs of recorded steps may take besides those of the last one.
    pub(crate) fn recorded_inputs(&self) -> usize {
        self.room().map_or(0, |room| room.bytes / 20)
    }

    /// The bytes available to a run: those of the budget, else the free memory.
    fn room(&self) -> Option<Room> {
        Room::of_budget(&self.options, self.on.target).or(self.memory.map(|memory| memory.free))
    }
}

/// The budget of an engine on the CPU during its lifetime, a limit on the memory of the process: the largest of all engines on
/// the CPU, and none where one of them has no budget.
pub(crate) struct Ceiling(Option<usize>);

/// The budgets of the engines on the CPU.
static CEILINGS: Mutex<Vec<Option<usize>>> = Mutex::new(Vec::new());

impl Ceiling {
    /// An engine with this budget in bytes.
    pub(crate) fn new(bytes: Option<usize>) -> Self {
        Self::change(|all| all.push(bytes));
        Self(bytes)
    }

    fn change(change: impl FnOnce(&mut Vec<Option<usize>>)) {
        let mut all = CEILINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let had_any = all.iter().any(Option::is_some);
        change(&mut all);
        // A limit that the program has set itself stays where no engine has one.
        if had_any || all.iter().any(Option::is_some) {
            let largest = all.iter().copied().reduce(|a, b| Some(a?.max(b?)));
            HostPool::set_ceiling(largest.flatten());
        }
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        Self::change(|all| {
            if let Some(own) = all.iter().position(|bytes| *bytes == self.0) {
                all.swap_remove(own);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use kiln_ops::Target;

    use super::*;
    use kiln_files::ByteSize;
    use kiln_models::{Architecture, Preset};

    const MIB: u64 = 1 << 20;

    fn memory_manager(free: u64, total: u64, options: MemoryOptions, expected: Option<Workload>) -> MemoryManager {
        let planner = Planner::of_configurations(&Architecture::preset(Preset::Emoji).unwrap()).unwrap();
        let on = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::F32);
        MemoryManager::within(planner, Some(DeviceMemory::new(free, total)), on, (options, None), expected).unwrap()
    }

    fn work(side: usize) -> Workload {
        let planner = Planner::of_configurations(&Architecture::preset(Preset::Emoji).unwrap()).unwrap();
        planner.work([Some(side); 2], Some(1), 1).unwrap()
    }

    #[test]
    fn a_run_that_needs_more_than_all_memory_is_refused() {
        let mut small = memory_manager(50 * MIB, 60 * MIB, MemoryOptions::default(), None);
        let error = small.prepare(work(4096)).unwrap_err();
        assert!(error.is_usage());
        let message = error.to_string();
        for part in ["1 of 4096x4096 needs", "in the smallest mode", "60.0 MiB exist in total"] {
            assert!(message.contains(part), "{message}");
        }
        // A run that needs more than the free memory may fit, because other programs may end.
        let mut busy = memory_manager(MIB, 1 << 40, MemoryOptions::default(), None);
        busy.prepare(work(256)).unwrap();
        assert!(busy.mode().streams() && busy.plan().peak() as u64 > MIB);
        // A requested mode is used even if a smaller one would fit better.
        let options = MemoryOptions { mode: ModeChoice::Full, ..MemoryOptions::default() };
        let mut asked = memory_manager(50 * MIB, 60 * MIB, options.clone(), None);
        asked.prepare(work(256)).unwrap();
        assert_eq!(asked.mode(), Mode::Full);
        assert!(memory_manager(50 * MIB, 60 * MIB, options, None).prepare(work(4096)).is_err());
    }

    #[test]
    fn a_budget_applies_to_the_run_and_not_to_the_default_size() {
        let options = |mib: usize| MemoryOptions { budget: Some(ByteSize(mib << 20)), ..MemoryOptions::default() };
        let roomy = |mib, expected| memory_manager(1 << 40, 1 << 40, options(mib), expected);
        // The model's default 256x256 does not fit into either.
        let mut small = roomy(11, None);
        small.prepare(work(64)).unwrap();
        assert!(small.plan().peak() <= 11 << 20);
        let message = roomy(11, None).prepare(work(512)).unwrap_err().to_string();
        assert!(message.contains("1 of 512x512 needs") && message.contains("of the budget of 11.0 MiB"), "{message}");
        // The expected workload is refused as well once it is that of the run.
        assert!(roomy(11, Some(work(512))).prepare(work(512)).is_err());
    }

    #[test]
    fn prompts_of_schedules_are_planned() {
        let needed = |texts| {
            let mut memory_manager = memory_manager(1 << 40, 1 << 40, MemoryOptions::default(), None);
            memory_manager.prepare(Workload { texts, chunks: 4, context: 4, ..work(64) }).unwrap();
            memory_manager.plan().stages.iter().map(|stage| stage.total()).collect::<Vec<_>>()
        };
        let (few, many) = (needed(2), needed(1002));
        // (1, 4 * 77, d) in f32 for each.
        let d = Architecture::preset(Preset::Emoji).unwrap().text_encoders[0].hidden_size;
        for (few, many) in few.into_iter().zip(many) {
            let text = (many - few) as f64 / 1000.0;
            let expected = (4 * 77 * d * 4) as f64;
            assert!((text / expected - 1.0).abs() < 0.05, "{text} of {expected} bytes a text");
        }
    }
}
