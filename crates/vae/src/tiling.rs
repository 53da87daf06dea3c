//! The parts of a batch and of an image that an autoencoder processes at once.
//!
//! The operators are tiled, not the network: they run over strips of rows, each with the adjacent rows that it reads,
//! and statistics are those of the whole map. So there are no seams, and on the CPU an image has the same bits in every
//! tiling.

use std::fmt;

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};

use crate::error::Result;

/// The parts of a batch and of an image that are in memory at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tiling {
    /// The whole batch.
    #[default]
    Whole,
    /// One image of the batch.
    Sliced,
    /// One image, with intermediate maps in strips: a residual block stores only its input and its output.
    Strips {
        /// Rows of the image in a strip. Strips of smaller maps have as many pixels.
        rows: usize,
        /// Whether the block at the image's size stores only one map. It computes most convolutions twice then, and the
        /// one before it three times.
        recompute: bool,
    },
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Sliced => f.write_str("image by image"),
            Self::Strips { rows, recompute } => {
                write!(f, "strips of {rows} rows{}", if *recompute { ", computed twice" } else { "" })
            }
        }
    }
}

/// The rows of strips to try in [`Tiling::fastest`].
const ROWS: [usize; 7] = [512, 256, 128, 64, 32, 16, 8];

/// The rows of strips that fill a GPU: for 512x512 in f16, an H200 takes 1.25 times the time of the whole image with
/// strips of 64 rows, 1.7 times with recomputation, and 2.8 times with 16 rows.
const GPU_ROWS: usize = 64;

/// The strips of an image.
#[derive(Clone, Copy)]
pub(crate) struct StripPlan {
    /// Pixels of a strip.
    pub(crate) pixels: usize,
    pub(crate) recompute: bool,
}

impl Tiling {
    /// Whether it is at most about a fifth slower: nothing is computed twice, and on a GPU the strips fill it.
    pub fn is_cheap(self, target: Target) -> bool {
        match self {
            Self::Strips { rows, recompute } => !recompute && (rows >= GPU_ROWS || !target.is_gpu()),
            _ => true,
        }
    }

    /// All tilings for one image, approximately fastest first. On a GPU, strips of few rows cost more than
    /// recomputation.
    pub fn for_one_image(target: Target) -> impl Iterator<Item = Self> {
        let least = if target.is_gpu() { GPU_ROWS } else { 0 };
        let strips = |recompute, low: bool| {
            let rows = ROWS.into_iter().filter(move |&rows| (rows < least) == low);
            rows.map(move |rows| Self::Strips { rows, recompute })
        };
        let high = strips(false, false).chain(strips(true, false));
        [Self::Whole].into_iter().chain(high).chain(strips(false, true)).chain(strips(true, true))
    }

    /// The fastest tiling whose footprint is at most `bytes`, if there is one.
    pub(crate) fn fastest(
        target: Target,
        bytes: usize,
        footprint: impl Fn(Self) -> Result<usize>,
    ) -> Result<Option<Self>> {
        let all = Self::for_one_image(target).flat_map(|tiling| match tiling {
            Self::Whole => vec![Self::Whole, Self::Sliced],
            strips => vec![strips],
        });
        for tiling in all {
            if footprint(tiling)? <= bytes {
                return Ok(Some(tiling));
            }
        }
        Ok(None)
    }

    /// The strips of images of this width.
    pub(crate) fn strips(self, width: usize) -> Option<StripPlan> {
        match self {
            Self::Strips { rows, recompute } => Some(StripPlan { pixels: rows.saturating_mul(width), recompute }),
            _ => None,
        }
    }

    /// Runs `f` over the images of `batch` `(b, ..)`: one after another, or all at once if the tiling allows.
    pub(crate) fn over_images<T: TensorLike>(self, batch: &T, f: impl Fn(&T) -> Result<T>) -> Result<T> {
        let b = batch.dims().first().copied().unwrap_or(0);
        if self == Self::Whole || b <= 1 {
            return f(batch);
        }
        let images = (0..b).map(|image| f(&batch.narrow(0, image, 1)?)).collect::<Result<Vec<_>>>()?;
        Ok(T::cat(&images.iter().collect::<Vec<_>>(), 0)?)
    }
}

/// The memory peak of `run` in bytes, including its input of `shape` in `dtype`.
pub(crate) fn footprint(
    target: Target,
    shape: &[usize],
    dtype: DType,
    run: impl FnOnce(&MetaTensor) -> Result<()>,
) -> Result<usize> {
    let device = MetaDevice::new(target, dtype);
    run(&device.tensor(shape, dtype))?;
    Ok(device.ledger().peak())
}
