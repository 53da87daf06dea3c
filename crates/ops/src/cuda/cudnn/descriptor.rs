//! cuDNN's descriptors: objects with attributes, which are set, then finalized, then read.
//!
//! The numbers are those of `cudnn_graph.h`, which are the same in versions 8 and 9.

use std::ffi::c_void;

use super::api::{Api, Raw};
use crate::error::Result;

/// The kinds of descriptors.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Pointwise = 0,
    Convolution = 1,
    Engine = 2,
    EngineConfig = 3,
    EngineHeuristic = 4,
    ExecutionPlan = 5,
    OperationConvolutionForward = 10,
    OperationPointwise = 13,
    OperationGraph = 15,
    VariantPack = 16,
    Tensor = 17,
}

/// The attributes that convolutions set or read.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    PointwiseMode = 0,
    PointwiseMathPrecision = 1,
    ConvolutionComputeType = 100,
    ConvolutionMode = 101,
    ConvolutionDilations = 102,
    ConvolutionStrides = 103,
    ConvolutionPostPaddings = 104,
    ConvolutionPrePaddings = 105,
    ConvolutionSpatialDims = 106,
    HeuristicMode = 200,
    HeuristicGraph = 201,
    HeuristicResults = 202,
    ConfigEngine = 300,
    PlanHandle = 400,
    PlanConfig = 401,
    PlanWorkspaceSize = 402,
    ForwardAlpha = 700,
    ForwardBeta = 701,
    ForwardConvolution = 702,
    ForwardW = 703,
    ForwardX = 704,
    ForwardY = 705,
    AddPointwise = 750,
    AddX = 751,
    AddB = 752,
    AddY = 753,
    GraphHandle = 800,
    GraphOperations = 801,
    TensorAlignment = 900,
    TensorDataType = 901,
    TensorDimensions = 902,
    TensorStrides = 903,
    TensorId = 906,
    TensorIsVirtual = 907,
    PackIds = 1000,
    PackPointers = 1001,
    PackWorkspace = 1003,
    EngineIndex = 1301,
    EngineNumericalNotes = 1303,
    EngineBehaviorNotes = 1305,
}

/// The types of attributes.
#[derive(Clone, Copy)]
pub(super) enum Type {
    Handle = 0,
    Element = 1,
    Boolean = 2,
    Int64 = 3,
    Float = 4,
    Pointer = 6,
    ConvolutionMode = 7,
    HeuristicMode = 8,
    NumericalNote = 11,
    PointwiseMode = 14,
    Descriptor = 15,
    BehaviorNote = 19,
}

/// A descriptor, which is destroyed when this object is dropped.
pub(super) struct Descriptor {
    api: &'static Api,
    raw: Raw,
}

impl Descriptor {
    pub(super) fn new(api: &'static Api, kind: Kind) -> Result<Self> {
        Ok(Self { api, raw: api.descriptor(kind as i32)? })
    }

    pub(super) fn raw(&self) -> Raw {
        self.raw
    }

    /// Sets an attribute. `T` has the size that the library uses for values of the type: 4 bytes for its enumerations
    /// and floats, 8 for integers and addresses, 1 for booleans.
    pub(super) fn set<T: Copy>(&self, attribute: Attribute, of: Type, values: &[T]) -> Result<()> {
        // SAFETY: the call reads this many values of the type from the slice and keeps no pointer to it.
        self.api.check(unsafe {
            let values_at = values.as_ptr().cast::<c_void>();
            (self.api.set_attribute)(self.raw, attribute as i32, of as i32, values.len() as i64, values_at)
        })
    }

    /// Sets an attribute whose values are other descriptors.
    pub(super) fn link(&self, attribute: Attribute, descriptors: &[&Descriptor]) -> Result<()> {
        let raw: Vec<Raw> = descriptors.iter().map(|descriptor| descriptor.raw).collect();
        self.set(attribute, Type::Descriptor, &raw)
    }

    pub(super) fn finalize(self) -> Result<Self> {
        // SAFETY: the descriptor is alive.
        self.api.check(unsafe { (self.api.finalize)(self.raw) })?;
        Ok(self)
    }

    /// Reads an attribute into `values`, whose elements have the size of the type. Returns how many were written. A
    /// value that is a descriptor is written into the descriptor that the element names.
    pub(super) fn get<T: Copy>(&self, attribute: Attribute, of: Type, values: &mut [T]) -> Result<usize> {
        let mut count = 0i64;
        // SAFETY: at most this many values of the type are written into the slice.
        self.api.check(unsafe {
            let values_at = values.as_mut_ptr().cast::<c_void>();
            let room = values.len() as i64;
            (self.api.get_attribute)(self.raw, attribute as i32, of as i32, room, &raw mut count, values_at)
        })?;
        Ok(usize::try_from(count).unwrap_or(0).min(values.len()))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was created with this object and is not used after it.
        unsafe { (self.api.destroy_descriptor)(self.raw) };
    }
}
