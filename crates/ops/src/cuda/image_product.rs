//! Products of the windows of images with a weight, as kernels of different GPUs take them.
#![allow(unsafe_code)]

use candle_core::DType;
use candle_core::cuda::cudarc::driver::DeviceRepr;

/// `ImageProduct` of the kernels (`image_product.cuh`). Tiles are the launch's.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ImageProduct {
    /// Of bytes: by pixel, or by image.
    pub(crate) x_scales: u64,
    /// Of bytes: by output channel.
    pub(crate) weight_scales: u64,
    /// `(n)`; 0 if there is none.
    pub(crate) bias: u64,
    /// `(b, n)`; 0 if there is none.
    pub(crate) image_bias: u64,
    /// b, h, w, c, n.
    pub(crate) sizes: [i32; 5],
    /// taps, taps in a row, rows of padding above, columns on the left.
    pub(crate) window: [i32; 4],
    /// Width and height of a tile as powers of two.
    pub(crate) bits: [i32; 2],
    /// Tiles in x, in y, over images, over output channels.
    pub(crate) tiles: [i32; 4],
    /// 0 if all images have the same bias.
    pub(crate) image_bias_stride: i32,
    pub(crate) scales_by_pixel: i32,
    pub(crate) has_residual: i32,
}

// `image_product.cuh` asserts the same size.
const _: () = assert!(size_of::<ImageProduct>() == 104);

// SAFETY: the struct has the layout of the kernels' struct: four addresses and 18 integers.
unsafe impl DeviceRepr for ImageProduct {}

/// The addresses of the operands.
#[derive(Clone, Copy)]
pub(crate) struct ImageOperands {
    pub(crate) x: u64,
    pub(crate) weight: u64,
    /// 0 if there is none.
    pub(crate) residual: u64,
    pub(crate) y: u64,
    /// The type of residual, result and addends.
    pub(crate) dtype: DType,
}
