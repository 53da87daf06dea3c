//! How much of a batch and of a picture an autoencoder works on at once.
//!
//! Not the network is tiled but its operators: they go over strips of rows, each with the rows around it that it reads,
//! and statistics are those of the whole map. So there are no seams, and on the processor a picture has the same bits in
//! every tiling.

use std::fmt;

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_nn::{MetaDevice, MetaTensor, TensorLike};

use crate::error::Result;

/// How much of a batch and of a picture is in memory at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tiling {
    /// All of it.
    #[default]
    Whole,
    /// One image of the batch.
    Sliced,
    /// One image, and what lies between its feature maps in strips: a residual block holds its input and its result.
    Strips {
        /// Rows of the picture in a strip; of smaller maps as many as have as many pixels.
        rows: usize,
        /// Whether the block at the picture's size holds one map alone. It computes most convolutions twice then, and
        /// that before it three times.
        recompute: bool,
    },
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Sliced => f.write_str("picture by picture"),
            Self::Strips { rows, recompute } => {
                write!(f, "strips of {rows} rows{}", if *recompute { ", computed twice" } else { "" })
            }
        }
    }
}

/// Rows of strips that [`Tiling::fastest`] tries.
const ROWS: [usize; 7] = [512, 256, 128, 64, 32, 16, 8];

/// Rows of strips that fill a card: of 512x512 in f16 an H200 takes 1.25 times the whole's time with strips of 64 rows,
/// 1.7 times where it computes twice, and with 16 rows 2.8 times.
const ROWS_OF_A_CARD: usize = 64;

/// The strips of a picture.
#[derive(Clone, Copy)]
pub(crate) struct StripPlan {
    /// Pixels of a strip.
    pub(crate) pixels: usize,
    pub(crate) recompute: bool,
}

impl Tiling {
    /// Whether it takes a device at most a fifth longer or so: nothing is computed twice, and on a card strips fill it.
    pub fn is_cheap(self, target: Target) -> bool {
        match self {
            Self::Strips { rows, recompute } => !recompute && (rows >= ROWS_OF_A_CARD || !target.is_gpu()),
            _ => true,
        }
    }

    /// All that one picture may need, about the fastest first. On a card strips of few rows cost more than computing
    /// twice.
    pub fn of_a_picture(target: Target) -> impl Iterator<Item = Self> {
        let least = if target.is_gpu() { ROWS_OF_A_CARD } else { 0 };
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
        let all = Self::of_a_picture(target).flat_map(|tiling| match tiling {
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

    /// The strips of pictures that are `width` wide.
    pub(crate) fn strips(self, width: usize) -> Option<StripPlan> {
        match self {
            Self::Strips { rows, recompute } => Some(StripPlan { pixels: rows.saturating_mul(width), recompute }),
            _ => None,
        }
    }

    /// Runs `f` over the images of `batch` `(b, ..)`, one after another unless they run as one.
    pub(crate) fn over_images<T: TensorLike>(self, batch: &T, f: impl Fn(&T) -> Result<T>) -> Result<T> {
        let b = batch.dims().first().copied().unwrap_or(0);
        if self == Self::Whole || b <= 1 {
            return f(batch);
        }
        let images = (0..b).map(|image| f(&batch.narrow(0, image, 1)?)).collect::<Result<Vec<_>>>()?;
        Ok(T::cat(&images.iter().collect::<Vec<_>>(), 0)?)
    }
}

/// The most bytes that `run` holds at once, its input of `shape` in `dtype` counted.
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
