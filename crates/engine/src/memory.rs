//! What a user says of memory.

use kiln_files::ByteSize;
use kiln_ops::Target;
use kiln_vae::Tiling;

/// Which mode a run begins in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The fastest that fits into the budget, or into the memory that is free.
    #[default]
    Auto,
    /// All networks stay in memory.
    Full,
    /// One network in memory at a time.
    Medvram,
    /// Of each network only what runs next is in memory.
    Lowvram,
}

/// How the autoencoder bounds its memory. What is not said is as the budget wants it; none of it changes a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VaeMemory {
    /// Decodes and encodes in strips of rows.
    pub tiling: bool,
    /// Rows of a strip, in pixels of the picture; `None` is what the budget leaves room for.
    pub tile_size: Option<usize>,
}

impl VaeMemory {
    /// The ways to decode a picture of this height, the fastest first.
    pub(crate) fn tilings(self, height: usize, target: Target) -> Vec<Tiling> {
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

/// What a user says of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The mode.
    pub mode: ModeChoice,
    /// A ceiling for what Kiln asks for: a card's memory, or on the processor weights, tensors and arenas.
    pub budget: Option<ByteSize>,
    /// Keeps a card's memory for the next allocation, rather than giving it back as the driver would.
    pub cuda_malloc: bool,
    /// Copies weights to a card while it computes.
    pub cuda_stream: bool,
    /// Keeps weights that wait for their turn in page-locked memory, from which copies are fast.
    pub pin_shared_memory: bool,
    /// The autoencoder's part.
    pub vae: VaeMemory,
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
        }
    }
}
