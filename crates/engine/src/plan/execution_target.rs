//! The target of a run, known without opening a device.

use candle_core::DType;
use kiln_ops::Target;
use kiln_ops::device::{Gpu, gpu};
use kiln_weights::MatrixType;

use super::time::Rates;
use crate::room::{DeviceMemory, Room};
use crate::setup::{DeviceChoice, Setup};
use crate::threads;

/// The device and type of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExecutionTarget {
    /// The kind of device.
    pub target: Target,
    /// The type of weights and activations.
    pub dtype: DType,
    /// The weight type of linear layers, if it differs.
    pub matrices: Option<MatrixType>,
    /// Its rates per second.
    pub rates: Rates,
}

impl ExecutionTarget {
    /// With the expected rates.
    pub fn new(target: Target, dtype: DType) -> Self {
        Self { target, dtype, matrices: None, rates: Rates::of(target, dtype) }
    }

    /// The same with another weight type of linear layers.
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
            Target::Gpu => "a GPU".into(),
            Target::Cpu { threads } => format!("the CPU ({threads} threads)"),
        }
    }

    /// The target of `setup` on this machine, and the bytes that a run may use there: those of the setup's budget, else
    /// the free memory. A requested GPU that does not exist is planned for as well, with unknown memory.
    pub fn of(setup: &Setup) -> (Self, Option<Room>) {
        let gpu = |number: usize| -> Option<Gpu> { gpu(number).ok() };
        let on = |target: Target| {
            let dtype = setup.dtype.resolve(target.is_gpu());
            Self::new(target, dtype).with_matrices(setup.weight_type.resolve(dtype))
        };
        let on_processor = || {
            let threads = setup.threads.map_or_else(rayon::current_num_threads, |asked| threads::count(Some(asked)));
            (on(Target::Cpu { threads }), DeviceMemory::of_processor())
        };
        let (on, memory) = match setup.device {
            DeviceChoice::Cpu => on_processor(),
            DeviceChoice::Cuda(number) => (on(Target::Gpu), gpu(number).map(|gpu| DeviceMemory::of_card(&gpu))),
            DeviceChoice::Auto => {
                gpu(0).map_or_else(on_processor, |gpu| (on(Target::Gpu), Some(DeviceMemory::of_card(&gpu))))
            }
        };
        let free = memory.map(|memory| memory.shared_by(setup.memory.shared_by).free);
        (on, Room::of_budget(&setup.memory, on.target).or(free))
    }
}
