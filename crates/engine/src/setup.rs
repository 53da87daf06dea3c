//! On what and in which type a model runs.

use std::path::PathBuf;

use candle_core::{DType, Device, DeviceLocation};
use kiln_files::check_folder;
use kiln_mempool::{DevicePool, DevicePoolConfig};
use kiln_models::DTypeChoice;
use kiln_weights::MatrixType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::in_range;
use crate::matrices::MatrixChoice;
use crate::memory::MemoryOptions;
use crate::threads;

/// Where to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// A CUDA card where this build can use one, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The CUDA card of this number.
    Cuda(usize),
}

impl std::str::FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|number| number.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| "expected auto, cpu, cuda or cuda:N".into()),
        }
    }
}

/// Whether texts of a set are encoded and its pictures decoded on another thread while the steps of others run, on a card
/// in another stream. It is done where all weights stay and there is room for what both have at once. Pictures are the same
/// bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Beside {
    /// Each picture is done before the next is begun.
    #[default]
    Never,
    /// On cards, which have work left between the steps; the processor's cores are busy with the steps.
    OnCards,
    /// On every device.
    Always,
}

impl Beside {
    /// The device that encodes and decodes, where it is beside `device`.
    ///
    /// # Errors
    /// Those of [`kiln_ops::device::open_second_stream`].
    pub(crate) fn device(self, device: &Device) -> Result<Option<Device>> {
        let wanted = self == Self::Always || self == Self::OnCards && device.is_cuda();
        Ok(wanted.then(|| kiln_ops::device::open_second_stream(device)).transpose()?)
    }
}

/// How a model is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Where.
    pub device: DeviceChoice,
    /// In which type.
    pub dtype: DTypeChoice,
    /// In which type the matrices of linear layers are kept.
    pub weight_type: MatrixChoice,
    /// Threads of the CPU; `None` is one for each CPU that this process may use, and four for each are the most. The
    /// first setup of a process decides.
    pub threads: Option<usize>,
    /// A TAESD that decodes in the place of the model's own autoencoder, which is then not loaded: a safetensors file,
    /// or a folder in the diffusers layout.
    pub taesd: Option<PathBuf>,
    /// What is said of memory.
    pub memory: MemoryOptions,
    /// Where LoRAs are that a prompt names, in that folder or below.
    pub lora_dir: Option<PathBuf>,
    /// Where embeddings are that a prompt names, in that folder or below.
    pub embeddings_dir: Option<PathBuf>,
    /// How many encoded texts are kept; `None` is 32.
    pub prompt_cache: Option<usize>,
    /// Whether a set's texts are encoded and its pictures decoded while the steps of others run.
    pub beside: Beside,
    /// Where hashes of models are kept, which pictures name ([`crate::cache_folder`]); without it none are computed.
    pub cache_dir: Option<PathBuf>,
}

/// Where a model runs.
pub struct Place {
    /// The device.
    pub device: Device,
    /// The type of weights and activations.
    pub dtype: DType,
    /// The type of linear layers' matrices, where it is another one.
    pub matrices: Option<MatrixType>,
    /// A card's memory. It outlives what is on the card.
    pub pool: Option<DevicePool>,
}

/// More threads than any processor runs at once are mistakes.
const MAX_THREADS: usize = 1024;
/// A prompt and its negative for some jobs, and the texts of a schedule. SDXL's take 0.6 MB each in f32.
pub(crate) const CACHED_TEXTS: usize = 32;
/// More texts than that are no cache.
const MAX_CACHED_TEXTS: usize = 10_000;

/// The driver takes a card's memory in pieces of this many bytes, and rounds a pool's bound up to them.
pub(crate) const PIECE: usize = 32 << 20;

/// The most whole pieces of `budget` bytes; one at least.
fn whole_pieces(budget: usize) -> usize {
    (budget / PIECE).max(1) * PIECE
}

impl Setup {
    /// Refuses what can be refused at once. Loading a model does so too; this is for who wants to know before.
    ///
    /// # Errors
    /// [`Error::Value`] for a number of threads or texts that no machine has, [`Error::Files`] where there is no such
    /// TAESD, or no such folder.
    pub fn check(&self) -> Result<()> {
        self.threads.map(|threads| in_range("threads", threads, 1, MAX_THREADS)).transpose()?;
        in_range("prompt_cache", self.cached_texts(), 0, MAX_CACHED_TEXTS)?;
        for (folder, looked_for) in [
            (&self.lora_dir, "`lora_dir`, a folder with LoRA files"),
            (&self.embeddings_dir, "`embeddings_dir`, a folder with embeddings"),
        ] {
            folder.as_deref().map_or(Ok(()), |path| check_folder(path, looked_for))?;
        }
        match self.taesd.as_deref().filter(|path| !path.exists()) {
            None => Ok(()),
            Some(path) => Err(Error::not_found(
                path.to_path_buf(),
                "`taesd`, a safetensors file with TAESD's weights or a folder with an AutoencoderTiny".into(),
            )),
        }
    }

    /// How many encoded texts are kept.
    pub(crate) fn cached_texts(&self) -> usize {
        self.prompt_cache.unwrap_or(CACHED_TEXTS)
    }

    /// How a card's memory is kept, and how much there is.
    fn device_pool(&self) -> DevicePoolConfig {
        let ceiling = self.memory.budget.map(|budget| whole_pieces(budget.0) as u64);
        DevicePoolConfig { keep: self.memory.cuda_malloc, ceiling }
    }

    /// Starts the threads and opens the device.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is not there or no thread can be started, and those of [`Self::check`].
    pub fn resolve(&self) -> Result<Place> {
        self.check()?;
        threads::start(self.threads)?;
        let device = match self.device {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Auto => kiln_ops::device::open_gpu(0).unwrap_or_else(|error| {
                tracing::info!("running on the processor: {error}");
                Device::Cpu
            }),
            DeviceChoice::Cuda(number) => kiln_ops::device::open_gpu(number)
                .map_err(|error| Error::Device(format!("`device` cuda:{number}: {error}")))?,
        };
        let dtype = self.dtype.resolve(device.is_cuda());
        let pool = match device.location() {
            DeviceLocation::Cuda { gpu_id } => DevicePool::install(gpu_id, self.device_pool())
                .inspect_err(|error| tracing::warn!("memory is the driver's to manage: {error}"))
                .ok(),
            _ => None,
        };
        let matrices = self.weight_type.resolve(dtype);
        Ok(Place { device, dtype, matrices, pool })
    }
}
