//! Segments: the units of a network that are loaded, streamed and dropped.

mod builder;
mod network;
mod param;
mod slab;

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_ops::{EightBits, InputObserver, Int8Input, MatrixType, Packing};
use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::kept::Kept;
use crate::load::Placement;
use crate::param_spec::{ParamSpec, SlabType};
use crate::slab_layout::SlabLayout;
use crate::source::ParamSource;

pub use builder::ParamBuilder;
pub use network::{Active, SegmentModule, Segments};
pub use param::{Param, StackedParam};
pub(crate) use slab::{Contents, Slab, Stack, View};

/// Provides a segment's weights before it runs, and may remove them afterwards: a stream.
pub(crate) trait Streamer: Send + Sync {
    /// Called before segment number `slot` of the stream runs. Its slab is set when this returns.
    fn enter(&self, slot: usize) -> Result<()>;

    /// Called after it ran, for every `enter` that succeeded.
    fn leave(&self, slot: usize);
}

/// The stream of a segment, and the segment's index in it.
#[derive(Clone)]
pub(crate) struct Streamed {
    pub(crate) by: Arc<dyn Streamer>,
    pub(crate) slot: usize,
}

/// Where a segment's parameters are while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a slab on the network's device.
    Device,
    /// In a slab in host memory.
    Host,
    /// In the source, from which rows are read into host memory.
    Source,
}

/// Where the rows of tables are read, and their type in memory.
#[derive(Clone)]
struct RowSource {
    source: Arc<dyn ParamSource>,
    dtype: DType,
    /// The segment's parameters, for their names.
    params: Arc<[ParamSpec]>,
}

/// State shared by a segment and its parameters, and the part that changes while the network lives.
struct Cell {
    name: String,
    slab: RwLock<Option<Slab>>,
    /// `None` for a segment that is not streamed.
    streamed: RwLock<Option<Streamed>>,
    /// The source of a table's rows, if they are read when they are used.
    rows: RwLock<Option<RowSource>>,
    /// Biases of linear layers that have none of their own, by the index of the layer's matrix. They are not part of
    /// the slab, and persist when it is replaced: a few thousand numbers of a LoRA.
    added_biases: RwLock<HashMap<usize, Tensor>>,
    /// The layers that are computed in 8 bits, by the index of the layer's weight.
    in_8_bits: RwLock<HashMap<usize, In8Bits>>,
    /// The types of matrices that stay as they are stored.
    kept: RwLock<Kept>,
    /// The observer of the products with a weight, by its index.
    observers: RwLock<HashMap<usize, Arc<dyn InputObserver>>>,
}

/// How a layer is computed in 8 bits.
#[derive(Clone)]
pub(crate) struct In8Bits {
    pub(crate) kind: EightBits,
    /// How its input becomes bytes.
    pub(crate) input: Arc<Int8Input>,
}

/// A part of a network whose parameters are in one contiguous slab: a residual block, a transformer layer, ...
#[derive(Clone)]
pub struct Segment {
    cell: Arc<Cell>,
    params: Arc<[ParamSpec]>,
    stacks: Arc<[Stack]>,
    place: Place,
}

impl Segment {
    /// The name, in the checkpoint's terms (`down_blocks.0.resnets.1`).
    pub fn name(&self) -> &str {
        &self.cell.name
    }

    /// The parameters, in the order of the slab.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    pub(crate) fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// Whether the parameters stay in host memory on any device: token tables, of which few rows are used.
    pub fn on_host(&self) -> bool {
        self.place != Place::Device
    }

    /// Whether it has no slab: rows are read from the source when they are used ([`crate::load_open`]).
    pub fn in_source(&self) -> bool {
        self.place == Place::Source
    }

    /// The exact size of the slab in bytes, in these types; 0 for tables whose rows are read from the source.
    pub fn bytes(&self, slab: impl Into<SlabType>) -> usize {
        if self.in_source() {
            return 0;
        }
        let slab = slab.into();
        SlabLayout::of(self, slab).len * slab.dtype.size_in_bytes()
    }

    /// Sets which parameters are in 8 bits in slabs that are made from now on.
    pub(crate) fn set_in_8_bits(&self, params: HashMap<usize, In8Bits>) {
        *self.cell.in_8_bits.write() = params;
    }

    /// How a parameter's layer is computed in 8 bits; `None` if it is not.
    pub(crate) fn in_8_bits(&self, index: usize) -> Option<In8Bits> {
        self.cell.in_8_bits.read().get(&index).cloned()
    }

