//! The target of a run, known without opening a device.

use candle_core::{DType, Device, DeviceLocation};
use kiln_ops::Target;
use kiln_ops::device::{Gpu, gpu};
use kiln_weights::MatrixType;

use crate::component_spec::{ComponentSpec, Per};
use crate::stage::Stage;
use crate::time::Rates;
use kiln_setup::link::Link;
use kiln_setup::memory::MemoryOptions;
use kiln_setup::room::{DeviceMemory, Room};
use kiln_setup::setup::{DeviceChoice, Setup};
use kiln_setup::threads;
use kiln_setup::{HostWeights, PortableDevice};

/// The device and type of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExecutionTarget {
    /// The kind of device.
    pub target: Target,
    /// Whether it is a GPU by Vulkan, Metal or DirectX 12: text encoders, denoisers and autoencoders run there, all else on the CPU, and no
    /// steps are recorded.
    pub is_portable: bool,
    /// Whether the text encoders run on the CPU although denoisers run on a GPU.
    pub texts_on_host: bool,
    /// The type of weights and activations.
    pub dtype: DType,
    /// The weight type of linear layers, if it differs.
    pub matrices: Option<MatrixType>,
    /// Its rates per second.
    pub rates: Rates,
    /// The link that a GPU's rates of copies are of; `None` for the CPU.
    pub link: Option<Link>,
    /// The weights that host memory has no room for; `None` if steps read no disk.
    pub host: Option<HostWeights>,
}

impl ExecutionTarget {
    /// With the expected rates; those of a GPU's copies are assumed.
    pub fn new(target: Target, dtype: DType) -> Self {
        let link = target.is_gpu().then_some(Link::ASSUMED);
        let rates = Rates::of(target, dtype);
        Self { target, is_portable: false, texts_on_host: false, dtype, matrices: None, rates, link, host: None }
    }

    /// A GPU by Vulkan, Metal or DirectX 12, for which so many threads pack weights.
    pub fn portable(threads: usize, dtype: DType) -> Self {
        let rates = Rates::portable(threads, dtype);
        Self { is_portable: true, rates, link: None, ..Self::new(Target::Gpu, dtype) }
    }

    /// Sets whether the text encoders of a GPU by Vulkan, Metal or DirectX 12 run on the CPU.
    pub fn with_texts_on_host(self, texts_on_host: bool) -> Self {
        Self { texts_on_host: texts_on_host && self.is_portable, ..self }
    }

    /// Whether a stage takes no memory of the GPU: it runs on the CPU.
    pub fn is_on_host(&self, stage: Stage) -> bool {
        self.is_portable && stage.is_on_host() || self.texts_on_host && stage == Stage::Encode
    }

    /// Whether a network takes no memory of the GPU: it runs on the CPU.
    pub fn has_on_host(&self, spec: &ComponentSpec) -> bool {
        self.is_portable && spec.is_on_host() || self.texts_on_host && spec.per == Per::Text
    }

    /// Whether the text encoders are in the memory of a GPU while they run.
    pub fn has_texts_on_gpu(&self) -> bool {
        self.target.is_gpu() && !self.texts_on_host
    }

    /// Bytes that operators allocate on their first use, and keep.
    pub fn kept(&self) -> usize {
        if self.is_portable { 0 } else { self.target.kept(self.dtype) }
    }

    /// The type of an autoencoder that is to run in `dtype`.
    pub fn decoder_dtype(&self, dtype: DType) -> DType {
        if self.is_portable && dtype == DType::BF16 { DType::F32 } else { dtype }
    }

    /// Sets the link of the GPU, over which a run that may pin memory copies if `pins`. The CPU has none.
    pub fn with_link(self, link: Option<Link>, pins: bool) -> Self {
        match link.filter(|_| self.target.is_gpu()) {
            Some(link) => Self { link: Some(link), rates: self.rates.with_link(&link, pins), ..self },
            None => self,
        }
    }

    /// Sets the computing rate of this GPU, if it is known.
    fn with_gpu(self, gpu: Option<&Gpu>) -> Self {
        gpu.map_or(self, |gpu| Self { rates: self.rates.with_gpu(gpu), ..self })
    }

