//! Products: linear layers and convolutions.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{
    ActivatedLinearOp, Conv2d, Conv2dInputs, Conv2dOp, LinearOp, Operand, PremultiplyOp, Result, Strip, WeightOperand,
};

use super::{IDENTITY, activation};
use crate::dispatch::{Dispatch, MOST_GROUPS, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Rows and columns of a workgroup's part of the result.
const TILE: [usize; 2] = [64, 64];
/// Rows and columns in the kernel with cooperative matrices.
const MATRIX: [usize; 2] = [128, 128];
/// Fewer rows are not worth its tiles.
const LEAST_ROWS: usize = 32;
/// Rows and columns on devices that compute on the CPU.
const DIRECT: [usize; 2] = [64, 8];

/// The map and the windows of a convolution.
#[derive(Default)]
struct Windows {
    height: usize,
    width: usize,
    channels: usize,
    kernel_width: usize,
    stride: usize,
    pad_top: usize,
    pad_left: usize,
    width_out: usize,
    /// Pixels of an image of the result.
    pixels: usize,
}

/// The operands of a product.
struct Product<'a> {
    a: &'a PortableTensor,
    /// `(n, kh, kw, c)`, contiguous.
    weight: &'a PortableTensor,
    bias: Option<&'a PortableTensor>,
    image_bias: Option<&'a PortableTensor>,
    residual: Option<&'a PortableTensor>,
    function: &'static str,
    /// `None` for a matrix.
    windows: Option<Windows>,
}

pub(super) fn linear(gpu: &Gpu, op: &LinearOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let LinearOp { x: a, weight, bias, residual } = *op;
    let weight = weight.tensor();
    let product = Product { a, weight, bias, image_bias: None, residual, function: IDENTITY, windows: None };
    run(gpu, product, y)
}

pub(super) fn activated_linear(
    gpu: &Gpu,
    op: &ActivatedLinearOp<'_, PortableTensor>,
    y: &PortableTensor,
) -> Result<()> {
    let LinearOp { x: a, weight, bias, residual } = op.linear;
    let weight = weight.tensor();
    let function = activation(op.function);
    let product = Product { a, weight, bias, image_bias: None, residual, function, windows: None };
    let Some(before) = op.before else { return run(gpu, product, y) };
    let last = y.dims().len().saturating_sub(1);
    let (width, n) = (before.dims().last().copied().unwrap_or(0), weight.dims().first().copied().unwrap_or(0));
    let place = y.narrow(last, width, n)?;
    let result = PortableTensor::uninit(y.backend(), place.dims(), y.dtype())?;
    run(gpu, product, &result)?;
    super::copy(gpu, before, &y.narrow(last, 0, width)?)?;
    super::copy(gpu, &result, &place)
}

/// The columns of `x` are the rows of a product whose weight is the matrix; the result's columns are its rows.
pub(super) fn premultiply(gpu: &Gpu, op: &PremultiplyOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let columns = &op.x.permuted(&[0, 2, 1]).contiguous()?;
    let matrix = op.matrix.contiguous()?;
    let &[m, k] = matrix.dims() else {
        let (expected, found) = ("(m, k)".into(), matrix.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "premultiplied", operand: "matrix", expected, found });
    };
    let weight = &matrix.reshape(&[m, 1, 1, k])?;
    let rows = y.permuted(&[0, 2, 1]);
    let result = PortableTensor::uninit(y.backend(), rows.dims(), y.dtype())?;
    let plain =
        Product { a: columns, weight, bias: None, image_bias: None, residual: None, function: IDENTITY, windows: None };
    run(gpu, plain, &result)?;
    super::copy(gpu, &result, &rows)
}

