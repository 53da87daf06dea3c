//! The networks of a model, without weights, and what they take.

use std::path::Path;

use candle_core::DType;
use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_mempool::Rounding;
use kiln_ops::Target;
use kiln_unet::Unet;
use kiln_weights::Segments;

use super::dry::{Beside, Networks};
use super::{Plan, RunsOn, StagePlan, Work};
use crate::bench::{BenchModel, decoder_flop, unet_flop};
use crate::decoder::{Network, first_dtype, tiny};
use crate::error::Result;
use crate::event::Stage;
use crate::mode::Mode;
use crate::model_folder::ModelFolder;
use crate::request::{MAX_PICTURES, MAX_STEPS, in_range, side};

/// Steps where nothing is said.
const USUAL_STEPS: usize = 20;

/// Plans the runs of one model.
pub struct Planner {
    model: BenchModel,
    text: Vec<TextEncoder>,
    unet: Unet,
    decoder: Network,
}

/// What is known of a batch before a mode is chosen.
pub(super) struct Measures {
    beside: [Beside; 3],
    text: Weights,
    unet: Weights,
    decoder: Weights,
    /// Operations of a step, and of decoding, for one picture.
    step_flop: f64,
    decode_flop: f64,
    work: Work,
    on: RunsOn,
}

/// Bytes of a network's weights on the device.
#[derive(Debug, Clone, Copy, Default)]
struct Weights {
    /// All that would be streamed.
    segments: usize,
    /// The largest segment of those.
    largest: usize,
    /// What never streams: tables of tokens, on the processor; a card has none.
    tables: usize,
}

impl Weights {
    fn of(segments: &Segments, dtype: DType, target: Target) -> Self {
        let rounding = if target.is_card() { Rounding::Card } else { Rounding::HostPool };
        let mut weights = Self::default();
        for segment in segments.iter() {
            let bytes = rounding.of(segment.bytes(dtype));
            match (segment.on_host(), target.is_card()) {
                (true, true) => {}
                (true, false) => weights.tables += bytes,
                (false, _) => {
                    weights.segments += bytes;
                    weights.largest = weights.largest.max(bytes);
                }
            }
        }
        weights
    }

    fn all(&self) -> usize {
        self.segments + self.tables
    }

    /// The ring through which all of it but `resident` bytes stream, of at most `room` bytes: two of the largest
    /// segments, so that one is copied while the other one runs. A ring that one does not fit into is none.
    fn ring(&self, resident: usize, room: usize) -> usize {
        let streamed = self.segments.saturating_sub(resident);
        (2 * self.largest).min(streamed).min(room.max(self.largest.min(streamed)))
    }
}

impl Planner {
    /// The networks of `model`, whose weights are not read; `taesd`, a file or a folder, decodes where it is given.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn new(model: &ModelFolder, taesd: Option<&Path>) -> Result<Self> {
        let decoder = taesd.map(|path| tiny(model, path)).transpose()?;
        let networks = Self::of_configurations(&BenchModel::from_folder(model))?;
        Ok(Self { decoder: decoder.unwrap_or(networks.decoder), ..networks })
    }

    /// The networks of a model that may have no folder.
    ///
    /// # Errors
    /// Those of its configurations.
    pub fn of_configurations(model: &BenchModel) -> Result<Self> {
        let text = model.text_encoders.iter().cloned().map(TextEncoder::new);
        Ok(Self {
            text: text.collect::<kiln_clip::Result<_>>()?,
            unet: Unet::new(model.unet.clone()),
            decoder: Network::kl(model.vae.clone()),
            model: model.clone(),
        })
    }

    /// A batch of `batch_size` guided pictures, of the model's size where `size` does not say width and height, with
    /// one chunk of text.
    ///
    /// # Errors
    /// [`crate::Error::Value`] names the flag.
    pub fn work(&self, size: [Option<usize>; 2], steps: Option<usize>, batch_size: usize) -> Result<Work> {
        let BenchModel { width, height, vae, .. } = &self.model;
        let multiple = vae.downscale().max(8);
        Ok(Work {
            width: side("--width", size[0].unwrap_or(*width), multiple)?,
            height: side("--height", size[1].unwrap_or(*height), multiple)?,
            batch_size: in_range("--batch-size", batch_size, 1, MAX_PICTURES)?,
            steps: in_range("--steps", steps.unwrap_or(USUAL_STEPS), 1, MAX_STEPS)?,
            guided: true,
            chunks: 1,
        })
    }

    /// What a batch takes in every mode.
    pub(super) fn measure(&self, work: &Work, on: RunsOn) -> Measures {
        let (model, RunsOn { target, dtype, .. }) = (&self.model, on);
        let decoder_dtype = match self.decoder {
            Network::Kl(..) => first_dtype(model.family, &model.vae, dtype),
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
        let size = (work.height / downscale, work.width / downscale);
        let halves = work.images() / work.batch_size.max(1);
        let texts = self.text.iter().map(|encoder| Weights::of(encoder.segments(), dtype, target));
        Measures {
            beside: networks.beside_weights(target, work),
            text: texts.fold(Weights::default(), |all, one| Weights {
                segments: all.segments + one.segments,
                largest: all.largest.max(one.largest),
                tables: all.tables + one.tables,
            }),
            unet: Weights::of(self.unet.segments(), dtype, target),
            decoder: Weights::of(self.decoder.segments(), decoder_dtype, target),
            step_flop: unet_flop(&model.unet, halves, size, work.chunks * 77),
            decode_flop: decoder_flop(&model.vae, size),
            work: *work,
            on,
        }
    }
}