    /// Sets the rates of an open GPU: how fast it computes, and how fast its link copies. The link is measured unless a
    /// measurement is in the cache folder. The CPU has no link.
    pub fn with_device(self, device: &Device, setup: &Setup) -> Self {
        let DeviceLocation::Cuda { gpu_id } = device.location() else { return self };
        let found = gpu(gpu_id).ok();
        self.with_gpu(found.as_ref()).with_link(Link::of_device(device, setup), setup.memory.pin_shared_memory)
    }

    /// Sets the weights that host memory has no room for.
    pub fn with_host_weights(self, host: Option<HostWeights>) -> Self {
        Self { host, ..self }
    }

    /// Sets another weight type of linear layers.
    pub fn with_matrices(self, matrices: Option<MatrixType>) -> Self {
        Self { matrices, ..self }
    }

    /// A description of the types.
    pub fn types(&self) -> String {
        let dtype = self.dtype.as_str();
        self.matrices.map_or_else(|| dtype.into(), |matrices| format!("{dtype} with linear layers in {matrices}"))
    }

    /// A description of the device.
    pub fn device(&self) -> String {
        match self.target {
            Target::Gpu if self.texts_on_host => "a GPU (the text encoders on the CPU)".into(),
            Target::Gpu => "a GPU".into(),
            Target::Cpu { threads } => format!("the CPU ({threads} threads)"),
        }
    }

    /// The target of `setup` on this machine, and the bytes that a run may use there: those of the setup's budget, else
    /// the free memory. A requested GPU that does not exist is planned for as well, with unknown memory. The link of a GPU is
    /// measured if it was not ([`Setup::link`]).
    pub fn of(setup: &Setup) -> (Self, Option<Room>) {
        let (on, memory) = Self::with_memory(setup);
        (on, on.room(&setup.memory, memory))
    }

    /// The bytes that a run may use: those of the budget of `options`, else the free ones of `memory`.
    pub fn room(&self, options: &MemoryOptions, memory: Option<DeviceMemory>) -> Option<Room> {
        Room::of_budget(options, self.target).or(memory.map(|memory| memory.free))
    }

    /// The target of `setup` on this machine, and the setup's part of the memory there, if it is known.
    pub fn with_memory(setup: &Setup) -> (Self, Option<DeviceMemory>) {
        let gpu = |number: usize| -> Option<Gpu> { gpu(number).ok() };
        let on = |target: Target| {
            let dtype = setup.dtype.resolve(target.is_gpu());
            Self::new(target, dtype).with_matrices(setup.weight_type.resolve(dtype))
        };
        let on_gpu = |found: Option<&Gpu>| {
            on(Target::Gpu).with_gpu(found).with_link(Some(Link::of_gpu(found, setup)), setup.memory.pin_shared_memory)
        };
        let threads = || setup.threads.map_or_else(rayon::current_num_threads, |asked| threads::count(Some(asked)));
        let on_processor = || (on(Target::Cpu { threads: threads() }), DeviceMemory::of_processor());
        let on_portable = |device: PortableDevice| {
            let adapter = device.find().ok();
            // A GPU that is not there is planned for as one that has f16.
            let has_f16 = adapter.as_ref().is_none_or(|adapter| adapter.has_f16);
            let dtype = setup.dtype_on(has_f16).unwrap_or(DType::F32);
            let memory = adapter.and_then(|adapter| adapter.memory());
            let on = Self::portable(threads(), dtype).with_matrices(setup.weight_type.resolve(dtype));
            (on, memory.map(DeviceMemory::of_backend))
        };
        let (on, memory) = match setup.device {
            DeviceChoice::Cpu => on_processor(),
            DeviceChoice::Portable(device) => on_portable(device),
            DeviceChoice::Cuda(number) => {
                let found = gpu(number);
                (on_gpu(found.as_ref()), found.as_ref().map(DeviceMemory::of_card))
            }
            DeviceChoice::Auto => {
                let other = || setup.portable().map_or_else(on_processor, on_portable);
                gpu(0).map_or_else(other, |gpu| (on_gpu(Some(&gpu)), Some(DeviceMemory::of_card(&gpu))))
            }
        };
        (on, memory.map(|memory| memory.shared_by(setup.memory.shared_by)))
    }
}
