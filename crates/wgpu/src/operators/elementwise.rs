//! Operators that compute element by element, or line by line.

use candle_core::DType;
use kiln_ops::portable::PortableTensor;
use kiln_ops::{
    Activation, Arithmetic, Binary, BinaryOp, GatedActivationOp, GatedResidualOp, GegluOp, Operand, ReduceOp,
    Reduction, Result,
};

use super::{COORDINATES, GROUP, activation, width};
use crate::dispatch::{Dispatch, Numbers};
use crate::gpu::Gpu;
use crate::pipelines::Kernel;
use crate::view::{Shape, repeated};

/// The largest finite number in f16.
const F16_MAX: f64 = 65504.0;

/// `y = function(x, a, b)`.
pub(super) fn unary(
    gpu: &Gpu,
    x: &PortableTensor,
    function: &'static str,
    [a, b]: [f64; 2],
    y: &PortableTensor,
) -> Result<()> {
    let x = &x.contiguous()?;
    let kernel = Kernel::new("unary", include_str!("../kernels/unary.wgsl")).of("S", x.dtype()).function(function);
    let numbers = Numbers::default().all([y.elements(), x.offset(), y.offset()]).f32(a).f32(b);
    let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, gpu.buffer(y)?], numbers)?;
    gpu.add(dispatch.over(y.elements(), GROUP))
}

pub(super) fn binary(gpu: &Gpu, op: &BinaryOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let function = match op.function {
        Binary::Same(Arithmetic::Add) | Binary::Repeated(Arithmetic::Add) => {
            "fn function(a: f32, b: f32) -> f32 { return a + b; }\n"
        }
        Binary::Same(Arithmetic::Sub) | Binary::Repeated(Arithmetic::Sub) => {
            "fn function(a: f32, b: f32) -> f32 { return a - b; }\n"
        }
        Binary::Same(Arithmetic::Mul) | Binary::Repeated(Arithmetic::Mul) => {
            "fn function(a: f32, b: f32) -> f32 { return a * b; }\n"
        }
        Binary::Divide => "fn function(a: f32, b: f32) -> f32 { return a / b; }\n",
    };
    let a = &op.a.contiguous()?;
    let other = repeated(a, op.b);
    // The strides of `a` keep its dimensions apart only if those of `b` do.
    let Shape { dims, strides: [_, strides] } = Shape::new(a.dims(), [a.strides(), &other])?;
    let kernel = Kernel::new("binary", include_str!("../kernels/binary.wgsl")).of("S", a.dtype()).function(function);
    let kernel = kernel.after(COORDINATES);
    let numbers = Numbers::default().all([y.elements(), a.offset(), op.b.offset(), y.offset()]);
    let numbers = numbers.all(dims.into_iter().skip(1)).all(strides);
    let buffers = vec![gpu.buffer(a)?, gpu.buffer(op.b)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements(), GROUP))
}

/// `y = function(gate) value` for rows of so many elements.
fn gated(
    gpu: &Gpu,
    function: Activation,
    [gate, value]: [(&PortableTensor, usize); 2],
    row: usize,
    y: &PortableTensor,
) -> Result<()> {
    let n = y.dims().last().copied().unwrap_or(1);
    let kernel = Kernel::new("gated", include_str!("../kernels/gated.wgsl")).of("S", y.dtype());
    let sizes = [y.elements(), n, gate.0.offset() + gate.1, row, value.0.offset() + value.1, row, y.offset()];
    let width = width(sizes);
    let kernel = kernel.function(activation(function)).vectors(width);
    let numbers = Numbers::default().all(sizes.map(|size| size / width));
    let buffers = vec![gpu.buffer(gate.0)?, gpu.buffer(value.0)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements() / width, GROUP))
}

pub(super) fn geglu(gpu: &Gpu, op: &GegluOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let x = &op.x.contiguous()?;
    let n = y.dims().last().copied().unwrap_or(0);
    gated(gpu, Activation::GeluErf, [(x, n), (x, 0)], 2 * n, y)
}

pub(super) fn gated_activation(
    gpu: &Gpu,
    op: &GatedActivationOp<'_, PortableTensor>,
    y: &PortableTensor,
) -> Result<()> {
    let gate = &op.gate.contiguous()?;
    let n = y.dims().last().copied().unwrap_or(0);
    match op.values {
        Some(values) => gated(gpu, op.function, [(gate, 0), (&values.contiguous()?, 0)], n, y),
        None => gated(gpu, op.function, [(gate, 0), (gate, n)], 2 * n, y),
    }
}

pub(super) fn gated_residual(gpu: &Gpu, op: &GatedResidualOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let [x, gate, branch] = [&op.x.contiguous()?, &op.gate.contiguous()?, &op.y.contiguous()?];
    let (images, c) = (x.dims().first().copied().unwrap_or(1), x.dims().last().copied().unwrap_or(1));
    let gate_row = if gate.dims().first() == Some(&1) { 0 } else { c };
    let limit = if x.dtype() == DType::F16 { F16_MAX } else { f64::from(f32::MAX) };
    let kernel = Kernel::new("gated_residual", include_str!("../kernels/gated_residual.wgsl")).of("S", x.dtype());
    let numbers = Numbers::default().all([y.elements(), y.elements() / images.max(1), c, x.offset(), gate.offset()]);
    let numbers = numbers.all([gate_row, branch.offset(), y.offset()]).f32(limit);
    let buffers = vec![gpu.buffer(x)?, gpu.buffer(gate)?, gpu.buffer(branch)?, gpu.buffer(y)?];
    gpu.add(Dispatch::new(gpu, kernel, buffers, numbers)?.over(y.elements(), GROUP))
}

pub(super) fn reduce(gpu: &Gpu, op: &ReduceOp<'_, PortableTensor>, y: &PortableTensor) -> Result<()> {
    let x = &op.x.contiguous()?;
    let length = x.dims().get(op.dim).copied().unwrap_or(0);
    if length == 0 {
        let (expected, found) = ("at least one element in each line".into(), x.dims().to_vec());
        return Err(kiln_ops::Error::Shape { op: "reduce", operand: "x", expected, found });
    }
    let inner = x.dims().iter().skip(op.dim + 1).product();
    let kind = match op.how {
        Reduction::Mean => 0,
        Reduction::Min => 1,
        Reduction::Max => 2,
    };
    let kernel = Kernel::new("reduce", include_str!("../kernels/reduce.wgsl")).of("S", x.dtype()).with("KIND", kind);
    let numbers = Numbers::default().all([y.elements(), length, inner, x.offset(), y.offset()]);
    let dispatch = Dispatch::new(gpu, kernel, vec![gpu.buffer(x)?, gpu.buffer(y)?], numbers)?;
    gpu.add(dispatch.over(y.elements(), 64))
}
