//! The segments of a network, and modules that run with theirs.

use std::ops::Deref;

use super::{ParamBuilder, Place, Segment, Streamed};
use crate::error::{Error, Result};
use crate::param_spec::{ParamSpec, SlabType};

/// The segments of a network, in the order in which they run.
#[derive(Clone, Default)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// Declares a segment. `build` creates the module and declares its parameters, whose names start at the root.
    pub fn add<M>(&mut self, name: impl Into<String>, build: impl FnOnce(&ParamBuilder<'_>) -> M) -> SegmentModule<M> {
        self.declare(name.into(), Place::Device, build)
    }

    /// Declares a segment that stays in host memory.
    pub fn add_on_host<M>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&ParamBuilder<'_>) -> M,
    ) -> SegmentModule<M> {
        self.declare(name.into(), Place::Host, build)
    }

    /// Declares a segment of tables that take no memory: their rows are read from the source when they are used.
    pub fn add_in_source<M>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&ParamBuilder<'_>) -> M,
    ) -> SegmentModule<M> {
        self.declare(name.into(), Place::Source, build)
    }

    fn declare<M>(
        &mut self,
        name: String,
        place: Place,
        build: impl FnOnce(&ParamBuilder<'_>) -> M,
    ) -> SegmentModule<M> {
        let (segment, module) = Segment::build(name, place, build);
        self.0.push(segment.clone());
        SegmentModule { segment, module }
    }

    /// The sum of the slabs' sizes in bytes, in these types.
    pub fn bytes(&self, slab: impl Into<SlabType>) -> usize {
        let slab = slab.into();
        self.0.iter().map(|segment| segment.bytes(slab)).sum()
    }

    /// The number of parameters (numbers, not tensors) of the network.
    pub fn parameters(&self) -> usize {
        self.0.iter().flat_map(|segment| segment.params()).map(ParamSpec::elements).sum()
    }

    /// Whether any segment is streamed. Its weights are then at another address each time.
    pub fn is_streamed(&self) -> bool {
        self.0.iter().any(Segment::is_streamed)
    }

    /// Drops all slabs.
    pub fn unload(&self) {
        self.0.iter().for_each(Segment::unload);
    }
}

impl Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        &self.0
    }
}

/// A module and the segment with its parameters.
pub struct SegmentModule<M> {
    segment: Segment,
    module: M,
}

impl<M> SegmentModule<M> {
    /// Prepares the module to run: its weights are in memory while the guard lives. For a streamed module, this starts
    /// the copies ahead of it, and the end of the guard frees its slot for others.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] if the weights were never loaded; errors of a stream ([`crate::Stream`]).
    pub fn enter(&self) -> Result<Active<'_, M>> {
        let lease = match self.segment.streamed() {
            Some(streamed) => {
                streamed.by.enter(streamed.slot)?;
                Some(Lease(streamed))
            }
            None if self.segment.is_loaded() => None,
            None => return Err(Error::NotLoaded(self.segment.name().to_string())),
        };
        Ok(Active { module: &self.module, _lease: lease })
    }

    /// The module without its weights, for its shapes only.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The segment.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

/// A module whose weights are in memory.
pub struct Active<'a, M> {
    module: &'a M,
    _lease: Option<Lease>,
}

/// Leaves a streamed segment on drop.
struct Lease(Streamed);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.by.leave(self.0.slot);
    }
}

impl<M> Deref for Active<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.module
    }
}
