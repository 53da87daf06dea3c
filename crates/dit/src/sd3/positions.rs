//! The table of positions, of which an image takes the center.

use kiln_nn::{Result, TensorLike};
use kiln_weights::{Packing, Param, ParamBuilder, SegmentModule, Segments};

/// The vectors of all positions. They stay in the host's memory: SD3.5 medium has 432 MiB of them in bf16, of which an image of
/// 1024x1024 pixels takes 12.
pub(super) struct Positions {
    table: Param,
    /// Rows and columns of the table.
    side: usize,
    channels: usize,
}

impl Positions {
    /// Declares the segment `name` with `pos_embed.pos_embed` `(1, side side, channels)`.
    pub(super) fn segment(segments: &mut Segments, name: &str, side: usize, channels: usize) -> SegmentModule<Self> {
        segments.add_on_host(name, |p| Self::new(p, side, channels))
    }

    fn new(p: &ParamBuilder<'_>, side: usize, channels: usize) -> Self {
        let table = p.param("pos_embed.pos_embed", &[1, side * side, channels], Packing::AsStored);
        Self { table, side, channels }
    }

    /// The vectors of `rows` times `columns` tokens in the center of the table, `(rows columns, channels)`, on `device`.
    ///
    /// # Errors
    /// The error of [`TensorLike::narrow`] if the table has fewer.
    pub(super) fn crop<T: TensorLike>(&self, [rows, columns]: [usize; 2], device: &T::Device) -> Result<T> {
        let [top, left] = [rows, columns].map(|size| self.side.saturating_sub(size) / 2);
        let table = T::table(&self.table, device)?.reshape(&[self.side, self.side, self.channels])?;
        let center = table.narrow(0, top, rows)?.narrow(1, left, columns)?.contiguous()?;
        center.reshape(&[rows * columns, self.channels])?.to_device(device)
    }
}
