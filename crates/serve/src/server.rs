//! The server: connections, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use kiln_engine::{Setup, TextStore, TokenCounter};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::app::{App, KEPT_UNITS};
use crate::bodies::Bodies;
use crate::error::{Error, Result};
use crate::gallery::Gallery;
use crate::http::router;
use crate::intake::Intake;
use crate::jobs::{Current, Jobs};
use crate::metrics::Metrics;
use crate::models::Models;
use crate::options::ServeOptions;
use crate::redis_texts::RedisTexts;
use crate::scheduler::{Scheduler, SchedulerOptions};
use crate::tls;

/// Connections at once.
const CONNECTIONS: usize = 1024;
/// The longest time that the head of a request may take.
const LONGEST_HEAD: Duration = Duration::from_secs(15);
/// The time between two looks at jobs that are kept long enough.
const PRUNE_EVERY: Duration = Duration::from_secs(1);
/// The time that open connections have to take their answers when all jobs are done.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// The time between two looks at the scheduler, while it ends.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Threads for answers. The scheduler has its own.
const THREADS: usize = 2;

/// A server that runs.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    end: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Opens the models, listens, and begins to read the weights of the first model. Jobs wait for them.
    ///
    /// # Errors
    /// [`Error::Value`] for options that cannot be, the errors of the models, and [`Error::Listen`].
    pub fn start(options: ServeOptions) -> Result<Self> {
        options.check()?;
        options.setups.iter().try_for_each(Setup::check)?;
        check_folders(&options)?;
        let texts = options.prompt_store.as_deref().map(RedisTexts::new).transpose()?;
        let texts = texts.map(|texts| Arc::new(texts) as Arc<dyn TextStore>);
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let models = Models::open(&options)?;
        let system = |what| move |source| Error::System { what, source };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(system("threads for answers"))?;
        let listen = |source| Error::Listen { address: options.listen, source };
        let listener = runtime.block_on(TcpListener::bind(options.listen)).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::default());
        let of_scheduler = SchedulerOptions {
            max_batch: options.max_batch,
            max_per_client: options.max_per_client,
            max_delay: options.max_delay,
            texts,
            queue: options.limits.queue,
            // Images join and leave between steps.
            setups: options.setups.iter().map(|setup| Setup { keeps_recorded_steps: true, ..setup.clone() }).collect(),
        };
        let scheduler = Scheduler::start(of_scheduler, models.first().folder.clone(), metrics.clone())?;
        let jobs = Jobs::new(options.keep, options.job_prefix.clone());
        let limits = options.limits;
        let app = Arc::new(App {
            gallery: Gallery::new(options.output.clone()),
            tokens: TokenCounter::default(),
            token_turn: Semaphore::new(1),
            options,
            models,
            jobs,
            scheduler,
            metrics,
            runtime: runtime.handle().clone(),
            intake: Intake::new(runtime.handle().clone(), &limits),
            bodies: Bodies::new(limits.body),
            kept: Arc::new(Semaphore::new(KEPT_UNITS)),
            web_options: Mutex::default(),
            web_jobs: Current::default(),
        });
        let (end, ended) = watch::channel(false);
        let (routes, of_thread) = (router(app.clone()), app.clone());
        let run = move || {
            runtime.block_on(serve(listener, tls, routes, of_thread, ended));
            runtime.shutdown_timeout(LAST_ANSWERS);
        };
        let thread = std::thread::Builder::new().name("server".into()).spawn(run).map_err(system("a thread"))?;
        Ok(Self { address, app, end, thread: Mutex::new(Some(thread)) })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL.
    pub fn url(&self) -> String {
        let scheme = self.app.scheme();
        format!("{scheme}://{}", self.address)
    }

    /// Refuses new jobs from now on. Those that were taken are finished.
    pub fn drain(&self) {
        self.app.scheduler.drain();
    }

    /// The same, and cancels all jobs.
    pub fn stop(&self) {
        self.app.scheduler.stop();
    }

    /// Waits for the end: after [`Self::drain`] or [`Self::stop`], or where the first model cannot be loaded.
    ///
    /// # Errors
    /// Those of the model that could not be loaded.
    pub fn wait(&self) -> Result<()> {
        while !self.app.scheduler.has_ended() {
            std::thread::sleep(LOOK_EVERY);
        }
        let result = self.app.scheduler.join();
        self.end.send_replace(true);
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the server has failed");
        }
        match result {
            // It was stopped while weights were loaded.
            Err(kiln_engine::Error::Interrupted) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Refuses folders that are not there.
fn check_folders(options: &ServeOptions) -> Result<()> {
    let folders = [
        (&options.control_dir, "`control_dir`, a folder with control networks"),
        (&options.upscaler_dir, "`upscaler_dir`, a folder with upscalers"),
        (&options.output, "`output`, a folder for images"),
    ];
    for (folder, what) in folders {
        if let Some(folder) = folder {
            kiln_files::check_folder(folder, what).map_err(kiln_engine::Error::from)?;
        }
    }
    Ok(())
}

/// Takes connections until the end.
async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Router,
    app: Arc<App>,
    mut end: watch::Receiver<bool>,
) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let prune = app.clone();
    let pruning = tokio::spawn(async move {
        let mut ticks = tokio::time::interval(PRUNE_EVERY);
        loop {
            ticks.tick().await;
            prune.jobs.prune(Instant::now());
        }
    });
    loop {
        let permit = connections.clone().acquire_owned();
        let accepted = tokio::select! {
            accepted = async { (permit.await, listener.accept().await) } => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        match accepted {
            (Ok(permit), Ok((stream, address))) => {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("a connection: {error}"); // events may come later
                }
                let routes = routes.clone().layer(Extension(ConnectInfo(address)));
                let (watcher, tls) = (graceful.watcher(), tls.clone());
                tokio::spawn(async move {
                    // A client that goes away, or speaks no HTTP, concerns no one else.
                    let ended = match tls {
                        None => watcher.watch(connection(stream, routes)).await.map_err(|error| error.to_string()),
                        Some(tls) => match timeout(LONGEST_HEAD, tls.accept(stream)).await {
                            Ok(Ok(stream)) => {
                                watcher.watch(connection(stream, routes)).await.map_err(|error| error.to_string())
                            }
                            Ok(Err(error)) => Err(error.to_string()),
                            Err(_) => Err("the handshake took too long".into()),
                        },
                    };
                    if let Err(error) = ended {
                        tracing::debug!(%address, "connection: {error}");
                    }
                    drop(permit);
                });
            }
            (_, Err(error)) => {
                tracing::warn!("a connection: {error}");
                tokio::time::sleep(LOOK_EVERY).await; // the system has no more files for now
            }
            (Err(_), _) => break,
        }
    }
    drop(listener);
    if timeout(LAST_ANSWERS, graceful.shutdown()).await.is_err() {
        tracing::warn!("clients did not take their answers within {} s", LAST_ANSWERS.as_secs());
    }
    pruning.abort();
}

/// One connection with its routes.
fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    routes: Router,
) -> hyper::server::conn::http1::Connection<TokioIo<S>, TowerToHyperService<Router>> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(LONGEST_HEAD);
    builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
}
