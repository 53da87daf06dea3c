//! Images of -1 to 1 as bytes.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Tensor};

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::trace::Work;
use crate::{affine, cast};

const OP: &str = "image_bytes";
/// From 2^23 to 2^24, f32 has the integers alone: a sum with it is rounded half to even, and its last bits are the integer.
const INTEGERS: f32 = 12_582_912.0;

/// How a value of -1 to 1 becomes a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteRounding {
    /// To the nearest integer, half to even, as diffusers rounds.
    Nearest,
    /// Down, as AUTOMATIC1111 and ComfyUI round.
    Down,
}

impl ByteRounding {
    /// The byte of a value. Values outside of -1 to 1 are clamped, and a NaN becomes 0.
    #[inline]
    pub fn byte(self, value: f32) -> u8 {
        // `max` gives 0 for a NaN, unlike `clamp`.
        match self {
            Self::Nearest => {
                let unit = (value / 2.0 + 0.5).max(0.0);
                (unit.min(1.0) * 255.0 + INTEGERS).to_bits() as u8
            }
            Self::Down => {
                let unit = ((value + 1.0) / 2.0).max(0.0);
                (255.0 * unit.min(1.0)) as u8
            }
        }
    }
}

/// The bytes of images `(n, c, h, w)` of -1 to 1 in f32, pixel by pixel and row by row: `(n, h, w, c)` in u8 on their device. The
/// bytes are the same on every device.
///
/// # Errors
/// [`Error::Shape`] and [`Error::DType`] for other tensors.
pub fn image_bytes(images: &Tensor, rounding: ByteRounding) -> Result<Tensor> {
    let &[n, c, h, w] = images.dims() else {
        let (expected, found) = ("(n, c, h, w)".into(), images.dims().to_vec());
        return Err(Error::Shape { op: OP, operand: "images", expected, found });
    };
    if images.dtype() != DType::F32 {
        let (expected, found) = (DType::F32, images.dtype());
        return Err(Error::DType { op: OP, operand: "images", expected, found });
    }
    backend::run(&Call { images, sizes: [n, c, h, w], rounding }, None)
}

struct Call<'a> {
    images: &'a Tensor,
    /// `n`, `c`, `h` and `w`.
    sizes: [usize; 4],
    rounding: ByteRounding,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.images
    }

    fn work(&self) -> Work {
        Work::new(&[("images", self.images)])
    }

    fn reference(&self) -> Result<Tensor> {
        let bytes = match self.rounding {
            ByteRounding::Nearest => {
                let unit = affine(self.images, 0.5, 0.5)?.clamp(0f32, 1f32)?;
                affine(&affine(&unit, 255.0, f64::from(INTEGERS))?, 1.0, -f64::from(INTEGERS))?
            }
            ByteRounding::Down => {
                let unit = affine(&affine(self.images, 1.0, 1.0)?, 0.5, 0.0)?.clamp(0f32, 1f32)?;
                affine(&unit, 255.0, 0.0)?.floor()?
            }
        };
        cast(&bytes.permute((0, 2, 3, 1))?.contiguous()?, DType::U8)
    }
}
