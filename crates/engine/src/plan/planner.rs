//! The networks of a model without weights, and their memory.

use std::path::{Path, PathBuf};

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_mempool::Rounding;
use kiln_models::{Architecture, ModelFolder, decoder_dtype, limits::MAX_STEPS};
use kiln_request::limits::{MAX_IMAGES, in_range, side};
use kiln_request::{HiresUpscaler, OpenUpscaler};
use kiln_unet::{ControlConfig, ControlHint, ControlNet, Unet};
use kiln_upscale::Upscaler;
use kiln_vae::Tiling;
use kiln_weights::{Estimate, Placement, Segment, Segments, SlabType};

use super::dry_run::{DryRun, Networks, PassFlop, StageBytes, StageRun, TOKENS};
use super::flop::control_flop;
use super::{Enlargement, ExecutionTarget, Pass, Plan, SecondPassWork, StagePlan, Workload, decoder_flop, unet_flop};
use crate::error::Result;
use crate::memory::VaeMemory;
use crate::mode::Mode;
use crate::pipeline::controlled::Controlled;
use crate::pipeline::decoder::{Network, tiny};
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::event::Stage;
use crate::pipeline::image_encoder;
use crate::residency::{StreamBudget, on_device, planned, residency};

/// The default number of steps.
const USUAL_STEPS: usize = 20;

/// The inverse of the maximum rounding of a pool's size classes.
const ROUNDING: usize = 128;

/// Plans the runs of one model.
pub struct Planner {
    model: Architecture,
    text: Vec<TextEncoder>,
    unet: Unet,
    /// Control networks that run in every step, with the embeddings of their images.
    controls: Vec<(ControlNet, ControlHint)>,
    decoder: Network,
    encoder: image_encoder::Network,
    refiner: Option<RefinerPlan>,
}

/// The networks of a refiner that a run uses.
struct RefinerPlan {
    path: PathBuf,
    text: Vec<TextEncoder>,
    unet: Unet,
}

/// The properties of a batch that do not depend on the mode.
pub(super) struct Measures {
    /// The stages of the run, in their order.
    stages: Vec<StageRun>,
    /// One encoder at a time, where the mode does not keep all.
    text: Vec<Weights>,
    unet: Weights,
    controls: Vec<Weights>,
    refiner: Option<Weights>,
    decoder: Weights,
    /// The encoder of initial images, where there are any.
    encoder: Option<Weights>,
    /// Bytes of a feature map of the decoder at the image's size, with the fewest channels.
    map: usize,
    /// The weights of the network between two passes.
    upscaler: Option<Weights>,
    /// Operations of a step, and of decoding, for one image.
    step_flop: f64,
    second_step_flop: f64,
    refiner_flop: f64,
    decode_flop: f64,
    work: Workload,
    on: ExecutionTarget,
}

/// The device memory of a network's weights.
struct Weights {
    segments: Vec<Segment>,
    placement: Placement,
    estimate: Estimate,
    rounding: Rounding,
}

/// The part on the device during streaming.
#[derive(Clone, Copy, Default)]
struct Streamed {
    resident: usize,
    ring: usize,
    copied: usize,
}

impl Streamed {
    /// Resident segments and the ring.
    fn on_device(&self) -> usize {
        self.resident + self.ring
    }
}

impl Weights {
    /// `flop` are the operations of each segment in a run, if known.
    fn of(segments: &Segments, dtype: DType, on: ExecutionTarget, flop: &[f64]) -> Self {
        Self {
            segments: on_device(segments, on.target),
            placement: planned(dtype).with_matrices(on.matrices),
            estimate: on.rates.estimate(flop),
            rounding: if on.target.is_gpu() { Rounding::Gpu } else { Rounding::HostPool },
        }
    }

    /// The sum.
    fn all(&self) -> usize {
        self.segments.iter().map(|segment| self.rounding.of(segment.bytes(self.placement.slab()))).sum()
    }

    /// As in [`residency`]; if that does not fit, the minimum for streaming.
    fn streamed(&self, share: StreamBudget) -> Streamed {
        let of = |share| residency(&self.segments, &self.placement, share, &self.estimate);
        let Ok(residency) = of(share).or_else(|_| of(StreamBudget { resident: 0, room: self.largest() })) else {
            return Streamed::default(); // a network without weights
        };
        Streamed {
            resident: residency.resident_bytes(),
            ring: self.rounding.of(residency.ring_bytes()),
            copied: residency.streamed_bytes(),
        }
    }

