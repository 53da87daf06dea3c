//! Convolution on the CPU.
//!
//! There are two algorithms: an implicit matrix product ([`direct`]), and Winograd's, with fewer multiplications, for
//! 3x3 kernels at stride 1 ([`winograd`]). The choice depends on the type and on the shapes of one image alone, so that
//! the result does not depend on the batch size. A linear layer whose matrix has a storage type of its own uses the
//! first, band by band ([`banded`]), and one whose weight is stored in 8 bits a product of bytes ([`int8`]). The channels
//! of the input may lie in several maps ([`Part`]), which both read where they are.

mod banded;
mod direct;
mod epilogue;
mod int8;
#[cfg(test)]
mod tests;
mod transform;
mod winograd;

use candle_core::{DType, Tensor};
use kiln_mempool::HostPool;

use super::fused::FusedCall;
use super::{Call, Conv2d, Conv2dEpilogue, Conv2dInputs, FusedConv2d, OP, Shapes, Slope};
use crate::backend::{Cpu, Kernel, Operator};
use crate::cpu::product::{Panels, pack, packed_len};
use crate::cpu::{Bytes, Element, Operand, Scratch, Shared, View};
use crate::error::Result;
use crate::int8::Int8Matrix;
use crate::matrix::StoredMatrix;
use crate::output::write;
use crate::packing::{Weight, WeightLayout};
use epilogue::Epilogue;

/// Bytes of the weights that [`winograd`] transforms once a call, in a buffer that the calling thread keeps.
pub(super) fn kept(dtype: DType, config: Conv2d, shapes: Shapes, threads: usize) -> usize {
    if winograd::suits(dtype, config, shapes) { winograd::transformed(dtype, shapes, threads) } else { 0 }
}

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { inputs, config, shapes } = *self;
        let Conv2dInputs { x, weight, bias, image_bias, residual } = inputs;
        if weight.as_w8().is_some() {
            return Ok(None); // a format for GPUs
        }
        let addends = [residual.map(|residual| (1.0, residual)), None];
        let epilogue = Conv2dEpilogue { addends, ..Conv2dEpilogue::default() };
        let inputs = Inputs { parts: &[x], weight, bias, image_bias, epilogue };
        dispatch_operands!(OP, "x", x.dtype(), typed(inputs, config, shapes, out)).map(Some)
    }
}

impl Kernel<Cpu> for FusedCall<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let FusedConv2d { parts, weight, bias, epilogue } = self.inputs;
        let inputs = Inputs { parts, weight, bias, image_bias: None, epilogue };
        dispatch_operands!(OP, "x", self.input().dtype(), typed(inputs, self.config, self.shapes, out)).map(Some)
    }
}

/// The operands of a convolution.
struct Inputs<'a> {
    parts: &'a [&'a Tensor],
    weight: &'a Weight,
    bias: Option<&'a Tensor>,
    image_bias: Option<&'a Tensor>,
    epilogue: Conv2dEpilogue<'a>,
}

/// Some channels of the input of a convolution, `(b, h, w, channels)`.
#[derive(Clone, Copy)]
struct Part<'a, T> {
    values: &'a [T],
    channels: usize,
}

impl<T> Part<'_, T> {
    /// The part that has a channel of the whole input, and which of its channels that is.
    fn of(parts: &[Self], mut channel: usize) -> (Self, usize) {
        let mut index = 0;
        while channel >= parts[index].channels {
            channel -= parts[index].channels;
            index += 1;
        }
        (Self { ..parts[index] }, channel)
    }
}

/// Whether Winograd's algorithm can read parts with these channels: whole vectors, unless there is one part alone.
pub(super) fn are_aligned(channels: impl ExactSizeIterator<Item = usize>) -> bool {
    let single = channels.len() == 1;
    channels.into_iter().all(|channels| single || channels.is_multiple_of(transform::LANES))
}

