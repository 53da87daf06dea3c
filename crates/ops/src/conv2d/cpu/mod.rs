//! Convolution on the CPU.
//!
//! There are two algorithms: an implicit matrix product ([`direct`]), and Winograd's, with fewer multiplications, for
//! 3x3 kernels at stride 1 ([`winograd`]). The choice depends on the type and on the shapes of one image alone, so that
//! the result does not depend on the batch size. A linear layer whose matrix has a storage type of its own uses the
//! first, band by band ([`banded`]).

mod banded;
mod direct;
mod epilogue;
mod transform;
mod winograd;

use candle_core::{DType, Tensor};
use kiln_mempool::HostPool;

use super::{Call, Conv2d, Conv2dInputs, OP, Shapes};
use crate::backend::{Cpu, Kernel};
use crate::cpu::product::{Panels, pack, packed_len};
use crate::cpu::{Element, Scratch, Shared, View};
use crate::error::Result;
use crate::matrix::StoredMatrix;
use crate::output::write;
use crate::packing::WeightLayout;
use epilogue::Epilogue;

/// Bytes of the weights that [`winograd`] transforms once a call, in a buffer that the calling thread keeps.
pub(super) fn kept(dtype: DType, config: Conv2d, shapes: Shapes, threads: usize) -> usize {
    if winograd::suits(dtype, config, shapes) {
        winograd::transformed(shapes, threads) * dtype.size_in_bytes()
    } else {
        0
    }
}

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { inputs, config, shapes } = *self;
        dispatch!(OP, "x", inputs.x.dtype(), typed(inputs, config, shapes, out)).map(Some)
    }
}

fn typed<T: Element>(inputs: Conv2dInputs<'_>, config: Conv2d, shapes: Shapes, out: Option<&Tensor>) -> Result<Tensor> {
    let Shapes { b, kh, kw, c_in, h_out, w_out, c_out, .. } = shapes;
    let k = kh * kw * c_in;
    let x = View::<T>::new(inputs.x)?;
    let matrix = StoredMatrix::of(inputs.weight)?;
    let (stored, mut panels, mut kept);
    let right = match (&matrix, inputs.weight.layout()) {
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
    let residual = View::<T>::optional(inputs.residual)?;

    let mut operands = vec![inputs.x, inputs.weight.tensor()];
    operands.extend([inputs.bias, inputs.image_bias, inputs.residual].into_iter().flatten());
    write::<T>(OP, out, &[b, h_out, w_out, c_out], &operands, |y| {
        let epilogue = Epilogue {
            bias: bias.as_deref(),
            image_bias: image_bias.as_deref(),
            residual: residual.as_deref(),
            pixels: h_out * w_out,
            c_out,
            y: Shared::new(y),
        };
        match right {
            Right::Rows(matrix, band) => banded::run(&x, matrix, band, config, shapes, &epilogue),
            Right::Panels(weight) if winograd::suits(T::DTYPE, config, shapes) => {
                winograd::run(&x, weight, config, shapes, &epilogue);
            }
            Right::Panels(weight) => direct::run(&x, weight, 0, config, shapes, &epilogue),
        }
    })
}

/// The right operand of the product.
enum Right<'a, T> {
    Panels(Panels<'a, T>),
    /// Rows in a storage type of their own, and a buffer for the elements of a band.
    Rows(&'a StoredMatrix<'a>, &'a mut [T]),
}
