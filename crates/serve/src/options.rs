//! How the server is run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use kiln_engine::{ModelOptions, Setup};
use kiln_media::DecodeOptions;

use crate::error::{Error, Result};

/// The highest priority that there is; the lowest is its opposite.
pub(crate) const MOST_PRIORITY: i32 = 100;
/// The most engines of a server.
const MAX_ENGINES: usize = 256;

/// The options of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// The address to listen on; port 0 is for any that is free.
    pub listen: SocketAddr,
    /// Paths of the models; the first is the default.
    pub models: Vec<PathBuf>,
    /// Other names of models in requests: a name, and the model's own.
    pub model_aliases: Vec<(String, String)>,
    /// Options that replace those of the models' folders or files.
    pub model_options: ModelOptions,
    /// How models run: an engine for each, all of which take jobs from one queue. They differ in what concerns their devices.
    pub setups: Vec<Setup>,
    /// The limits of a request.
    pub limits: Limits,
    /// The most images of one step; `None` is for 1 on the CPU, and on a GPU for 8 of the model's size, at least 8 of 512x512,
    /// fewer larger ones, or up to 32 smaller ones.
    pub max_batch: Option<usize>,
    /// The most jobs of one client that run at once while others wait, divided among the engines; 0 is for no limit.
    pub max_per_client: usize,
    /// How long a step waits for a batch to fill if nothing runs.
    pub max_delay: Duration,
    /// How long a job waits at most behind jobs of another model that have not started; `None` for about four times the time that
    /// loading took.
    pub max_wait: Option<Duration>,
    /// The most models in the memory of a device at once; `None` for as many as fit. The least recently used one leaves.
    pub max_loaded: Option<usize>,
    /// Sizes, width and height, of which an image is made whenever a model was loaded: the first request of such a size is then as
    /// fast as others, and the server is ready only when they are made.
    pub warm: Vec<(usize, usize)>,
    /// Whether the server is not ready while memory is too short for the next images.
    pub memory_readiness: bool,
    /// The folder of control networks that requests name.
    pub control_dir: Option<PathBuf>,
    /// The folder of IP-Adapters that requests name, with their image encoders.
    pub ip_adapters_dir: Option<PathBuf>,
    /// The folder of upscalers that requests name.
    pub upscaler_dir: Option<PathBuf>,
    /// The address of a store of encoded texts that servers share: `redis://HOST:PORT`.
    pub prompt_store: Option<String>,
    /// A secret of the servers that share the store: values that were written without it are not used.
    pub prompt_store_key: Option<String>,
    /// The folder of ComfyUI's page, which is then shown at `/comfy/`.
    pub front_end: Option<PathBuf>,
    /// The folder in which that page keeps settings and workflows; `None` for one that goes with the server.
    pub user_dir: Option<PathBuf>,
    /// The folder into which all images are written, with their settings.
    pub output: Option<PathBuf>,
    /// Access of clients to the images of that folder.
    pub gallery: GalleryAccess,
    /// How long finished jobs and their images are kept.
    pub keep: Duration,
    /// The prefix of job numbers, before a `-`: letters and digits, by which a program in front of several servers knows the
    /// server of a job.
    pub job_prefix: Option<String>,
    /// Who may come in.
    pub access: Access,
    /// For connections that are encrypted; `None` for plain ones.
    pub tls: Option<Tls>,
    /// The address of a collector of traces for OTLP over HTTP, as `http://127.0.0.1:4318`. Names of the service and of its resources come
    /// from the environment (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`).
    pub otlp: Option<String>,
}

/// The files of an encrypted server, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The certificate, with those that lead from it to a known one.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// The limits of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of an image.
    pub pixels: usize,
    /// Steps of an image.
    pub steps: usize,
    /// Images of a request.
    pub images: usize,
    /// Tokens of a prompt, over all of its texts.
    pub tokens: usize,
    /// Pixels of an input image, and of one with its borders.
    pub input_pixels: usize,
    /// Pixels of an input image's longest side.
    pub input_side: usize,
    /// Bytes of a body. All bodies together may have four times as many.
    pub body: usize,
    /// Jobs that wait.
    pub queue: usize,
    /// The longest time of a job; `None` is for no limit.
    pub time: Option<Duration>,
    /// The highest `priority`; `None` is for 100 where all clients share the server, and 0 where they have keys.
    pub priority: Option<i32>,
    /// The most connections of one address; 0 is for no limit.
    pub connections_per_address: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pixels: 4 << 20,
            steps: 1000,
            images: 64,
            tokens: 40 * 75,
            input_pixels: 16 << 20,
            input_side: 16_384,
            body: 64 << 20,
            queue: 256,
            time: None,
            priority: None,
            connections_per_address: 256,
        }
    }
}

