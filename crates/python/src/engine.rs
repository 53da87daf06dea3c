//! An engine in Python: a loaded model, one call at a time.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use kiln_engine::{
    Enlarger, HostPool, Job, LoraName, ModelFolder, OpenUpscaler, Request, Setup, Steering, TileRows, UpscalerChoice,
    fetched, locate_model,
};
use kiln_media::{AlphaRule, DecodeOptions};
use kiln_models::ModelOptions;
use kiln_request::{InputCache, JobSpec};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::call::{Stop, Watcher};
use crate::engine_options::EngineOptions;
use crate::error::{busy, closed, forked, of_engine, of_field, refused};
use crate::image::Generated;
use crate::reports;
use crate::steering::PySteering;

/// The time between two looks at signals, while another thread has the engine.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A loaded model. Calls of several threads take turns.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Engine {
    loaded: Mutex<Option<Loaded>>,
    /// The thread that makes a call.
    caller: Mutex<Option<ThreadId>>,
    /// The model, known without the engine.
    model: ModelFolder,
    /// The process that loaded the model: the engine's threads do not come along to a process that was forked from it.
    process: u32,
}

/// A model with what calls keep for the next ones.
pub(crate) struct Loaded {
    pub(crate) engine: kiln_engine::Engine,
    pub(crate) setup: Setup,
    pub(crate) model_options: ModelOptions,
    inputs: InputCache,
    /// The upscaler that ran last, by its name and folder.
    enlarger: Option<((String, Option<PathBuf>), Enlarger)>,
}

/// The call that has the engine.
pub(crate) struct Turn<'a> {
    loaded: MutexGuard<'a, Option<Loaded>>,
    caller: &'a Mutex<Option<ThreadId>>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.caller.lock() = None;
    }
}

impl Turn<'_> {
    pub(crate) fn loaded(&mut self) -> PyResult<&mut Loaded> {
        self.loaded.as_mut().ok_or_else(closed)
    }
}

impl Engine {
    /// Whether this process was forked from the one that loaded the model.
    fn is_of_parent(&self) -> bool {
        self.process != std::process::id()
    }

    /// Waits for the calls of other threads.
    pub(crate) fn turn(&self, watcher: &mut Watcher) -> PyResult<Turn<'_>> {
        if self.is_of_parent() {
            return Err(forked());
        }
        let this = thread::current().id();
        if *self.caller.lock() == Some(this) {
            return Err(busy());
        }
        loop {
            if let Some(loaded) = self.loaded.try_lock_for(LOOK_EVERY) {
                *self.caller.lock() = Some(this);
                return Ok(Turn { loaded, caller: &self.caller });
            }
            if watcher.look() == ControlFlow::Break(()) {
                return Err(of_engine(kiln_engine::Error::Interrupted));
            }
        }
    }
}

/// The request of an object of JSON.
fn read(request: &str) -> PyResult<Request> {
    let object: Map<String, Value> =
        serde_json::from_str(request).map_err(|error| refused("request", error, "an object"))?;
    let JobSpec { request, model, output } = JobSpec::of_object(object).map_err(of_field)?;
    for (name, given) in [("model", model.is_some()), ("output", output.is_some())] {
        if given {
            return Err(refused(name, "given", "nothing: an engine has one model, and images are saved by the caller"));
        }
    }
    Ok(request)
}

impl Loaded {
    fn job(&mut self, request: &Request) -> kiln_engine::Result<Job> {
        Ok(request.resolve_with(self.engine.model(), &mut self.inputs)?)
    }

    /// Downloads what a request names on the Hub.
    fn fetch(&self, request: &mut Request, options: &kiln_engine::HubOptions) -> kiln_engine::Result<()> {
        let loras = request.loras.iter_mut().filter_map(|lora| match &mut lora.lora {
            LoraName::File(path) => Some(path),
            LoraName::Named(_) => None,
        });
        let nets = request.controls.iter_mut().map(|control| &mut control.net);
        let adapters =
            request.ip_adapters.iter_mut().flat_map(|adapter| [Some(&mut adapter.model), adapter.encoder.as_mut()]);
        for path in loras.chain(nets).chain(adapters.flatten()) {
            *path = fetched(path, options, &mut |_| ControlFlow::Continue(()))?;
        }
        Ok(())
    }
}

