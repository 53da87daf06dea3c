//! State shared by all routes: the jobs, the scheduler, the models, and the submission of requests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::{
    HiresUpscaler, Job, LoraName, LoraUse, OPTIONS, OptionKind, OptionRow, Request, TokenCounter, UpscalerChoice,
    find_lora,
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::bodies::Bodies;
use crate::budget::{Budget, Taken};
use crate::comfy::Comfy;
use crate::error::{Refused, RefusedKind};
use crate::gallery::Gallery;
use crate::http::{Client, WebOptions};
use crate::image_format::ImageFormat;
use crate::image_prompts;
use crate::inputs::{self, Cost};
use crate::intake::Intake;
use crate::jobs::{Current, Entry, JobListener, Jobs, NewJob, cut_text, cut_texts};
use crate::lora_list::{self, LoraList};
use crate::memory_shares::MemoryShares;
use crate::memory_watch::{MemoryWatch, Pressure};
use crate::metrics::Metrics;
use crate::models::{Model, Models};
use crate::named_files;
use crate::options::{MOST_PRIORITY, ServeOptions};
use crate::prompt_limit::{self, most_bytes};
use crate::scheduler::{Control, Previews, Scheduler, Task};
use crate::scratch;
use crate::traces::{JobSpan, JobTrace, Traces};

/// The bytes of a unit of the memory for input images of jobs that are not done.
const KEPT_UNIT: usize = 64 << 10;
/// A client has few jobs where they are at most this part of the queue.
const FEW_OF_QUEUE: usize = 16;
/// The longest text of a request that is shown again, in bytes, besides prompts.
const LONGEST_SHOWN: usize = 64 << 10;
/// The most warnings of a job, and the bytes of each.
const MOST_WARNINGS: usize = 100;
const LONGEST_WARNING: usize = 1 << 10;
/// When a client is asked to come back.
const COME_BACK: Duration = Duration::from_secs(5);

/// The state of the server.
pub(crate) struct App {
    pub(crate) options: ServeOptions,
    pub(crate) models: Models,
    pub(crate) jobs: Jobs,
    pub(crate) scheduler: Scheduler,
    pub(crate) metrics: Arc<Metrics>,
    memory: MemoryWatch,
    /// The images of the folder `output`.
    pub(crate) gallery: Gallery,
    pub(crate) tokens: TokenCounter,
    /// One text at a time: tokens are counted at each pause of typing, while jobs run.
    pub(crate) token_turn: Semaphore,
    /// Where traces go, if they go anywhere.
    pub(crate) traces: Option<Traces>,
    pub(crate) runtime: Handle,
    /// The notes of LoRAs.
    pub(crate) loras: LoraList,
    /// Reads requests within a budget of memory.
    pub(crate) intake: Intake,
    /// The bytes of all bodies.
    pub(crate) bodies: Bodies,
    /// The memory of the input images of jobs that are not done, in units of [`KEPT_UNIT`].
    pub(crate) kept: Budget,
    /// All units of it.
    kept_units: usize,
    /// The settings of AUTOMATIC1111's web UI, by clients; those of `""` are for all.
    web_options: Mutex<HashMap<String, WebOptions>>,
    /// The jobs of its clients, of which they know one.
    pub(crate) web_jobs: Current,
    /// The prompts, files and sockets of ComfyUI's clients.
    pub(crate) comfy: Comfy,
}

/// A request on its way to a job.
pub(crate) struct Submission {
    pub(crate) request: Request,
    /// Files that the request names; they go when it was resolved.
    pub(crate) files: Option<TempDir>,
    /// The model's name.
    pub(crate) model: Option<String>,
    pub(crate) client: String,
    /// Jobs of a higher priority come first.
    pub(crate) priority: i32,
    /// The job's longest time.
    pub(crate) limit: Option<Duration>,
    pub(crate) previews: Previews,
    pub(crate) format: ImageFormat,
    /// The request as it came, without input images.
    pub(crate) shown: Map<String, Value>,
    pub(crate) warnings: Vec<String>,
    /// The job's number where the client gave one.
    pub(crate) id: Option<String>,
}

