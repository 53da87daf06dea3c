//! The choice of the attention kernel: a function of the shape and the GPU alone, from measurements on an H200 in f16, and for 128
//! channels on an H100 in bf16.

use candle_core::cuda::cudarc::driver::sys::CUdevice_attribute;
use candle_core::cuda_backend::CudaDevice;

use crate::attention::{Attention, Shapes};
use crate::cuda;
use crate::error::Result;

/// Keys that fit into one tile: a prompt of 77 tokens takes a third less time.
const PROMPT: usize = 80;
/// Tiles of a [`Kernel::Hopper`] in shared memory.
const STAGES: usize = 4;

/// The properties of a GPU that the choice depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gpu {
    /// Whether kernels for Hopper run.
    hopper: bool,
    multiprocessors: usize,
    /// The most shared memory of a block, in bytes.
    shared: usize,
}

/// A kernel of `kernel.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Heads of up to `d` channels, 64 `m` queries a block.
    Narrow { d: usize, m: usize },
    /// Heads of up to `d` channels, `keys` keys a tile.
    Wide { d: usize, keys: usize },
    /// Heads of `d` channels, 64 `groups` queries a block, `keys` keys a tile.
    Hopper { d: usize, groups: usize, keys: usize },
    /// Heads of 512 channels.
    HopperWide,
    /// Heads of `d` channels, at most [`PROMPT`] keys.
    Prompt { d: usize },
}

impl Gpu {
    pub(super) fn of(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let attribute = |attribute| stream.context().attribute(attribute).map_err(cuda::driver);
        Ok(Self {
            hopper: cuda::has_hopper_code(device)?,
            multiprocessors: cuda::multiprocessors(device)?,
            shared: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
        })
    }
}

/// The kernel for a shape. `None` if there is none: for head sizes that are no multiple of 8, above 512, or above 160 on
/// GPUs of compute capability 7.5, whose shared memory is too small.
pub(super) fn kernel(gpu: Gpu, shapes: Shapes, config: Attention) -> Option<Kernel> {
    let Shapes { b, s, t, head_dim, .. } = shapes;
    let blocks = |rows: usize| b * config.num_heads * s.div_ceil(rows);
    if !head_dim.is_multiple_of(8) {
        return None;
    }
    if gpu.hopper && !config.causal {
        let chosen = match head_dim {
            40 | 64 | 80 | 160 if t <= PROMPT => Some(Kernel::Prompt { d: head_dim }),
            40 => Some(Kernel::Hopper { d: 40, groups: 2, keys: 96 }),
            64 if rounds_of_two(blocks(128), gpu) < 3 * blocks(192).div_ceil(gpu.multiprocessors) => {
                Some(Kernel::Hopper { d: 64, groups: 2, keys: 64 })
            }
            64 => Some(Kernel::Hopper { d: 64, groups: 3, keys: 128 }),
            80 => Some(Kernel::Hopper { d: 80, groups: 2, keys: 96 }),
            128 if 2 * blocks(128).div_ceil(gpu.multiprocessors) <= 3 * blocks(192).div_ceil(gpu.multiprocessors) => {
                Some(Kernel::Hopper { d: 128, groups: 2, keys: 96 })
            }
            128 => Some(Kernel::Hopper { d: 128, groups: 3, keys: 64 }),
            160 => Some(Kernel::Hopper { d: 160, groups: 1, keys: 64 }),
            512 => Some(Kernel::HopperWide),
            _ => None,
        };
        if chosen.is_some() {
            return chosen;
        }
    }
    if head_dim <= 160 {
        let d = [32, 48, 64, 80, 128, 160].into_iter().find(|d| head_dim <= *d)?;
        // Twice the queries reuse keys in registers more often, if there are enough blocks left to balance the load.
        let m = if (48..=80).contains(&d) && blocks(128) >= 3 * gpu.multiprocessors { 2 } else { 1 };
        return Some(Kernel::Narrow { d, m });
    }
    let wide = [(256, 32), (512, 64), (512, 32), (512, 16)].map(|(d, keys)| Kernel::Wide { d, keys });
    wide.into_iter().find(|kernel| kernel.fits(head_dim) && kernel.shared() <= gpu.shared)
}

/// The time of `blocks` blocks of two groups, two blocks on a multiprocessor, in units of the time that a
/// multiprocessor takes for 64 queries: a single block takes half the time of two together.
fn rounds_of_two(blocks: usize, gpu: Gpu) -> usize {
    let (full, rest) = (blocks / (2 * gpu.multiprocessors), blocks % (2 * gpu.multiprocessors));
    4 * full + 2 * rest.div_ceil(gpu.multiprocessors)
}

impl Kernel {
    /// Keys of a tile that the tensor memory accelerator loads. `None` where threads load them.
    pub(super) fn fetched_keys(self) -> Option<usize> {
        match self {
            Self::Hopper { keys, .. } => Some(keys),
            Self::HopperWide => Some(64),
            Self::Prompt { .. } => Some(PROMPT),
            Self::Narrow { .. } | Self::Wide { .. } => None,
        }
    }

