//! The layouts in which operators want their weights.

use candle_core::{DType, Tensor};

use crate::cpu::product::panels;
use crate::error::{Error, Result};

/// How a parameter is laid out for its operator. Weights are constant, so they are packed once, on their way from the
/// checkpoint into the slab (`kiln-weights`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As the checkpoint has it.
    AsStored,
    /// The matrix of a linear layer, stored `(n, k)`.
    Linear,
    /// The kernel of a convolution, stored `(c_out, c_in, kh, kw)`.
    Conv2d,
}

/// Whose kernels will read the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// `(n, k)` and `(c_out, kh, kw, c_in)`, row by row: what libraries and cards read.
    Plain,
    /// Panels of 32 columns of the transposed matrix: what the processor's matrix product reads.
    Panels,
}

impl Packing {
    /// How many elements the packed parameter takes, in whichever layout: whole panels.
    pub fn elements(self, stored: &[usize]) -> usize {
        match self.matrix(stored) {
            Some((n, taps, channels)) => panels::packed_len(taps * channels, n),
            None => stored.iter().product(),
        }
    }

    /// Writes the packed parameter: `value(i)` is element `i` of the stored one in row-major order. `packed` has
    /// [`Packing::elements`] elements, all of them zero.
    pub fn pack<T: candle_core::WithDType>(
        self,
        layout: WeightLayout,
        stored: &[usize],
        value: impl Fn(usize) -> T,
        packed: &mut [T],
    ) {
        let Some((n, taps, channels)) = self.matrix(stored) else {
            return packed.iter_mut().enumerate().for_each(|(i, packed)| *packed = value(i));
        };
        let k = taps * channels;
        let element = |row: usize, column: usize| {
            let (tap, channel) = (row / channels, row % channels);
            value((column * channels + channel) * taps + tap)
        };
        match layout {
            WeightLayout::Panels => panels::pack(k, n, T::DTYPE == DType::BF16, element, packed),
            WeightLayout::Plain => {
                for (column, packed) in packed.chunks_exact_mut(k.max(1)).take(n).enumerate() {
                    packed.iter_mut().enumerate().for_each(|(row, packed)| *packed = element(row, column));
                }
            }
        }
    }

    /// `(n, taps, channels)` of the matrix that a stored parameter is.
    fn matrix(self, stored: &[usize]) -> Option<(usize, usize, usize)> {
        match (self, stored) {
            (Self::Linear, &[n, k]) => Some((n, 1, k)),
            (Self::Conv2d, &[c_out, c_in, kh, kw]) => Some((c_out, kh * kw, c_in)),
            _ => None,
        }
    }
}

/// The weight of a convolution or a linear layer, in one of the layouts.
#[derive(Debug, Clone)]
pub struct Weight {
    tensor: Tensor,
    layout: WeightLayout,
    /// `(c_out, kh, kw, c_in)`; a linear layer's is `(n, 1, 1, k)`.
    shape: [usize; 4],
}

impl Weight {
    /// A weight row by row: `(n, k)` or `(c_out, kh, kw, c_in)`.
    ///
    /// # Errors
    /// [`Error::Shape`] for any other rank.
    pub fn plain(tensor: &Tensor) -> Result<Self> {
        let shape = match *tensor.dims() {
            [n, k] => [n, 1, 1, k],
            [c_out, kh, kw, c_in] => [c_out, kh, kw, c_in],
            _ => {
                let expected = "(n, k) or (c_out, kh, kw, c_in)".into();
                return Err(Error::Shape { op: "weight", operand: "tensor", expected, found: tensor.dims().to_vec() });
            }
        };
        Ok(Self { tensor: tensor.reshape(&shape)?, layout: WeightLayout::Plain, shape })
    }

    /// What [`Packing::pack`] wrote for a parameter of the shape `stored`: `packed` has [`Packing::elements`] elements.
    ///
    /// # Errors
    /// [`Error::Shape`] where that is not so, or where the packing is no matrix.
    pub fn packed(packed: &Tensor, packing: Packing, layout: WeightLayout, stored: &[usize]) -> Result<Self> {
        let (true, Some((n, taps, channels))) = (packed.dims() == [packing.elements(stored)], packing.matrix(stored))
        else {
            let expected = format!("{packing:?} of {stored:?}");
            return Err(Error::Shape { op: "weight", operand: "packed", expected, found: packed.dims().to_vec() });
        };
        let (kh, kw) = if stored.len() == 4 { (stored[2], stored[3]) } else { (1, taps) };
        let shape = [n, kh, kw, channels];
        let tensor = match layout {
            WeightLayout::Panels => packed.clone(),
            WeightLayout::Plain => packed.narrow(0, 0, n * taps * channels)?.reshape(&shape)?,
        };
        Ok(Self { tensor, layout, shape })
    }

    /// `(c_out, kh, kw, c_in)`; `(n, 1, 1, k)` for a linear layer.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Where its elements lie.
    pub fn layout(&self) -> WeightLayout {
        self.layout
    }

    /// The tensor behind it: of [`Weight::shape`] in the plain layout, flat in panels.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plain_layout_moves_input_channels_last() {
        let stored = [2, 3, 1, 2]; // (c_out, c_in, kh, kw)
        let mut packed = vec![0u32; Packing::Conv2d.elements(&stored)];
        Packing::Conv2d.pack(WeightLayout::Plain, &stored, |i| i as u32, &mut packed);
        assert_eq!(packed[..12], [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }

    #[test]
    fn panels_hold_the_transpose() {
        let stored = [2, 3]; // (n, k)
        let mut packed = vec![0u32; Packing::Linear.elements(&stored)];
        Packing::Linear.pack(WeightLayout::Panels, &stored, |i| i as u32 + 1, &mut packed);
        assert_eq!(packed.len(), 4 * 32);
        assert_eq!((packed[0], packed[1], packed[32], packed[33], packed[64], packed[96]), (1, 4, 2, 5, 3, 0));
    }
}
