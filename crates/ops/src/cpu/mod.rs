//! Shared parts of the CPU kernels: element types, operands as slices, and the matrix product.

#[macro_use]
mod element;
#[macro_use]
mod operand;
pub(crate) mod isa;
pub(crate) mod math;
pub(crate) mod permission;
pub(crate) mod product;
pub(crate) mod rounding;
pub(crate) mod scratch;
mod shared;
pub(crate) mod vector;
mod view;

pub(crate) use element::Element;
pub(crate) use operand::{Operand, widen};
pub(crate) use scratch::Scratch;
pub(crate) use shared::Shared;
pub(crate) use view::{Bytes, View};
