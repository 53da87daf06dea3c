//! Nearest-neighbour upsampling.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

const OP: &str = "upsample_nearest";

/// `x` `(b, h, w, c)` to `(b, h_out, w_out, c)`, every pixel taken from `(floor(i h / h_out), floor(j w / w_out))`.
///
/// The networks double the size, or go to a skip connection's size where that is odd; the index is computed in f32, as
/// PyTorch's `interpolate(mode="nearest")` does.
///
/// # Errors
/// [`Error::Shape`] where `x` is no feature map or has no pixels.
pub fn upsample_nearest(x: &Tensor, (h_out, w_out): (usize, usize), out: Option<&Tensor>) -> Result<Tensor> {
    let error = || Error::Shape { op: OP, operand: "x", expected: "(b, h, w, c)".into(), found: x.dims().to_vec() };
    let (_, h, w, _) = x.dims4().map_err(|_| error())?;
    if h == 0 || w == 0 {
        return Err(error());
    }
    let work = || Work::new(&[("x", x)]);
    trace::operator(OP, work, || {
        let (rows, columns) = (|| sources(h, h_out), || sources(w, w_out));
        match x.device() {
            Device::Cpu => cpu::forward(x, &rows(), &columns(), out),
            _ => match cuda::upsample_nearest(x, (h_out, w_out), out)? {
                Some(y) => Ok(y),
                None => store(OP, reference::forward(x, &rows(), &columns())?, out),
            },
        }
    })
}

/// How far the input index moves for each output index.
fn scale(size: usize, size_out: usize) -> f32 {
    size as f32 / size_out as f32
}

/// The input index of each output index.
fn sources(size: usize, size_out: usize) -> Vec<usize> {
    let scale = scale(size, size_out);
    (0..size_out).map(|i| ((i as f32 * scale) as usize).min(size - 1)).collect()
}
