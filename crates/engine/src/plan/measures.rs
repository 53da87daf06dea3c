//! From the measures of a batch to its plan in each mode.

use kiln_vae::Tiling;

use super::dry_run::{StageBytes, StageRun};
use super::network_weights::{Streamed, Weights};
use super::{ExecutionTarget, Plan, StagePlan, Workload};
use crate::mode::Mode;
use crate::pipeline::event::Stage;
use crate::residency::StreamBudget;

/// The inverse of the maximum rounding of a pool's size classes.
const ROUNDING: usize = 128;

/// The properties of a batch that do not depend on the mode.
pub(super) struct Measures {
    /// The stages of the run, in their order.
    pub(super) stages: Vec<StageRun>,
    /// One encoder at a time, where the mode does not keep all.
    pub(super) text: Vec<Weights>,
    pub(super) unet: Weights,
    pub(super) controls: Vec<Weights>,
    /// Image encoders and IP-Adapters, one at a time.
    pub(super) prompts: Vec<Weights>,
    pub(super) refiner: Option<Weights>,
    pub(super) decoder: Weights,
    /// The encoder of initial images, where there are any.
    pub(super) encoder: Option<Weights>,
    /// Bytes of a feature map of the decoder at the image's size, with the fewest channels.
    pub(super) map: usize,
    /// The weights of the network between two passes.
    pub(super) upscaler: Option<Weights>,
    /// Operations of a step, and of decoding, for one image.
    pub(super) step_flop: f64,
    pub(super) second_step_flop: f64,
    pub(super) refiner_flop: f64,
    pub(super) decode_flop: f64,
    pub(super) work: Workload,
    pub(super) on: ExecutionTarget,
}

/// Bytes of the denoiser that stay while it streams.
fn resident_in(mode: Mode) -> usize {
    match mode {
        Mode::Lowvram { resident } => resident,
        _ => 0,
    }
}

