//! The networks of a model without weights, and their memory.

use std::path::Path;

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_mempool::Rounding;
use kiln_models::{Architecture, ModelFolder, decoder_dtype, limits::MAX_STEPS};
use kiln_unet::Unet;
use kiln_vae::Tiling;
use kiln_weights::{Estimate, Placement, Segment, Segments, SlabType};

use super::dry_run::{DryRun, Networks, StageBytes, TOKENS};
use super::{Plan, RunsOn, StagePlan, Work, decoder_flop, unet_flop};
use crate::decoder::{Network, tiny};
use crate::error::Result;
use crate::event::Stage;
use crate::memory::VaeMemory;
use crate::mode::Mode;
use crate::request::{MAX_PICTURES, in_range, side};
use crate::residency::{Share, on_device, planned, residency};

/// The default number of steps.
const USUAL_STEPS: usize = 20;

/// The inverse of the maximum rounding of a pool's size classes.
const ROUNDING: usize = 128;

/// Plans the runs of one model.
pub struct Planner {
    model: Architecture,
    text: Vec<TextEncoder>,
    unet: Unet,
    decoder: Network,
}

/// The properties of a batch that do not depend on the mode.
pub(super) struct Measures {
    /// Encoding and denoising without weights.
    beside: [StageBytes; 2],
    /// Decoding in every tiling, the fastest first.
    decoding: Vec<(Tiling, StageBytes)>,
    /// One encoder at a time, unless the mode keeps all of them.
    text: Vec<Weights>,
    unet: Weights,
    decoder: Weights,
    /// Bytes of a feature map of the decoder at the image's size with the fewest channels.
    map: usize,
    /// Operations of a step, and of decoding, for one image.
    step_flop: f64,
    decode_flop: f64,
    work: Work,
    on: RunsOn,
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

impl Weights {
    /// `flop` are the operations of each segment in a run, if known.
    fn of(segments: &Segments, dtype: DType, on: RunsOn, flop: &[f64]) -> Self {
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
    fn streamed(&self, share: Share) -> Streamed {
        let of = |share| residency(&self.segments, &self.placement, share, &self.estimate);
        let Ok(residency) = of(share).or_else(|_| of(Share { resident: 0, room: self.largest() })) else {
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
        let decoder = taesd.map(|path| tiny(model, path)).transpose()?;
        let networks = Self::of_configurations(&Architecture::from_folder(model))?;
        Ok(Self { decoder: decoder.unwrap_or(networks.decoder), ..networks })
    }

    /// The networks of a model without a folder.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn of_configurations(model: &Architecture) -> Result<Self> {
        let text = model.text_encoders.iter().cloned().map(TextEncoder::new);
        Ok(Self {
            text: text.collect::<kiln_clip::Result<_>>()?,
            unet: Unet::new(model.unet.clone()),
            decoder: Network::kl(model.vae.clone()),
            model: model.clone(),
        })
    }

    /// A batch of `batch_size` guided images with prompts of one chunk; the default `size` is that of the model.
    ///
    /// # Errors
    /// [`crate::Error::Value`] names the flag.
    pub fn work(&self, size: [Option<usize>; 2], steps: Option<usize>, batch_size: usize) -> Result<Work> {
        let Architecture { width, height, vae, .. } = &self.model;
        let multiple = vae.downscale().max(8);
        Ok(Work {
            width: side("--width", size[0].unwrap_or(*width), multiple)?,
            height: side("--height", size[1].unwrap_or(*height), multiple)?,
            batch_size: in_range("--batch-size", batch_size, 1, MAX_PICTURES)?,
            steps: in_range("--steps", steps.unwrap_or(USUAL_STEPS), 1, MAX_STEPS)?,
            guided: true,
            parts: 1,
            chunks: 1,
            context: 1,
            texts: 1,
            vae: VaeMemory::default(),
        })
    }

    /// The estimate for streaming the U-Net.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn unet_estimate(&self, work: &Work, on: RunsOn) -> Result<Estimate> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        Ok(on.rates.estimate(&unet_flop(&self.unet, work.images(), size, work.context * TOKENS)?))
    }

