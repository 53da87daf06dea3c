//! A server that makes images for clients over HTTP.
//!
//! [`Server::start`] opens the models and listens. Requests become jobs; the scheduler runs the jobs of all clients in steps of
//! the denoiser, and the routes answer from the jobs' states.
//!
//! `serve/scheduler` has a thread for each device, which owns an engine, and knows nothing of HTTP. `seats` chooses the
//! thread of a task, and lets idle threads take over tasks that wait at others. Between two steps it lets batches of
//! tasks join and leave a `RunningBatch`, and `policy` chooses who takes part in the next step; the others pause
//! (`Engine::select`) and keep their places. There is a running batch for each set of networks (LoRAs, control
//! networks, refiner), and one model at a time. A second pass is another batch of the same running batch
//! (`Engine::begin_second_pass`). Upscalers run between two steps. `serve/jobs` has the state of each job, from which
//! answers and events are made: a reader of events remembers what it has seen, so that a slow one costs no memory.
//! `serve/http` has the routes.
//!
//! ```no_run
//! use std::time::Duration;
//! use kiln_engine::{ModelOptions, Setup};
//! use kiln_serve::{Access, GalleryAccess, Limits, ServeOptions, Server};
//!
//! let server = Server::start(ServeOptions {
//!     listen: ([127, 0, 0, 1], 7860).into(),
//!     models: vec!["models/emoji".into()],
//!     model_aliases: Vec::new(),
//!     model_options: ModelOptions::default(),
//!     setups: vec![Setup::default()],
//!     limits: Limits::default(),
//!     max_batch: None,
//!     max_per_client: 4,
//!     max_delay: Duration::ZERO,
//!     max_wait: None,
//!     max_loaded: None,
//!     front_end: None,
//!     user_dir: None,
//!     warm: Vec::new(),
//!     control_dir: None,
//!     ip_adapters_dir: None,
//!     upscaler_dir: None,
//!     output: None,
//!     gallery: GalleryAccess::Full,
//!     prompt_store: None,
//!     prompt_store_key: None,
//!     keep: Duration::from_secs(600),
//!     job_prefix: None,
//!     access: Access::default(),
//!     tls: None,
//!     memory_readiness: true,
//!     otlp: None,
//! })?;
//! println!("http://{}", server.address());
//! server.wait()?;
//! # Ok::<(), kiln_serve::Error>(())
//! ```
// A test writes all fields that clients send as one JSON literal.
#![cfg_attr(test, recursion_limit = "256")]
#![forbid(unsafe_code)]

mod app;
mod base64_image;
mod bodies;
mod budget;
mod comfy;
mod connections;
mod error;
mod gallery;
mod http;
mod image_format;
mod image_prompts;
mod inputs;
mod intake;
mod jobs;
mod lora_list;
mod memory_shares;
mod memory_watch;
mod metrics;
mod models;
mod named_files;
mod options;
mod parse;
mod prompt_limit;
mod redis_link;
mod redis_texts;
mod scheduler;
mod scratch;
mod sealed_texts;
mod seldom;
mod server;
mod threads;
mod tls;
mod traces;

pub use error::{Error, Result};
pub use options::{Access, GalleryAccess, Limits, ServeOptions, Tls};
pub use parse::read_request;
pub use server::Server;