    fn fits(self, head_dim: usize) -> bool {
        match self {
            Self::Narrow { d, .. } | Self::Wide { d, .. } => head_dim <= d,
            Self::Hopper { d, .. } | Self::Prompt { d } => head_dim == d,
            Self::HopperWide => head_dim == 512,
        }
    }

    /// The kernel's name, without the type.
    pub(super) fn name(self) -> String {
        match self {
            Self::Narrow { d, m } => format!("attention_narrow_{d}_{m}"),
            Self::Wide { d, keys } => format!("attention_wide_{d}_{keys}"),
            Self::Hopper { d, groups, keys } => format!("attention_hopper_{d}_{groups}_{keys}"),
            Self::HopperWide => "attention_hopper_wide_512".into(),
            Self::Prompt { d } => format!("attention_prompt_{d}"),
        }
    }

    /// Queries of a block.
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Narrow { m, .. } => 64 * m,
            Self::Wide { .. } | Self::HopperWide | Self::Prompt { .. } => 64,
            Self::Hopper { groups, .. } => 64 * groups,
        }
    }

    /// Threads of a block.
    pub(super) fn threads(self) -> u32 {
        match self {
            Self::Narrow { .. } | Self::Prompt { .. } => 128,
            Self::Wide { .. } | Self::HopperWide => 256,
            Self::Hopper { groups, .. } => 128 * groups as u32,
        }
    }

    /// Shared memory of a block in bytes: the sizes of the layouts in the kernels' sources.
    pub(super) fn shared(self) -> usize {
        match self {
            // queries, a tile of keys, a tile of values, in rows that are 16 bytes longer
            Self::Narrow { d, m } => (64 * m + 2 * 64) * (d + 8) * 2,
            // the same, then the exponentials and three numbers a row
            Self::Wide { d, keys } => {
                let weights = 64 * if keys == 16 { 32 } else { (keys + 8) * 2 };
                ((64 + 2 * keys) * d * 2 + weights + 3 * 64 * 4).next_multiple_of(1024)
            }
            // the same in boxes of 64 channels, and barriers
            Self::Hopper { d, groups, keys } => {
                let rows = groups * 64 + 2 * keys * STAGES;
                (rows * d.div_ceil(64) * 128 + (1 + 2 * STAGES) * 8).next_multiple_of(1024)
            }
            // 64 queries, keys and values, exponentials, two numbers a row, four barriers
            Self::HopperWide => (3 * 64 * 1024 + 64 * 128 + 2 * 64 * 4 + 4 * 8_usize).next_multiple_of(1024),
            Self::Prompt { d } => ((64 + 2 * PROMPT) * d.div_ceil(64) * 128 + 2 * 8).next_multiple_of(1024),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Gpu = Gpu { hopper: true, multiprocessors: 132, shared: 232_448 };
    const RTX_4090: Gpu = Gpu { hopper: false, multiprocessors: 128, shared: 101_376 };
    /// A GTX 1650, compute capability 7.5.
    const TURING: Gpu = Gpu { hopper: false, multiprocessors: 14, shared: 65_536 };

    fn chosen(gpu: Gpu, (b, s, t, num_heads, head_dim): (usize, usize, usize, usize, usize)) -> Option<Kernel> {
        let config = Attention { num_heads, causal: false };
        kernel(gpu, Shapes { b, s, t, c: num_heads * head_dim, head_dim }, config)
    }

    #[test]
    fn every_head_size_has_a_kernel_that_fits_the_gpu() {
        for gpu in [H200, RTX_4090] {
            for head_dim in (8..=512).step_by(8) {
                for t in [77, 4096] {
                    let kernel = chosen(gpu, (2, 4096, t, 8, head_dim)).unwrap();
                    assert!(kernel.fits(head_dim) && kernel.shared() <= gpu.shared, "{kernel:?}");
                }
            }
        }
        for head_dim in (8..=512).step_by(8) {
            let kernel = chosen(TURING, (2, 4096, 4096, 8, head_dim));
            assert_eq!(kernel.is_some(), head_dim <= 160, "{head_dim}");
            assert!(kernel.is_none_or(|kernel| kernel.shared() <= TURING.shared), "{head_dim}");
        }
        assert!(chosen(H200, (1, 64, 64, 1, 12)).is_none() && chosen(H200, (1, 64, 64, 1, 520)).is_none());
    }

    #[test]
    fn the_block_size_leaves_fewer_multiprocessors_idle() {
        let groups = |shape| match chosen(H200, shape) {
            Some(Kernel::Hopper { groups, .. }) => groups,
            _ => 0,
        };
        assert_eq!(groups((2, 4096, 4096, 10, 64)), 2); // SDXL at 1024²: 190 µs, with three groups 216
        assert_eq!(groups((2, 1024, 1024, 20, 64)), 3); // 31 µs, with two groups 34
        // On an H100, in bf16, for each layer of the whole step.
        assert_eq!(groups((1, 4608, 4608, 24, 128)), 2); // FLUX at 1024²: 502 µs, with three groups 508
        assert_eq!(groups((1, 4128, 4128, 30, 128)), 3); // Z-Image at 1024²: 442 µs, with two groups 478
    }
}
