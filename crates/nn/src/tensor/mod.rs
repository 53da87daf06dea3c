//! The type parameter of layers and networks: tensors, or shapes that represent them.

mod candle;

use std::ops::Range;

use candle_core::{DType, Tensor};
use kiln_ops::{Activation, Attention, Conv2d, FusedConv2d, GroupNorm, Strip, TimestepEmbedding};
use kiln_weights::{Param, SegmentModule, StackedParam};

use crate::error::Result;

/// What [`TensorLike::reduce`] makes of many numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// The mean.
    Mean,
    /// The least.
    Min,
    /// The largest.
    Max,
}

/// A tensor as layers and networks use it. `forward` is written once, for any type that implements this: with
/// [`candle_core::Tensor`] it computes, with [`crate::MetaTensor`] it derives shapes, bytes and floating-point
/// operations.
///
/// Every method corresponds to the function of the same name in `kiln_ops` or in candle. A tensor is freed when its
/// last clone is dropped, so a `forward` that drops tensors early also has a lower planned peak.
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
/// assert_eq!(TensorLike::dims(&tensor), shape.dims());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TensorLike: Clone + Sized {
    /// The device type of such tensors.
    type Device;
    /// The matrix of a linear layer `(n, k)` or the kernel of a convolution `(c_out, kh, kw, c_in)`.
    type Weight;
    /// The sums of a group normalization whose pixels come strip by strip.
    type Moments;
    /// A group normalization whose sums are complete.
    type Statistics;

    /// Runs a module with its weights in place. An error carries the segment's name.
    fn run<M, R>(module: &SegmentModule<M>, f: impl FnOnce(&M) -> Result<R>) -> Result<R>;

    /// A parameter that is a vector, for use with this tensor.
    fn param(&self, param: &Param) -> Result<Self>;

    /// The parameter of a product, for use with this tensor.
    fn weight(&self, param: &Param) -> Result<Self::Weight>;

    /// Several parameters as the matrix of one product, for use with this tensor.
    fn stacked_weight(&self, param: &StackedParam) -> Result<Self::Weight>;

    /// A table `(rows, channels)` that stays in the host's memory. The network runs on `device`.
    fn table(param: &Param, device: &Self::Device) -> Result<Self>;

    // Shapes and memory.

    /// The shape.
    fn dims(&self) -> &[usize];

    /// The type of the elements.
    fn dtype(&self) -> DType;

    /// Another tensor of the same type on the same device, with uninitialized elements.
    fn new_empty(&self, dims: &[usize]) -> Result<Self>;

    /// The values of `constant`, in the type and on the device of this tensor.
    fn new_constant(&self, constant: &Tensor) -> Result<Self>;

    /// The same elements in another shape, in the same memory if they are contiguous.
    fn reshape(&self, dims: &[usize]) -> Result<Self>;

    /// `len` elements of dimension `dim` from `start` on, as a view.
    fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self>;

    /// The same elements, contiguous: a copy if they are not.
    fn contiguous(&self) -> Result<Self>;

    /// A copy in its own memory.
    fn copy(&self) -> Result<Self>;

    /// The same values in another type; a clone if the type is the same.
    fn to_dtype(&self, dtype: DType) -> Result<Self>;

    /// The same values on another device; a clone if the device is the same.
    fn to_device(&self, device: &Self::Device) -> Result<Self>;

    /// Overwrites the elements of dimension `dim` from `offset` on with `source`. This tensor is contiguous.
    fn slice_set(&self, source: &Self, dim: usize, offset: usize) -> Result<()>;

    /// The concatenation of tensors along `dim`.
    fn cat(parts: &[&Self], dim: usize) -> Result<Self>;

    /// The elements `rows` of the first dimension.
    fn index_select(&self, rows: &[u32]) -> Result<Self>;

    // Element by element.

    /// `self * mul + add`.
    fn affine(&self, mul: f64, add: f64) -> Result<Self>;

    /// The hyperbolic tangent.
    fn tanh(&self) -> Result<Self>;

    /// Values limited to `min..=max`.
    fn clamp(&self, min: f64, max: f64) -> Result<Self>;

    /// The sum with a tensor of the same shape.
    fn add(&self, other: &Self) -> Result<Self>;

    /// The difference from a tensor of the same shape.
    fn sub(&self, other: &Self) -> Result<Self>;

    /// The product with a tensor of the same shape.
    fn mul(&self, other: &Self) -> Result<Self>;

    /// The sum with a tensor that is repeated along missing dimensions and those of 1. The result has this tensor's shape.
    fn broadcast_add(&self, other: &Self) -> Result<Self>;

    /// The product, with the same broadcasting.
    fn broadcast_mul(&self, other: &Self) -> Result<Self>;

    /// The quotient, with the same broadcasting.
    fn broadcast_div(&self, other: &Self) -> Result<Self>;

    /// One number of each line along dimension `dim`, whose size is 1 afterwards.
    fn reduce(&self, how: Reduction, dim: usize) -> Result<Self>;

    /// The products `(b, m, n)` of `matrix` `(m, k)` with the matrices of `self` `(b, k, n)`, both in f32.
    fn premultiplied(&self, matrix: &Self) -> Result<Self>;

    // Operators.

    /// [`kiln_ops::activation()`].
    fn activation(&self, function: Activation) -> Result<Self>;

    /// [`kiln_ops::attention()`] of the queries `self`.
    fn attention(&self, k: &Self, v: &Self, config: Attention) -> Result<Self>;

    /// [`kiln_ops::attention_masked`] of the queries `self`.
    fn attention_masked(&self, k: &Self, v: &Self, seen: &Self, config: Attention) -> Result<Self>;

    /// For each key `k` `(b, t, c)` the sum of the attention that the queries `self` `(b, s, c)` give it, as a mean over the heads:
    /// `(b, t)` in f32. Without a causal mask.
    fn attention_received(&self, k: &Self, config: Attention) -> Result<Self>;

    /// [`kiln_ops::supports_strided_qkv`].
    fn supports_strided_qkv(&self) -> bool;

    /// [`kiln_ops::concat_channels`].
    fn concat_channels(&self, other: &Self) -> Result<Self>;

    /// [`kiln_ops::conv2d`].
    fn conv2d(
        &self,
        weight: &Self::Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self>;

    /// [`kiln_ops::conv2d_strip`] without an image bias. `strip` contains the geometry and the rows.
    fn conv2d_strip(
        &self,
        weight: &Self::Weight,
        bias: Option<&Self>,
        residual: Option<&Self>,
        strip: (Conv2d, &Strip),
        out: Option<&Self>,
    ) -> Result<Self>;

    /// [`kiln_ops::fused_conv2d`].
    fn fused_conv2d(
        inputs: FusedConv2d<'_, Self, Self::Weight>,
        config: Conv2d,
        strip: Option<&Strip>,
        out: Option<&Self>,
    ) -> Result<Self>;

    /// [`kiln_ops::geglu`].
    fn geglu(&self) -> Result<Self>;

    /// [`kiln_ops::geglu_linear`], for a weight in 8-bit floats.
    fn geglu_linear(&self, weight: &Self::Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self>;

    /// [`kiln_ops::group_norm`].
    fn group_norm(&self, gamma: &Self, beta: &Self, config: GroupNorm) -> Result<Self>;

    /// The moments of zero pixels.
    fn moments(config: GroupNorm) -> Self::Moments;

    /// Adds all pixels of `self` `(1, .., c)`, which follow those that were added before.
    fn add_to_moments(&self, moments: &mut Self::Moments) -> Result<()>;

    /// The normalization by the sums of all pixels.
    fn statistics(moments: Self::Moments, gamma: &Param, beta: &Param) -> Result<Self::Statistics>;

    /// [`kiln_ops::group_norm_apply`].
    fn group_norm_apply(&self, statistics: &Self::Statistics, out: Option<&Self>) -> Result<Self>;

    /// [`kiln_ops::guidance`].
    fn guidance(&self, scale: &Self, out: Option<&Self>) -> Result<Self>;

    /// [`kiln_ops::layer_norm`].
    fn layer_norm(&self, gamma: &Self, beta: &Self, eps: f64) -> Result<Self>;

    /// [`kiln_ops::linear`].
    fn linear(&self, weight: &Self::Weight, bias: Option<&Self>, residual: Option<&Self>) -> Result<Self>;

    /// [`kiln_ops::normed_conv2d`] with gamma, beta and the configuration of the norm, for a weight in 8-bit floats.
    fn normed_conv2d(
        &self,
        norm: (&Self, &Self, GroupNorm),
        weight: &Self::Weight,
        bias: Option<&Self>,
        image_bias: Option<&Self>,
        residual: Option<&Self>,
        config: Conv2d,
    ) -> Result<Self>;

    /// [`kiln_ops::normed_linear`] with gamma, beta and epsilon of the norm, for a weight in 8-bit floats.
    fn normed_linear(&self, norm: (&Self, &Self, f64), weight: &Self::Weight, bias: Option<&Self>) -> Result<Self>;

    /// [`kiln_ops::pixel_shuffle`].
    fn pixel_shuffle(&self, factor: usize) -> Result<Self>;

    /// [`kiln_ops::pixel_unshuffle`].
    fn pixel_unshuffle(&self, factor: usize) -> Result<Self>;

    /// [`kiln_ops::timestep_embedding`].
    fn timestep_embedding(&self, config: TimestepEmbedding, dtype: DType) -> Result<Self>;

    /// [`kiln_ops::layout::to_channels_first`].
    fn to_channels_first(&self) -> Result<Self>;

    /// [`kiln_ops::layout::to_channels_last`].
    fn to_channels_last(&self) -> Result<Self>;

    /// [`kiln_ops::upsample_nearest`].
    fn upsample_nearest(&self, size: (usize, usize), out: Option<&Self>) -> Result<Self>;

    // Provided methods.

    /// An optional vector, for use with this tensor.
    fn optional_param(&self, param: Option<&Param>) -> Result<Option<Self>> {
        param.map(|param| self.param(param)).transpose()
    }

    /// The sizes of a tensor with two dimensions.
    ///
    /// # Errors
    /// [`kiln_ops::Error::Shape`] for another rank; also for the next two.
    fn size2(&self) -> Result<[usize; 2]> {
        sizes(self)
    }

    /// The sizes of a tensor with three dimensions.
    fn size3(&self) -> Result<[usize; 3]> {
        sizes(self)
    }

    /// The sizes of a tensor with four dimensions.
    fn size4(&self) -> Result<[usize; 4]> {
        sizes(self)
    }

    /// Rows `rows` of a feature map `(b, h, w, c)`, as a view.
    fn rows(&self, rows: Range<usize>) -> Result<Self> {
        self.narrow(1, rows.start, rows.len())
    }
}

fn sizes<T: TensorLike, const N: usize>(x: &T) -> Result<[usize; N]> {
    x.dims().try_into().map_err(|_| {
        let (expected, found) = (format!("{N} dimensions"), x.dims().to_vec());
        kiln_ops::Error::Shape { op: "size", operand: "x", expected, found }.into()
    })
}
