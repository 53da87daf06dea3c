//! On what a run would take place, known without opening a device.

use candle_core::DType;
use kiln_ops::Target;
use kiln_ops::device::{Gpu, gpus};
use kiln_weights::MatrixType;

use super::time::Rates;
use crate::room::{DeviceMemory, Room};
use crate::setup::{DeviceChoice, Setup};
use crate::threads;

/// On what and in which type a run would take place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunsOn {
    /// The kind of device.
    pub target: Target,
    /// The type of weights and activations.
    pub dtype: DType,
    /// The type of the matrices of linear layers, where it is another one.
    pub matrices: Option<MatrixType>,
    /// What it does in a second.
    pub rates: Rates,
}

impl RunsOn {
    /// With the rates that may be expected.
    pub fn new(target: Target, dtype: DType) -> Self {
        Self { target, dtype, matrices: None, rates: Rates::of(target, dtype) }
    }

    /// The same with the matrices of linear layers in a type of their own.
    pub fn with_matrices(self, matrices: Option<MatrixType>) -> Self {
        Self { matrices, ..self }
    }

    /// The types in words.
    pub fn types(&self) -> String {
        let dtype = self.dtype.as_str();
        self.matrices.map_or_else(|| dtype.into(), |matrices| format!("{dtype} with linear layers in {matrices}"))
    }

    /// The device in words.
    pub fn device(&self) -> String {
        match self.target {
            Target::Gpu => "a card".into(),
            Target::Cpu { threads } => format!("the processor ({threads} threads)"),
        }
    }

    /// What `setup` asks for on this machine, and the bytes that a run may use there: those of the setup's budget, else
    /// what is free. A GPU that is asked for and is not here is planned for all the same, with nothing known of its
    /// memory.
    pub fn of(setup: &Setup) -> (Self, Option<Room>) {
        let card = |number: usize| -> Option<Gpu> { gpus().ok()?.gpus.into_iter().find(|card| card.ordinal == number) };
        let on = |target: Target| {
            let dtype = setup.dtype.resolve(target.is_gpu());
            Self::new(target, dtype).with_matrices(setup.weight_type.resolve(dtype))
        };
        let on_processor = || {
            let threads = threads::count(setup.threads);
            (on(Target::Cpu { threads }), DeviceMemory::of_processor())
        };
        let (on, memory) = match setup.device {
            DeviceChoice::Cpu => on_processor(),
            DeviceChoice::Cuda(number) => (on(Target::Gpu), card(number).map(|card| DeviceMemory::of_card(&card))),
            DeviceChoice::Auto => {
                card(0).map_or_else(on_processor, |card| (on(Target::Gpu), Some(DeviceMemory::of_card(&card))))
            }
        };
        (on, Room::of_budget(&setup.memory, on.target).or(memory.map(|memory| memory.free)))
    }
}
