//! A loaded model.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use kiln_media::Rgb8Image;
use kiln_mempool::DevicePool;
use kiln_models::ModelFolder;
use kiln_ops::Target;
use kiln_ops::device::OpenDevice;
use kiln_request::{Job, LoraUse, Refiner, UpscalerChoice};
use kiln_weights::Placement;

use crate::ceiling::Ceiling;
use crate::component::ComponentOptions;
use crate::error::{Error, Result, proceed};
use crate::generated_image::DecodedImage;
use crate::loaded_model::{LoadedModel, Opening};
use crate::loaded_prompts::LoadedPrompts;
use crate::machine::Machine;
use crate::memory_manager::MemoryManager;
use crate::mode::Mode;
use crate::networks::Networks;
use crate::origin::Origin;
use crate::pipeline::batch::Batch;
use crate::pipeline::decode::Latents;
use crate::pipeline::decoder::Decoder;
use crate::pipeline::event::{Event, OnEvent, Stage, Timings};
use crate::pipeline::overlap::OverlappedNetworks;
use crate::pipeline::previewer::Previewer;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::reference_inputs::EncodedReferences;
use crate::pipeline::run::{BatchRequest, BatchSink, BatchTimes, Progress, run_batch};
use crate::pipeline::running::{GroupId, RunningBatch};
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::pipeline::second_pass::enlarge_images;
use crate::pipeline::shared_texts::{SharedTexts, TextStore};
use crate::pipeline::steering::Steering;
use crate::pipeline::text::TextEncoders;
use crate::pipeline::text_plan::{BatchTexts, Shape};
use crate::pipeline::trace::TraceFile;
use crate::plan::{ExecutionTarget, Planner, Workload};
use crate::setup::{ResolvedDevice, Setup};

/// A model that is loaded.
pub struct Engine {
    pub(crate) model: ModelFolder,
    pub(crate) device: Device,
    pub(crate) dtype: DType,
    pub(crate) networks: Networks,
    /// The setup that networks are opened with.
    pub(crate) setup: Setup,
    pub(crate) placement: Placement,
    pub(crate) options: ComponentOptions,
    pub(crate) memory_manager: MemoryManager,
    pub(crate) origin: Arc<Origin>,
    /// Holds the CPU's memory under the budget.
    _ceiling: Option<Ceiling>,
    pub(crate) timings: Timings,
    /// Where the next job's trace goes.
    pub(crate) trace: Option<TraceFile>,
    /// Calls of the denoiser between two previews.
    pub(crate) preview_every: Option<usize>,
    previewer: Previewer,
    /// The caller that takes part in jobs.
    pub(crate) steering: Option<Arc<dyn Steering>>,
    /// Dropped after all that is on the GPU.
    pub(crate) pool: Option<DevicePool>,
    /// The GPU, and the second stream of encoding and decoding. Last: others may use them then.
    _open: [Option<OpenDevice>; 2],
}

