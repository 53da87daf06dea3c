//! A server in Python's process: the one of `kiln serve`.

use std::path::PathBuf;
use std::time::Duration;

use kiln_engine::{locate_model, start_threads};
use kiln_models::fetched;
use kiln_serve::{Access, GalleryAccess, Limits, ServeOptions};
use pyo3::prelude::*;

use crate::call::Watcher;
use crate::engine_options::EngineOptions;
use crate::error::{of_engine, of_field, of_server, refused};

/// How long finished jobs and their images are kept.
const KEEP: Duration = Duration::from_secs(600);
/// The most jobs of one client that run at once while others wait.
const PER_CLIENT: usize = 4;

/// The settings of a server, besides its models and the options of its engines: the items of a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    /// Jobs that wait at most.
    queue: usize,
    /// The most images of one step.
    #[pyo3(default)]
    max_batch: Option<usize>,
    /// The address of a store of encoded texts.
    #[pyo3(default)]
    prompt_store: Option<String>,
    /// The secret that seals its values.
    #[pyo3(default)]
    prompt_store_key: Option<String>,
    /// The keys of clients; without one everybody on this machine may come in.
    #[pyo3(default)]
    keys: Vec<String>,
    /// The prefix of job numbers.
    #[pyo3(default)]
    job_prefix: Option<String>,
    /// The folders of control networks, IP-Adapters and upscalers that requests name.
    #[pyo3(default)]
    control_dir: Option<PathBuf>,
    #[pyo3(default)]
    ip_adapters_dir: Option<PathBuf>,
    #[pyo3(default)]
    upscaler_dir: Option<PathBuf>,
}

/// A server that runs until it is stopped or dropped.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Server(kiln_serve::Server);

#[pymethods]
impl Server {
    /// Opens models and listens; `options` is an object of JSON with the options of an engine.
    #[new]
    fn new(py: Python<'_>, models: Vec<PathBuf>, listen: &str, options: &str, settings: Settings) -> PyResult<Self> {
        let object = serde_json::from_str(options).map_err(|error| refused("options", error, "an object"))?;
        let options = EngineOptions::read(object)
            .map_err(|(field, message)| of_field(kiln_request::FieldError { field: Some(field), message }))?;
        let listen =
            listen.parse().map_err(|_| refused("listen", listen, "an address and a port, as 127.0.0.1:7860"))?;
        let hub = options.hub().map_err(of_engine)?;
        let setup = options.setup().map_err(of_engine)?;
        let model_options = options.model_options().map_err(of_engine)?;
        let mut watcher = Watcher::new(py, None, None, None)?;
        let started = py.detach(|| {
            // The scheduler's own tensors are computed by the threads of this library, which PyTorch does not see.
            start_threads(setup.threads).map_err(of_engine)?;
            let open = |model: &PathBuf| {
                let model = fetched(model, &hub, &mut |_| watcher.look())?;
                locate_model(Some(&model))
            };
            let models = models.iter().map(open).collect::<Result<Vec<_>, kiln_models::Error>>();
            let options = ServeOptions {
                listen,
                models: models.map_err(of_engine)?,
                model_aliases: Vec::new(),
                model_options,
                setups: vec![setup],
                // All requests come from the proxy of the cluster.
                limits: Limits { queue: settings.queue, connections_per_address: 0, ..Limits::default() },
                max_batch: settings.max_batch,
                max_per_client: PER_CLIENT,
                max_delay: Duration::ZERO,
                max_wait: None,
                max_loaded: None,
                warm: Vec::new(),
                control_dir: settings.control_dir,
                ip_adapters_dir: settings.ip_adapters_dir,
                upscaler_dir: settings.upscaler_dir,
                front_end: None,
                user_dir: None,
                prompt_store: settings.prompt_store,
                prompt_store_key: settings.prompt_store_key,
                output: None,
                gallery: GalleryAccess::Off,
                keep: KEEP,
                job_prefix: settings.job_prefix,
                access: Access { keys: settings.keys, ..Access::default() },
                tls: None,
                memory_readiness: true,
                otlp: None,
            };
            kiln_serve::Server::start(options).map_err(of_server)
        });
        Ok(Self(watcher.result(started)?))
    }

    /// The address, as a URL.
    #[getter]
    fn url(&self) -> String {
        self.0.url()
    }

    /// The numbers of the jobs that wait or run.
    fn unfinished(&self) -> Vec<String> {
        self.0.unfinished()
    }

    /// Refuses new jobs; those that were taken are finished.
    fn drain(&self) {
        self.0.drain();
    }

    /// Cancels all jobs, and waits for the end.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.0.stop();
        py.detach(|| self.0.wait()).map_err(of_server)
    }
}