#[pymethods]
impl Engine {
    /// Opens and loads a model; `options` is an object of JSON.
    #[new]
    fn new(py: Python<'_>, model: Option<PathBuf>, options: &str) -> PyResult<Self> {
        let object = serde_json::from_str(options).map_err(|error| refused("options", error, "an object"))?;
        let mut options = EngineOptions::read(object)
            .map_err(|(field, message)| of_field(kiln_request::FieldError { field: Some(field), message }))?;
        let hub = options.hub().map_err(of_engine)?;
        let mut watcher = Watcher::new(py, None, None, None)?;
        let loaded = py.detach(|| {
            let parts = [&mut options.unet, &mut options.vae, &mut options.taesd];
            for path in parts.into_iter().flatten() {
                *path = fetched(path, &hub, &mut |_| watcher.look())?;
            }
            let (setup, model_options) = (options.setup()?, options.model_options()?);
            setup.check()?;
            let model = match model {
                Some(model) => fetched(&model, &hub, &mut |_| watcher.look())?,
                None => locate_model(None)?,
            };
            let model = ModelFolder::open_with(&locate_model(Some(&model))?, &model_options)?;
            let engine = kiln_engine::Engine::load(model.clone(), &setup, &mut |_| watcher.look())?;
            Ok((model, engine, setup, model_options))
        });
        let loaded = watcher.result(loaded.map_err(|error: kiln_engine::Error| of_engine(error)))?;
        let (model, engine, setup, model_options) = loaded;
        let loaded = Loaded { engine, setup, model_options, inputs: InputCache::default(), enlarger: None };
        Ok(Self { loaded: Mutex::new(Some(loaded)), caller: Mutex::new(None), model, process: std::process::id() })
    }

    /// The model's name, and its defaults, as JSON.
    fn model(&self) -> String {
        let defaults = self.model.defaults();
        json!({
            "name": self.model.name(), "path": self.model.path(), "family": self.model.family().id(),
            "width": defaults.width, "height": defaults.height, "steps": defaults.steps,
            "cfg_scale": defaults.cfg_scale, "guidance": defaults.guidance.filter(|_| self.model.takes_guidance()),
            "size_multiple": self.model.size_multiple(),
            "sampler": self.model.scheduler_config().sampler().ok().map(|sampler| sampler.id()),
        })
        .to_string()
    }

