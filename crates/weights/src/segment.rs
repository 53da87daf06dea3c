//! Segments: the units of a network that are loaded, streamed and dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_ops::{EightBits, InputObserver, Int8Input, Packing, Weight};
use parking_lot::RwLock;

use crate::error::{Error, Result};
use crate::load::Placement;
use crate::param_spec::{ALIGNMENT, ParamSpec, SlabType};
use crate::slab_layout::SlabLayout;

/// The memory of a loaded segment.
pub(crate) struct Slab {
    /// One view for each parameter, all into the same storage.
    pub(crate) views: Vec<View>,
    /// One for each [`Stack`]; `None` for matrices in 8-bit integers, which are read one by one.
    pub(crate) stacks: Vec<Option<Weight>>,
    /// The memory of all views, flat.
    pub(crate) memory: Tensor,
    /// Keeps a slab on the CPU known to those that share it.
    pub(crate) held: Option<Arc<Tensor>>,
}

/// What a loaded segment has in memory.
pub(crate) struct Contents {
    /// Flat, on the device of the slab.
    pub(crate) memory: Tensor,
    /// See [`Slab::held`].
    pub(crate) held: Option<Arc<Tensor>>,
    /// The added biases by the index of the layer's matrix.
    pub(crate) biases: HashMap<usize, Tensor>,
}

/// Adjacent matrices in the slab that also form one matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    /// The index of the first one.
    pub(crate) first: usize,
    /// The number of matrices.
    pub(crate) count: usize,
}

/// A parameter in a slab.
pub(crate) enum View {
    /// A tensor in the checkpoint's layout.
    Tensor(Tensor),
    /// A weight that is packed for a matrix product.
    Weight(Weight),
}

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

struct Cell {
    name: String,
    slab: RwLock<Option<Slab>>,
    /// `None` for a segment that is not streamed.
    streamed: RwLock<Option<Streamed>>,
    /// Biases of linear layers that have none of their own, by the index of the layer's matrix. They are not part of
    /// the slab, and persist when it is replaced: a few thousand numbers of a LoRA.
    added_biases: RwLock<HashMap<usize, Tensor>>,
    /// The layers that are computed in 8 bits, by the index of the layer's weight.
    in_8_bits: RwLock<HashMap<usize, In8Bits>>,
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
    on_host: bool,
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

    /// Whether the slab stays in host memory on any device: token tables, of which few rows are used.
    pub fn on_host(&self) -> bool {
        self.on_host
    }

    /// The exact size of the slab in bytes, in these types.
    pub fn bytes(&self, slab: impl Into<SlabType>) -> usize {
        let slab = slab.into();
        SlabLayout::of(self, slab).len * slab.dtype.size_in_bytes()
    }

    /// Sets which parameters are in 8 bits in slabs that are made from now on.
    pub(crate) fn set_in_8_bits(&self, params: HashMap<usize, In8Bits>) {
        *self.cell.in_8_bits.write() = params;
    }

    /// How a parameter's layer is computed in 8 bits; `None` where it is not.
    pub(crate) fn in_8_bits(&self, index: usize) -> Option<In8Bits> {
        self.cell.in_8_bits.read().get(&index).cloned()
    }

    /// The format of a parameter in 8 bits; `None` for others.
    pub(crate) fn eight_bits(&self, index: usize) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&index).map(|layer| layer.kind)
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

    /// The flat memory of the slab, what keeps it known to those that share it, and the added biases; `None` without a slab.
    pub(crate) fn contents(&self) -> Option<Contents> {
        let slab = self.cell.slab.read();
        let slab = slab.as_ref()?;
        let biases = self.cell.added_biases.read().clone();
        Some(Contents { memory: slab.memory.clone(), held: slab.held.clone(), biases })
    }

    /// Replaces the added biases by tensors, by the index of the layer's matrix.
    pub(crate) fn set_bias_tensors(&self, biases: HashMap<usize, Tensor>) {
        *self.cell.added_biases.write() = biases;
    }

    /// Drops the slab. Its memory is freed once no operator uses it. A streamed segment is no longer streamed.
    pub fn unload(&self) {
        self.set_streamed(None);
        self.set_slab(None);
    }

    /// Whether the segment has its weights when it runs.
    pub fn is_loaded(&self) -> bool {
        self.is_streamed() || self.cell.slab.read().is_some()
    }

    /// Whether a stream provides the weights when the segment runs ([`crate::Stream`]).
    pub fn is_streamed(&self) -> bool {
        self.cell.streamed.read().is_some()
    }
}

/// One parameter of a segment: an index into the current slab.
#[derive(Clone)]
pub struct Param {
    cell: Arc<Cell>,
    index: usize,
    shape: Arc<[usize]>,
}

impl Param {
    /// The shape in the checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The name of its segment.
    pub fn segment(&self) -> &str {
        &self.cell.name
    }

    /// A parameter with the packing [`Packing::AsStored`], as a view into the slab.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] if the segment has no weights.
    pub fn tensor(&self) -> Result<Tensor> {
        self.view(|view| match view {
            View::Tensor(tensor) => Ok(tensor.clone()),
            View::Weight(weight) => Ok(weight.tensor().clone()),
        })
    }

    /// A parameter that is the matrix of a product, as a view into the slab, with its observer ([`Segments::observe`]).
    ///
    /// # Errors
    /// [`Error::NotLoaded`] if the segment has no weights.
    pub fn weight(&self) -> Result<Weight> {
        let weight = self.view(|view| match view {
            View::Weight(weight) => Ok(weight.clone()),
            View::Tensor(tensor) => Ok(Weight::plain(tensor)?),
        })?;
        let observer = self.cell.observers.read().get(&self.index).cloned();
        Ok(match observer {
            Some(observer) => weight.observed(observer),
            None => weight,
        })
    }