pub(super) fn conv2d(gpu: &Gpu, op: &Conv2dOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let Conv2dInputs { x, weight, bias, image_bias, residual } = op.inputs;
    let Conv2d { stride, pad_before, .. } = op.config;
    let [_, _, kernel_width, channels] = weight.shape();
    let (&[_, height, width, _], &[_, height_out, width_out, _]) = (x.dims(), y.dims()) else {
        let (expected, found) = ("(b, h, w, c)".into(), x.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "conv2d", operand: "x", expected, found });
    };
    let above = |strip: &Strip| pad_before.saturating_sub(strip.rows.start * stride);
    let pad_top = op.strip.map_or(pad_before, above);
    let pixels = height_out * width_out;
    let windows =
        Windows { height, width, channels, kernel_width, stride, pad_top, pad_left: pad_before, width_out, pixels };
    let is_matrix = weight.shape()[1..3] == [1, 1] && op.config == Conv2d::same(1);
    let windows = if is_matrix { Windows { pixels, ..Windows::default() } } else { windows };
    let weight = weight.tensor();
    let product = Product { a: x, weight, bias, image_bias, residual, function: IDENTITY, windows: Some(windows) };
    run(gpu, product, y)
}

fn run(gpu: &Gpu, product: Product<'_>, y: &PortableTensor) -> Result<()> {
    let Product { a, weight, bias, image_bias, residual, function, windows } = product;
    let n = weight.dims().first().copied().unwrap_or(0);
    let (m, k) = (y.elements() / n.max(1), weight.elements() / n.max(1));
    let a = &a.contiguous()?;
    let [bias, image_bias, residual] =
        [bias, image_bias, residual].map(|operand| operand.map(PortableTensor::contiguous).transpose());
    let [bias, image_bias, residual] = [bias?, image_bias?, residual?];
    let windows = windows.unwrap_or_default();
    let image_bias_row = if image_bias.as_ref().is_some_and(|bias| bias.dims().first() == Some(&1)) { 0 } else { n };
    // Kernels with matrices read four elements at a time.
    let is_aligned = [k, windows.channels, a.offset(), weight.offset()].iter().all(|size| size % 4 == 0);
    let by_matrices = gpu.has_matrices() && a.dtype() == DType::F16 && is_aligned && m >= LEAST_ROWS;
    let (name, source, [rows_of_group, columns_of_group]) = match (gpu.is_software(), by_matrices) {
        (true, _) => ("product_direct", include_str!("../kernels/product_direct.wgsl"), DIRECT),
        (false, true) => ("product_matrix", include_str!("../kernels/product_matrix.wgsl"), MATRIX),
        (false, false) => ("product", include_str!("../kernels/product.wgsl"), TILE),
    };
    let kernel = Kernel::new(name, source).of("S", a.dtype()).with_matrices(by_matrices).function(function);
    let kernel = kernel.after(include_str!("../kernels/product_common.wgsl"));
    let kernel = kernel.when("CONVOLUTION", windows.channels > 0).when("HAS_BIAS", bias.is_some());
    let kernel = kernel.when("HAS_IMAGE_BIAS", image_bias.is_some()).when("HAS_RESIDUAL", residual.is_some());
    let (of_bias, at_bias) = gpu.optional(bias.as_ref())?;
    let (of_image_bias, at_image_bias) = gpu.optional(image_bias.as_ref())?;
    let (of_residual, at_residual) = gpu.optional(residual.as_ref())?;
    let numbers = Numbers::default().all([m, n, k, a.offset(), weight.offset(), at_bias, at_image_bias]);
    let numbers = numbers.all([image_bias_row, at_residual, y.offset(), windows.pixels.max(1)]);
    let numbers = numbers.all([windows.height, windows.width, windows.channels, windows.kernel_width]);
    let numbers = numbers.all([windows.stride, windows.pad_top, windows.pad_left, windows.width_out]);
    let buffers = vec![gpu.buffer(a)?, gpu.buffer(weight)?, of_bias, of_image_bias, of_residual, gpu.buffer(y)?];
    let rows = m.div_ceil(rows_of_group);
    let groups = [n.div_ceil(columns_of_group), rows.min(MOST_GROUPS), rows.div_ceil(MOST_GROUPS)];
    gpu.add(&Dispatch::new(gpu, kernel, buffers, numbers)?.groups(groups))
}