impl App {
    /// The state of a server that has no jobs yet.
    pub(crate) fn new(
        options: ServeOptions,
        models: Models,
        scheduler: Scheduler,
        metrics: Arc<Metrics>,
        traces: Option<Traces>,
        runtime: Handle,
    ) -> Self {
        let (limits, shares) = (options.limits, MemoryShares::now());
        let [kept_units, each] = [shares.inputs, shares.inputs_each].map(|bytes| (bytes / KEPT_UNIT).max(1));
        Self {
            jobs: Jobs::new(options.keep, options.job_prefix.clone(), shares.finished),
            gallery: Gallery::new(options.output.clone()),
            tokens: TokenCounter::default(),
            token_turn: Semaphore::new(1),
            intake: Intake::new(runtime.clone(), &limits),
            bodies: Bodies::new(limits.body, limits.has_shares()),
            kept: Budget::new(kept_units, limits.has_shares().then_some(each)),
            kept_units,
            web_options: Mutex::default(),
            web_jobs: Current::default(),
            comfy: Comfy::new(options.user_dir.clone()),
            loras: LoraList::default(),
            memory: MemoryWatch::default(),
            options,
            models,
            scheduler,
            metrics,
            traces,
            runtime,
        }
    }

    /// Whether there is memory for the next images.
    pub(crate) fn memory_pressure(&self) -> Pressure {
        self.memory.look(|| self.scheduler.memory_needs())
    }

    /// Checks a request and has it wait for its turn.
    ///
    /// # Errors
    /// [`Refused`] for what cannot be made, and where the queue is full.
    pub(crate) async fn submit(self: &Arc<Self>, submission: Submission) -> Result<Arc<Entry>, Refused> {
        let job_span = self.traces.as_ref().map(Traces::job);
        let app = self.clone();
        let weighed = move || app.cost(&submission).map(|cost| (submission, cost));
        let (submission, cost) = self.intake.run(0, weighed).await?;
        let memory = cost.kept.div_ceil(KEPT_UNIT).min(self.kept_units);
        let memory = self.kept.try_take(memory).ok_or_else(|| Refused {
            retry_after: Some(COME_BACK),
            ..Refused::new(
                RefusedKind::QueueFull,
                "the input images of the jobs that wait take all memory; try again later",
            )
        })?;
        let app = self.clone();
        self.intake.run(cost.reading, move || app.submit_now(submission, memory, job_span)).await
    }

    /// The memory that a submission takes, by the headers of its input images, which are within the limits.
    fn cost(&self, submission: &Submission) -> Result<Cost, Refused> {
        let Submission { request, files, model, .. } = submission;
        let model = self.models.find(model.as_deref())?;
        check_inputs(request, files.as_ref())?;
        let cost = inputs::cost(request, model.folder.size_multiple(), &self.options.limits);
        cost.map_err(|refused| self.without_folders(refused, files.as_ref()))
    }

    fn submit_now(
        &self,
        submission: Submission,
        memory: Taken,
        job_span: Option<JobSpan>,
    ) -> Result<Arc<Entry>, Refused> {
        let submitted = Instant::now();
        let Submission { mut request, files, model, client, priority, limit, previews, format, .. } = submission;
        let Submission { mut shown, mut warnings, id, .. } = submission;
        let model = self.models.find(model.as_deref())?.clone();
        let most = self.options.most_priority();
        if priority > most {
            let expected = format!("-{MOST_PRIORITY} to {most}, the limit of this server");
            return Err(Refused::value("priority", priority, expected));
        }
        let job =
            self.resolve(&mut request, &model).map_err(|refused| self.without_folders(refused, files.as_ref()))?;
        let files = files.filter(|_| image_prompts::keeps_files(&request));
        warnings.extend(job.advice(&model.folder));
        shown.insert("seed".into(), job.seed.into());
        if job.seeds.subseed_strength > 0.0 {
            shown.remove("variation_seed");
            shown.insert("subseed".into(), job.seeds.subseed.into());
        }
        // Prompts are shorter; what else is long has no meaning here.
        cut_texts(&mut shown, most_bytes(self.options.limits.tokens).max(LONGEST_SHOWN));
        warnings.truncate(MOST_WARNINGS);
        warnings.iter_mut().for_each(|warning| cut_text(warning, LONGEST_WARNING));
        let control = Control::with_previews(previews);
        let entry = Entry::new(NewJob {
            id: id.filter(|id| self.is_free(id)).unwrap_or_else(|| self.jobs.new_id()),
            client: client.clone(),
            model: model.id,
            request: shown,
            warnings,
            total_images: job.images(),
            size: job.final_size(),
            batches: job.batch_count,
            control: control.clone(),
        });
        let (runtime, metrics) = (self.runtime.clone(), self.metrics.clone());
        let output = self.options.output.clone();
        let trace = job_span.map(|span| {
            span.describe(&entry.id, &entry.model, entry.total_images);
            JobTrace::new(Arc::new(span))
        });
        let listener =
            JobListener { entry: entry.clone(), format, output, files, runtime, metrics, trace, _memory: memory };
        let listener = Box::new(listener);
        self.jobs.add(entry.clone());
        // The shorter of the job's own limit and the server's.
        let limit = limit.into_iter().chain(self.options.limits.time).min();
        let (model, job) = (model.folder, Arc::new(job));
        // One client with a full queue keeps no other out. This job is among its client's.
        let queue = self.options.limits.queue;
        let has_few = self.jobs.unfinished_of(&client) <= queue.div_ceil(FEW_OF_QUEUE);
        let places = if has_few { queue.saturating_mul(2) } else { queue };
        let task = Task { client, model, priority, submitted, limit, job, control, listener };
        self.scheduler.submit(task, places).inspect_err(|_| self.jobs.remove(&entry.id))?;
        Ok(entry)
    }