    /// Bytes of the U-Net's weights.
    pub(crate) fn unet_bytes(&self, on: RunsOn) -> usize {
        self.unet.segments().bytes(SlabType { dtype: on.dtype, matrices: on.matrices })
    }

    /// The memory of a batch in every mode.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(super) fn measure(&self, work: &Work, on: RunsOn) -> Result<Measures> {
        let (model, dtype) = (&self.model, on.dtype);
        let decoder_dtype = match self.decoder {
            Network::Kl(..) => decoder_dtype(model.family, &model.vae, dtype),
            Network::Tiny(..) => dtype,
        };
        let downscale = model.vae.downscale();
        let networks = Networks {
            text: &self.text,
            layer: HiddenLayer::PENULTIMATE,
            unet: &self.unet,
            decoder: &self.decoder,
            dtype,
            decoder_dtype,
            downscale,
        };
        let map = work.width * work.height * self.decoder.channels() * decoder_dtype.size_in_bytes();
        let size = (work.height / downscale, work.width / downscale);
        let DryRun { stages, decoding, step_flop } = networks.dry_run(on, work)?;
        Ok(Measures {
            beside: stages,
            decoding,
            map,
            text: self.text.iter().map(|encoder| Weights::of(encoder.segments(), dtype, on, &[])).collect(),
            unet: Weights::of(self.unet.segments(), dtype, on, &step_flop),
            decoder: Weights::of(self.decoder.segments(), decoder_dtype, on, &[]),
            step_flop: step_flop.iter().sum::<f64>() / work.batch_size.max(1) as f64,
            decode_flop: decoder_flop(&self.decoder, size)?,
            work: *work,
            on,
        })
    }
}

impl Measures {
    /// The plan for a mode. What streams and what is tiled is as large as is best, or where `budget` leaves less, as it
    /// leaves.
    pub(super) fn plan(&self, mode: Mode, budget: usize) -> Plan {
        let Self { unet, decoder, work, on, .. } = self;
        let [encode, denoise] = self.beside;
        let room = |beside: StageBytes| self.room(budget, beside);
        let resident = match mode {
            Mode::Lowvram { resident } => resident,
            _ => 0,
        };
        let streamed = |weights: &Weights, resident, beside| weights.streamed(Share { resident, room: room(beside) });
        let texts: usize = self.text.iter().map(Weights::all).sum();
        let largest = |of: &dyn Fn(&Weights) -> usize| self.text.iter().map(of).max().unwrap_or(0);
        // Weights and ring of the three stages.
        let unet_streams = streamed(unet, resident, denoise);
        let least = |weights: &Weights| streamed(weights, 0, encode);
        let [encoding, denoising] = match mode {
            Mode::Full => {
                let all = unet.all() + decoder.all();
                [(texts + all, 0), (all + if on.target.is_gpu() { texts } else { 0 }, 0)]
            }
            Mode::Medvram => [(largest(&Weights::all), 0), (unet.all(), 0)],
            Mode::Lowvram { .. } => {
                // If a ring for the largest segment does not fit, that segment stays resident: the encoder with the
                // highest sum.
                let texts = self.text.iter().map(least).max_by_key(|streamed| streamed.resident + streamed.ring);
                let Streamed { resident, ring, .. } = texts.unwrap_or_default();
                [(resident, ring), (unet_streams.resident, unet_streams.ring)]
            }
        };
        let stage = |stage, beside: StageBytes, (weights, ring)| {
            let StageBytes { activations, workspace, conditions, waiting } = beside;
            StagePlan { stage, weights, ring, activations, workspace, conditions, waiting }
        };
        let stages = [stage(Stage::Encode, encode, encoding), stage(Stage::Denoise, denoise, denoising)];
        let decode = |beside: StageBytes| match mode {
            Mode::Full => stage(Stage::Decode, self.beside_recorded(beside), denoising),
            Mode::Medvram => stage(Stage::Decode, beside, (decoder.all(), 0)),
            Mode::Lowvram { .. } => {
                let Streamed { resident, ring, .. } = streamed(decoder, 0, beside);
                stage(Stage::Decode, beside, (resident, ring))
            }
        };
        let before = stages.iter().map(StagePlan::total).max().unwrap_or(0);
        let (tiling, decoding) = self.tiling(budget, if mode.streams() { before } else { usize::MAX }, decode);
        let n = work.batch_size;
        // Per step, per decoded image, and per batch.
        let decoder_streams = streamed(decoder, 0, StageBytes::default()).copied;
        let (copied_per_step, per_picture, once) = match mode {
            Mode::Full => (0, 0, 0),
            Mode::Medvram => (0, 0, texts + unet.all() + decoder.all()),
            Mode::Lowvram { .. } => (unet_streams.copied, decoder_streams, texts + unet_streams.resident),
        };
        let rates = &on.rates;
        let steps = work.steps as f64 * rates.seconds(self.step_flop, n, copied_per_step);
        let pictures = n as f64 * rates.seconds(self.decode_flop, 1, per_picture);
        let [encode, denoise] = stages;
        Plan {
            mode,
            batch_size: n,
            stages: [encode, denoise, decoding],
            tiling,
            copied_per_step,
            copied_per_batch: once + n * per_picture,
            copy_seconds_per_step: rates.copying(copied_per_step),
            seconds_per_batch: rates.copying(once) + steps + pictures,
        }
    }

