//! What operators take besides operands and result, told before anything runs.
//!
//! Each operator that needs more than its result says how much in its own `workspace.rs`, beside the kernels, from
//! shapes alone: so a run's peak can be computed without a tensor, and for a card that is not there. An operator
//! without such a file needs nothing.

use candle_core::{DType, Device};

/// What a run takes place on, as far as operators' memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The processor.
    Processor {
        /// Threads that work.
        threads: usize,
    },
    /// A CUDA card, with cuDNN.
    Card,
}

/// Bytes of one thread's buffers on the processor: the blocks that products, Winograd's tiles and attention gather and
/// sum, four at a time, the largest of 448 KiB (`conv2d/cpu/winograd.rs`: 4 panels, 16 positions, 56 tiles).
const BUFFERS_OF_A_THREAD: usize = 4 * (448 << 10);

/// Bytes of the workspace that a card's libraries share: what NVIDIA advises for Hopper. One size always, since
/// algorithms depend on it.
pub(crate) const LIBRARIES: usize = 32 << 20;

impl Target {
    /// What a tensor's device is.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::Processor { threads: rayon::current_num_threads() },
            _ => Self::Card,
        }
    }

    /// Whether this is a card.
    pub fn is_card(self) -> bool {
        self == Self::Card
    }

    /// Bytes that operators make on their first use and keep while the process lives: buffers of threads, or the
    /// workspace of a card's libraries.
    pub fn kept(self) -> usize {
        match self {
            Self::Processor { threads } => threads * BUFFERS_OF_A_THREAD,
            Self::Card => LIBRARIES,
        }
    }

    /// [`crate::attention_reads_parts`] for tensors of `dtype` there.
    pub fn attention_reads_parts(self, dtype: DType) -> bool {
        self.is_card() && dtype != DType::F32
    }
}

/// Memory that an operator takes besides operands and result, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workspace {
    /// While the call lasts.
    pub call: usize,
    /// A buffer that the calling thread keeps from call to call and makes larger where it must.
    pub kept: usize,
}

impl Workspace {
    /// For the call alone.
    pub(crate) fn call(bytes: usize) -> Self {
        Self { call: bytes, kept: 0 }
    }
}
