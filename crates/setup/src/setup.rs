//! The device, types and resources that a model runs with.

use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, DeviceLocation};
use kiln_files::check_folder;
use kiln_media::PngLevel;
use kiln_mempool::{DevicePool, DevicePoolConfig};
use kiln_models::DTypeChoice;
use kiln_ops::device::{OpenDevice, open_gpu, open_second_stream};
use kiln_ops::portable::Backend;
use kiln_request::limits::in_range;
use kiln_weights::{MatrixType, SharedSlabs};
use kiln_wgpu::Gpu;
use serde::{Deserialize, Serialize};

use crate::compute::ComputeType;
use crate::cpu_set::CpuSet;
use crate::error::{Error, Result};
use crate::linear_weights::LinearWeightType;
use crate::link::LinkChoice;
use crate::memory::MemoryOptions;
use crate::portable::{PortableDevice, automatic, leave_automatic};
use crate::previews::PreviewOptions;
use crate::second_device::SecondDevice;
use crate::threads::{self, Threads};

/// The device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceChoice {
    /// A CUDA GPU if this build can use one, else a GPU by Vulkan, Metal or DirectX 12, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA GPU with this number.
    Cuda(usize),
    /// A GPU of any vendor, by Vulkan, Metal or DirectX 12.
    Portable(PortableDevice),
}

impl std::fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::Portable(device) => device.fmt(f),
        }
    }
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
                .or_else(|| text.parse().map(Self::Portable).ok())
                .ok_or_else(|| "expected auto, cpu, cuda, cuda:N, gpu, vulkan, metal or dx12".into()),
        }
    }
}

/// Whether prompts of a set are encoded and its images decoded on another thread in parallel with the steps of other
/// images, on a GPU in another stream. This requires that all weights are resident and that both fit into memory. It
/// does not change the images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Each image is finished before the next one starts.
    #[default]
    Never,
    /// Only on GPUs, which have spare capacity between the steps; the CPU's cores are busy with the steps.
    OnGpus,
    /// On every device.
    Always,
}

impl Overlap {
    /// The device for encoding and decoding, if it differs from `device`.
    ///
    /// # Errors
    /// See [`kiln_ops::device::open_second_stream`].
    pub fn device(self, device: &Device) -> Result<Option<OpenDevice>> {
        let wanted = self == Self::Always || self == Self::OnGpus && device.is_cuda();
        Ok(wanted.then(|| open_second_stream(device)).transpose()?)
    }
}

/// The options of running a model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// The device.
    pub device: DeviceChoice,
    /// A second device, which computes the unconditional half of guided steps ([`crate::DeviceList::parallel_cfg`]).
    pub second: Option<SecondDevice>,
    /// The type of weights and activations.
    pub dtype: DTypeChoice,
    /// The weight type of linear layers.
    pub weight_type: LinearWeightType,
    /// How the large layers of the denoiser are computed.
    pub compute: ComputeType,
    /// A file with scales for products in 8 bits ([`crate::ComputeScales`]). Without it each call measures the range of its
    /// input. A refiner's layers do so with it, too.
    pub scales: Option<PathBuf>,
    /// CPU threads of the engine's own pool, at most four for each CPU that the process may use. `None` means the threads of
    /// the process ([`crate::threads::start_threads`]).
    pub threads: Option<usize>,
    /// The CPUs that the engine's own threads stay on; `None` for all that the process may use. Without a number of threads
    /// there is one for each.
    pub cpus: Option<CpuSet>,
    /// A TAESD decoder that replaces the model's autoencoder, which is then not loaded: a safetensors file, or a folder
    /// in the diffusers layout.
    pub taesd: Option<PathBuf>,
    /// How previews of running images are made.
    pub previews: PreviewOptions,
    /// The memory options.
    pub memory: MemoryOptions,
    /// How the speed of copies to a GPU is found, which plans of streamed weights depend on. It does not change the images.
    pub link: LinkChoice,
    /// The folder of LoRAs for prompts, searched with its subfolders.
    pub lora_dir: Option<PathBuf>,
    /// The folder of embeddings for prompts, searched with its subfolders.
    pub embeddings_dir: Option<PathBuf>,
    /// The number of cached prompts; `None` means 32.
    pub prompt_cache: Option<usize>,
    /// Whether a set's prompts are encoded and its images decoded in parallel with the steps of others.
    pub overlap: Overlap,
    /// Whether a GPU keeps the recorded steps of several batch sizes, with inputs of up to a twentieth of the available memory:
    /// for batches that change from step to step. Otherwise it keeps the last one.
    pub keeps_recorded_steps: bool,
    /// Slabs of weights in host memory that this engine has in common with others of the process; `None` for slabs of its own.
    pub shared: Option<SharedSlabs>,
    /// A folder in which packed weights are kept for the next start on the CPU: about as many bytes as the weights have in memory.
    /// `None` packs them at each start. It does not change the images.
    pub weight_cache: Option<PathBuf>,
    /// The compression of images' PNG files.
    pub png_level: PngLevel,
    /// The folder of the hash cache for image metadata, of the measured link to a GPU and of compiled kernels
    /// ([`kiln_files::cache_folder`]); without it no hashes are computed, the link is measured by each process that streams, and
    /// kernels are compiled by each process.
    pub cache_dir: Option<PathBuf>,
}

