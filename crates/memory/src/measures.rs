//! From the measures of a batch to its plan in each mode.

use kiln_vae::Tiling;

use crate::component_set::{ComponentSet, Copies};
use crate::execution_target::ExecutionTarget;
use crate::network_weights::{Streamed, Weights};
use crate::plan::{Plan, StagePlan};
use crate::stage::Stage;
use crate::stage_bytes::{StageBytes, StageRun};
use kiln_setup::mode::Mode;

/// The inverse of the maximum rounding of a pool's size classes.
const ROUNDING: usize = 128;

/// The properties of a batch that do not depend on the mode.
pub struct Measures {
    /// The stages of the run, in their order.
    pub stages: Vec<StageRun>,
    /// The networks.
    pub components: ComponentSet,
    /// Bytes of a feature map of the decoder at the image's size, with the fewest channels.
    pub map: usize,
    /// The steps of each denoiser in each pass, the first denoiser's first.
    pub steps: Vec<Steps>,
    /// Operations of decoding one image.
    pub decode_flop: f64,
    /// Images of a batch.
    pub batch_size: usize,
    /// The device and type of the run.
    pub on: ExecutionTarget,
}

/// The steps of a denoiser in a pass.
pub struct Steps {
    /// The denoiser's stage.
    pub stage: Stage,
    /// The number of steps.
    pub count: usize,
    /// Operations of a step for one image.
    pub flop: f64,
}

impl Measures {
    /// The plan for a mode. Streams and tiles have their best sizes, or smaller ones if `budget` leaves less.
    /// The text's keys and values are made once for all steps if nothing streams and `budget` leaves the room.
    pub fn plan(&self, mode: Mode, budget: usize) -> Plan {
        let may_keep_encoders = mode == Mode::Full && self.on.has_texts_on_gpu();
        let mut plan = self.plan_with(mode, budget, (!mode.streams(), may_keep_encoders));
        // Keys and values are made again in every step; encoders are read again for the next texts only, but that takes longer.
        for (keys, encoders) in [(false, true), (true, false), (false, false)] {
            let is_possible = (!mode.streams() || !keys) && (may_keep_encoders || !encoders);
            if is_possible && plan.peak() > budget {
                plan = self.plan_with(mode, budget, (keys, encoders));
            }
        }
        plan
    }

    /// The plans for all modes and for some numbers of resident bytes between them, the fastest first, each as large as fits into
    /// `budget` bytes.
    pub fn modes(&self, budget: usize) -> Vec<Plan> {
        let resident = [3, 2, 1, 0].map(|quarters| Mode::Lowvram { resident: self.streamable() / 4 * quarters });
        let modes = [Mode::Full, Mode::Medvram].into_iter().chain(resident);
        let most = self.resident(budget);
        // A row that keeps more than the budget allows has its own size.
        let limit = |mode: &Mode| match mode {
            Mode::Lowvram { resident } if *resident > most => usize::MAX,
            _ => budget,
        };
        modes.map(|mode| self.plan(mode, limit(&mode))).collect()
    }

    /// The fastest plan that fits into `budget` bytes, or as error the smallest one.
    ///
    /// # Errors
    /// The smallest plan.
    pub fn choose(&self, budget: usize) -> std::result::Result<Plan, Plan> {
        // A server plans for each job that joins: no mode is planned for after the one that fits.
        let fits = |mode| Some(self.plan(mode, budget)).filter(|plan| plan.peak() <= budget);
        let plan = fits(Mode::Full).or_else(|| fits(Mode::Medvram));
        let plan = plan.or_else(|| fits(Mode::Lowvram { resident: self.resident(budget) }));
        plan.or_else(|| fits(Mode::LOWVRAM)).ok_or_else(|| self.plan(Mode::LOWVRAM, budget))
    }

    /// The plan for `mode` if that is requested to save memory and `bytes` are free: never larger than the plan that would be chosen
    /// without a request. Also returns the bytes that limit it, if any do.
    pub fn requested(&self, mode: Mode, bytes: usize) -> (Plan, Option<usize>) {
        let unlimited = self.plan(mode, usize::MAX);
        let (Ok(chosen) | Err(chosen)) = self.choose(bytes);
        let most = chosen.peak();
        if unlimited.peak() <= most {
            return (unlimited, None);
        }
        let limited = self.plan(mode, most);
        // Where the mode itself needs more, what is chosen without a request is a smaller one.
        if limited.peak() <= most { (limited, Some(most)) } else { (chosen, Some(bytes)) }
    }