impl Engine {
    /// Loads a model. `watch` gets the stage, and may stop the load between parts.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where the device is not there, [`crate::Error::Weights`] where weights are missing or do not fit.
    pub fn load(model: ModelFolder, setup: &Setup, watch: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Self> {
        Self::load_with(model, setup, &[], watch)
    }

    /// Loads with LoRAs in the weights from the start: those of the first job, so that nothing is read twice.
    ///
    /// # Errors
    /// See [`Self::load`], and those of [`Self::set_loras`].
    pub fn load_with(
        model: ModelFolder,
        setup: &Setup,
        loras: &[LoraUse],
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        Self::open(model, setup, None, loras)?.loaded(start, watch)
    }

    /// Loads a model for `job`, with its LoRAs: where the job does not fit into memory, it is refused before any weights
    /// are read.
    ///
    /// # Errors
    /// See [`Self::load`] and [`Self::set_loras`], and [`crate::Error::Budget`].
    pub fn load_for(
        model: ModelFolder,
        setup: &Setup,
        job: &Job,
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let mut engine = Self::open(model, setup, Some(job), &job.loras)?;
        engine.set_controls(&job.controls)?;
        engine.set_ip_adapters(&job.ip_adapters)?;
        let (work, _) = engine.work(job)?;
        engine.prepare(work)?;
        engine.loaded(start, watch)
    }

    /// Loads a model whose first job is `job`, without refusing anything on its account: others may fit.
    ///
    /// # Errors
    /// See [`Self::load_with`].
    pub fn load_expecting(
        model: ModelFolder,
        setup: &Setup,
        job: &Job,
        loras: &[LoraUse],
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Self> {
        let start = Instant::now();
        let mut engine = Self::open(model, setup, Some(job), loras)?;
        if let Err(error) = engine.set_controls(&job.controls).and_then(|()| engine.set_ip_adapters(&job.ip_adapters)) {
            tracing::info!("the first job's control networks are not loaded with the model: {error}");
        }
        engine.loaded(start, watch)
    }

    /// Opens all files of a model, and plans for a job that is expected. No weights are read.
    pub(crate) fn open(model: ModelFolder, setup: &Setup, job: Option<&Job>, loras: &[LoraUse]) -> Result<Self> {
        let ResolvedDevice { device, backend, dtype, matrices, pool, open, threads } = setup.resolve()?;
        let on = match &backend {
            Some(_) => ExecutionTarget::portable(threads.run(rayon::current_num_threads), dtype),
            None => ExecutionTarget::new(threads.run(|| Target::of(&device)), dtype),
        };
        let on = on.with_matrices(matrices);
        let refiner = job.and_then(|job| job.refiner.as_ref());
        let layers = setup.scaled_layers(Some(&model), device.is_cuda())?;
        let planner = Planner::new(&model, setup.taesd.as_deref())?.with_8_bits(layers.clone());
        let planner = planner.with_stored_types(&model, setup.keeps_stored());
        let planner = planner.with_refiner(refiner.map(Refiner::model))?;
        let memory_manager =
            MemoryManager::new(planner, (&device, backend.as_deref()), on, setup, job.map(Workload::of))?;
        let mode = memory_manager.mode();
        // A budget is one of the memory that networks are in.
        let ceiling =
            (device.is_cpu() && backend.is_none()).then(|| Ceiling::new(setup.memory.budget.map(|budget| budget.0)));
        let options = ComponentOptions::new(&device, setup, threads);
        let placement = Placement::new(device.clone(), dtype).with_matrices(matrices).with_backend(backend);
        tracing::info!(model = %model.path().display(), ?device, types = %placement.slab(), %mode, "loading");
        let origin = Arc::new(Origin::new(&model, setup, &device, (dtype, matrices)));
        // All files are opened and checked first, so that one that does not fit is refused at once.
        let second = if memory_manager.fits_overlap() { setup.overlap.device(&device)? } else { None };
        if let (Some(second), Some(pool)) = (&second, &pool) {
            second.allocate_from(pool);
        }
        let may_overlap = second.is_some();
        let place = Placement { device: second.as_deref().unwrap_or(&device).clone(), ..placement.clone() };
        let decoder = Decoder::open(&model, setup.taesd.as_deref(), &place, &options)?;
        let opening = Opening { setup, placement: &placement, options: &options };
        let text = place_of_texts(&place, &memory_manager);
        let mut first = LoadedModel::open(&model, 0, layers.as_deref(), opening, &text)?.with_loras(setup);
        first.second = SecondDenoiser::open(setup, &model, (&placement, layers.as_deref()), pool.as_ref())?;
        let budget = if setup.keeps_recorded_steps { memory_manager.recorded_inputs() } else { 0 };
        first.recorded = RecordedStep::with_budget(budget);
        let previewer = Previewer::open(&model, setup, &placement, &options)?;
        let networks = Networks {
            first,
            others: Vec::new(),
            prompts: LoadedPrompts::default(),
            decoder: Arc::new(Mutex::new(decoder)),
            may_overlap,
            image_encoder: None,
            references: EncodedReferences::default(),
            enlarger: None,
        };
        let mut engine = Self {
            model,
            device,
            dtype,
            networks,
            setup: setup.clone(),
            placement,
            options,
            memory_manager,
            origin,
            _ceiling: ceiling,
            timings: Timings::default(),
            trace: None,
            preview_every: None,
            previewer,
            steering: None,
            pool,
            _open: [open, second],
        };
        engine.set_refiner(refiner)?;
        engine.set_loras(loras)?;
        Ok(engine)
    }

    /// Reads the weights, where the mode keeps all.
    pub(crate) fn loaded(mut self, start: Instant, watch: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Self> {
        let mut on_event = |event| proceed(watch(event));
        self.attempt(Stage::Load, &mut on_event, |engine, on_event| match engine.memory_manager.mode() {
            Mode::Full => engine.networks.enter_all(&mut || on_event(Event::begin(Stage::Load))),
            Mode::Medvram | Mode::Lowvram { .. } => Ok(()),
        })?;
        self.timings.load = start.elapsed();
        Ok(self)
    }

    /// The text encoders, once no other thread encodes.
    pub(crate) fn text(&self) -> MutexGuard<'_, TextEncoders> {
        self.networks.first.text()
    }

    /// The decoder, once no other thread decodes.
    pub(crate) fn decoder(&self) -> MutexGuard<'_, Decoder> {
        self.networks.decoder()
    }

    /// The model's folder.
    pub fn model(&self) -> &ModelFolder {
        &self.model
    }

    /// The models, files and types that images are made with, for their settings.
    pub fn origin(&self) -> Arc<Origin> {
        self.origin.clone()
    }

    /// How long the stages took so far, over all jobs.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// Asks for a trace of the next job: of its second call of the denoiser, or of the first where there is one alone.
    /// The file is written when the latents of the first batch are done.
    pub fn trace(&mut self, file: TraceFile) {
        self.trace = Some(file);
    }

    /// Shares encoded texts with other processes through `store`: those of the model's own encoders, without LoRAs and embeddings.
    /// The images are the same. False where the model has no digest ([`Setup::cache_dir`]), so that nothing is shared.
    pub fn share_texts(&mut self, store: Arc<dyn TextStore>) -> bool {
        let Some(digest) = self.origin.text_encoders_hash(&self.model) else { return false };
        // All that decides on the bits: the types and the kernels.
        let on_host = if self.memory_manager.has_texts_on_host() { " on the CPU" } else { "" };
        let types = format!("{:?} {:?}{on_host}", self.dtype, self.setup.weight_type);
        let device = Machine::new(&self.device).with_backend(self.placement.backend.as_ref()).device;
        let model = format!("{digest} {types} {device} {}", kiln_ops::device::cpu_info().path);
        self.text().share(SharedTexts::new(store, model));
        true
    }

    /// Makes the images of `job`. `watch` gets them one by one, and may stop the run between steps; a
    /// [`StopSign`](kiln_ops::StopSign) of the calling thread stops it also within a network.
    ///
    /// # Errors
    /// [`crate::Error::Interrupted`] if one of them stopped the run, [`crate::Error::NotANumber`] if latents or pixels are not
    /// finite: such an image is not passed to `watch`.
    pub fn txt2img(&mut self, job: &Job, watch: &mut dyn FnMut(Event) -> Result<ControlFlow<()>>) -> Result<()> {
        let calls = job.evaluations_of_passes(&self.model)?;
        self.origin.start_upscaler(job);
        let mut images = SingleCall { job, first: 0, watch };
        self.take_networks(job, &mut |event| images.event(event))?;
        let (work, texts) = self.work(job)?;
        self.prepare(work)?;
        self.memory_manager.plan().log();
        // Without choices all batches have the texts of the first one.
        let mut texts = texts.into_iter();
        let mut same = None;
        for number in 0..job.batch_count {
            let batch = Batch::of_job(job, number * job.batch_size);
            let texts = match (texts.next(), &same) {
                (Some(texts), _) => texts,
                (None, Some(texts)) if !job.has_choices() => BatchTexts::clone(texts),
                (None, _) => self.plan_texts(&batch)?,
            };
            same = Some(texts.clone());
            let progress = Progress { before: number * calls, total: calls * job.batch_count };
            images.first = number * job.batch_size;
            run_batch(self, &batch, BatchRequest::new(texts, work, progress), &mut images)?;
        }
        Ok(())
    }

    /// Has `steering` take part in the jobs that follow; `None` ends that.
    pub fn steer(&mut self, steering: Option<Arc<dyn Steering>>) {
        self.steering = steering;
    }

    /// Has the jobs that follow send [`Event::Preview`](crate::Event::Preview) after every so many calls of the denoiser, at most
    /// five times a second; `None` turns this off. Models without previews send none ([`Self::has_previews`]).
    pub fn preview_every(&mut self, calls: Option<usize>) {
        self.preview_every = calls.filter(|_| self.has_previews());
    }

    /// Whether there are previews of the model's images: by factors that are known for its autoencoder
    /// ([`kiln_models::ModelFolder::latent_rgb`]), or by TAESD ([`Setup::previews`]).
    pub fn has_previews(&self) -> bool {
        self.previewer.is_on()
    }

    /// Small images of what a batch is about to become: one pixel for each latent, or by TAESD at most 512 pixels a side. None if
    /// [`RunningBatch::keep_prediction`] kept nothing, or without [`Self::has_previews`].
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn preview(&self, running: &RunningBatch, id: GroupId) -> Result<Vec<Rgb8Image>> {
        running.prediction(id).map_or(Ok(Vec::new()), |latents| self.previewer.images(latents))
    }

    /// An image in the size `width` by `height`, by a filter or by the network in a file. It runs in the memory that the weights
    /// of the model leave, or takes their place. The network stays open until the memory is needed for something else.
    ///
    /// # Errors
    /// Errors of [`kiln_request::OpenUpscaler::open`] and of [`crate::Enlarger::enlarge`].
    pub fn enlarge(
        &mut self,
        choice: &UpscalerChoice,
        image: &Rgb8Image,
        size: (usize, usize),
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Rgb8Image> {
        let on_event: &mut OnEvent<'_> = &mut |event| proceed(watch(event));
        let images = self.attempt(Stage::Upscale, on_event, |engine, on_event| {
            engine.make_room_for(Stage::Upscale);
            enlarge_images(engine, choice, std::slice::from_ref(image), size, on_event)
        })?;
        images.into_iter().next().ok_or(Error::Interrupted)
    }

    /// The text encoders and the decoder, where they may run while steps run.
    pub fn overlapped(&self) -> Option<OverlappedNetworks> {
        OverlappedNetworks::of(self)
    }

    /// The properties of a job's texts that decide which jobs share a batch, with the LoRAs that are in the weights now.
    ///
    /// # Errors
    /// Errors of the tokenizers, and [`crate::Error::Request`] for texts of extreme lengths.
    pub fn shape_of(&mut self, job: &Job) -> Result<Shape> {
        let batch = Batch::of_jobs([job]);
        let shape = self.plan_texts(&batch)?.shape();
        Ok(shape.then(self.second_shape(&batch)?))
    }

    /// The shape of the texts of a batch's second pass, if there is one.
    pub(crate) fn second_shape(&self, batch: &Batch<'_>) -> Result<Option<Shape>> {
        batch.second().map(|second| Ok(self.text().plan(&second)?.shape())).transpose()
    }

    /// Announces later jobs. Their texts are encoded together with the next new text, so that weights of text encoders that
    /// do not stay in memory are read once for all; or while steps run, if [`Self::overlapped`] has networks.
    pub fn foresee<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>) {
        let overlapped = self.overlapped().is_some();
        self.text().foresee(jobs, overlapped);
    }

    /// Announces jobs that join a running batch one after another before its next evaluation: all of their texts are encoded with the next
    /// new text, on a GPU in one call.
    pub fn foresee_joining<'a>(&mut self, jobs: impl Iterator<Item = &'a Job>) {
        self.text().foresee(jobs, false);
    }