impl Measures {
    /// The plan for a mode. What streams and what is tiled is as large as is best, or where `budget` leaves less, as it
    /// leaves.
    /// The text's keys and values are made once for all steps where nothing streams and `budget` leaves the room.
    pub(super) fn plan(&self, mode: Mode, budget: usize) -> Plan {
        let may_keep_encoders = mode == Mode::Full && self.on.target.is_gpu();
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

    fn plan_with(&self, mode: Mode, budget: usize, (keeps_text_keys, keeps_text_encoders): (bool, bool)) -> Plan {
        let Self { unet, refiner, decoder, encoder, upscaler, work, on, .. } = self;
        let refiner_streams = refiner.as_ref().map_or_else(Streamed::default, |refiner| {
            let resident = resident_in(mode).min(refiner.all());
            self.streamed(refiner, resident, budget, self.bytes_of(Stage::Refine))
        });
        let refiner_all = refiner.as_ref().map_or(0, Weights::all);
        let unet_streams = self.streamed_unet(resident_in(mode), budget, self.bytes_of(Stage::Denoise));
        let controls = self.streamed_controls();
        let (mut tiling, mut encode_tiling) = (Tiling::Whole, Tiling::Whole);
        let mut stages: Vec<StagePlan> = Vec::with_capacity(self.stages.len());
        for StageRun { stage, pass, ways } in &self.stages {
            let of = |held: StageBytes| {
                let (weights, ring) = self.weights(*stage, (mode, keeps_text_encoders), budget, held);
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
        let n = work.batch_size;
        let texts: usize = self.text.iter().map(Weights::all).sum();
        // Per step, per image that is decoded or encoded, and once.
        let streams = |weights: &Weights| self.streamed(weights, 0, budget, StageBytes::default()).copied;
        let images = encoder.as_ref();
        let (copied_per_step, per_image, once) = match mode {
            Mode::Full => (0, 0, if on.target.is_gpu() && !keeps_text_encoders { texts } else { 0 }),
            Mode::Medvram => {
                let between = [images, upscaler.as_ref()].into_iter().flatten().map(Weights::all).sum::<usize>();
                (0, 0, texts + unet.all() + self.all_controls() + refiner_all + decoder.all() + between)
            }
            Mode::Lowvram { .. } => {
                let resident = unet_streams.resident + refiner_streams.resident;
                let between = upscaler.as_ref().map_or(0, Weights::all);
                let per_step = unet_streams.copied + controls.copied;
                (per_step, streams(decoder) + images.map_or(0, streams), texts + resident + between)
            }
        };
        let refiner_copied = if mode.streams() { refiner_streams.copied } else { 0 };
        let rates = &on.rates;
        let own_steps = work.steps.saturating_sub(work.refiner_steps);
        let second_steps = work.second.map_or(0, |second| second.steps);
        let step = rates.seconds(self.step_flop, n, copied_per_step);
        // What a ring does not hide.
        let simulated = if mode.streams() && rates.overlap { unet_streams.seconds + controls.seconds } else { 0.0 };
        let step = step.max(simulated);
        let steps = own_steps as f64 * step
            + second_steps as f64 * rates.seconds(self.second_step_flop, n, copied_per_step)
            + work.refiner_steps as f64 * rates.seconds(self.refiner_flop, n, refiner_copied);
        let images = n as f64 * rates.seconds(self.decode_flop, 1, per_image);
        Plan {
            mode,
            batch_size: n,
            stages,
            tiling,
            encode_tiling,
            keeps_text_keys,
            keeps_text_encoders,
            copied_per_step,
            copied_per_batch: once + n * per_image,
            copy_seconds_per_step: rates.copying(copied_per_step),
            seconds_per_step: step,
            seconds_per_batch: rates.copying(once) + steps + images,
        }
    }

    /// Weights and ring of a stage in a mode, which may keep text encoders.
    fn weights(
        &self,
        stage: Stage,
        (mode, keeps_encoders): (Mode, bool),
        budget: usize,
        held: StageBytes,
    ) -> (usize, usize) {
        let Self { unet, refiner, decoder, encoder, upscaler, .. } = self;
        let unets = unet.all() + self.all_controls() + refiner.as_ref().map_or(0, Weights::all);
        let texts: usize = self.text.iter().map(Weights::all).sum();
        let largest = |of: &dyn Fn(&Weights) -> usize| self.text.iter().map(of).max().unwrap_or(0);
        // Those besides the model's own: the encoder of images, and the network between two passes.
        let images = [encoder, upscaler].into_iter().flatten().map(Weights::all).sum::<usize>();
        let of_network = match stage {
            Stage::EncodeImage => encoder.as_ref(),
            Stage::Denoise => Some(unet),
            Stage::Refine => refiner.as_ref(),
            Stage::Decode => Some(decoder),
            Stage::Load | Stage::Encode | Stage::ImagePrompt | Stage::Upscale | Stage::Save => None,
        };
        let prompts = |of: &dyn Fn(&Weights) -> usize| self.prompts.iter().map(of).max().unwrap_or(0);
        match (mode, of_network) {
            // One network at a time, next to what the mode keeps.
            (Mode::Full, None) if stage == Stage::ImagePrompt => {
                let texts = if keeps_encoders { texts } else { 0 };
                (texts + unets + decoder.all() + images + prompts(&Weights::all), 0)
            }
            (Mode::Medvram, None) if stage == Stage::ImagePrompt => (prompts(&Weights::all), 0),
            (Mode::Lowvram { .. }, None) if stage == Stage::ImagePrompt => {
                let streamed = self.prompts.iter().map(|weights| self.streamed(weights, 0, budget, held));
                let most = streamed.max_by_key(Streamed::on_device).unwrap_or_default();
                (most.resident, most.ring)
            }
            // It does not stream.
            (Mode::Medvram | Mode::Lowvram { .. }, None) if stage == Stage::Upscale => {
                (upscaler.as_ref().map_or(0, Weights::all), 0)
            }
            (Mode::Full, None) => (texts + unets + decoder.all() + images, 0),
            // On the CPU text encoders give their memory back.
            (Mode::Full, Some(_)) => (unets + decoder.all() + images + if keeps_encoders { texts } else { 0 }, 0),
            (Mode::Medvram, None) => (largest(&Weights::all), 0),
            (Mode::Medvram, Some(_)) if stage == Stage::Denoise => (unet.all() + self.all_controls(), 0),
            (Mode::Medvram, Some(weights)) => (weights.all(), 0),
            (Mode::Lowvram { .. }, None) => {
                // Where a ring for the largest segment has no room, that segment stays: the encoder that has the most of both.
                let least = |weights: &Weights| self.streamed(weights, 0, budget, held);
                let texts = self.text.iter().map(least).max_by_key(|streamed| streamed.resident + streamed.ring);
                let Streamed { resident, ring, .. } = texts.unwrap_or_default();
                (resident, ring)
            }
            (Mode::Lowvram { .. }, Some(_)) if stage == Stage::Denoise => {
                let (unet, controls) = (self.streamed_unet(resident_in(mode), budget, held), self.streamed_controls());
                (unet.resident + controls.resident, unet.ring + controls.ring)
            }
            (Mode::Lowvram { .. }, Some(weights)) => {
                let resident = if stage == Stage::Refine { resident_in(mode).min(weights.all()) } else { 0 };
                let Streamed { resident, ring, .. } = self.streamed(weights, resident, budget, held);
                (resident, ring)
            }
        }
    }

    /// How weights stream held what a stage has, with so many bytes resident.
    fn streamed(&self, weights: &Weights, resident: usize, budget: usize, held: StageBytes) -> Streamed {
        weights.streamed(StreamBudget { resident, room: self.room(budget, held) })
    }

    /// How the U-Net streams in the room that control networks leave.
    fn streamed_unet(&self, resident: usize, budget: usize, held: StageBytes) -> Streamed {
        let room = self.room(budget, held).saturating_sub(self.streamed_controls().on_device());
        self.unet.streamed(StreamBudget { resident, room })
    }

    /// How all control networks stream together.
    fn streamed_controls(&self) -> Streamed {
        let all = self.controls.iter().map(|weights| weights.streamed(StreamBudget::LEAST));
        all.fold(Streamed::default(), |sum, one| Streamed {
            resident: sum.resident + one.resident,
            ring: sum.ring + one.ring,
            copied: sum.copied + one.copied,
            seconds: sum.seconds + one.seconds,
        })
    }

    /// Bytes of all control networks.
    fn all_controls(&self) -> usize {
        self.controls.iter().map(Weights::all).sum()
    }

    /// What a stage has besides weights, run in the fastest way.
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
        let (block, refiner) = (self.recorded(Stage::Denoise), self.recorded(Stage::Refine));
        StageBytes { activations: block + refiner + bytes.activations, ..bytes }
    }

    /// The block of a GPU's recorded step, with the copy of the text's keys and values that it reads.
    fn recorded(&self, stage: Stage) -> usize {
        let held = self.bytes_of(stage);
        if self.on.target.is_gpu() { held.activations + held.text_keys / 2 } else { 0 }
    }

    /// A stage where a GPU has a recorded step, whose block stays: the decoder's maps use the block as far as whole ones fit
    /// in.
    fn with_graph_memory(&self, stage: Stage, bytes: StageBytes) -> StageBytes {
        // A refiner's step has a block of its own.
        let (block, refiner) = (self.recorded(Stage::Denoise), self.recorded(Stage::Refine));
        match stage {
            Stage::Decode => {
                let lent = (block / self.map.max(1) * self.map).min(bytes.activations);
                StageBytes { activations: block + refiner + bytes.activations - lent, ..bytes }
            }
            Stage::EncodeImage | Stage::ImagePrompt | Stage::Upscale => self.next_to_graph_memory(bytes),
            Stage::Denoise => StageBytes { activations: refiner + bytes.activations, ..bytes },
            Stage::Refine => StageBytes { activations: block + bytes.activations, ..bytes },
            _ => bytes,
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

    /// The resident bytes of the U-Net when it streams with `budget`: the part that its ring does not need.
    pub(super) fn resident(&self, budget: usize) -> usize {
        let room = self.room(budget, self.bytes_of(Stage::Denoise));
        let room = room.saturating_sub(self.streamed_controls().on_device());
        room.saturating_sub(self.unet.streamed(StreamBudget::LEAST).ring).min(self.unet.all())
    }

    /// The part of a budget for weights and ring, less the possible rounding of the pool.
    fn room(&self, budget: usize, held: StageBytes) -> usize {
        let room = budget.saturating_sub(held.total());
        room - room / ROUNDING
    }

    /// Bytes of the U-Net that stream without resident segments.
    pub(super) fn streamable(&self) -> usize {
        self.unet.all()
    }
}
