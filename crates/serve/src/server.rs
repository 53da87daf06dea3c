//! The server: connections, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kiln_engine::{Setup, TextStore};
use kiln_models::ModelFolder;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::app::App;
use crate::connections::{LAST_ANSWERS, serve};
use crate::error::{Error, Result};
use crate::http::router;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::options::ServeOptions;
use crate::redis_texts::RedisTexts;
use crate::scheduler::{Scheduler, SchedulerOptions, warm};
use crate::scratch::Scratch;
use crate::sealed_texts::SealedTexts;
use crate::threads::check_threads;
use crate::tls;
use crate::traces::Traces;

/// The time between two looks at the scheduler, while it ends.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long the images of the last jobs stay for the clients that have sent them.
const LAST_IMAGES: Duration = Duration::from_secs(10);
/// Threads for answers. The scheduler has its own.
const THREADS: usize = 2;
/// Threads for work that answers wait for: images are read and written there.
const BLOCKING_THREADS: usize = 16;
/// How long such a thread stays without work: another one might not be had later.
const THREAD_STAYS: Duration = Duration::from_secs(24 * 3600);

/// New connections that the system holds for the server. It drops others without a word, and their clients try again after one,
/// three and seven seconds.
const BACKLOG: u32 = 4096;

/// A server that runs.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    end: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Until the end: a program may keep the server after it.
    scratch: Mutex<Option<Arc<Scratch>>>,
}