    fn largest(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes(self.placement.slab())).max().unwrap_or(0)
    }
}

impl Planner {
    /// The networks of `model` without reading weights; `taesd`, a file or a folder, replaces the decoder if given.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn new(model: &ModelFolder, taesd: Option<&Path>) -> Result<Self> {
        let networks = Self::of_configurations(&Architecture::from_folder(model))?;
        match taesd.map(|path| tiny(model, path)).transpose()? {
            Some(decoder) => Ok(Self { encoder: image_encoder::Network::of(&decoder), decoder, ..networks }),
            None => Ok(networks),
        }
    }

    /// The networks of a model without a folder.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn of_configurations(model: &Architecture) -> Result<Self> {
        let text = model.text_encoders.iter().cloned().map(TextEncoder::new);
        let decoder = Network::kl(model.vae.clone());
        Ok(Self {
            encoder: image_encoder::Network::of(&decoder),
            text: text.collect::<kiln_clip::Result<_>>()?,
            unet: Unet::new(model.unet.clone()),
            controls: Vec::new(),
            decoder,
            model: model.clone(),
            refiner: None,
        })
    }

    /// Plans from now on with these control networks next to the U-Net, in the order in which jobs name them.
    pub fn set_controls(&mut self, controls: Vec<ControlConfig>) {
        let networks = |config: ControlConfig| (ControlNet::new(config.clone()), ControlHint::new(&config));
        self.controls = controls.into_iter().map(networks).collect();
    }

    /// The same with the networks of this refiner, which work with [`Workload::refiner_steps`] needs.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn with_refiner(mut self, refiner: Option<&ModelFolder>) -> Result<Self> {
        self.set_refiner(refiner)?;
        Ok(self)
    }

    /// Plans with this refiner from now on, or without one.
    pub(crate) fn set_refiner(&mut self, refiner: Option<&ModelFolder>) -> Result<()> {
        let networks = |model: &ModelFolder| -> Result<RefinerPlan> {
            let text = model.text_encoder_configs().iter().cloned().map(TextEncoder::new);
            let text = text.collect::<kiln_clip::Result<_>>()?;
            Ok(RefinerPlan { path: model.path().to_path_buf(), text, unet: Unet::new(model.unet_config().clone()) })
        };
        self.refiner = refiner.map(networks).transpose()?;
        Ok(())
    }

    /// Where the refiner is that is planned for.
    pub(crate) fn refiner_path(&self) -> Option<&Path> {
        self.refiner.as_ref().map(|refiner| refiner.path.as_path())
    }

    /// A batch of `batch_size` guided images, of the model's size where `size` does not say width and height, with
    /// one chunk of text.
    ///
    /// # Errors
    /// [`crate::Error::Request`] names the option.
    pub fn work(&self, size: [Option<usize>; 2], steps: Option<usize>, batch_size: usize) -> Result<Workload> {
        let Architecture { width, height, vae, .. } = &self.model;
        let multiple = vae.downscale().max(8);
        Ok(Workload {
            width: side("width", size[0].unwrap_or(*width), multiple)?,
            height: side("height", size[1].unwrap_or(*height), multiple)?,
            batch_size: in_range("batch_size", batch_size, 1, MAX_IMAGES)?,
            steps: in_range("steps", steps.unwrap_or(USUAL_STEPS), 1, MAX_STEPS)?,
            guided: true,
            parts: 1,
            chunks: 1,
            context: 1,
            texts: 1,
            encodes_image: self.unet.config().extra_channels() > 0,
            second: None,
            pasted: 0,
            refiner_steps: 0,
            vae: VaeMemory::default(),
        })
    }

    /// `work` with a second pass that is larger by `scale` and has what `upscaler` enlarges.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for a size that is too large, and those of the upscaler's file.
    pub fn with_second_pass(&self, work: Workload, scale: f64, upscaler: &HiresUpscaler) -> Result<Workload> {
        let multiple = self.model.vae.downscale().max(8);
        let scaled = |size: usize| (size as f64 * scale) as usize / multiple * multiple;
        let width = side("the width of the second pass", scaled(work.width), multiple)?;
        let height = side("the height of the second pass", scaled(work.height), multiple)?;
        let enlargement = match upscaler {
            HiresUpscaler::Latents(_) => Enlargement::Latents,
            HiresUpscaler::Pixels(choice) => match OpenUpscaler::open(choice, None)?.upscaler() {
                Some(network) => Enlargement::Network(*network.config()),
                None => Enlargement::Pixels,
            },
        };
        let Workload { steps, guided, parts, chunks, context, texts, .. } = work;
        let (first, enlarged) = ((work.width, work.height), (width, height));
        let second = SecondPassWork {
            width,
            height,
            first,
            enlarged,
            steps,
            guided,
            parts,
            chunks,
            context,
            texts,
            enlargement,
        };
        Ok(Workload { second: Some(second), ..work })
    }

    /// The estimate for streaming the U-Net.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn unet_estimate(&self, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        self.estimate(&self.unet, work, on)
    }

    /// The estimate for streaming the refiner's U-Net.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn refiner_estimate(&self, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        match &self.refiner {
            Some(refiner) => self.estimate(&refiner.unet, work, on),
            None => Ok(on.rates.estimate(&[])),
        }
    }

    /// Of `resident` bytes of the U-Net's weights those that the refiner's U-Net has.
    pub(crate) fn refiner_resident(&self, resident: usize, on: ExecutionTarget) -> usize {
        let slab = SlabType { dtype: on.dtype, matrices: on.matrices };
        self.refiner.as_ref().map_or(0, |refiner| refiner.unet.segments().bytes(slab)).min(resident)
    }

    fn estimate(&self, unet: &Unet, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        Ok(on.rates.estimate(&unet_flop(unet, work.images(), size, work.context * TOKENS)?))
    }

    /// The estimate for streaming control network `i`; of none if there is no such network.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn control_estimate(&self, i: usize, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        let Some((net, _)) = self.controls.get(i) else { return Ok(on.rates.estimate(&[])) };
        Ok(on.rates.estimate(&self.control_flop(net, work)?))
    }

    /// Operations of each segment of a control network in a step.
    fn control_flop(&self, net: &ControlNet, work: &Workload) -> Result<Vec<f64>> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        control_flop(net, &self.unet, work.images(), size, work.context * TOKENS)
    }

    /// Bytes on the device of all control networks while they stream.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn streamed_controls(&self, work: &Workload, on: ExecutionTarget) -> Result<usize> {
        let of = |(net, _): &(ControlNet, ControlHint)| -> Result<usize> {
            let weights = Weights::of(net.segments(), on.dtype, on, &self.control_flop(net, work)?);
            Ok(weights.streamed(StreamBudget::LEAST).on_device())
        };
        self.controls.iter().map(of).sum()
    }

    /// Bytes of the U-Net's weights.
    pub(crate) fn unet_bytes(&self, on: ExecutionTarget) -> usize {
        self.unet.segments().bytes(SlabType { dtype: on.dtype, matrices: on.matrices })
    }

    /// The memory of a batch in every mode.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(super) fn measure(&self, work: &Workload, on: ExecutionTarget) -> Result<Measures> {
        let (model, dtype) = (&self.model, on.dtype);
        let decoder_dtype = match self.decoder {
            Network::Kl(..) => decoder_dtype(model.family, &model.vae, dtype),
            Network::Tiny(..) => dtype,
        };
        let downscale = model.vae.downscale();
        let refiner = self.refiner.as_ref().filter(|_| work.refiner_steps > 0);
        let networks = Networks {
            refiner: refiner.map(|refiner| (refiner.text.as_slice(), &refiner.unet as &dyn Denoiser)),
            text: &self.text,
            layer: HiddenLayer::PENULTIMATE,
            denoiser: &Controlled::new(&self.unet, self.controls.iter().map(|(net, _)| net).collect()),
            hints: self.controls.iter().map(|(_, hint)| hint).collect(),
            decoder: &self.decoder,
            encoder: &self.encoder,
            dtype,
            decoder_dtype,
            downscale,
        };
        let last = work.of_pass(Pass::Second);
        let map = last.width * last.height * self.decoder.channels() * decoder_dtype.size_in_bytes();
        let size = (last.height / downscale, last.width / downscale);
        let DryRun { stages, flop: PassFlop { step: step_flop, refiner: refiner_flop }, second_flop } =
            networks.dry_run(on, work)?;
        let upscaler = match work.second.map(|second| second.enlargement) {
            Some(Enlargement::Network(network)) => {
                let upscaler = Upscaler::without_weights(network);
                Some(Weights::of(upscaler.segments(), dtype, ExecutionTarget { matrices: None, ..on }, &[]))
            }
            _ => None,
        };
        let per_image = |flop: &[f64]| flop.iter().sum::<f64>() / work.batch_size.max(1) as f64;
        let texts = self.text.iter().chain(refiner.iter().flat_map(|refiner| &refiner.text));
        let encoder = work.stages().contains(&Stage::EncodeImage).then_some(&self.encoder);
        let of_control = |(net, _): &(ControlNet, ControlHint)| -> Result<(Weights, f64)> {
            let flop = self.control_flop(net, work)?;
            Ok((Weights::of(net.segments(), dtype, on, &flop), flop.iter().sum()))
        };
        let controls: Vec<(Weights, f64)> = self.controls.iter().map(of_control).collect::<Result<_>>()?;
        let control_flop: Vec<f64> = controls.iter().map(|(_, flop)| *flop).collect();
        Ok(Measures {
            stages,
            map,
            text: texts.map(|encoder| Weights::of(encoder.segments(), dtype, on, &[])).collect(),
            unet: Weights::of(self.unet.segments(), dtype, on, &step_flop),
            controls: controls.into_iter().map(|(weights, _)| weights).collect(),
            refiner: refiner.map(|refiner| Weights::of(refiner.unet.segments(), dtype, on, &refiner_flop)),
            decoder: Weights::of(self.decoder.segments(), decoder_dtype, on, &[]),
            encoder: encoder.map(|encoder| Weights::of(encoder.segments(), decoder_dtype, on, &[])),
            upscaler,
            step_flop: per_image(&step_flop) + per_image(&control_flop),
            second_step_flop: per_image(&second_flop.step),
            refiner_flop: per_image(&refiner_flop),
            decode_flop: decoder_flop(&self.decoder, size)?,
            work: *work,
            on,
        })
    }
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
    pub(super) fn plan(&self, mode: Mode, budget: usize) -> Plan {
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
                let (weights, ring) = self.weights(*stage, mode, budget, held);
                let held = if mode == Mode::Full { self.with_graph_memory(*stage, held) } else { held };
                let StageBytes { activations, workspace, conditions, waiting } = held;
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
            Mode::Full => (0, 0, 0),
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
        let steps = own_steps as f64 * rates.seconds(self.step_flop, n, copied_per_step)
            + second_steps as f64 * rates.seconds(self.second_step_flop, n, copied_per_step)
            + work.refiner_steps as f64 * rates.seconds(self.refiner_flop, n, refiner_copied);
        let images = n as f64 * rates.seconds(self.decode_flop, 1, per_image);
        Plan {
            mode,
            batch_size: n,
            stages,
            tiling,
            encode_tiling,
            copied_per_step,
            copied_per_batch: once + n * per_image,
            copy_seconds_per_step: rates.copying(copied_per_step),
            seconds_per_batch: rates.copying(once) + steps + images,
        }
    }

    /// Weights and ring of a stage in a mode.
    fn weights(&self, stage: Stage, mode: Mode, budget: usize, held: StageBytes) -> (usize, usize) {
        let Self { unet, refiner, decoder, encoder, upscaler, on, .. } = self;
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
            Stage::Load | Stage::Encode | Stage::Upscale | Stage::Save => None,
        };
        match (mode, of_network) {
            // It does not stream.
            (Mode::Medvram | Mode::Lowvram { .. }, None) if stage == Stage::Upscale => {
                (upscaler.as_ref().map_or(0, Weights::all), 0)
            }
            (Mode::Full, None) => (texts + unets + decoder.all() + images, 0),
            // On the CPU text encoders give their memory back.
            (Mode::Full, Some(_)) => (unets + decoder.all() + images + if on.target.is_gpu() { texts } else { 0 }, 0),
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

    /// A stage where a GPU has a recorded step, whose block stays: the decoder's maps use the block as far as whole ones fit
    /// in.
    fn with_graph_memory(&self, stage: Stage, bytes: StageBytes) -> StageBytes {
        let of = |stage| if self.on.target.is_gpu() { self.bytes_of(stage).activations } else { 0 };
        // A refiner's step has a block of its own.
        let (block, refiner) = (of(Stage::Denoise), of(Stage::Refine));
        match stage {
            Stage::Decode => {
                let lent = (block / self.map.max(1) * self.map).min(bytes.activations);
                StageBytes { activations: block + refiner + bytes.activations - lent, ..bytes }
            }
            Stage::EncodeImage | Stage::Upscale => {
                StageBytes { activations: block + refiner + bytes.activations, ..bytes }
            }
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