    /// Decoding where a GPU has a recorded step: the decoder's maps use the step's block as far as whole ones fit in.
    fn beside_recorded(&self, decode: StageBytes) -> StageBytes {
        let block = if self.on.target.is_gpu() { self.beside[1].activations } else { 0 };
        let lent = (block / self.map.max(1) * self.map).min(decode.activations);
        StageBytes { activations: block + decode.activations - lent, ..decode }
    }

    /// The tiling of the decoder: the fastest that fits into a budget, or else the smallest. Without a budget the
    /// fastest that needs no more than `before`, the stages before it, or else the smallest of the cheap ones.
    fn tiling(&self, budget: usize, before: usize, decode: impl Fn(StageBytes) -> StagePlan) -> (Tiling, StagePlan) {
        let ways: Vec<_> = self.decoding.iter().map(|&(tiling, beside)| (tiling, decode(beside))).collect();
        let within = |most: usize| move |(_, stage): &&(Tiling, StagePlan)| stage.total() <= most;
        let smallest = || ways.iter().min_by_key(|(_, stage)| stage.total());
        let cheap = || ways.iter().filter(|(tiling, _)| tiling.is_cheap(self.on.target));
        let found = match budget {
            usize::MAX => cheap().find(within(before)).or_else(|| cheap().min_by_key(|(_, stage)| stage.total())),
            _ => ways.iter().find(within(budget)),
        };
        let found = found.or_else(smallest);
        found.copied().unwrap_or_else(|| (Tiling::Whole, decode(StageBytes::default())))
    }

    /// The resident bytes of the U-Net when it streams with `budget`: the part that its ring does not need.
    pub(super) fn resident(&self, budget: usize) -> usize {
        let room = self.room(budget, self.beside[1]);
        room.saturating_sub(self.unet.streamed(Share::LEAST).ring).min(self.unet.all())
    }

    /// The part of a budget for weights and ring, less the possible rounding of the pool.
    fn room(&self, budget: usize, beside: StageBytes) -> usize {
        let room = budget.saturating_sub(beside.total());
        room - room / ROUNDING
    }

    /// Bytes of the U-Net that stream without resident segments.
    pub(super) fn streamable(&self) -> usize {
        self.unet.all()
    }
}
