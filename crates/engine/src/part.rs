//! A network of a model: where its weights come from, and whether they are in memory.

use std::sync::Arc;

use candle_core::DType;
use kiln_weights::{ParamSource, Patch, Patched, Placement, Segment, Segments, load, misfits};

use crate::error::Result;

/// The weights of one network. They come and go; the network itself, which has none of its own, stays.
pub(crate) struct Part {
    /// The network's own segments: they share its slabs.
    segments: Segments,
    source: Arc<Patched<Box<dyn ParamSource>>>,
    placement: Placement,
}

impl Part {
    /// The weights of the network with these segments, none of which is read yet.
    pub(crate) fn new(segments: &Segments, source: impl ParamSource + 'static, placement: &Placement) -> Self {
        let source = Patched::new(Box::new(source) as Box<dyn ParamSource>);
        Self { segments: segments.clone(), source: Arc::new(source), placement: placement.clone() }
    }

    /// The network's segments.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Takes these patches and strengths in the place of those before. Where weights are there, the segments that
    /// change are read again, and no others. Tells whether any parameter changed.
    ///
    /// # Errors
    /// Those of [`kiln_weights::load`]. Segments that could not be read have no weights then: [`Self::enter`] reads
    /// them.
    pub(crate) fn patch(&self, patches: impl IntoIterator<Item = (Arc<Patch>, f32)>) -> Result<bool> {
        let changed = self.source.set(patches);
        let is_changed = |segment: &&Segment| segment.params().iter().any(|param| changed.contains(&param.key));
        let again: Vec<Segment> =
            self.segments.iter().filter(|segment| segment.is_loaded()).filter(is_changed).cloned().collect();
        // All of their memory goes first: old and new weights need not fit at once.
        again.iter().for_each(Segment::unload);
        load(&again, self.source.as_ref(), &self.placement)?;
        Ok(!changed.is_empty())
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