    /// How its layer is computed in 8 bits; `None` where it is not.
    pub fn eight_bits(&self) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&self.index).map(|layer| layer.kind)
    }

    /// The added bias of the linear layer with this matrix, which has no bias of its own.
    pub fn added_bias(&self) -> Option<Tensor> {
        self.cell.added_biases.read().get(&self.index).cloned()
    }

    fn view<T>(&self, get: impl FnOnce(&View) -> Result<T>) -> Result<T> {
        self.cell.with(|slab| slab.views.get(self.index).map(get))?
    }
}

/// The matrices of several linear layers with the same input as one matrix in a segment's slab.
#[derive(Clone)]
pub struct StackedParam {
    cell: Arc<Cell>,
    index: usize,
    /// The index of the first matrix.
    first: usize,
    shape: [usize; 2],
}

impl StackedParam {
    /// The shape `(layers * n, k)`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The name of its segment.
    pub fn segment(&self) -> &str {
        &self.cell.name
    }

    /// How the layers are computed in 8 bits; `None` where they are not.
    pub fn eight_bits(&self) -> Option<EightBits> {
        self.cell.in_8_bits.read().get(&self.first).map(|layer| layer.kind)
    }

    /// `(layers * n, k)`, a view into the slab.
    ///
    /// # Errors
    /// [`Error::NotLoaded`] if the segment has no weights.
    pub fn weight(&self) -> Result<Weight> {
        self.cell.with(|slab| slab.stacks.get(self.index).cloned().flatten())
    }
}

impl Cell {
    /// Applies `get` to the slab.
    fn with<T>(&self, get: impl FnOnce(&Slab) -> Option<T>) -> Result<T> {
        let slab = self.slab.read();
        slab.as_ref().and_then(get).ok_or_else(|| Error::NotLoaded(self.name.clone()))
    }
}

/// Declares the parameters of a segment. [`ParamBuilder::pp`] extends the checkpoint's names.
pub struct ParamBuilder<'a> {
    cell: &'a Arc<Cell>,
    params: &'a RefCell<Vec<ParamSpec>>,
    stacks: &'a RefCell<Vec<Stack>>,
    prefix: String,
    allows_8_bits: bool,
}

impl ParamBuilder<'_> {
    /// The builder for the part `name` inside this one.
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.key(name), ..*self }
    }

    /// The same builder for layers that may be computed in 8 bits ([`crate::EightBitLayers`]).
    pub fn allows_8_bits(&self) -> Self {
        Self { prefix: self.prefix.clone(), allows_8_bits: true, ..*self }
    }

    /// Declares the parameter `name` with this stored shape.
    pub fn param(&self, name: &str, shape: &[usize], packing: Packing) -> Param {
        let mut params = self.params.borrow_mut();
        let allows_8_bits = self.allows_8_bits && packing != Packing::AsStored;
        params.push(ParamSpec { key: self.key(name), shape: shape.to_vec(), packing, allows_8_bits });
        Param { cell: self.cell.clone(), index: params.len() - 1, shape: shape.into() }
    }

    /// Declares the last `count` parameters, matrices `(n, k)` of linear layers with the same input, as one matrix
    /// `(count * n, k)` as well, in the same memory. `None` if some layout would have gaps between them. Matrices whose
    /// rows have their own type may have gaps between rows, which the operators support.
    pub fn stack(&self, count: usize) -> Option<StackedParam> {
        let params = self.params.borrow();
        let first = params.len().checked_sub(count)?;
        let shape = &params.get(first)?.shape;
        let [n, k] = *shape.as_slice() else { return None };
        let alike = params[first..].iter().all(|param| param.packing == Packing::Linear && param.shape == *shape);
        // Checked for the narrowest type: what is aligned there is aligned in wider types.
        let elements = params[first].packed_elements();
        let gapless = elements == params[first].elements() && (elements * 2).is_multiple_of(ALIGNMENT);
        if !alike || !gapless {
            return None;
        }
        let mut stacks = self.stacks.borrow_mut();
        stacks.push(Stack { first, count });
        Some(StackedParam { cell: self.cell.clone(), index: stacks.len() - 1, first, shape: [count * n, k] })
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }
}

/// The segments of a network, in the order in which they run.
#[derive(Clone, Default)]
pub struct Segments(Vec<Segment>);

impl Segments {
    /// Declares a segment. `build` creates the module and declares its parameters, whose names start at the root.
    pub fn add<M>(&mut self, name: impl Into<String>, build: impl FnOnce(&ParamBuilder<'_>) -> M) -> SegmentModule<M> {
        self.declare(name.into(), false, build)
    }

    /// Declares a segment that stays in host memory.
    pub fn add_on_host<M>(
        &mut self,
        name: impl Into<String>,
        build: impl FnOnce(&ParamBuilder<'_>) -> M,
    ) -> SegmentModule<M> {
        self.declare(name.into(), true, build)
    }

    fn declare<M>(
        &mut self,
        name: String,
        on_host: bool,
        build: impl FnOnce(&ParamBuilder<'_>) -> M,
    ) -> SegmentModule<M> {
        let cell = Arc::new(Cell {
            name,
            slab: RwLock::default(),
            streamed: RwLock::default(),
            added_biases: RwLock::default(),
            in_8_bits: RwLock::default(),
            observers: RwLock::default(),
        });
        let (params, stacks) = (RefCell::default(), RefCell::default());
        let (prefix, allows_8_bits) = (String::new(), false);
        let module = build(&ParamBuilder { cell: &cell, params: &params, stacks: &stacks, prefix, allows_8_bits });
        let (params, stacks) = (params.into_inner().into(), stacks.into_inner().into());
        let segment = Segment { cell, params, stacks, on_host };
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