    fn plan_with(&self, mode: Mode, budget: usize, (keeps_text_keys, keeps_text_encoders): (bool, bool)) -> Plan {
        let Self { components, on, .. } = self;
        let (mut tiling, mut encode_tiling) = (Tiling::Whole, Tiling::Whole);
        let mut stages: Vec<StagePlan> = Vec::with_capacity(self.stages.len());
        for StageRun { stage, pass, ways } in &self.stages {
            let of = |held: StageBytes| {
                let room = self.room(budget, held);
                let (weights, ring) = components.held(*stage, (mode, keeps_text_encoders), room);
                let held = if mode == Mode::Full { self.with_graph_memory(*stage, held) } else { held };
                // Encoders that come back find the step of the last call recorded.
                let comes_back = mode == Mode::Full && *stage == Stage::Encode && !keeps_text_encoders;
                let held = if comes_back { self.next_to_graph_memory(held) } else { held };
                let StageBytes { activations, workspace, conditions, waiting, text_keys } = held;
                let activations = activations + if keeps_text_keys { text_keys } else { 0 };
                StagePlan { stage: *stage, pass: *pass, weights, ring, activations, workspace, conditions, waiting }
            };
            let before = stages.iter().map(StagePlan::total).max().unwrap_or(0);
            let before = if mode.streams() { before } else { usize::MAX };
            // A stage that both passes have runs in one way, which has room for the larger one.
            let (way, _) = self.way(&self.largest_ways(*stage), budget, before, of);
            let own = ways.iter().find(|(tiling, _)| *tiling == way);
            match stage {
                Stage::Decode => tiling = way,
                Stage::EncodeImage => encode_tiling = way,
                _ => {}
            }
            stages.push(of(own.map(|(_, bytes)| *bytes).unwrap_or_default()));
        }
        let n = self.batch_size;
        let streams = Stage::DENOISERS.map(|stage| (stage, self.streamed(stage, mode, budget)));
        let of =
            |wanted: Stage| streams.iter().find(|(stage, _)| *stage == wanted).map_or(Streamed::default(), |s| s.1);
        let resident = streams.iter().map(|(_, streamed)| streamed.resident).sum();
        let reads_text = on.has_texts_on_gpu() && !keeps_text_encoders;
        let Copies { per_image, once } =
            components.copies(mode, reads_text, self.room(budget, StageBytes::default()), resident);
        let (rates, first) = (&on.rates, of(Stage::Denoise));
        // What a ring does not hide.
        let simulated = if rates.overlap { first.seconds } else { 0.0 };
        let flop = self.steps.first().map_or(0.0, |steps| steps.flop);
        let (read, reading) = on.host.map_or((0, 0.0), |host| {
            let read = host.read_per_step(first.copied);
            (read, host.reading(read))
        });
        let step = rates.seconds(flop, n, first.copied).max(simulated).max(reading);
        let seconds = |(i, steps): (usize, &Steps)| {
            let one = if i == 0 { step } else { rates.seconds(steps.flop, n, of(steps.stage).copied) };
            steps.count as f64 * one
        };
        let steps = self.steps.iter().enumerate().map(seconds).sum::<f64>();
        let images = n as f64 * rates.seconds(self.decode_flop, 1, per_image);
        Plan {
            mode,
            batch_size: n,
            stages,
            tiling,
            encode_tiling,
            keeps_text_keys,
            keeps_text_encoders,
            copied_per_step: first.copied,
            read_per_step: read,
            copied_per_batch: once + n * per_image,
            copy_seconds_per_step: rates.copying(first.copied),
            seconds_per_step: step,
            seconds_per_batch: rates.copying(once) + steps + images,
        }
    }

    /// How the denoiser of a stage streams with all that runs in its steps; nothing does in a mode that keeps weights.
    fn streamed(&self, stage: Stage, mode: Mode, budget: usize) -> Streamed {
        match mode {
            Mode::Lowvram { resident } => {
                self.components.streamed(stage, resident, self.room(budget, self.bytes_of(stage)))
            }
            Mode::Full | Mode::Medvram => Streamed::default(),
        }
    }

    /// The bytes of a stage besides weights, run in the fastest way.
    fn bytes_of(&self, stage: Stage) -> StageBytes {
        let runs = self.stages.iter().filter(|run| run.stage == stage);
        let fastest = runs.filter_map(|run| run.ways.first()).map(|(_, bytes)| *bytes);
        fastest.max_by_key(StageBytes::total).unwrap_or_default()
    }

