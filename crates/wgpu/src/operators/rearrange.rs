//! Copies, and operators that put elements in another order.

use candle_core::DType;
use kiln_ops::portable::{Backend, PortableTensor};
use kiln_ops::{ConcatOp, IndexSelectOp, LayoutOp, Operand, PixelShuffleOp, Result, UpsampleOp};

use super::{COORDINATES, GROUP};
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;
use crate::view::Shape;

/// Writes the elements of `from` to the view `to`.
pub(crate) fn copy(gpu: &Gpu, from: &PortableTensor, to: &PortableTensor) -> Result<()> {
    if from.dims() != to.dims() {
        let (expected, found) = (format!("{:?}", to.dims()), from.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "copy", operand: "x", expected, found });
    }
    // A buffer cannot be read and written by one call.
    let own = std::ptr::eq(gpu.buffer(from)?, gpu.buffer(to)?).then(|| from.copy()).transpose()?;
    let from = own.as_ref().unwrap_or(from);
    let Shape { dims, strides: [of_from, of_to] } = Shape::new(from.dims(), [from.strides(), to.strides()])?;
    let kernel = Kernel::new("copy", include_str!("../kernels/copy.wgsl")).of("X", from.dtype()).of("Y", to.dtype());
    let kernel = kernel.after(COORDINATES);
    let numbers = Numbers::default().all([from.elements(), from.offset(), to.offset()]);
    let numbers = numbers.all(dims.into_iter().skip(1)).all(of_from).all(of_to);
    let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(from)?, gpu.buffer(to)?], numbers)?;
    gpu.add(dispatch.over(from.elements(), GROUP))
}

pub(super) fn concat(gpu: &Gpu, op: &ConcatOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let last = y.dims().len().saturating_sub(1);
    let channels = op.a.dims().last().copied().unwrap_or(0);
    copy(gpu, op.a, &y.narrow(last, 0, channels)?)?;
    copy(gpu, op.b, &y.narrow(last, channels, op.b.dims().last().copied().unwrap_or(0))?)
}

pub(super) fn layout(gpu: &Gpu, op: &LayoutOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let order: [usize; 4] = if op.channels_last { [0, 2, 3, 1] } else { [0, 3, 1, 2] };
    copy(gpu, &op.x.permuted(&order), y)
}

pub(super) fn index_select(gpu: &Gpu, op: &IndexSelectOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let table = op.table.contiguous()?;
    let bytes: Vec<u8> = op.rows.iter().flat_map(|row| row.to_ne_bytes()).collect();
    let rows = PortableTensor::new(y.backend(), gpu.upload(&bytes)?, &[op.rows.len()], 0, DType::U32);
    let channels = y.elements() / op.rows.len().max(1);
    let kernel = Kernel::new("index_select", include_str!("../kernels/index_select.wgsl")).of("S", y.dtype());
    let numbers = Numbers::default().all([y.elements(), channels, table.offset(), y.offset()]);
    let buffers = vec![gpu.buffer(&table)?, gpu.buffer(&rows)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements(), GROUP))
}

/// PyTorch's order: channel `(c, i, j)` is pixel `(i, j)` of channel `c`.
pub(super) fn pixel_shuffle(gpu: &Gpu, op: &PixelShuffleOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let PixelShuffleOp { x, factor, shuffle } = *op;
    let (few, many) = if shuffle { (x, y) } else { (y, x) };
    let (&[b, h, w, _], Some(&c)) = (few.dims(), many.dims().last()) else { return copy(gpu, x, y) };
    let few = few.reshape(&[b, h, w, c, factor, factor])?.permuted(&[0, 1, 4, 2, 5, 3]);
    let many = many.reshape(&[b, h, factor, w, factor, c])?;
    if shuffle { copy(gpu, &few, &many) } else { copy(gpu, &many, &few) }
}

pub(super) fn upsample(gpu: &Gpu, op: &UpsampleOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let x = &op.x.contiguous()?;
    let sizes = x.dims().iter().skip(1).copied();
    let kernel = Kernel::new("upsample_nearest", include_str!("../kernels/upsample.wgsl")).of("S", x.dtype());
    let numbers = Numbers::default().u32(y.elements()).all(sizes).all([op.size.0, op.size.1, x.offset(), y.offset()]);
    let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, gpu.buffer(y)?], numbers)?;
    gpu.add(dispatch.over(y.elements(), GROUP))
}
