//! The interface of back ends whose tensors are not candle's: GPUs of any vendor.
//!
//! A network is written once for all types of tensors. A [`PortableTensor`] is one of them: memory of a [`Backend`], and a
//! view of it. An operator checks its operands and derives the shape of its result ([`crate::Operation::cost`]); the back end
//! gets the operator as one of [`Call`] and writes the result.

mod backend;
mod call;
mod tensor;

pub use crate::matrix::Rows;
pub use backend::{Backend, BackendMemory, Memory};
pub use call::Call;
pub use tensor::{PortableStatistics, PortableTensor, PortableWeight};
