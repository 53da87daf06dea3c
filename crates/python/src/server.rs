//! A server in Python's process: the one of `kiln serve`.

use std::path::PathBuf;
use std::time::Duration;

use kiln_engine::{locate_model, start_threads};
use kiln_models::fetched;
use kiln_serve::{Access, Limits, ServeOptions};
use pyo3::prelude::*;

use crate::call::Watcher;
use crate::engine_options::EngineOptions;
use crate::error::{of_engine, of_field, of_server, refused};

/// How long finished jobs and their images are kept.
const KEEP: Duration = Duration::from_secs(600);
/// The most jobs of one client that run at once while others wait.
const PER_CLIENT: usize = 4;

/// A server that runs until it is stopped or dropped.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Server(kiln_serve::Server);

#[pymethods]
impl Server {
    /// Opens models and listens; `options` is an object of JSON with the options of an engine.
    #[new]
    #[pyo3(signature = (models, listen, options, queue = 256, max_batch = None, prompt_store = None))]
    fn new(
        py: Python<'_>,
        models: Vec<PathBuf>,
        listen: &str,
        options: &str,
        queue: usize,
        max_batch: Option<usize>,
        prompt_store: Option<String>,
    ) -> PyResult<Self> {
        let object = serde_json::from_str(options).map_err(|error| refused("options", error, "an object"))?;
        let options = EngineOptions::read(object)
            .map_err(|(field, message)| of_field(kiln_batch::FieldError { field: Some(field), message }))?;
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
                model_options,
                setups: vec![setup],
                limits: Limits { queue, ..Limits::default() },
                max_batch,
                max_per_client: PER_CLIENT,
                max_delay: Duration::ZERO,
                control_dir: None,
                upscaler_dir: None,
                prompt_store,
                output: None,
                keep: KEEP,
                access: Access::default(),
                tls: None,
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