    /// Whether a client sees and may end a job: its own one, or any where all clients share them.
    pub(crate) fn sees(&self, Client(client): &Client, entry: &Entry) -> bool {
        self.options.access.is_shared() || entry.client == *client
    }

    /// The settings of AUTOMATIC1111's web UI for a client.
    pub(crate) fn web_options(&self, client: &Client) -> WebOptions {
        self.web_options.lock().get(self.owner(client)).cloned().unwrap_or_default()
    }

    /// Sets them.
    pub(crate) fn set_web_options(&self, client: &Client, options: WebOptions) {
        self.web_options.lock().insert(self.owner(client).into(), options);
    }

    /// Whose settings, prompts and files a client has.
    pub(crate) fn owner<'a>(&self, Client(client): &'a Client) -> &'a str {
        if self.options.access.is_shared() { "" } else { client }
    }

    /// `https` where connections are encrypted.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.options.tls.is_some() { "https" } else { "http" }
    }

    /// Whether a number that a client gave is one for a new job.
    fn is_free(&self, id: &str) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_()-".contains(c);
        (1..=64).contains(&id.len()) && id.chars().all(is_plain) && self.jobs.get(id).is_none()
    }

    /// The job of a request, within the server's limits.
    fn resolve(&self, request: &mut Request, model: &Model) -> Result<Job, Refused> {
        let limits = self.options.limits;
        let refuse = |name: &str, found: usize, most: usize| {
            let expected = format!("at most {most}, the limit of this server");
            if found > most { Err(Refused::value(name, found, expected)) } else { Ok(()) }
        };
        // A size that is refused is refused before an input image is resized to it.
        if let (Some(width), Some(height)) = (request.width, request.height) {
            refuse("width", width.saturating_mul(height), limits.pixels)?;
        }
        if let Some(row) = OPTIONS.iter().find(|row| is_of_server(row) && !row.value(request).is_default()) {
            return Err(Refused::value(row.name, "given", "nothing: requests name no folders of the server"));
        }
        prompt_limit::check_bytes(request, limits.tokens)?;
        self.find_named(request)?;
        image_prompts::check(request, &model.folder)?;
        let job = request.resolve(&model.folder)?;
        refuse("width", job.width.saturating_mul(job.height), limits.pixels)?;
        refuse("steps", job.steps, limits.steps)?;
        if let Some(pass) = job.second_pass() {
            refuse("hires_scale", pass.enlarged.0.saturating_mul(pass.enlarged.1), limits.pixels)?;
            refuse("hires_steps", pass.job.steps, limits.steps)?;
        }
        refuse("batch_size", job.images(), limits.images)?;
        prompt_limit::check(model.counter(self.options.setup())?, &job, limits.tokens)?;
        let folder = self.options.setup().lora_dir.as_deref();
        for lora in job.passes().flat_map(|pass| &pass.loras) {
            find_lora(&lora.lora, folder).map_err(|_| lora_list::unknown(request, &lora.name()))?;
        }
        Ok(job)
    }
}