/// Where a model runs.
pub struct ResolvedDevice {
    /// The device; the CPU if `backend` computes.
    pub device: Device,
    /// A GPU that is not candle's.
    pub backend: Option<Arc<dyn Backend>>,
    /// The type of weights and activations.
    pub dtype: DType,
    /// The type of linear layers' matrices, if it is another one.
    pub matrices: Option<MatrixType>,
    /// A card's memory. It outlives what is on the card.
    pub pool: Option<DevicePool>,
    /// Keeps a GPU of candle's for this user alone; `None` for another device, and for one that somebody else keeps. Others may use it
    /// once this is dropped: after the pool.
    pub open: Option<OpenDevice>,
    /// The threads that operators run on.
    pub threads: Threads,
}

/// A prompt and a negative prompt for some jobs, and the prompts of a schedule. SDXL's embeddings use 0.6 MB each in
/// f32.
pub const CACHED_TEXTS: usize = 32;
/// The maximum number of cached prompts.
const MAX_CACHED_TEXTS: usize = 10_000;

/// The driver allocates GPU memory in granules of this many bytes, and rounds the limit of a pool up to them.
pub const POOL_GRANULARITY: usize = 32 << 20;

/// The largest multiple of a granule that is at most `budget` bytes; at least one granule.
fn whole_pieces(budget: usize) -> usize {
    (budget / POOL_GRANULARITY).max(1) * POOL_GRANULARITY
}

impl Setup {
    /// Validates the options without loading. Loading a model checks them as well.
    ///
    /// # Errors
    /// [`Error::Request`] for an impossible number of threads or cached prompts, [`Error::Files`] if the TAESD, the scales or
    /// a folder is missing.
    pub fn check(&self) -> Result<()> {
        threads::check(self.threads)?;
        in_range("prompt_cache", self.cached_texts(), 0, MAX_CACHED_TEXTS)?;
        if self.device != DeviceChoice::Auto {
            self.check_compute(matches!(self.device, DeviceChoice::Cuda(_)))?;
        }
        self.check_scales()?;
        self.check_portable()?;
        for (folder, looked_for) in [
            (&self.lora_dir, "`lora_dir`, a folder with LoRA files"),
            (&self.embeddings_dir, "`embeddings_dir`, a folder with embeddings"),
            (&self.weight_cache, "`weight_cache`, a folder for packed weights"),
        ] {
            folder.as_deref().map_or(Ok(()), |path| check_folder(path, looked_for))?;
        }
        for (path, option) in [(&self.taesd, "`taesd`"), (&self.previews.taesd, "`preview_taesd`")] {
            if let Some(path) = path.as_deref().filter(|path| !path.exists()) {
                let what = "a safetensors file with TAESD's weights or a folder with an AutoencoderTiny";
                return Err(Error::not_found(path.to_path_buf(), format!("{option}, {what}")));
            }
        }
        Ok(())
    }

    /// The GPU by Vulkan, Metal or DirectX 12 that this setup names, or that is taken automatically: if there is no CUDA GPU, and no
    /// option asks for what such a GPU does not compute with.
    pub fn portable(&self) -> Option<PortableDevice> {
        let is_possible =
            self.dtype != DTypeChoice::Bf16 && matches!(self.compute, ComputeType::Auto | ComputeType::Native);
        match self.device {
            DeviceChoice::Portable(device) => Some(device),
            DeviceChoice::Auto if is_possible => automatic(),
            DeviceChoice::Auto | DeviceChoice::Cpu | DeviceChoice::Cuda(_) => None,
        }
    }

