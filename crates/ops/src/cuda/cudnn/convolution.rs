//! A convolution as a graph of cuDNN: `y = conv(x, w) + residual + bias`, summed in f32, in one kernel.
//!
//! The residual is added before the bias: in this order cuDNN has precompiled engines for the graph. In the other order
//! it compiles a kernel at run time, and a slower one (cuDNN 9.19: 38 us against 29 for 320 channels at 64x64, batch 2,
//! on an H200).

use candle_core::DType;

use super::api::Raw;
use super::descriptor::{Attribute, Descriptor, Kind, Type};
use super::{Api, WORKSPACE};
use crate::error::Result;

/// The shapes, the type and the addends of a convolution: everything that the choice of an engine depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Convolution {
    /// `(b, h, w, c_in)`.
    pub(crate) x: [usize; 4],
    /// `(c_out, kh, kw, c_in)`.
    pub(crate) weight: [usize; 4],
    /// `(b, h_out, w_out, c_out)`.
    pub(crate) y: [usize; 4],
    pub(crate) stride: usize,
    /// Rows of zeros above and columns of zeros on the left.
    pub(crate) pad_before: [usize; 2],
    /// Rows of zeros below and columns of zeros on the right.
    pub(crate) pad_after: [usize; 2],
    /// f16 or bf16.
    pub(crate) dtype: DType,
    pub(crate) bias: bool,
    pub(crate) residual: bool,
}

/// The identifiers of the graph's tensors.
pub(super) mod id {
    pub(in super::super) const X: i64 = 1;
    pub(in super::super) const WEIGHT: i64 = 2;
    pub(in super::super) const Y: i64 = 3;
    pub(in super::super) const BIAS: i64 = 4;
    pub(in super::super) const RESIDUAL: i64 = 5;
    pub(super) const PRODUCT: i64 = 6;
    pub(super) const SUM: i64 = 7;
}

/// An engine with its settings, ready to launch.
pub(super) struct Plan {
    pub(super) plan: Descriptor,
    /// The descriptors that the plan was made from, which it may refer to.
    _parts: Vec<Descriptor>,
}

const FLOAT: i32 = 0;
const HALF: i32 = 2;
const BFLOAT16: i32 = 9;

impl Convolution {
    /// The first engine of the heuristic that fits the workspace, compiles nothing, and sums directly in a fixed order.
    /// `None` if there is none.
    pub(super) fn plan(&self, api: &'static Api, handle: Raw) -> Result<Option<Plan>> {
        let mut parts = Vec::new();
        let graph = self.graph(api, handle, &mut parts)?;
        const MODE_A: i32 = 3;
        let heuristic = Descriptor::new(api, Kind::EngineHeuristic)?;
        heuristic.link(Attribute::HeuristicGraph, &[&graph])?;
        heuristic.set(Attribute::HeuristicMode, Type::HeuristicMode, &[MODE_A])?;
        // A graph without any engine is an error here, not an empty list.
        let Ok(heuristic) = heuristic.finalize() else { return Ok(None) };
        parts.push(graph);
        const CANDIDATES: usize = 24;
        let mut configs =
            (0..CANDIDATES).map(|_| Descriptor::new(api, Kind::EngineConfig)).collect::<Result<Vec<_>>>()?;
        let mut raw: Vec<Raw> = configs.iter().map(Descriptor::raw).collect();
        let found = heuristic.get(Attribute::HeuristicResults, Type::Descriptor, &mut raw)?;
        configs.truncate(found);
        parts.push(heuristic);
        for config in configs {
            let Some(engine) = accepted(api, &config)? else { continue };
            let plan = Descriptor::new(api, Kind::ExecutionPlan)?;
            plan.set(Attribute::PlanHandle, Type::Handle, &[handle])?;
            plan.link(Attribute::PlanConfig, &[&config])?;
            let Ok(plan) = plan.finalize() else { continue }; // the heuristic may propose engines that do not run
            let mut workspace = [0i64];
            plan.get(Attribute::PlanWorkspaceSize, Type::Int64, &mut workspace)?;
            if workspace[0] <= WORKSPACE as i64 {
                tracing::debug!("{self:?}: cuDNN engine {engine}");
                parts.push(config);
                return Ok(Some(Plan { plan, _parts: parts }));
            }
        }
        tracing::debug!("{self:?}: no cuDNN engine");
        Ok(None)
    }