/// Whether an option names folders where the server runs, which requests must not. Input images come with the request; models,
/// control networks, IP-Adapters, upscalers and LoRAs are names of those that the server has.
pub(crate) fn is_of_server(row: &OptionRow) -> bool {
    matches!(row.kind, OptionKind::Folder)
}

impl App {
    /// Puts the server's own files in the places of their names.
    fn find_named(&self, request: &mut Request) -> Result<(), Refused> {
        request.loras.iter_mut().try_for_each(only_name)?;
        if !request.controls.is_empty() {
            let all = named_files::control_networks(self.options.control_dir.as_deref());
            for control in &mut request.controls {
                control.net = named("controls", &all, &control.net, "the server's control networks")?;
            }
        }
        image_prompts::find_named(request, self.options.ip_adapters_dir.as_deref())?;
        if let Some(HiresUpscaler::Pixels(UpscalerChoice::File(path))) = &mut request.hires_upscaler {
            *path = self.upscaler("hires_upscaler", path)?;
        }
        if let Some(refiner) = &mut request.refiner {
            let name = refiner.to_string_lossy();
            let known: Vec<&str> = self.models.iter().map(|model| model.id.as_str()).collect();
            let expected = format!("one of the server's models: {}", known.join(", "));
            let model = self.models.find(Some(&name));
            let model = model.map_err(|_| Refused::value("refiner", format!("{name:?}"), expected))?;
            *refiner = model.folder.path().to_path_buf();
        }
        Ok(())
    }

    /// A message that names input images and files of the server without their folders.
    fn without_folders(&self, refused: Refused, files: Option<&TempDir>) -> Refused {
        let ServeOptions { control_dir, ip_adapters_dir, upscaler_dir, .. } = &self.options;
        let own = [control_dir, ip_adapters_dir, upscaler_dir, &self.options.setup().lora_dir].map(Option::as_deref);
        let mut message = refused.message;
        for folder in own.into_iter().flatten().chain(files.map(TempDir::path)) {
            message = message.replace(&*folder.join("").to_string_lossy(), "");
        }
        Refused { message, ..refused }
    }

    /// The file of an upscaler that a request names in the field `field`.
    ///
    /// # Errors
    /// [`Refused`] with the names that there are.
    pub(crate) fn upscaler(&self, field: &str, name: &Path) -> Result<PathBuf, Refused> {
        let all = named_files::upscalers(self.options.upscaler_dir.as_deref());
        named(field, &all, name, "lanczos, bicubic, bilinear, nearest or one of the server's upscalers")
    }
}

/// The path of a name among those of `all`.
pub(crate) fn named(field: &str, all: &[(String, PathBuf)], name: &Path, what: &str) -> Result<PathBuf, Refused> {
    let name = name.to_string_lossy();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let names = if names.is_empty() { "it has none".into() } else { names.join(", ") };
    let found = named_files::find(all, &name).map(Path::to_path_buf);
    found.ok_or_else(|| Refused::value(field, format!("{name:?}"), format!("{what}: {names}")))
}

/// Makes a LoRA that is named like a file a name in the server's folder.
fn only_name(lora: &mut LoraUse) -> Result<(), Refused> {
    let LoraName::File(path) = &lora.lora else { return Ok(()) };
    let text = path.to_string_lossy();
    if path.components().count() != 1 || text.contains(['/', '\\']) {
        return Err(Refused::value("loras", format!("{text:?}"), "names without folders"));
    }
    let endings = [".safetensors", ".pt", ".ckpt", ".bin"];
    let name = endings.iter().find_map(|ending| text.strip_suffix(ending)).unwrap_or(&text).to_string();
    lora.lora = LoraName::Named(name);
    Ok(())
}

