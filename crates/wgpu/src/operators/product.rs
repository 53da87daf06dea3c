//! Products: linear layers and convolutions.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{
    ActivatedLinearOp, Conv2d, Conv2dInputs, Conv2dOp, LinearOp, Operand, PremultiplyOp, Result, Strip, WeightOperand,
};

use super::register_tiles::RegisterTiles;
use super::stored::with_elements;
use super::tiles::{Tiles, parts};
use super::workgroup_tiles::WorkgroupTiles;
use super::{IDENTITY, activation, width};
#[cfg(test)]
use crate::adapter::Matrices;
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;

/// Rows and columns of a workgroup's part of the result.
const TILE: [usize; 2] = [64, 64];
/// Rows and columns on devices that compute on the CPU.
const DIRECT: [usize; 2] = [64, 8];
/// Fewer rows are not worth the tiles of kernels with matrices.
const LEAST_ROWS: usize = 32;
/// The most rows of products that are computed row by row.
const FEW_ROWS: usize = 8;
/// Threads of a workgroup there, and those of a column.
const ROW_THREADS: [usize; 2] = [64, 16];

/// The numbers, and the operands that are added: by elements, the same with sums over threads, and by vectors of four.
const ELEMENTS: &str =
    concat!(include_str!("../kernels/product_params.wgsl"), include_str!("../kernels/product_elements.wgsl"));
const ROWS: &str = concat!(
    include_str!("../kernels/product_params.wgsl"),
    include_str!("../kernels/product_elements.wgsl"),
    include_str!("../kernels/total.wgsl")
);
const VECTORS: &str =
    concat!(include_str!("../kernels/product_params.wgsl"), include_str!("../kernels/product_vectors.wgsl"));

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
    with_elements(gpu, weight, a.dtype(), |weight| {
        let product = Product { a, weight, bias, image_bias: None, residual, function: IDENTITY, windows: None };
        run(gpu, product, y)
    })
}

pub(super) fn activated_linear(
    gpu: &Gpu,
    op: &ActivatedLinearOp<'_, PortableTensor>,
    y: &PortableTensor,
) -> Result<()> {
    let LinearOp { x: a, weight, bias, residual } = op.linear;
    let function = activation(op.function);
    let product = |y: &PortableTensor| {
        with_elements(gpu, weight, a.dtype(), |weight| {
            run(gpu, Product { a, weight, bias, image_bias: None, residual, function, windows: None }, y)
        })
    };
    let Some(before) = op.before else { return product(y) };
    let last = y.dims().len().saturating_sub(1);
    let (width, [n, ..]) = (before.dims().last().copied().unwrap_or(0), weight.shape());
    let place = y.narrow(last, width, n)?;
    let result = PortableTensor::uninit(y.backend(), place.dims(), y.dtype())?;
    product(&result)?;
    super::copy(gpu, before, &y.narrow(last, 0, width)?)?;
    super::copy(gpu, &result, &place)
}