    /// The ways of running a stage, each with the bytes of the pass that takes the most.
    fn largest_ways(&self, stage: Stage) -> Vec<(Tiling, StageBytes)> {
        let mut ways: Vec<(Tiling, StageBytes)> = Vec::new();
        for (tiling, bytes) in self.stages.iter().filter(|run| run.stage == stage).flat_map(|run| &run.ways) {
            match ways.iter_mut().find(|(known, _)| known == tiling) {
                Some((_, most)) if most.total() < bytes.total() => *most = *bytes,
                Some(_) => {}
                None => ways.push((*tiling, *bytes)),
            }
        }
        ways
    }

    /// A stage next to the blocks of recorded steps on a GPU.
    fn next_to_graph_memory(&self, bytes: StageBytes) -> StageBytes {
        StageBytes { activations: self.blocks(None) + bytes.activations, ..bytes }
    }

    /// The blocks of all recorded steps but that of a denoiser's stage.
    fn blocks(&self, but: Option<Stage>) -> usize {
        Stage::DENOISERS.into_iter().filter(|stage| Some(*stage) != but).map(|stage| self.recorded(stage)).sum()
    }

    /// The block of a GPU's recorded step, with the copy of the text's keys and values that it reads.
    fn recorded(&self, stage: Stage) -> usize {
        let held = self.bytes_of(stage);
        let records = self.on.target.is_gpu() && !self.on.is_portable;
        if records { held.activations + held.text_keys / 2 } else { 0 }
    }

    /// A stage where a GPU has recorded steps, whose blocks stay: the decoder's maps use the first denoiser's as far as whole ones
    /// fit in.
    fn with_graph_memory(&self, stage: Stage, bytes: StageBytes) -> StageBytes {
        match stage {
            Stage::Decode => {
                let block = self.recorded(Stage::Denoise);
                let lent = (block / self.map.max(1) * self.map).min(bytes.activations);
                StageBytes { activations: self.blocks(None) + bytes.activations - lent, ..bytes }
            }
            Stage::EncodeImage | Stage::ImagePrompt | Stage::Upscale => self.next_to_graph_memory(bytes),
            // Each denoiser's step has a block of its own.
            Stage::Denoise | Stage::Refine => {
                StageBytes { activations: self.blocks(Some(stage)) + bytes.activations, ..bytes }
            }
            Stage::Load | Stage::Encode | Stage::Save => bytes,
        }
    }

    /// How a stage is run: in the fastest way that fits into a budget, or else the smallest. Without one in the fastest that
    /// takes no more than `before`, the stages before it, or else in the smallest of those that are cheap.
    fn way(
        &self,
        ways: &[(Tiling, StageBytes)],
        budget: usize,
        before: usize,
        of: impl Fn(StageBytes) -> StagePlan,
    ) -> (Tiling, StagePlan) {
        let ways: Vec<_> = ways.iter().map(|&(tiling, bytes)| (tiling, of(bytes))).collect();
        let within = |most: usize| move |(_, stage): &&(Tiling, StagePlan)| stage.total() <= most;
        let smallest = || ways.iter().min_by_key(|(_, stage)| stage.total());
        let cheap = || ways.iter().filter(|(tiling, _)| tiling.is_cheap(self.on.target));
        let found = match budget {
            usize::MAX => cheap().find(within(before)).or_else(|| cheap().min_by_key(|(_, stage)| stage.total())),
            _ => ways.iter().find(within(budget)),
        };
        let found = found.or_else(smallest);
        found.copied().unwrap_or_else(|| (Tiling::Whole, of(StageBytes::default())))
    }

    /// The resident bytes of the denoiser when it streams with `budget`: the part that its ring does not need.
    fn resident(&self, budget: usize) -> usize {
        self.components.most_resident(self.room(budget, self.bytes_of(Stage::Denoise)))
    }

    /// The part of a budget for weights and ring, less the possible rounding of the pool.
    fn room(&self, budget: usize, held: StageBytes) -> usize {
        let room = budget.saturating_sub(held.total());
        room - room / ROUNDING
    }

    /// Bytes of the denoiser that stream without resident segments.
    fn streamable(&self) -> usize {
        self.components.denoiser().map_or(0, Weights::all)
    }
}