impl Measures {
    /// The plan for a mode. Rings have the size that is best, or where `budget` leaves less, what it leaves.
    pub(super) fn plan(&self, mode: Mode, budget: usize) -> Plan {
        let Self { text, unet, decoder, work, on, .. } = self;
        let card = on.target.is_card();
        let stages = [Stage::Encode, Stage::Denoise, Stage::Decode];
        let plan = |i: usize| {
            let Beside { activations, workspace, conditions } = self.beside[i];
            let network = [text, unet, decoder][i];
            let (weights, ring) = match mode {
                Mode::Full => {
                    let texts = if card || i == 0 { text.all() } else { 0 };
                    (texts + unet.all() + decoder.all(), 0)
                }
                Mode::Medvram => (network.all(), 0),
                Mode::Lowvram { resident } => {
                    let resident = if i == 1 { resident.min(unet.segments) } else { 0 };
                    let others = activations + workspace + conditions + resident + network.tables;
                    (resident + network.tables, network.ring(resident, budget.saturating_sub(others)))
                }
            };
            StagePlan { stage: stages[i], weights, ring, activations, workspace, conditions }
        };
        let n = work.batch_size;
        // Per step, per picture that is decoded, and once.
        let (copied_per_step, per_picture, once) = match mode {
            Mode::Full => (0, 0, 0),
            Mode::Medvram => (0, 0, text.all() + unet.all() + decoder.all()),
            Mode::Lowvram { resident } => {
                let resident = resident.min(unet.segments);
                (unet.segments - resident, decoder.segments, text.all() + resident)
            }
        };
        let rates = &on.rates;
        let steps = work.steps as f64 * rates.seconds(self.step_flop, n, copied_per_step);
        let pictures = n as f64 * rates.seconds(self.decode_flop, 1, per_picture);
        Plan {
            mode,
            batch_size: n,
            stages: [plan(0), plan(1), plan(2)],
            copied_per_step,
            copied_per_batch: once + n * per_picture,
            copy_seconds_per_step: rates.copying(copied_per_step),
            seconds_per_batch: rates.copying(once) + steps + pictures,
        }
    }

    /// The bytes of the U-Net that may stay while it streams under `budget`: what is left beside its ring.
    pub(super) fn resident(&self, budget: usize) -> usize {
        let Beside { activations, workspace, conditions } = self.beside[1];
        let room = budget.saturating_sub(activations + workspace + conditions + self.unet.tables);
        room.saturating_sub(2 * self.unet.largest).min(self.unet.segments)
    }

    /// Bytes of the U-Net that stream where nothing is resident.
    pub(super) fn streamable(&self) -> usize {
        self.unet.segments
    }
}