    /// Makes the images of a request, which is an object of JSON. With `steering`, they have no settings.
    #[pyo3(signature = (request, on_step = None, on_preview = None, preview_every = 1, stop = None, steering = None))]
    #[allow(clippy::too_many_arguments)]
    fn generate(
        &self,
        py: Python<'_>,
        request: &str,
        on_step: Option<Py<PyAny>>,
        on_preview: Option<Py<PyAny>>,
        preview_every: usize,
        stop: Option<Stop>,
        steering: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Generated>> {
        let mut request = read(request)?;
        let mut watcher = Watcher::new(py, on_step, on_preview, stop)?;
        let steering = steering.map(|object| PySteering::new(&object)).transpose()?.map(Arc::new);
        watcher.has_settings = steering.is_none();
        let result = py.detach(|| {
            let mut turn = self.turn(&mut watcher)?;
            let loaded = turn.loaded()?;
            let hub = kiln_engine::HubOptions { offline: false, dtype: loaded.setup.dtype };
            let made = loaded.fetch(&mut request, &hub).and_then(|()| {
                let job = loaded.job(&request)?;
                job.advice(&self.model).into_iter().for_each(|advice| watcher.warn(advice));
                loaded.engine.preview_every(watcher.has_previews().then_some(preview_every));
                loaded.engine.steer(steering.clone().map(|steering| steering as Arc<dyn Steering>));
                let made = loaded.engine.txt2img(&job, &mut |event| watcher.event(event));
                loaded.engine.steer(None);
                loaded.engine.preview_every(None);
                made
            });
            Ok(made)
        });
        watcher.raise(steering.and_then(|steering| steering.raised()));
        match result {
            Ok(made) => watcher.images(py, made),
            Err(error) => watcher.result(Err(error)),
        }
    }

    /// The timesteps that a request's denoiser is called with, in their order.
    fn timesteps(&self, py: Python<'_>, request: &str) -> PyResult<Vec<f64>> {
        let request = read(request)?;
        let model = &self.model;
        py.detach(|| {
            let job = request.resolve(model)?;
            Ok(job.schedule(model)?.points().iter().map(|point| point.timestep).collect())
        })
        .map_err(|error: kiln_request::Error| of_engine(error))
    }

    /// The memory of a request's run in every mode, as JSON.
    fn plan(&self, py: Python<'_>, request: &str) -> PyResult<String> {
        let request = read(request)?;
        let mut watcher = Watcher::new(py, None, None, None)?;
        let planned = py.detach(|| {
            let mut turn = self.turn(&mut watcher)?;
            let loaded = turn.loaded()?;
            let job = loaded.job(&request).map_err(of_engine)?;
            reports::plan(&self.model, &job, &loaded.setup).map_err(of_engine)
        });
        watcher.result(planned)
    }

    /// Enlarges the image in a file.
    #[pyo3(signature = (path, scale = None, upscaler = "lanczos".into(), upscaler_dir = None, stop = None))]
    fn upscale(
        &self,
        py: Python<'_>,
        path: PathBuf,
        scale: Option<f64>,
        upscaler: String,
        upscaler_dir: Option<PathBuf>,
        stop: Option<Stop>,
    ) -> PyResult<Generated> {
        let mut watcher = Watcher::new(py, None, None, stop)?;
        let enlarged = py.detach(|| {
            let mut turn = self.turn(&mut watcher)?;
            let loaded = turn.loaded()?;
            let enlarged = loaded.enlarge(&path, scale, (upscaler, upscaler_dir), &mut watcher);
            enlarged.map_err(of_engine)
        });
        let image = watcher.result(enlarged)?;
        Generated::of_pixels(py, image.size(), image.into_data())
    }

    /// Makes an image set; `jobs` is the path of a job file, or its text, and whether it is the text.
    #[pyo3(signature = (jobs, output, options, on_event = None, stop = None))]
    fn batch(
        &self,
        py: Python<'_>,
        jobs: (String, bool),
        output: PathBuf,
        options: &str,
        on_event: Option<Py<PyAny>>,
        stop: Option<Stop>,
    ) -> PyResult<String> {
        let (options, (jobs, is_text)) = (crate::batch::Options::read(options)?, jobs);
        let mut watcher = Watcher::new(py, None, None, stop)?;
        let made = py.detach(|| {
            let mut turn = self.turn(&mut watcher)?;
            let jobs = crate::batch::Jobs { text: &jobs, is_text };
            crate::batch::run(turn.loaded()?, &self.model, jobs, output, options, on_event.as_ref(), &mut watcher)
        });
        watcher.result(made)
    }

    /// Gives back the model's memory. Later calls fail.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_of_parent() {
            return Ok(()); // the memory is the parent's to give back
        }
        let mut watcher = Watcher::new(py, None, None, None)?;
        let ended = py.detach(|| {
            let mut turn = self.turn(&mut watcher)?;
            let had_one = turn.loaded.take().is_some();
            drop(turn);
            if had_one {
                HostPool::trim(0.0);
            }
            Ok(())
        });
        watcher.result(ended)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_of_parent() {
            // To end the engine would wait for its threads, which this process does not have.
            std::mem::forget(self.loaded.get_mut().take());
            return;
        }
        if self.loaded.get_mut().take().is_some() {
            HostPool::trim(0.0);
        }
    }
}

impl Loaded {
    /// Enlarges the image in a file by an upscaler, which stays for the next call.
    fn enlarge(
        &mut self,
        path: &std::path::Path,
        scale: Option<f64>,
        upscaler: (String, Option<PathBuf>),
        watcher: &mut Watcher,
    ) -> kiln_engine::Result<kiln_media::Rgb8Image> {
        let image = kiln_media::open(path, &DecodeOptions::default())?.into_rgb(AlphaRule::FlattenOnWhite);
        let enlarger = match self.enlarger.take() {
            Some((name, enlarger)) if name == upscaler => enlarger,
            _ => {
                let choice = UpscalerChoice::from(PathBuf::from(&upscaler.0));
                let open = OpenUpscaler::open(&choice, upscaler.1.as_deref())?;
                Enlarger::load(open, &self.setup, TileRows::Auto)?
            }
        };
        let (_, enlarger) = self.enlarger.insert((upscaler, enlarger));
        let scale = enlarger.upscaler().scale(scale)?;
        let [width, height] = OpenUpscaler::scaled([image.width(), image.height()], scale);
        enlarger.enlarge(&image, width, height, &mut |_| watcher.look())
    }
}
