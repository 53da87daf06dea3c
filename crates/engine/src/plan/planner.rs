//! The networks of a model without weights, and their memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_models::{Architecture, ModelFolder, decoder_dtype, limits::MAX_STEPS};
use kiln_network::text::TextStage;
use kiln_network::{Control, ControlConfig, ControlTakes, Denoiser};
use kiln_request::limits::{MAX_IMAGES, in_range, side};
use kiln_request::{HiresUpscaler, OpenUpscaler, Request};
use kiln_upscale::Upscaler;
use kiln_vae::VaeConfig;
use kiln_weights::{EightBitLayers, Estimate, Segments, SlabType};

use super::dry_run::{DryRun, Networks};
use super::flop::control_flop;
use super::known::Known;
use super::prompts::PromptNetworks;
use super::stored_types::keep_stored;
use super::{
    Enlargement, ExecutionTarget, NetworkWork, Pass, ReferenceWork, SecondPassWork, TextWork, Workload, decoder_flop,
    denoiser_flop,
};
use crate::component_spec::ComponentSpec;
use crate::error::Result;
use crate::loaded_prompts::PromptPlan;
use crate::memory::VaeMemory;
use crate::pipeline::decoder::{Network, tiny};
use crate::pipeline::event::Stage;
use crate::pipeline::image_encoder;
use crate::residency::StreamBudget;
use kiln_memory::component_set::ComponentSet;
use kiln_memory::measures::{Measures, Steps};
use kiln_memory::network_weights::Weights;

/// The default number of steps.
const USUAL_STEPS: usize = 20;

/// Plans the runs of one model.
pub struct Planner {
    pub(super) model: Architecture,
    pub(super) text: Box<dyn TextStage>,
    pub(super) unet: Box<dyn Denoiser>,
    /// Control networks.
    controls: Vec<Box<dyn Control>>,
    /// IP-Adapters with their image encoders.
    prompts: Vec<PromptNetworks>,
    decoder: Network,
    encoder: image_encoder::Network,
    /// The models that follow this one in a run: its refiner.
    pub(super) others: Vec<ModelNetworks>,
    /// The U-Net's layers that are computed in 8 bits.
    eight_bits: Option<Arc<EightBitLayers>>,
    /// Whether matrices stay as their files store them.
    pub(super) keeps_stored: bool,
    /// With these networks.
    pub(super) known: Known<(Workload, ExecutionTarget), Arc<Measures>>,
}

/// The networks of another model that a run uses.
pub(super) struct ModelNetworks {
    path: PathBuf,
    pub(super) text: Box<dyn TextStage>,
    pub(super) unet: Box<dyn Denoiser>,
}

impl Planner {
    /// The networks of `model` without reading weights; `taesd`, a file or a folder, replaces the decoder if given.
    ///
    /// # Errors
    /// Errors of its configurations.
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
    /// Errors of its configurations.
    pub fn of_configurations(model: &Architecture) -> Result<Self> {
        let decoder = Network::of(model);
        Ok(Self {
            encoder: image_encoder::Network::of(&decoder),
            text: model.text_stage()?,
            unet: model.denoiser(),
            controls: Vec::new(),
            prompts: Vec::new(),
            decoder,
            model: model.clone(),
            others: Vec::new(),
            eight_bits: None,
            keeps_stored: false,
            known: Known::default(),
        })
    }

    /// The configurations of all networks but the control networks, in words.
    pub(crate) fn describe(&self) -> String {
        let (adapters, kind) = (self.prompts.len(), self.eight_bits.as_ref().map(|layers| layers.kind));
        format!("{:?}, {adapters} image prompts, refiner {:?}, {kind:?}", self.model, self.refiner_path())
    }

    /// Replaces the text stage.
    #[cfg(test)]
    pub(crate) fn with_text(self, text: Box<dyn TextStage>) -> Self {
        Self { text, known: Known::default(), ..self }
    }

    /// Plans from now on with these control networks next to the U-Net, in the order in which jobs name them.
    pub fn set_controls(&mut self, controls: &[Arc<dyn ControlConfig>]) {
        self.controls = controls.iter().map(|config| config.build()).collect();
        self.known.forget();
    }