    /// The format of a parameter in 8 bits; `None` for others.
    pub(crate) fn eight_bits(&self, index: usize) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&index).map(|layer| layer.kind)
    }

    /// Sets which parameters stay as they are stored in slabs that are made from now on.
    pub(crate) fn set_kept(&self, params: Kept) {
        *self.cell.kept.write() = params;
    }

    /// The type in which a parameter stays as it is stored.
    pub(crate) fn kept(&self, index: usize) -> Option<MatrixType> {
        self.cell.kept.read().get(&index).copied()
    }

    /// All parameters that stay as they are stored.
    pub(crate) fn all_kept(&self) -> Kept {
        self.cell.kept.read().clone()
    }

    /// Sets the observers of the products with these weights, and removes all others.
    pub(crate) fn set_observers(&self, observers: HashMap<usize, Arc<dyn InputObserver>>) {
        *self.cell.observers.write() = observers;
    }

    /// Sets or removes the segment's slab, and returns the previous one.
    pub(crate) fn set_slab(&self, slab: Option<Slab>) -> Option<Slab> {
        std::mem::replace(&mut *self.cell.slab.write(), slab)
    }

    /// Sets or removes the stream that provides the slab when the segment runs.
    pub(crate) fn set_streamed(&self, streamed: Option<Streamed>) {
        *self.cell.streamed.write() = streamed;
    }

    /// Sets the source of a table's rows, and their type in memory.
    pub(crate) fn set_rows(&self, source: Arc<dyn ParamSource>, dtype: DType) {
        *self.cell.rows.write() = Some(RowSource { source, dtype, params: self.params.clone() });
    }

    fn streamed(&self) -> Option<Streamed> {
        self.cell.streamed.read().clone()
    }

    /// Replaces the added biases: elements by the declared name of the bias that a linear layer of the segment lacks.
    /// `placement` is their device and type. Names that belong to no such layer are ignored.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set_added_biases(&self, biases: &HashMap<String, Vec<f32>>, placement: &Placement) -> Result<()> {
        let mut added = HashMap::new();
        for (i, param) in self.params.iter().enumerate().filter(|_| !biases.is_empty()) {
            let bias = param.key.strip_suffix("weight").and_then(|path| biases.get(&format!("{path}bias")));
            if let Some(bias) = bias.filter(|_| param.packing == Packing::Linear) {
                let bias = Tensor::from_slice(bias, bias.len(), &Device::Cpu)?.to_dtype(placement.dtype)?;
                added.insert(i, bias.to_device(&placement.device)?);
            }
        }
        *self.cell.added_biases.write() = added;
        Ok(())
    }

    /// The flat memory of the slab, what keeps it known to those that share it, and the added biases; `None` without a slab, or
    /// if it is in the memory of a device that is not candle's.
    pub(crate) fn contents(&self) -> Option<Contents> {
        let slab = self.cell.slab.read();
        let slab = slab.as_ref()?;
        let biases = self.cell.added_biases.read().clone();
        Some(Contents { memory: slab.memory.clone()?, held: slab.held.clone(), biases })
    }

    /// Replaces the added biases by tensors, by the index of the layer's matrix.
    pub(crate) fn set_bias_tensors(&self, biases: HashMap<usize, Tensor>) {
        *self.cell.added_biases.write() = biases;
    }

    /// Drops the slab. Its memory is freed once no operator uses it. A streamed segment is no longer streamed.
    pub fn unload(&self) {
        self.set_streamed(None);
        *self.cell.rows.write() = None;
        self.set_slab(None);
    }

    /// Whether the segment has its weights when it runs.
    pub fn is_loaded(&self) -> bool {
        self.is_streamed() || self.cell.slab.read().is_some() || self.cell.rows.read().is_some()
    }

    /// Whether a stream provides the weights when the segment runs ([`crate::Stream`]).
    pub fn is_streamed(&self) -> bool {
        self.cell.streamed.read().is_some()
    }
}

impl Cell {
    /// That of a segment without weights.
    fn new(name: String) -> Self {
        Self {
            name,
            slab: RwLock::default(),
            streamed: RwLock::default(),
            rows: RwLock::default(),
            added_biases: RwLock::default(),
            in_8_bits: RwLock::default(),
            kept: RwLock::default(),
            observers: RwLock::default(),
        }
    }

    /// Applies `get` to the slab.
    fn with<T>(&self, get: impl FnOnce(&Slab) -> Option<T>) -> Result<T> {
        let slab = self.slab.read();
        slab.as_ref().and_then(get).ok_or_else(|| Error::NotLoaded(self.name.clone()))
    }
}
