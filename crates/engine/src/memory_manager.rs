//! Memory management of a model: the plan for its runs, and the reaction to out-of-memory errors.

use std::sync::Arc;

use candle_core::Device;
use kiln_models::ModelFolder;
use kiln_network::ControlConfig;
use kiln_ops::portable::Backend;
use kiln_vae::Tiling;
use kiln_weights::Segment;

use crate::component::WeightResidency;
use crate::error::{Error, Result};
use crate::loaded_prompts::PromptPlan;
use crate::memory::MemoryOptions;
use crate::mode::Mode;
use crate::pipeline::event::Stage;
use crate::plan::{ExecutionTarget, Pass, Plan, Planner, Workload};
use crate::plan_chooser::PlanChooser;
use crate::residency::StreamBudget;
use crate::room::DeviceMemory;
use crate::setup::Setup;

/// Has the plan of the current run, and says what of the weights each stage has in memory.
pub(crate) struct MemoryManager {
    chooser: PlanChooser,
    /// The plan of the current workload.
    plan: Plan,
    work: Workload,
    /// The pass that runs.
    pass: Pass,
    /// Whether the workload is that of a run and fits, and not only the initial expectation.
    is_prepared: bool,
    /// Whether memory was exhausted: larger plans are then not tried again.
    hit_oom: bool,
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
        (device, backend): (&Device, Option<&dyn Backend>),
        on: ExecutionTarget,
        setup: &Setup,
        expected: Option<Workload>,
    ) -> Result<Self> {
        // What others hold is not free now: the chooser takes it away again, as long as they hold it.
        let before =
            |memory: DeviceMemory| memory.shared_by(setup.memory.shared_by).with_free(setup.memory.held_by_others);
        let memory = match backend {
            Some(backend) => backend.memory().map(DeviceMemory::of_backend),
            None => DeviceMemory::of(device),
        };
        let memory = memory.map(before);
        let on = planner.place_texts(on, &setup.memory, memory)?;
        let unknown_link = device.is_cuda().then(|| (device.clone(), setup.clone()));
        let mut chooser = PlanChooser::new(planner, on, setup.memory.clone(), memory);
        chooser.unknown_link = unknown_link;
        Self::within(chooser, expected)
    }

    fn within(mut chooser: PlanChooser, expected: Option<Workload>) -> Result<Self> {
        let work = expected.map_or_else(|| chooser.planner.work([None, None], None, 1), Ok)?;
        let work = Workload { vae: chooser.options.vae, ..work };
        let plan = match chooser.choose(&work) {
            Ok(plan) => plan,
            Err(Error::Budget { .. }) => {
                chooser.limit = Some(0);
                chooser.planner.plan(Mode::LOWVRAM, &work, chooser.on, chooser.limit)?
            }
            Err(error) => return Err(error),
        };
        let (is_prepared, hit_oom, may_shrink, pass) = (false, false, true, Pass::First);
        Ok(Self { chooser, plan, work, pass, is_prepared, hit_oom, may_shrink })
    }

    /// Plans for `work`. Returns whether the mode has changed, so that loaded weights must be dropped. Logs a warning
    /// if more than the free memory is needed without a budget, because the free memory is an estimate.
    ///
    /// # Errors
    /// [`crate::Error::Budget`] if not even the smallest mode fits into the budget or into the device's total memory.
    pub(crate) fn prepare(&mut self, work: Workload) -> Result<bool> {
        let work = self.of_options(work);
        self.pass = Pass::First;
        if work == self.work && self.is_prepared {
            return Ok(false);
        }
        let before = self.plan.mode;
        self.plan =
            if self.hit_oom { self.chooser.plan_for_mode(before, &work)? } else { self.chooser.choose(&work)? };
        (self.work, self.is_prepared) = (work, true);
        let free = self.chooser.free().filter(|_| self.options().budget.is_none());
        if let Some(free) = free.filter(|free| self.plan.peak() > free.bytes) {
            tracing::warn!("{}; the system may end the run", self.plan.refusal(work.described(), free));
        }
        Ok(self.plan.mode != before)
    }

    /// Has the next [`Self::prepare`] plan again: the networks or the memory are others.
    fn plan_again(&mut self) {
        self.chooser.forget();
        self.is_prepared = false;
    }

    /// Says which pass of the run its next stages belong to.
    pub(crate) fn begin_pass(&mut self, pass: Pass) {
        self.pass = pass;
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
        &self.chooser.options
    }

    /// Plans from now on with `bytes` that other engines hold.
    pub(crate) fn set_held_by_others(&mut self, bytes: usize) {
        if self.chooser.options.held_by_others != bytes {
            self.chooser.options.held_by_others = bytes;
            self.plan_again();
        }
    }

    /// Whether `work`, or the work that was planned last, leaves all networks in memory and fits next to what other engines hold.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn fits_whole(&self, work: Option<Workload>) -> Result<bool> {
        Ok(!self.hit_oom && self.chooser.fits_whole(&work.map_or(self.work, |work| self.of_options(work)))?)
    }

    /// The bytes of weights and encoded texts that stay in memory between two runs, if all networks do.
    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        let of_stages = self.plan.stages.iter().map(|stage| stage.weights + stage.conditions);
        self.mode().is_fully_resident().then(|| of_stages.max().unwrap_or(0))
    }

    /// Plans with this refiner from now on, or without one.
    ///
    /// # Errors
    /// Errors of its configurations.
    pub(crate) fn set_refiner(&mut self, refiner: Option<&ModelFolder>) -> Result<()> {
        if self.chooser.planner.refiner_path() != refiner.map(ModelFolder::path) {
            self.chooser.planner.set_refiner(refiner)?;
            self.plan_again();
        }
        Ok(())
    }

    /// Plans from now on with the types of matrices that the networks of model `number` have. The next
    /// [`MemoryManager::prepare`] plans again if these are others than before.
    pub(crate) fn keep_as<'a>(
        &mut self,
        number: usize,
        denoiser: &[Segment],
        texts: impl IntoIterator<Item = &'a [Segment]>,
    ) {
        if self.chooser.planner.keep_as(number, denoiser, texts) {
            self.plan_again();
        }
    }

    /// See [`PlanChooser::batch_size`].
    pub(crate) fn batch_size(&self, work: Workload, most: usize) -> Result<usize> {
        self.chooser.batch_size(&self.of_options(work), most)
    }

    /// See [`PlanChooser::has_room_for`].
    pub(crate) fn has_room_for(&self, work: Workload) -> Result<bool> {
        self.chooser.has_room_for(&self.of_options(work))
    }

    /// See [`PlanChooser::describe_all`].
    pub(crate) fn describe_all(&self) -> String {
        self.chooser.describe_all()
    }

    /// See [`PlanChooser::recorded_inputs`].
    pub(crate) fn recorded_inputs(&self) -> usize {
        self.chooser.recorded_inputs()
    }

    /// `work` with the ways of running the autoencoder that the options allow.
    fn of_options(&self, work: Workload) -> Workload {
        Workload { vae: self.chooser.options.vae, ..work }
    }

    /// See [`Planner::with_controls`].
    pub(crate) fn with_controls(&self, work: Workload) -> Workload {
        self.chooser.planner.with_controls(work)
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

    /// Whether the text encoders alone leave a GPU's memory, which has no room for them in the stages that follow.
    pub(crate) fn text_encoders_leave(&self) -> bool {
        self.mode().is_fully_resident() && self.chooser.on.has_texts_on_gpu() && !self.plan.keeps_text_encoders
    }

    /// Whether the text encoders run on the CPU although denoisers run on a GPU.
    pub(crate) fn has_texts_on_host(&self) -> bool {
        self.chooser.on.texts_on_host
    }

    /// Whether texts may be encoded and images decoded while the steps of others run: all weights stay, and there is
    /// room for what steps and the larger of the two have at once.
    pub(crate) fn fits_overlap(&self) -> bool {
        let of = |stage| self.plan.stage(stage);
        let activations = [of(Stage::Encode), of(Stage::Decode)].into_iter().flatten().map(|stage| stage.activations);
        let workspace = of(Stage::Decode).map_or(0, |decode| decode.workspace);
        let both = self.plan.peak() + activations.max().unwrap_or(0) + workspace;
        // On the CPU text encoders leave, and encoding in parallel with steps is not the default.
        let stays = self.plan.keeps_text_encoders || !self.chooser.on.has_texts_on_gpu();
        self.mode().is_fully_resident() && stays && self.chooser.room().is_some_and(|room| both <= room.bytes)
    }

    /// Plans from now on with these control networks next to the U-Net. The next [`MemoryManager::prepare`] plans again.
    pub(crate) fn set_controls(&mut self, controls: &[Arc<dyn ControlConfig>]) {
        self.chooser.planner.set_controls(controls);
        self.plan_again();
    }

    /// Plans from now on with these IP-Adapters. The next [`MemoryManager::prepare`] plans again.
    pub(crate) fn set_prompts(&mut self, prompts: Vec<PromptPlan>) {
        self.chooser.planner.set_prompts(prompts);
        self.plan_again();
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
        let estimate = self.chooser.planner.control_estimate(i, &self.work, self.chooser.on)?;
        Ok(WeightResidency::Streamed { share: StreamBudget::LEAST, estimate, pins: self.chooser.pins() })
    }

    /// The residency of the network of `stage` while it runs.
    ///
    /// # Errors
    /// Errors of the U-Net's dry run.
    pub(crate) fn keep(&self, stage: Stage) -> Result<WeightResidency> {
        let Mode::Lowvram { resident } = self.plan.mode else { return Ok(WeightResidency::Whole) };
        let PlanChooser { ref planner, on, .. } = self.chooser;
        let (resident, estimate) = match Stage::DENOISERS.iter().position(|denoises| *denoises == stage) {
            Some(number) => {
                let estimate = planner.denoiser_estimate(number, &self.work.of_pass(self.pass), on)?;
                (planner.denoiser_bytes(number, on).min(resident), estimate)
            }
            None => (0, on.rates.estimate(&[])),
        };
        let planned = self.plan.stage_of(stage, self.pass).map_or(usize::MAX, |planned| planned.weights + planned.ring);
        let planned = match stage {
            Stage::Denoise => planned.saturating_sub(planner.streamed_controls(&self.work, on)?),
            _ => planned,
        };
        // A stage without weights in the plan has nothing that a limit was divided into.
        let room = self.chooser.limit.filter(|_| planned > 0).map_or(usize::MAX, |_| planned);
        Ok(WeightResidency::Streamed { share: StreamBudget { resident, room }, estimate, pins: self.chooser.pins() })
    }

    /// The next smaller way to run `stage`: with smaller strips if the autoencoder runs, else in a smaller mode. `None` if
    /// there is none.
    ///
    /// # Errors
    /// Errors of a dry run.
    pub(crate) fn shrink(&mut self, stage: Stage) -> Result<Option<()>> {
        self.hit_oom = true;
        let tilings = self.work.vae.tilings(self.work.max_height(), self.chooser.on.target);
        if let Some(tiling) = self.tiling_of(stage) {
            let mut ways = tilings.into_iter();
            ways.find(|known| *known == *tiling);
            if let Some(smaller) = ways.next() {
                *tiling = smaller;
                return Ok(Some(()));
            }
        }
        let Some(mode) = self.mode().smaller(self.chooser.planner.denoiser_bytes(0, self.chooser.on)) else {
            return Ok(None);
        };
        let tried = self.tiling_of(stage).copied();
        self.plan = self.chooser.plan_for_mode(mode, &self.work)?;
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
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use kiln_files::ByteSize;
    use kiln_models::{Architecture, Preset};
    use kiln_ops::Target;

    use super::*;
    use crate::memory::ModeChoice;
    use crate::plan::TextWork;

    const MIB: u64 = 1 << 20;

    fn memory_manager(free: u64, total: u64, options: MemoryOptions, expected: Option<Workload>) -> MemoryManager {
        let planner = Planner::of_configurations(&Architecture::preset(Preset::Emoji).unwrap()).unwrap();
        let on = ExecutionTarget::new(Target::Cpu { threads: 2 }, DType::F32);
        let memory = Some(DeviceMemory::new(free, total));
        MemoryManager::within(PlanChooser::new(planner, on, options, memory), expected).unwrap()
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

    /// In a control group of 64 MB the images that need no flag need none of them to be taken away.
    #[test]
    fn a_mode_that_saves_memory_takes_no_more_than_no_flag() {
        for free in [8, 24, 32, 48, 64, 128, 1024] {
            let plan = |mode: ModeChoice| {
                let options = MemoryOptions { mode, ..MemoryOptions::default() };
                let mut manager = memory_manager(free * MIB, (free + 32) * MIB, options, None);
                manager.prepare(work(512)).map(|_| (manager.plan().peak(), manager.mode()))
            };
            let Ok((without, _)) = plan(ModeChoice::Auto) else { continue };
            for choice in [ModeChoice::Medvram, ModeChoice::Lowvram] {
                let (with, mode) = plan(choice).unwrap();
                assert!(with <= without, "{choice:?} in {free} MiB: {with} of {without}");
                assert!(mode != Mode::Full || free < 1024, "{choice:?} in {free} MiB: {mode}");
            }
        }
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
            let text = TextWork { texts, tokens: 4 * 77, context: 4 * 77, ..work(64).text };
            memory_manager.prepare(Workload { text, ..work(64) }).unwrap();
            memory_manager.plan().stages.iter().map(|stage| stage.total()).collect::<Vec<_>>()
        };
        let (few, many) = (needed(2), needed(1002));
        // (1, 4 * 77, d) in f32 for each.
        let d = Architecture::preset(Preset::Emoji).unwrap().texts[0].config.width();
        for (few, many) in few.into_iter().zip(many) {
            let text = (many - few) as f64 / 1000.0;
            let expected = (4 * 77 * d * 4) as f64;
            assert!((text / expected - 1.0).abs() < 0.05, "{text} of {expected} bytes a text");
        }
    }
}