    /// Refuses what a GPU by Vulkan, Metal or DirectX 12 does not compute with.
    fn check_portable(&self) -> Result<()> {
        let DeviceChoice::Portable(device) = self.device else { return Ok(()) };
        if self.compute == ComputeType::Int8 {
            let expected = format!("native: {device} does not compute in 8 bits");
            return Err(Error::value("compute", self.compute, &expected));
        }
        if self.dtype == DTypeChoice::Bf16 {
            let expected = format!("auto, f16 or f32: {device} has no bf16");
            return Err(Error::value("dtype", "bf16", &expected));
        }
        Ok(())
    }

    /// Whether matrices stay as their files store them.
    pub fn keeps_stored(&self) -> bool {
        self.weight_type.keeps_stored()
    }

    /// The type of weights and activations on a GPU by Vulkan, Metal or DirectX 12.
    pub fn dtype_on(&self, has_f16: bool) -> Result<DType> {
        match self.dtype {
            DTypeChoice::Auto if has_f16 => Ok(DType::F16),
            DTypeChoice::Auto => Ok(DType::F32),
            DTypeChoice::F16 if !has_f16 => {
                let expected = format!("auto or f32: {} has no f16", self.device);
                Err(Error::value("dtype", "f16", &expected))
            }
            dtype => Ok(dtype.resolve(true)),
        }
    }

    /// The number of cached prompts.
    pub fn cached_texts(&self) -> usize {
        self.prompt_cache.unwrap_or(CACHED_TEXTS)
    }

    /// The options and the total of GPU memory.
    fn device_pool(&self) -> DevicePoolConfig {
        let ceiling = self.memory.budget.map(|budget| whole_pieces(budget.0) as u64);
        DevicePoolConfig { keep: self.memory.cuda_malloc, ceiling }
    }

    /// Opens the GPU of [`Self::portable`]. One that was taken automatically and cannot be opened is left out.
    fn open_portable(&self) -> Result<Option<Arc<Gpu>>> {
        // A CUDA GPU that is open is quickly looked at.
        if self.device == DeviceChoice::Auto && open_gpu(0).is_ok() {
            return Ok(None);
        }
        let Some(device) = self.portable() else { return Ok(None) };
        match device.open(self.cache_dir.as_deref()) {
            Ok(gpu) => {
                if self.device == DeviceChoice::Auto {
                    tracing::info!("running on {device}: there is no CUDA GPU");
                }
                Ok(Some(gpu))
            }
            Err(error) if self.device == DeviceChoice::Auto => {
                tracing::warn!("running on the CPU: {error}");
                leave_automatic();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the device, and starts the threads of the engine's own pool.
    ///
    /// # Errors
    /// [`Error::Device`] where the device is not there or no thread can be started, and those of [`Self::check`].
    pub fn resolve(&self) -> Result<ResolvedDevice> {
        self.check()?;
        let threads = Threads::new(self.threads, self.cpus.as_ref())?;
        let gpu = self.open_portable()?;
        let open = match self.device {
            _ if gpu.is_some() => None,
            DeviceChoice::Cpu | DeviceChoice::Portable(_) => None,
            DeviceChoice::Auto => match open_gpu(0) {
                Ok(open) => Some(open),
                Err(error) if error.is_without_driver() => {
                    tracing::info!("running on the CPU: {error}");
                    None
                }
                Err(error) => {
                    tracing::warn!("running on the CPU, though this machine has NVIDIA's driver: {error}");
                    None
                }
            },
            DeviceChoice::Cuda(number) => {
                Some(open_gpu(number).map_err(|error| Error::Device(format!("`device` cuda:{number}: {error}")))?)
            }
        };
        let device = open.as_deref().cloned().unwrap_or(Device::Cpu);
        let dtype = match &gpu {
            Some(gpu) => self.dtype_on(gpu.has_f16())?,
            None => self.dtype.resolve(device.is_cuda()),
        };
        self.check_compute_on(&device, dtype)?;
        let pool = match device.location() {
            DeviceLocation::Cuda { gpu_id } => DevicePool::install(gpu_id, self.device_pool())
                .inspect_err(|error| tracing::warn!("using the driver's memory allocator: {error}"))
                .ok(),
            _ => None,
        };
        if let (Some(open), Some(pool)) = (&open, &pool) {
            open.allocate_from(pool);
        }
        let matrices = self.weight_type.resolve(dtype);
        let backend = gpu.map(|gpu| gpu.backend());
        if let Some(backend) = &backend {
            backend.set_limit(self.memory.budget.map(|budget| budget.0 as u64));
        }
        Ok(ResolvedDevice { device, backend, dtype, matrices, open, pool, threads })
    }
}
