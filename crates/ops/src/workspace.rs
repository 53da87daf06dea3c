//! Memory of operators besides operands and result, computed before anything runs.
//!
//! An operator that needs such memory has a `workspace.rs` that computes its size from shapes alone. So the peak of a
//! run can be computed without a tensor, and for a GPU that is not installed. An operator without such a file needs
//! none.

use candle_core::{DType, Device};

use crate::cpu::isa::Isa;

/// The kind of device, as far as the memory of operators depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The CPU.
    Cpu {
        /// Worker threads.
        threads: usize,
    },
    /// A CUDA GPU, with cuDNN.
    Gpu,
}

/// Bytes of the buffers of one CPU thread: the blocks that matrix products, Winograd's tiles and attention gather and sum.
/// `conv2d/cpu/winograd.rs` takes the most. With operands in f32: 1008 KiB for products (4 panels, 36 positions, 56 tiles), 578 for
/// inputs (five rows of 528 words for each tile) and 297 for weights, and a fourth buffer has 64.
const BUFFERS_F32: usize = (1008 + 578 + 297 + 64) << 10;
/// The buffers for operands in bf16: 16 positions, 112 tiles, and two rows for each tile.
const BUFFERS_BF16: usize = (896 + 462 + 131 + 64) << 10;
/// The buffers for bf16 with AMX, whose convolutions are direct products: 400 KiB less than with Winograd's tiles, by the bytes in use
/// of whole runs (`crates/engine/tests/plans.rs`).
const BUFFERS_AMX: usize = BUFFERS_BF16 - (400 << 10);

/// Bytes of the workspace that CUDA's libraries share: NVIDIA's recommendation for Hopper. The size is always the same,
/// since the choice of algorithms depends on it.
pub(crate) const LIBRARIES: usize = 32 << 20;

impl Target {
    /// The kind of a tensor's device.
    pub fn of(device: &Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu { threads: rayon::current_num_threads() },
            _ => Self::Gpu,
        }
    }

    /// Whether this is a GPU.
    pub fn is_gpu(self) -> bool {
        self == Self::Gpu
    }

    /// Bytes that operators allocate on their first use and keep while the process lives: buffers of threads, or the
    /// workspace of CUDA's libraries. `dtype` is the type of the activations.
    pub fn kept(self, dtype: DType) -> usize {
        match self {
            Self::Cpu { threads } if dtype == DType::BF16 && Isa::current() == Isa::Amx => threads * BUFFERS_AMX,
            Self::Cpu { threads } if dtype == DType::BF16 && Isa::current().has_bf16() => threads * BUFFERS_BF16,
            Self::Cpu { threads } => threads * BUFFERS_F32,
            Self::Gpu => LIBRARIES,
        }
    }

    /// [`crate::supports_strided_qkv`] for tensors of `dtype` on this device.
    pub fn supports_strided_qkv(self, dtype: DType) -> bool {
        self.is_gpu() && dtype != DType::F32
    }
}

/// Memory of an operator besides operands and result, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Workspace {
    /// During the call.
    pub call: usize,
    /// A buffer that the calling thread keeps for later calls and grows where it is too small.
    pub kept: usize,
}

impl Workspace {
    /// Memory during the call only.
    pub(crate) fn call(bytes: usize) -> Self {
        Self { call: bytes, kept: 0 }
    }
}
