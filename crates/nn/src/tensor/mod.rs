//! The type parameter of layers and networks: tensors, or shapes that represent them.

mod candle;
mod elementwise;
mod moments;
mod operators;
mod portable;

use candle_core::{DType, Tensor};
use kiln_ops::{Operand, Operation, Target};
use kiln_weights::{Param, SegmentModule, StackedParam};

use crate::error::Result;
pub use elementwise::Elementwise;
pub use moments::Moments;
pub use operators::Operators;

/// A tensor as layers and networks use it. `forward` is written once, for any type that implements this: with
/// [`candle_core::Tensor`] it computes, with [`crate::MetaTensor`] it derives shapes, bytes and floating-point
/// operations.
///
/// A type of tensors implements memory, views, weights and [`TensorLike::apply`], which runs any operator; the
/// operators themselves are methods of [`Elementwise`] and [`Operators`], which every such type has. A tensor is freed when its last clone
/// is dropped, so a `forward` that drops tensors early also has a lower planned peak.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kiln_nn::ops::{Activation, Target};
/// use kiln_nn::{MetaDevice, Result, TensorLike};
///
/// fn forward<T: TensorLike>(x: &T) -> Result<T> {
///     x.activation(Activation::Relu)?.upsample_nearest((4, 4), None)
/// }
///
/// let device = MetaDevice::new(Target::Gpu, DType::F16);
/// let shape = forward(&device.tensor(&[1, 2, 2, 8], DType::F16))?;
/// let tensor = forward(&Tensor::ones((1, 2, 2, 8), DType::F16, &Device::Cpu)?)?;
/// assert_eq!(tensor.dims(), shape.dims());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TensorLike: Operand + Elementwise + Operators + Clone {
    /// The device type of such tensors.
    type Device;
    /// The sums of a group normalization whose pixels come strip by strip.
    type Moments: Moments<Self>;

    /// Runs a module with its weights in place. An error carries the segment's name.
    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R>;

    /// Runs an operator on this tensor's device.
    fn apply(&self, operation: &impl Operation<Self>) -> Result<Self>;

    // Parameters.

    /// A parameter that is a vector, for use with this tensor.
    fn param(&self, param: &Param) -> Result<Self>;

    /// The parameter of a product, for use with this tensor.
    fn weight(&self, param: &Param) -> Result<Self::Weight>;

    /// Several parameters as the matrix of one product, for use with this tensor.
    fn stacked_weight(&self, param: &StackedParam) -> Result<Self::Weight>;

    /// Several parameters as one vector, for use with this tensor.
    fn stacked_param(&self, param: &StackedParam) -> Result<Self>;

    /// A table `(rows, channels)` that stays in the host's memory. The network runs on `device`.
    fn table(param: &Param, device: &Self::Device) -> Result<Self>;

    /// The rows `indices` of a table `(rows, channels)`, in the host's memory. The network runs on `device`.
    fn table_rows(param: &Param, indices: &[u32], device: &Self::Device) -> Result<Self>;

    // Shapes and memory.

    /// This tensor's device.
    fn device(&self) -> &Self::Device;

    /// The kind of this tensor's device.
    fn target(&self) -> Target;

    /// [`kiln_ops::has_linear_geglu`]. Other tensors have no such kernel, and plans count the memory of two operators.
    fn has_linear_geglu(&self, _weight: &Self::Weight) -> Result<bool> {
        Ok(false)
    }

    /// Another tensor of the same type on the same device, with uninitialized elements.
    fn new_empty(&self, dims: &[usize]) -> Result<Self>;

    /// The values of `constant`, in the type and on the device of this tensor.
    fn new_constant(&self, constant: &Tensor) -> Result<Self>;

    /// These elements in another shape, in the same memory if they are contiguous.
    fn reshape(&self, dims: &[usize]) -> Result<Self>;

    /// `len` elements of dimension `dim` from `start` on, as a view.
    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self>;

    /// These elements, contiguous: a copy if they are not.
    fn contiguous(&self) -> Result<Self>;

    /// A copy in its own memory.
    fn copy(&self) -> Result<Self>;

    /// These values in another type; a clone if the type is the same.
    fn to_dtype(&self, dtype: DType) -> Result<Self>;

    /// These values on another device; a clone if the device is the same.
    fn to_device(&self, device: &Self::Device) -> Result<Self>;

    /// The elements in f32, in row-major order, once the device has computed them; `None` for a tensor without elements. A call that
    /// decides by them cannot be recorded.
    fn values(&self) -> Result<Option<Vec<f32>>>;

    /// Overwrites the elements of dimension `dim` from `offset` on with `source`. This tensor is contiguous.
    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()>;

    /// The concatenation of tensors along `dim`.
    fn cat(parts: &[&Self], dim: usize) -> Result<Self>;
}