    /// Whether the denoiser runs on a GPU.
    pub fn is_on_gpu(&self) -> bool {
        self.device.is_cuda()
    }

    /// Whether the device still works. One that was lost, or whose context an error has ended, fails every call.
    pub fn is_alive(&self) -> bool {
        let probe = || Tensor::zeros(1, DType::F32, &self.device)?.to_vec1::<f32>();
        probe().is_ok_and(|values| values == [0.0]) || probe().is_err_and(|error| kiln_ops::is_out_of_memory(&error))
    }

    /// Guided steps of which the second device has computed its part so far ([`Setup::second`]).
    pub fn shared_steps(&self) -> usize {
        self.networks.first.second.as_ref().map_or(0, SecondDenoiser::steps)
    }

    /// Bytes of the GPU's memory that are in use, if there is a GPU.
    pub fn gpu_memory(&self) -> Option<u64> {
        self.pool.as_ref()?.used().ok()
    }
}

/// The placement of text encoders next to networks with `placement`.
pub(crate) fn place_of_texts(placement: &Placement, memory: &MemoryManager) -> Placement {
    let backend = placement.backend.clone().filter(|_| !memory.has_texts_on_host());
    placement.clone().with_backend(backend)
}

/// The images of one call, as events.
struct SingleCall<'a> {
    job: &'a Job,
    /// The number of the batch's first image.
    first: usize,
    watch: &'a mut dyn FnMut(Event) -> Result<ControlFlow<()>>,
}

impl BatchSink for SingleCall<'_> {
    fn event(&mut self, event: Event) -> Result<()> {
        proceed((self.watch)(event)?)
    }

    fn latents(&mut self, _: &Engine, _: usize, latents: Latents, _: BatchTimes) -> Result<Option<Latents>> {
        Ok(Some(latents))
    }

    fn image(&mut self, engine: &mut Engine, place: usize, image: DecodedImage) -> Result<()> {
        self.event(Event::begin(Stage::Save))?;
        let start = Instant::now();
        let image = image.generated(self.job, &engine.origin, self.first + place)?;
        self.event(Event::Image(Box::new(image)))?;
        engine.timings.save += start.elapsed();
        engine.timings.images += 1;
        Ok(())
    }
}