/// Writes input images, in Base64, into files of a folder of their own, and puts their paths into the request.
///
/// # Errors
/// [`Refused`] for text that is not Base64.
pub(crate) fn store_inputs(request: &mut Request) -> Result<Option<TempDir>, Refused> {
    let mut folder = None;
    for (name, field) in [("init", &mut request.init), ("mask", &mut request.mask)] {
        let Some(text) = field.take() else { continue };
        let bytes = crate::base64_image::decode(name, &text.to_string_lossy())?;
        *field = Some(store(&mut folder, name, &bytes)?);
    }
    for (i, control) in request.controls.iter_mut().enumerate() {
        let Some(text) = control.image.take() else { continue };
        let bytes = crate::base64_image::decode("controls", &text.to_string_lossy())?;
        control.image = Some(store(&mut folder, &format!("control-{i}"), &bytes)?);
    }
    for (i, image) in request.references.iter_mut().enumerate() {
        let bytes = crate::base64_image::decode("references", &image.to_string_lossy())?;
        *image = store(&mut folder, &format!("reference-{i}"), &bytes)?;
    }
    for (i, region) in request.regions.iter_mut().enumerate() {
        let Some(text) = region.mask.take() else { continue };
        let bytes = crate::base64_image::decode("regions", &text.to_string_lossy())?;
        region.mask = Some(store(&mut folder, &format!("region-{i}"), &bytes)?);
    }
    image_prompts::store_inputs(request, &mut folder)?;
    Ok(folder)
}

/// Refuses input images that did not come with the request: no route passes a path on.
fn check_inputs(request: &Request, folder: Option<&TempDir>) -> Result<(), Refused> {
    let controls = request.controls.iter().map(|control| control.image.as_deref());
    let images = [request.init.as_deref(), request.mask.as_deref()].into_iter().chain(controls).flatten();
    let images = images.chain(request.references.iter().map(PathBuf::as_path)).chain(image_prompts::inputs(request));
    let images = images.chain(request.regions.iter().filter_map(|region| region.mask.as_deref()));
    let is_stored = |path: &Path| folder.is_some_and(|folder| path.parent() == Some(folder.path()));
    match images.filter(|path| !is_stored(path)).count() {
        0 => Ok(()),
        _ => Err(Refused::invalid("an input image is no image in Base64")),
    }
}

/// Writes a file of this name into `folder`, which is made first.
///
/// # Errors
/// [`Refused`] where the system does not let us.
pub(crate) fn store(folder: &mut Option<TempDir>, name: &str, bytes: &[u8]) -> Result<PathBuf, Refused> {
    let failed = |error: std::io::Error| {
        tracing::error!("a temporary file: {error}");
        Refused::new(RefusedKind::Internal, "the server cannot store the image")
    };
    let folder = match folder {
        Some(folder) => folder,
        None => {
            let made = tempfile::Builder::new().prefix("kiln-request-").tempdir_in(scratch::folder());
            folder.insert(made.map_err(failed)?)
        }
    };
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use kiln_engine::ControlUse;

    use super::*;

    #[test]
    fn images_come_with_the_request() {
        let mut request = Request { init: Some("aGFsbG8".into()), ..Request::default() };
        request.controls = vec![ControlUse { image: Some("aGFsbG8".into()), ..ControlUse::new("canny") }];
        let files = store_inputs(&mut request).unwrap();
        assert!(
            check_inputs(&request, files.as_ref()).is_ok() && request.controls[0].image.as_ref().unwrap().is_file()
        );
        for path in ["/etc/passwd", "init"] {
            let request = Request { init: Some(path.into()), ..Request::default() };
            assert!(check_inputs(&request, files.as_ref()).is_err(), "{path}");
        }
        let controls = vec![ControlUse { image: Some("/etc/passwd".into()), ..ControlUse::new("canny") }];
        assert!(check_inputs(&Request { controls, ..Request::default() }, None).is_err());
    }

    #[test]
    fn loras_are_names_and_no_paths() {
        let name = |text: &str| {
            let mut lora: LoraUse = text.parse().unwrap();
            only_name(&mut lora).map(|()| lora)
        };
        let lora = name("ink.safetensors:0.8").unwrap();
        assert_eq!((lora.lora, lora.unet), (LoraName::Named("ink".into()), 0.8));
        assert_eq!(name("ink.v2").unwrap().lora, LoraName::Named("ink.v2".into()));
        for path in ["/etc/passwd", "../ink", "a/b", "a\\b"] {
            assert_eq!(name(path).unwrap_err().param.as_deref(), Some("loras"), "{path}");
        }
    }
}
