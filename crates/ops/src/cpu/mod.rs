//! Shared parts of the CPU kernels: element types, operands as slices, and the matrix product.

/// A debug assertion that this crate's tests turn on in release builds too. It checks what unsafe code relies on, where
/// a check in production would cost time.
macro_rules! safety_assert {
    ($($condition:tt)*) => { assert!(!cfg!(any(test, debug_assertions)) || ($($condition)*)) };
}

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
mod view;

pub(crate) use element::Element;
pub(crate) use operand::{Operand, widen};
pub(crate) use scratch::Scratch;
pub(crate) use shared::Shared;
pub(crate) use view::{Bytes, View};