fn typed<T: Element, W: Operand<T>>(
    inputs: Inputs<'_>,
    config: Conv2d,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let Shapes { b, kh, kw, c_in, h_out, w_out, c_out, .. } = shapes;
    let k = kh * kw * c_in;
    let views = inputs.parts.iter().map(|part| View::<T>::new(part)).collect::<Result<Vec<_>>>()?;
    let channels = |part: &Tensor| part.dims().last().copied().unwrap_or(0);
    let parts = views.iter().zip(inputs.parts).map(|(values, part)| Part { values, channels: channels(part) });
    let x = &parts.collect::<Vec<_>>()[..];
    let by_winograd = winograd::suits(T::DTYPE, config, shapes) && are_aligned(x.iter().map(|part| part.channels));
    let matrix = StoredMatrix::of(inputs.weight)?;
    let (stored, mut panels, mut kept);
    let bytes = inputs.weight.as_int8().map(|int8| Ok::<_, crate::Error>((int8, Bytes::new(inputs.weight.tensor())?)));
    let bytes = bytes.transpose()?;
    let right = match (&matrix, inputs.weight.layout()) {
        _ if let Some((int8, memory)) = &bytes => {
            Right::Bytes(int8::Input::new(x, config, shapes, &int8.input)?, int8.matrix, memory)
        }
        (Some(matrix), _) => {
            kept = Scratch::default(); // local: a thread has one large buffer, and Winograd's algorithm uses it
            Right::Rows(matrix, kept.try_get(banded::numbers(c_out, k))?)
        }
        (None, Some(WeightLayout::Panels)) => {
            stored = View::<T>::new(inputs.weight.tensor())?;
            Right::Panels(Panels::new(&stored, k, c_out))
        }
        (None, _) => {
            stored = View::<T>::new(inputs.weight.tensor())?;
            panels = HostPool::vector(packed_len(k, c_out))?;
            panels.resize(packed_len(k, c_out), T::ZERO);
            pack(k, c_out, T::PAIRED, |row, column| stored[column * k + row], &mut panels);
            Right::Panels(Panels::new(&panels, k, c_out))
        }
    };
    let bias = View::<f32>::optional(inputs.bias)?;
    let image_bias = View::<f32>::optional(inputs.image_bias)?;
    let [first, second] = inputs.epilogue.addends;
    let views = [first, second].map(|addend| View::<T>::optional(addend.map(|(_, addend)| addend)));
    let [first_view, second_view] = views;
    let addends = [(first, first_view?), (second, second_view?)];
    let slopes = match inputs.epilogue.slope {
        Slope::Linear => None,
        Slope::Constant(slope) => Some(vec![slope; c_out]),
        Slope::Channels(slopes) => Some(View::<f32>::new(slopes)?.to_vec()),
    };

    let mut operands = [inputs.parts, &[inputs.weight.tensor()]].concat();
    operands.extend([inputs.bias, inputs.image_bias].into_iter().flatten());
    operands.extend([first, second].into_iter().flatten().map(|(_, addend)| addend));
    write::<T>(OP, out, &[b, h_out, w_out, c_out], &operands, |y| {
        let epilogue = Epilogue {
            bias: bias.as_deref(),
            image_bias: image_bias.as_deref(),
            scale: inputs.epilogue.scale,
            addends: addends
                .each_ref()
                .map(|(addend, view)| (addend.map_or(0.0, |(factor, _)| factor), view.as_deref())),
            slopes: slopes.as_deref(),
            pixels: h_out * w_out,
            c_out,
            y: Shared::new(y),
        };
        match right {
            Right::Rows(matrix, band) => banded::run(x, matrix, band, config, shapes, &epilogue),
            Right::Bytes(input, matrix, memory) => int8::run(&input, matrix, memory, config, shapes, &epilogue),
            Right::Panels(weight) if by_winograd => {
                winograd::run::<T, W>(x, weight, config, shapes, &epilogue);
            }
            Right::Panels(weight) => direct::run(x, weight, 0, config, shapes, &epilogue),
        }
    })
}

/// The right operand of the product.
enum Right<'a, T> {
    Panels(Panels<'a, T>),
    /// Rows in a storage type of their own, and a buffer for the elements of a band.
    Rows(&'a StoredMatrix<'a>, &'a mut [T]),
    /// Panels of bytes, and the quantized input.
    Bytes(int8::Input, Int8Matrix, &'a [u8]),
}
