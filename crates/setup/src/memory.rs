//! The user's memory options.

use kiln_files::ByteSize;
use kiln_ops::Target;
use kiln_vae::Tiling;

/// The initial mode of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The fastest mode that fits into the budget, or into the free memory.
    #[default]
    Auto,
    /// All networks stay in memory.
    Full,
    /// One network in memory at a time.
    Medvram,
    /// Of each network only what runs next is in memory.
    Lowvram,
}

/// The memory options of the autoencoder. Unset options follow from the budget; none of them changes an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VaeMemory {
    /// Decodes and encodes in strips of rows.
    pub tiling: bool,
    /// Rows of a strip in image pixels; `None` uses the largest strip that fits.
    pub tile_size: Option<usize>,
}

impl VaeMemory {
    /// The possible tilings for an image of this height, the fastest first.
    pub fn tilings(self, height: usize, target: Target) -> Vec<Tiling> {
        let strips = |recompute| self.tile_size.map(|rows| Tiling::Strips { rows, recompute });
        if self.tile_size.is_some() {
            return [false, true].into_iter().filter_map(strips).collect();
        }
        let wanted = |tiling: &Tiling| match *tiling {
            Tiling::Strips { rows, .. } => rows < height,
            _ => !self.tiling,
        };
        Tiling::for_one_image(target).filter(wanted).collect()
    }
}

/// The user's memory options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The mode.
    pub mode: ModeChoice,
    /// A limit on Kiln's allocations: GPU memory, or on the CPU weights, tensors and arenas.
    pub budget: Option<ByteSize>,
    /// Keeps freed GPU memory for the next allocation instead of returning it to the driver.
    pub cuda_malloc: bool,
    /// Copies weights to a GPU in parallel with computing.
    pub cuda_stream: bool,
    /// Stores offloaded weights in pinned memory, from which copies are fast.
    pub pin_shared_memory: bool,
    /// The options of the autoencoder.
    pub vae: VaeMemory,
    /// Engines of this process that share the device's memory, or the budget: each plans with its part. At least 1.
    pub shared_by: usize,
    /// Bytes of the device's memory, or of the budget, that other engines hold while this one runs.
    pub held_by_others: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            mode: ModeChoice::Auto,
            budget: None,
            cuda_malloc: true,
            cuda_stream: true,
            pin_shared_memory: true,
            vae: VaeMemory::default(),
            shared_by: 1,
            held_by_others: 0,
        }
    }
}