impl Server {
    /// Opens the models, listens, and begins to read the weights of the first model. Jobs wait for them.
    ///
    /// # Errors
    /// [`Error::Value`] for options that cannot be, the errors of the models, and [`Error::Listen`].
    pub fn start(options: ServeOptions) -> Result<Self> {
        options.check()?;
        let system = |what| move |source| Error::System { what, source };
        // Those of the runtime, the server's own, one for images, and the engines' with their decoders.
        let count = THREADS + 2 + 2 * options.setups.len();
        check_threads(count).map_err(system(
            "the server's threads; raise the limit of processes (ulimit -u), or pids.max of the control group",
        ))?;
        options.setups.iter().try_for_each(Setup::check)?;
        check_folders(&options)?;
        let texts = text_store(&options)?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let models = Models::open(&options)?;
        check_warm(&options, &models.first().folder)?;
        let scratch = Scratch::open().map_err(system("a folder for input images"))?;
        let runtime = runtime().map_err(system("threads for answers"))?;
        let listen = |source| Error::Listen { address: options.listen, source };
        let listener = runtime.block_on(async { bind(options.listen) }).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::default());
        let of_scheduler = SchedulerOptions {
            max_batch: options.max_batch,
            max_per_client: options.max_per_client,
            max_delay: options.max_delay,
            max_wait: options.max_wait,
            max_loaded: options.max_loaded,
            warm: options.warm.clone(),
            texts,
            errands: options.limits.queue,
            // Images join and leave between steps.
            setups: options.setups.iter().map(|setup| Setup { keeps_recorded_steps: true, ..setup.clone() }).collect(),
        };
        let traces = options.otlp.as_ref().map(|url| Traces::start(url, metrics.spans.clone())).transpose()?;
        let scheduler = Scheduler::start(of_scheduler, models.first().folder.clone(), metrics.clone())?;
        let app = Arc::new(App::new(options, models, scheduler, metrics, traces, runtime.handle().clone()));
        let (end, ended) = watch::channel(false);
        let (routes, of_thread) = (router(app.clone()), app.clone());
        let run = move || {
            runtime.block_on(serve(listener, tls, routes, of_thread, ended));
            runtime.shutdown_timeout(LAST_ANSWERS);
        };
        let thread = std::thread::Builder::new().name("server".into()).spawn(run).map_err(system("a thread"))?;
        Ok(Self { address, app, end, thread: Mutex::new(Some(thread)), scratch: Mutex::new(Some(scratch)) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address as a URL.
    pub fn url(&self) -> String {
        let scheme = self.app.scheme();
        format!("{scheme}://{}", self.address)
    }

    /// The numbers of the jobs that wait or run.
    pub fn unfinished(&self) -> Vec<String> {
        self.app.jobs.unfinished()
    }

    /// Refuses new jobs from now on. Those that were taken are finished.
    pub fn drain(&self) {
        self.app.scheduler.drain();
    }

    /// The same, and cancels all jobs. Returns how many there are.
    pub fn stop(&self) -> usize {
        self.app.scheduler.stop()
    }

    /// Waits for the end: after [`Self::drain`] or [`Self::stop`], or where the first model cannot be loaded. After [`Self::drain`] the
    /// images of the last jobs stay until their clients have come for them, or for ten seconds.
    ///
    /// # Errors
    /// Errors of the model that could not be loaded.
    pub fn wait(&self) -> Result<()> {
        while !self.app.scheduler.has_ended() {
            std::thread::sleep(LOOK_EVERY);
        }
        let result = self.app.scheduler.join();
        while !self.app.scheduler.is_stopping() && self.app.jobs.are_unread(LAST_IMAGES) {
            std::thread::sleep(LOOK_EVERY);
        }
        self.end.send_replace(true);
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the server has failed");
        }
        drop(self.scratch.lock().take());
        self.app.traces.iter().for_each(Traces::end);
        match result {
            // It was stopped while weights were loaded.
            Err(kiln_engine::Error::Interrupted) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// The threads for answers. The first of those for work is there from now on, so that work always finds one.
fn runtime() -> std::io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_STAYS)
        .thread_name("http")
        .enable_all()
        .build()?;
    runtime.block_on(runtime.spawn_blocking(|| ())).map_err(std::io::Error::other)?;
    Ok(runtime)
}

/// Listens on an address.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server can follow another one at once. Elsewhere this would let two have the address.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The store of texts that the options name.
fn text_store(options: &ServeOptions) -> Result<Option<Arc<dyn TextStore>>> {
    let Some(address) = &options.prompt_store else { return Ok(None) };
    let store: Arc<dyn TextStore> = Arc::new(RedisTexts::new(address)?);
    Ok(Some(match &options.prompt_store_key {
        Some(secret) => Arc::new(SealedTexts::new(store, secret)?),
        None => store,
    }))
}

/// Refuses sizes to warm up that requests for the first model cannot have.
fn check_warm(options: &ServeOptions, model: &ModelFolder) -> Result<()> {
    for &(width, height) in &options.warm {
        let refused = |expected| Error::Value { name: "warm", found: format!("{width}x{height}"), expected };
        if width.saturating_mul(height) > options.limits.pixels {
            return Err(refused(format!("at most {} pixels, as `max_pixels` allows", options.limits.pixels)));
        }
        warm::request((width, height))
            .resolve(model)
            .map_err(|error| refused(format!("a size of the model: {error}")))?;
    }
    Ok(())
}

/// Makes the folder of images, and refuses others that are not there.
fn check_folders(options: &ServeOptions) -> Result<()> {
    for folder in [&options.output, &options.user_dir].into_iter().flatten() {
        std::fs::create_dir_all(folder).map_err(kiln_files::write_error(folder)).map_err(kiln_engine::Error::from)?;
    }
    let folders = [
        (&options.control_dir, "`control_dir`, a folder with control networks"),
        (&options.ip_adapters_dir, "`ip_adapters_dir`, a folder with IP-Adapters"),
        (&options.upscaler_dir, "`upscaler_dir`, a folder with upscalers"),
        (&options.output, "`output`, a folder for images"),
        (&options.front_end, "`front_end`, a folder with ComfyUI's page"),
        (&options.user_dir, "`user_dir`, a folder for settings and workflows"),
    ];
    for (folder, what) in folders {
        if let Some(folder) = folder {
            kiln_files::check_folder(folder, what).map_err(kiln_engine::Error::from)?;
        }
    }
    if let Some(folder) = options.front_end.as_ref().filter(|folder| !folder.join("index.html").is_file()) {
        let expected = "a folder with index.html: `static` of the Python package comfyui-frontend-package";
        return Err(Error::Value { name: "front_end", found: folder.display().to_string(), expected: expected.into() });
    }
    Ok(())
}