    /// `work` with the images that its control networks have the autoencoder encode.
    pub(crate) fn with_controls(&self, work: Workload) -> Workload {
        let takes_latents = |control: &dyn Control| matches!(control.spec().takes, ControlTakes::Latents { .. });
        let takes_latents = self.controls.iter().any(|control| takes_latents(&**control));
        Workload { encodes_image: work.encodes_image || takes_latents, ..work }
    }

    /// Plans from now on with these IP-Adapters, for work with [`Workload::has_image_prompts`]. An adapter that does not fit the
    /// model is left out.
    pub fn set_prompts(&mut self, prompts: Vec<PromptPlan>) {
        let unet = self.model.unet();
        self.prompts = prompts.into_iter().filter_map(|plan| PromptNetworks::new(plan, unet?)).collect();
        self.known.forget();
    }

    /// Sets these layers of the U-Net in 8 bits, and all of a refiner's that allow it.
    pub fn with_8_bits(mut self, layers: Option<Arc<EightBitLayers>>) -> Self {
        self.unet.segments().set_8_bits(layers.as_deref());
        self.eight_bits = layers;
        self.known.forget();
        for other in &self.others {
            other.unet.segments().set_8_bits(self.eight_bits_of_others().as_ref());
        }
        self
    }

    /// The layers of another U-Net than the model's: all that allow it, in the same format.
    fn eight_bits_of_others(&self) -> Option<EightBitLayers> {
        let layers = self.eight_bits.as_ref()?;
        Some(EightBitLayers { kind: layers.kind, least_outputs: layers.least_outputs, ..EightBitLayers::default() })
    }

    /// Adds the networks of this refiner, which work with [`Workload::refiner_steps`] needs.
    ///
    /// # Errors
    /// Errors of its configurations.
    pub fn with_refiner(mut self, refiner: Option<&ModelFolder>) -> Result<Self> {
        self.set_refiner(refiner)?;
        Ok(self)
    }

    /// Plans with this refiner from now on, or without one.
    pub(crate) fn set_refiner(&mut self, refiner: Option<&ModelFolder>) -> Result<()> {
        let networks = |model: &ModelFolder| -> Result<ModelNetworks> {
            let text = Architecture::from_folder(model).text_stage()?;
            let unet = model.denoiser();
            unet.segments().set_8_bits(self.eight_bits_of_others().as_ref());
            if self.keeps_stored {
                keep_stored(model, text.as_ref(), &*unet);
            }
            Ok(ModelNetworks { path: model.path().to_path_buf(), text, unet })
        };
        self.others = refiner.into_iter().map(networks).collect::<Result<_>>()?;
        self.known.forget();
        Ok(())
    }

    /// Where the refiner is that is planned for.
    pub(crate) fn refiner_path(&self) -> Option<&Path> {
        self.others.first().map(|refiner| refiner.path.as_path())
    }