impl Limits {
    /// Whether addresses tell clients apart, so that each has a part of what all share.
    pub(crate) fn has_shares(&self) -> bool {
        self.connections_per_address > 0
    }

    /// Which input images are decoded.
    pub(crate) fn input_images(&self) -> DecodeOptions {
        let (max_pixels, max_side) = (self.input_pixels as u64, self.input_side as u64);
        DecodeOptions { max_pixels, max_side, max_file: self.body as u64, ..DecodeOptions::default() }
    }
}

/// Access of clients to the images of the folder `output`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GalleryAccess {
    /// Nothing.
    Off,
    /// See and download them.
    Read,
    /// Delete them, too.
    #[default]
    Full,
}

impl GalleryAccess {
    /// Its name on a command line and in the answer of `/v1/capabilities`.
    pub fn id(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Full => "full",
        }
    }
}

impl std::str::FromStr for GalleryAccess {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Off, Self::Read, Self::Full];
        all.into_iter().find(|access| access.id() == text).ok_or_else(|| "expected off, read or full".into())
    }
}

/// Who may come in. Without keys and users everybody may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Keys, as `Authorization: Bearer KEY`.
    pub keys: Vec<String>,
    /// Names and passwords, as `Authorization: Basic`.
    pub users: Vec<(String, String)>,
    /// Origins of other pages that may use the server: `https://example.org`, or `*`.
    pub origins: Vec<String>,
    /// Whether clients with keys see and change each other's jobs and settings.
    pub shared_jobs: bool,
}

impl Access {
    /// Whether everybody may come in.
    pub(crate) fn is_open(&self) -> bool {
        self.keys.is_empty() && self.users.is_empty()
    }

    /// Whether all clients share jobs, images and settings.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_open() || self.shared_jobs
    }
}

impl ServeOptions {
    /// The setup of all engines.
    pub(crate) fn setup(&self) -> &Setup {
        static NONE: LazyLock<Setup> = LazyLock::new(Setup::default);
        self.setups.first().unwrap_or(&NONE)
    }

    /// Access of clients to the gallery. The images of all clients are in one folder, so that several users have none, unless
    /// they share their jobs.
    pub(crate) fn gallery(&self) -> GalleryAccess {
        let clients = self.access.keys.len() + self.access.users.len();
        if self.output.is_none() || (clients > 1 && !self.access.shared_jobs) {
            GalleryAccess::Off
        } else {
            self.gallery
        }
    }

    /// The highest `priority` that a request may have.
    pub(crate) fn most_priority(&self) -> i32 {
        self.limits.priority.unwrap_or(if self.access.is_shared() { MOST_PRIORITY } else { 0 })
    }

    /// Refuses options that cannot be, before anything is opened.
    ///
    /// # Errors
    /// [`Error::Value`] with the option.
    pub(crate) fn check(&self) -> Result<()> {
        if !(1..=MAX_ENGINES).contains(&self.setups.len()) {
            let (found, expected) = (self.setups.len().to_string(), format!("1 to {MAX_ENGINES} devices"));
            return Err(Error::Value { name: "device", found, expected });
        }
        let limits = self.limits;
        let counts = [
            ("max_pixels", limits.pixels),
            ("max_steps", limits.steps),
            ("max_images", limits.images),
            ("max_tokens", limits.tokens),
            ("max_input_pixels", limits.input_pixels),
            ("max_input_side", limits.input_side),
            ("max_body", limits.body),
            ("queue", limits.queue),
            ("max_batch", self.max_batch.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(Error::Value { name, found: "0".into(), expected: "at least 1".into() });
        }
        if let Some(priority) = limits.priority.filter(|priority| priority.abs() > MOST_PRIORITY) {
            let (found, expected) = (priority.to_string(), format!("-{MOST_PRIORITY} to {MOST_PRIORITY}"));
            return Err(Error::Value { name: "max_priority", found, expected });
        }
        if self.prompt_store_key.is_some() && self.prompt_store.is_none() {
            let (found, expected) = ("given".into(), "a `prompt_cache` that is the address of a store".into());
            return Err(Error::Value { name: "prompt_cache_key", found, expected });
        }
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if let Some(prefix) = self.job_prefix.as_ref().filter(|prefix| !is_plain(prefix)) {
            let expected = "letters and digits".into();
            return Err(Error::Value { name: "job_prefix", found: format!("{prefix:?}"), expected });
        }
        let is_empty = |text: &String| text.is_empty();
        if self.access.keys.iter().any(is_empty) {
            return Err(Error::Value { name: "api_key", found: "empty".into(), expected: "a key".into() });
        }
        if self.access.users.iter().any(|(user, password)| is_empty(user) || is_empty(password)) {
            let expected = "a name and a password, as in USER:PASSWORD".into();
            return Err(Error::Value { name: "api_auth", found: "without one of them".into(), expected });
        }
        Ok(())
    }
}
