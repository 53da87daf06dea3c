//! The networks of a model without weights, and their memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_clip::{HiddenLayer, TextEncoder};
use kiln_models::{Architecture, ModelFolder, decoder_dtype, limits::MAX_STEPS};
use kiln_request::limits::{MAX_IMAGES, in_range, side};
use kiln_request::{HiresUpscaler, OpenUpscaler, Request};
use kiln_unet::{ControlModel, ControlModelConfig, Unet};
use kiln_upscale::Upscaler;
use kiln_weights::{EightBitLayers, Estimate, SlabType};

use super::dry_run::{DryRun, Networks, PassFlop, TOKENS};
use super::flop::control_flop;
use super::measures::Measures;
use super::network_weights::Weights;
use super::prompts::PromptNetworks;
use super::{Enlargement, ExecutionTarget, NetworkWork, Pass, SecondPassWork, Workload, decoder_flop, unet_flop};
use crate::error::Result;
use crate::loaded_prompts::PromptPlan;
use crate::memory::VaeMemory;
use crate::pipeline::controlled::Controlled;
use crate::pipeline::decoder::{Network, tiny};
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::event::Stage;
use crate::pipeline::image_encoder;
use crate::residency::StreamBudget;

/// The default number of steps.
const USUAL_STEPS: usize = 20;

/// Plans the runs of one model.
pub struct Planner {
    model: Architecture,
    text: Vec<TextEncoder>,
    unet: Unet,
    /// Control networks.
    controls: Vec<ControlModel>,
    /// IP-Adapters with their image encoders.
    prompts: Vec<PromptNetworks>,
    decoder: Network,
    encoder: image_encoder::Network,
    refiner: Option<RefinerPlan>,
    /// The U-Net's layers that are computed in 8 bits.
    eight_bits: Option<Arc<EightBitLayers>>,
}

/// The networks of a refiner that a run uses.
struct RefinerPlan {
    path: PathBuf,
    text: Vec<TextEncoder>,
    unet: Unet,
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
        let decoder = Network::of(model);
        Ok(Self {
            encoder: image_encoder::Network::of(&decoder),
            text: text.collect::<kiln_clip::Result<_>>()?,
            unet: Unet::new(model.unet.clone()),
            controls: Vec::new(),
            prompts: Vec::new(),
            decoder,
            model: model.clone(),
            refiner: None,
            eight_bits: None,
        })
    }

    /// The configurations of all networks but the control networks, in words.
    pub(crate) fn describe(&self) -> String {
        let (adapters, kind) = (self.prompts.len(), self.eight_bits.as_ref().map(|layers| layers.kind));
        format!("{:?}, {adapters} image prompts, refiner {:?}, {kind:?}", self.model, self.refiner_path())
    }

    /// Plans from now on with these control networks next to the U-Net, in the order in which jobs name them.
    pub fn set_controls(&mut self, controls: &[ControlModelConfig]) {
        self.controls = controls.iter().map(ControlModel::new).collect();
    }

    /// Plans from now on with these IP-Adapters, for work with [`Workload::has_image_prompts`]. An adapter that does not fit the
    /// model is left out.
    pub fn set_prompts(&mut self, prompts: Vec<PromptPlan>) {
        let unet = self.unet.config();
        self.prompts = prompts.into_iter().filter_map(|plan| PromptNetworks::new(plan, unet)).collect();
    }

    /// The same with these layers of the U-Net in 8 bits, and with all of a refiner's that allow it.
    pub fn with_8_bits(mut self, layers: Option<Arc<EightBitLayers>>) -> Self {
        self.unet.segments().set_8_bits(layers.as_deref());
        self.eight_bits = layers;
        if let Some(refiner) = &self.refiner {
            refiner.unet.segments().set_8_bits(self.eight_bits_of_others().as_ref());
        }
        self
    }

    /// The layers of another U-Net than the model's: all that allow it, in the same format.
    fn eight_bits_of_others(&self) -> Option<EightBitLayers> {
        let layers = self.eight_bits.as_ref()?;
        Some(EightBitLayers { kind: layers.kind, least_outputs: layers.least_outputs, ..EightBitLayers::default() })
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
            let unet = Unet::new(model.unet_config().clone());
            unet.segments().set_8_bits(self.eight_bits_of_others().as_ref());
            Ok(RefinerPlan { path: model.path().to_path_buf(), text, unet })
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
            has_image_prompts: !self.prompts.is_empty(),
            second: None,
            pasted: 0,
            refiner_steps: 0,
            network: NetworkWork::default(),
            vae: VaeMemory::default(),
        })
    }

    /// `work` with what `request` changes within the network.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for an option that needs another one, or that this network cannot have.
    pub fn with_network(&self, work: Workload, request: &Request) -> Result<Workload> {
        let network = NetworkWork::of(&request.network_options(self.unet.config())?);
        Ok(Workload { network, ..work })
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
        let Some(model) = self.controls.get(i) else { return Ok(on.rates.estimate(&[])) };
        Ok(on.rates.estimate(&self.control_flop(model, work)?))
    }

    /// Operations of each segment of a control network in a step.
    fn control_flop(&self, model: &ControlModel, work: &Workload) -> Result<Vec<f64>> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        control_flop(model, &self.unet, work.images(), size, work.context * TOKENS)
    }

    /// Bytes on the device of all control networks while they stream.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn streamed_controls(&self, work: &Workload, on: ExecutionTarget) -> Result<usize> {
        let of = |model: &ControlModel| -> Result<usize> {
            let weights = Weights::of(model.step_segments(), on.dtype, on, &self.control_flop(model, work)?);
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
        let of_images = |model: &ControlModel| Weights::of(model.image_segments(), dtype, on, &[]).all();
        let networks = Networks {
            refiner: refiner.map(|refiner| (refiner.text.as_slice(), &refiner.unet as &dyn Denoiser)),
            text: &self.text,
            layer: HiddenLayer::PENULTIMATE,
            denoiser: &Controlled::new(&self.unet, self.controls.iter().collect()),
            controls: self.controls.iter().map(|model| (model, of_images(model))).collect(),
            prompts: &self.prompts,
            unet: self.unet.config(),
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
        let of_control = |model: &ControlModel| -> Result<(Weights, f64)> {
            let flop = self.control_flop(model, work)?;
            Ok((Weights::of(model.step_segments(), dtype, on, &flop), flop.iter().sum()))
        };
        let controls: Vec<(Weights, f64)> = self.controls.iter().map(of_control).collect::<Result<_>>()?;
        let prompts = self.prompts.iter().filter(|_| work.has_image_prompts).flat_map(PromptNetworks::segments);
        let of_prompt = |segments| Weights::of(segments, dtype, ExecutionTarget { matrices: None, ..on }, &[]);
        let control_flop: Vec<f64> = controls.iter().map(|(_, flop)| *flop).collect();
        Ok(Measures {
            stages,
            map,
            text: texts.map(|encoder| Weights::of(encoder.segments(), dtype, on, &[])).collect(),
            unet: Weights::of(self.unet.segments(), dtype, on, &step_flop),
            controls: controls.into_iter().map(|(weights, _)| weights).collect(),
            prompts: prompts.map(of_prompt).collect(),
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