    /// A batch of `batch_size` images with the model's usual guidance and the shortest text. `size` is width and height; the
    /// model's own size is used for those that are not set.
    ///
    /// # Errors
    /// [`crate::Error::Request`] names the option.
    pub fn work(&self, size: [Option<usize>; 2], steps: Option<usize>, batch_size: usize) -> Result<Workload> {
        let Architecture { width, height, vae, .. } = &self.model;
        let multiple = self.size_multiple(vae);
        Ok(Workload {
            width: side("width", size[0].unwrap_or(*width), multiple)?,
            height: side("height", size[1].unwrap_or(*height), multiple)?,
            batch_size: in_range("batch_size", batch_size, 1, MAX_IMAGES)?,
            steps: in_range("steps", steps.unwrap_or(USUAL_STEPS), 1, MAX_STEPS)?,
            text: TextWork {
                tokens: self.text.least(),
                context: self.text.least(),
                ..TextWork::short(self.model.guided)
            },
            encodes_image: self.unet.latents().extra_channels > 0,
            references: ReferenceWork::default(),
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
        let network = NetworkWork::of(&request.network_options(self.model.unet())?, &request.guidance_options()?);
        Ok(Workload { network, ..work })
    }

    /// `work` with a second pass that is larger by `scale` and has what `upscaler` enlarges.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for a size that is too large, and those of the upscaler's file.
    pub fn with_second_pass(&self, work: Workload, scale: f64, upscaler: &HiresUpscaler) -> Result<Workload> {
        let multiple = self.size_multiple(&self.model.vae);
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
        let Workload { steps, text, .. } = work;
        let (first, enlarged) = ((work.width, work.height), (width, height));
        let second = SecondPassWork { width, height, first, enlarged, steps, text, enlargement };
        Ok(Workload { second: Some(second), ..work })
    }

    /// Width and height of images are multiples of this ([`ModelFolder::size_multiple`]).
    fn size_multiple(&self, vae: &VaeConfig) -> usize {
        (vae.downscale() * self.unet.latents().multiple).max(8)
    }

    /// The denoiser with this number: 0 is the model's own.
    fn unet(&self, number: usize) -> Option<&dyn Denoiser> {
        match number.checked_sub(1) {
            None => Some(&*self.unet),
            Some(i) => self.others.get(i).map(|other| &*other.unet),
        }
    }

    /// The estimate for streaming the denoiser with this number; of none if there is no such denoiser.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn denoiser_estimate(&self, number: usize, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        self.unet(number).map_or_else(|| Ok(on.rates.estimate(&[])), |unet| self.estimate(unet, work, on))
    }

    /// Bytes of the weights of the denoiser with this number.
    pub(crate) fn denoiser_bytes(&self, number: usize, on: ExecutionTarget) -> usize {
        let slab = SlabType { dtype: on.dtype, matrices: on.matrices };
        self.unet(number).map_or(0, |unet| unet.segments().bytes(slab))
    }

    /// The context tokens of each text.
    fn context(&self, work: &Workload) -> usize {
        work.text.context.max(self.text.least())
    }

    fn estimate(&self, denoiser: &dyn Denoiser, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        Ok(on.rates.estimate(&denoiser_flop(denoiser, work.images(), size, self.context(work))?))
    }

    /// The estimate for streaming control network `i`; of none if there is no such network.
    ///
    /// # Errors
    /// Errors of the network's dry run.
    pub(crate) fn control_estimate(&self, i: usize, work: &Workload, on: ExecutionTarget) -> Result<Estimate> {
        let Some(model) = self.controls.get(i) else { return Ok(on.rates.estimate(&[])) };
        Ok(on.rates.estimate(&self.control_flop(&**model, work)?))
    }

    /// Operations of each segment of a control network in a step.
    fn control_flop(&self, control: &dyn Control, work: &Workload) -> Result<Vec<f64>> {
        let f = self.model.vae.downscale();
        let size = (work.height / f, work.width / f);
        control_flop(control, &*self.unet, work.images(), size, self.context(work))
    }

    /// Bytes on the device of all control networks while they stream.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(crate) fn streamed_controls(&self, work: &Workload, on: ExecutionTarget) -> Result<usize> {
        let of = |control: &dyn Control| -> Result<usize> {
            let weights = Weights::of(control.step_segments(), on.dtype, on, &self.control_flop(control, work)?);
            Ok(weights.streamed(StreamBudget::LEAST).on_device())
        };
        self.controls.iter().map(|control| of(&**control)).sum()
    }

    /// The memory of a batch in every mode.
    ///
    /// # Errors
    /// Errors of the networks' dry runs.
    pub(super) fn measure(&self, work: &Workload, on: ExecutionTarget) -> Result<Arc<Measures>> {
        let work = self.with_controls(*work);
        self.known.get((work, on), || Ok(Arc::new(self.measured(&work, on)?)))
    }

