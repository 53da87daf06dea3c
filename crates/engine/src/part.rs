//! A network of a model: where its weights come from, and whether they are in memory.

use std::sync::Arc;

use candle_core::DType;
use kiln_weights::{ParamSource, Placement, Segment, Segments, load, misfits};

use crate::error::Result;

/// The weights of one network. They come and go; the network itself, which has none of its own, stays.
pub(crate) struct Part {
    /// The network's own segments: they share its slabs.
    segments: Segments,
    source: Arc<dyn ParamSource>,
    placement: Placement,
}

impl Part {
    /// The weights of the network with these segments, none of which is read yet.
    pub(crate) fn new(segments: &Segments, source: impl ParamSource + 'static, placement: &Placement) -> Self {
        Self { segments: segments.clone(), source: Arc::new(source), placement: placement.clone() }
    }

    /// Where the weights are kept, and in which type.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Refuses a source that has not all of the weights, without reading any.
    ///
    /// # Errors
    /// As [`kiln_weights::load`] would: the first tensor that is missing or has another shape.
    pub(crate) fn check(&self) -> Result<()> {
        misfits(&self.segments, self.source.as_ref()).into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Reads the weights, if they are not there.
    pub(crate) fn enter(&self) -> Result<()> {
        if !self.segments.iter().all(Segment::is_loaded) {
            load(&self.segments, self.source.as_ref(), &self.placement)?;
        }
        Ok(())
    }

    /// Gives the weights' memory back.
    pub(crate) fn leave(&self) {
        self.segments.unload();
    }

    /// Gives the weights' memory back; from now on they are of another type.
    pub(crate) fn set_dtype(&mut self, dtype: DType) {
        self.leave();
        self.placement.dtype = dtype;
    }
}