    fn graph(&self, api: &'static Api, handle: Raw, parts: &mut Vec<Descriptor>) -> Result<Descriptor> {
        let dtype = if self.dtype == DType::BF16 { BFLOAT16 } else { HALF };
        let c_out = self.weight[0];
        let x = tensor(api, id::X, self.x, dtype, false)?;
        let weight = tensor(api, id::WEIGHT, self.weight, dtype, false)?;
        let y = tensor(api, id::Y, self.y, dtype, false)?;
        let addends = [
            self.residual.then(|| tensor(api, id::RESIDUAL, self.y, dtype, false)).transpose()?,
            self.bias.then(|| tensor(api, id::BIAS, [1, 1, 1, c_out], dtype, false)).transpose()?,
        ];
        let addends: Vec<_> = addends.into_iter().flatten().collect();
        // The results of all operations but the last stay inside of the kernel, in f32.
        let mut inner = [id::PRODUCT, id::SUM][..addends.len()].iter();
        let mut result = || match inner.next() {
            Some(&id) => tensor(api, id, self.y, FLOAT, true).map(Some),
            None => Ok(None),
        };

        let geometry = self.geometry(api)?;
        let mut sum = result()?;
        let product = Descriptor::new(api, Kind::OperationConvolutionForward)?;
        product.link(Attribute::ForwardX, &[&x])?;
        product.link(Attribute::ForwardW, &[&weight])?;
        product.link(Attribute::ForwardY, &[sum.as_ref().unwrap_or(&y)])?;
        product.link(Attribute::ForwardConvolution, &[&geometry])?;
        product.set(Attribute::ForwardAlpha, Type::Float, &[1f32])?;
        product.set(Attribute::ForwardBeta, Type::Float, &[0f32])?;
        let mut operations = vec![product.finalize()?];

        for addend in &addends {
            let add = add(api)?;
            let next = result()?;
            let operation = Descriptor::new(api, Kind::OperationPointwise)?;
            operation.link(Attribute::AddPointwise, &[&add])?;
            operation.link(Attribute::AddX, &[sum.as_ref().unwrap_or(&y)])?;
            operation.link(Attribute::AddB, &[addend])?;
            operation.link(Attribute::AddY, &[next.as_ref().unwrap_or(&y)])?;
            operations.push(operation.finalize()?);
            parts.push(add);
            parts.extend(std::mem::replace(&mut sum, next));
        }

        let graph = Descriptor::new(api, Kind::OperationGraph)?;
        graph.set(Attribute::GraphHandle, Type::Handle, &[handle])?;
        graph.link(Attribute::GraphOperations, &operations.iter().collect::<Vec<_>>())?;
        let graph = graph.finalize()?;
        parts.extend([x, weight, y, geometry]);
        parts.extend(addends);
        parts.extend(operations);
        Ok(graph)
    }

    fn geometry(&self, api: &'static Api) -> Result<Descriptor> {
        const CROSS_CORRELATION: i32 = 1;
        let both = |value: usize| [value as i64; 2];
        let geometry = Descriptor::new(api, Kind::Convolution)?;
        geometry.set(Attribute::ConvolutionSpatialDims, Type::Int64, &[2i64])?;
        geometry.set(Attribute::ConvolutionComputeType, Type::Element, &[FLOAT])?;
        geometry.set(Attribute::ConvolutionMode, Type::ConvolutionMode, &[CROSS_CORRELATION])?;
        geometry.set(Attribute::ConvolutionPrePaddings, Type::Int64, &self.pad_before.map(|pad| pad as i64))?;
        geometry.set(Attribute::ConvolutionPostPaddings, Type::Int64, &self.pad_after.map(|pad| pad as i64))?;
        geometry.set(Attribute::ConvolutionDilations, Type::Int64, &both(1))?;
        geometry.set(Attribute::ConvolutionStrides, Type::Int64, &both(self.stride))?;
        geometry.finalize()
    }
}

/// A contiguous `(n, h, w, c)` tensor. cuDNN's dimensions are `(n, c, h, w)` whatever the order in memory.
fn tensor(api: &'static Api, id: i64, shape: [usize; 4], dtype: i32, is_virtual: bool) -> Result<Descriptor> {
    let [n, h, w, c] = shape.map(|extent| extent as i64);
    let tensor = Descriptor::new(api, Kind::Tensor)?;
    tensor.set(Attribute::TensorId, Type::Int64, &[id])?;
    tensor.set(Attribute::TensorDataType, Type::Element, &[dtype])?;
    tensor.set(Attribute::TensorDimensions, Type::Int64, &[n, c, h, w])?;
    tensor.set(Attribute::TensorStrides, Type::Int64, &[h * w * c, 1, w * c, c])?;
    tensor.set(Attribute::TensorAlignment, Type::Int64, &[super::ALIGNMENT as i64])?;
    tensor.set(Attribute::TensorIsVirtual, Type::Boolean, &[is_virtual])?;
    tensor.finalize()
}

fn add(api: &'static Api) -> Result<Descriptor> {
    const ADD: i32 = 0;
    let add = Descriptor::new(api, Kind::Pointwise)?;
    add.set(Attribute::PointwiseMode, Type::PointwiseMode, &[ADD])?;
    add.set(Attribute::PointwiseMathPrecision, Type::Element, &[FLOAT])?;
    add.finalize()
}

/// The number of the engine, if its numerical notes allow it.
fn accepted(api: &'static Api, config: &Descriptor) -> Result<Option<i64>> {
    const REDUCED_PRECISION_REDUCTION: i32 = 2;
    const FOURIER_TO_WINOGRAD: std::ops::RangeInclusive<i32> = 3..=8; // FFT, no fixed order, four sizes of Winograd
    const RUNTIME_COMPILATION_TO_REORDERED: std::ops::RangeInclusive<i32> = 0..=2;
    let engine = Descriptor::new(api, Kind::Engine)?;
    config.get(Attribute::ConfigEngine, Type::Descriptor, &mut [engine.raw()])?;
    let mut notes = [0i32; 16];
    let count = engine.get(Attribute::EngineNumericalNotes, Type::NumericalNote, &mut notes)?;
    let exact =
        !notes[..count].iter().any(|note| *note == REDUCED_PRECISION_REDUCTION || FOURIER_TO_WINOGRAD.contains(note));
    let count = engine.get(Attribute::EngineBehaviorNotes, Type::BehaviorNote, &mut notes)?;
    let ready = !notes[..count].iter().any(|note| RUNTIME_COMPILATION_TO_REORDERED.contains(note));
    let mut index = [0i64];
    engine.get(Attribute::EngineIndex, Type::Int64, &mut index)?;
    Ok((exact && ready).then_some(index[0]))
}