    /// [`Self::measure`], by a dry run.
    fn measured(&self, work: &Workload, on: ExecutionTarget) -> Result<Measures> {
        let (model, dtype) = (&self.model, on.dtype);
        let decoder_dtype = match self.decoder {
            Network::Kl(..) => decoder_dtype(model.family, &model.vae, dtype),
            Network::Tiny(..) => dtype,
        };
        let decoder_dtype = on.decoder_dtype(decoder_dtype);
        let downscale = model.vae.downscale();
        let others = || self.others.iter().filter(|_| work.refiner_steps > 0);
        let of_images = |control: &dyn Control| {
            control.image_segments().map_or(0, |segments| Weights::of(segments, dtype, on, &[]).all())
        };
        let controls = self.controls.iter().map(|control| &**control).collect();
        let denoiser = self.unet.with_controls(controls)?;
        let networks = Networks {
            others: others().map(|other| (other.text.as_ref(), &*other.unet)).collect(),
            text: self.text.as_ref(),
            denoiser: &*denoiser,
            controls: self.controls.iter().map(|control| (&**control, of_images(&**control))).collect(),
            prompts: &self.prompts,
            decoder: &self.decoder,
            encoder: &self.encoder,
            dtype,
            decoder_dtype,
            downscale,
        };
        let last = work.of_pass(Pass::Second);
        let map = last.width * last.height * self.decoder.channels() * decoder_dtype.size_in_bytes();
        let size = (last.height / downscale, last.width / downscale);
        let DryRun { stages, flop, second_flop } = networks.dry_run(on, work)?;
        let weights = |segments: &Segments, dtype, flop: &[f64]| Weights::of(segments, dtype, on, flop);
        // Networks that run once an image have no type of linear layers of their own.
        let plain = |segments: &Segments| Weights::of(segments, dtype, ExecutionTarget { matrices: None, ..on }, &[]);
        let mut all = vec![
            (ComponentSpec::DECODER, weights(self.decoder.segments(), decoder_dtype, &[])),
            (ComponentSpec::denoiser(0), weights(self.unet.segments(), dtype, &flop.step)),
        ];
        if work.stages().contains(&Stage::EncodeImage) {
            all.push((ComponentSpec::IMAGE_ENCODER, weights(self.encoder.segments(), decoder_dtype, &[])));
        }
        if let Some(Enlargement::Network(network)) = work.second.map(|second| second.enlargement) {
            let upscaler = Upscaler::without_weights(network);
            all.push((ComponentSpec::UPSCALER, plain(upscaler.segments())));
        }
        for networks in self.prompts.iter().filter(|_| work.has_image_prompts) {
            all.extend(networks.segments().map(|segments| (ComponentSpec::IMAGE_PROMPT, plain(segments))));
        }
        let mut control_flop = 0.0;
        for model in &self.controls {
            let flop = self.control_flop(&**model, work)?;
            control_flop += flop.iter().sum::<f64>();
            all.push((ComponentSpec::CONTROL, weights(model.step_segments(), dtype, &flop)));
        }
        for stage in std::iter::once(&self.text).chain(others().map(|other| &other.text)) {
            let networks = stage.networks();
            all.extend(networks.iter().map(|network| (ComponentSpec::TEXT, weights(network.segments, dtype, &[]))));
        }
        for (i, (other, flop)) in others().zip(&flop.others).enumerate() {
            all.push((ComponentSpec::denoiser(i + 1), weights(other.unet.segments(), dtype, flop)));
        }
        let per_image = |flop: f64| flop / work.batch_size.max(1) as f64;
        let of_flop = |flop: &[f64]| per_image(flop.iter().sum());
        let own = work.steps.saturating_sub(work.refiner_steps);
        let first = of_flop(&flop.step) + per_image(control_flop);
        let mut steps = vec![Steps { stage: Stage::Denoise, count: own, flop: first }];
        steps.extend(work.second.map(|second| Steps {
            stage: Stage::Denoise,
            count: second.steps,
            flop: of_flop(&second_flop.step),
        }));
        steps.extend(flop.others.iter().map(|flop| Steps {
            stage: Stage::Refine,
            count: work.refiner_steps,
            flop: of_flop(flop),
        }));
        all.retain(|(spec, _)| !on.has_on_host(spec));
        let components = ComponentSet::new(all);
        Ok(Measures {
            stages,
            components,
            map,
            steps,
            decode_flop: decoder_flop(&self.decoder, size)?,
            batch_size: work.batch_size,
            on,
        })
    }
}