/// `y = a weight^T` in the type of `y`, for `a` `(.., k)` and a weight `(n, 1, 1, k)`.
pub(super) fn plain(gpu: &Gpu, a: &PortableTensor, weight: &PortableTensor, y: &PortableTensor) -> Result<()> {
    let (bias, image_bias, residual) = (None, None, None);
    run(gpu, Product { a, weight, bias, image_bias, residual, function: IDENTITY, windows: None }, y)
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
    plain(gpu, columns, weight, &result)?;
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
    with_elements(gpu, weight, x.dtype(), |weight| {
        let product = Product { a: x, weight, bias, image_bias, residual, function: IDENTITY, windows: Some(windows) };
        run(gpu, product, y)
    })
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
    let (of_bias, at_bias) = gpu.optional(bias.as_ref())?;
    let (of_image_bias, at_image_bias) = gpu.optional(image_bias.as_ref())?;
    let (of_residual, at_residual) = gpu.optional(residual.as_ref())?;
    let numbers = Numbers::default().all([m, n, k, a.offset(), weight.offset(), at_bias, at_image_bias]);
    let numbers = numbers.all([image_bias_row, at_residual, y.offset(), windows.pixels.max(1)]);
    let numbers = numbers.all([windows.height, windows.width, windows.channels, windows.kernel_width]);
    let numbers = numbers.all([windows.stride, windows.pad_top, windows.pad_left, windows.width_out]);
    let flop = 2.0 * m as f64 * n as f64 * k as f64;
    let is_aligned = [k, windows.channels, a.offset(), weight.offset()].iter().all(|size| size % 8 == 0)
        && [n, at_bias, at_image_bias, at_residual, y.offset()].iter().all(|size| size % 4 == 0);
    let has_few_rows = m <= FEW_ROWS && windows.channels == 0 && !gpu.is_software();
    let is_by_eight = [n, at_residual, y.offset()].iter().all(|size| size % 8 == 0) && function == IDENTITY;
    let has_tiles = a.dtype() == DType::F16 && is_aligned && m >= LEAST_ROWS;
    let tiles = has_tiles.then(|| tiles_of(gpu, [m, n, k], is_by_eight)).flatten();
    let are_vectors = [k, windows.channels, a.offset(), weight.offset()].iter().all(|size| size % 4 == 0);
    let register_tiles = (are_vectors && !gpu.is_software()).then(|| RegisterTiles::of(gpu, m, n)).flatten();
    let kernel = match &tiles {
        Some((_, kernel)) => kernel.clone(),
        None if has_few_rows => Kernel::new("product_rows", include_str!("../kernels/product_rows.wgsl"))
            .vectors(width([k, a.offset(), weight.offset()]))
            .with("THREADS", ROW_THREADS[0])
            .with("SHARE", ROW_THREADS[1]),
        None if gpu.is_software() => Kernel::new("product_direct", include_str!("../kernels/product_direct.wgsl")),
        None => match register_tiles {
            Some(tiles) => tiles.kernel(k),
            None => Kernel::new("product", include_str!("../kernels/product.wgsl")),
        },
    };
    let common = match (&tiles, has_few_rows) {
        (Some(_), _) => VECTORS,
        (None, true) => ROWS,
        (None, false) => ELEMENTS,
    };
    let kernel = kernel.of("S", a.dtype()).function(function).after(common).when("CONVOLUTION", windows.channels > 0);
    let kernel = kernel.when("HAS_BIAS", bias.is_some()).when("HAS_IMAGE_BIAS", image_bias.is_some());
    let kernel = kernel.when("HAS_RESIDUAL", residual.is_some());
    let added = [of_bias, of_image_bias, of_residual];
    let [of_a, of_weight, of_y] = [gpu.buffer(a)?, gpu.buffer(weight)?, gpu.buffer(y)?];
    let buffers = |operands: [_; 2], result| operands.into_iter().chain(added).chain([result]).collect();
    let Some(([tile_rows, tile_columns], _)) = tiles else {
        let [rows, columns] = match (has_few_rows, gpu.is_software()) {
            (true, _) => [1, ROW_THREADS[0] / ROW_THREADS[1]],
            (false, true) => DIRECT,
            (false, false) => register_tiles.map_or(TILE, |tiles| tiles.size()),
        };
        let call = Dispatch::new(gpu, kernel.of("Y", y.dtype()), buffers([of_a, of_weight], of_y), numbers)?;
        return gpu.add(call.rows(m.div_ceil(rows), n.div_ceil(columns), flop));
    };
    let [rows, columns] = [m.div_ceil(tile_rows), n.div_ceil(tile_columns)];
    let parts = parts(rows * columns, k);
    let columns = columns * parts;
    let kernel = kernel.with("PARTS", parts).when("WIDE", parts > 1 || y.dtype() == DType::F32);
    if parts == 1 {
        let kernel = kernel.of("Y", y.dtype());
        let call = Dispatch::new(gpu, kernel, buffers([of_a, of_weight], of_y), numbers)?;
        return gpu.add(call.rows(rows, columns, flop));
    }
    let sums = PortableTensor::uninit(y.backend(), &[parts, m, n], DType::F32)?;
    let of_sums = gpu.buffer(&sums)?;
    let last = Kernel {
        name: "product_parts",
        source: include_str!("../kernels/product_parts.wgsl"),
        binary: None,
        ..kernel.clone()
    };
    let kernel = kernel.of("Y", DType::F32);
    let call = Dispatch::new(gpu, kernel, buffers([of_a, of_weight], of_sums), numbers.clone())?;
    gpu.add(call.rows(rows, columns, flop))?;
    // This call is not divided: its first row is 0.
    let (last, numbers) = (last.without_matrices().of("Y", y.dtype()), numbers.u32(0));
    gpu.add(Dispatch::new(gpu, last, buffers([of_sums, of_weight], of_y), numbers)?.over(m * n / 4, 256))
}

/// The rows and columns of the tiles of a product `(m, n, k)` with cooperative matrices, and the kernel: by matrices of a whole workgroup
/// if the GPU has them and operands are read and written by eight elements. `None` if it has none, or no memory for any tiles.
fn tiles_of(gpu: &Gpu, [m, n, k]: [usize; 3], is_by_eight: bool) -> Option<([usize; 2], Kernel)> {
    if is_by_eight && gpu.has_workgroup_matrices() {
        let tiles = WorkgroupTiles::of(m, n);
        return Some(([tiles.rows, tiles.columns], tiles.kernel()));
    }
    let (tiles, matrices) = Tiles::of(gpu, m, n)?;
    Some(([tiles.rows, tiles.columns], tiles.kernel(matrices, k)))
}

/// The kernels with these matrices.
#[cfg(test)]
pub(super) fn matrix_kernels(matrices: Matrices) -> Vec<Kernel> {
    // Of exact and other depths in turn.
    Tiles::all(matrices).zip([320, 36, 320]).map(|(tiles, k)| tiles.kernel(matrices, k)).collect()
}
