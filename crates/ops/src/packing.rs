//! Memory layouts of weights.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use crate::conv2d::Conv2d;
use crate::cpu::product::panels;
use crate::error::{Error, Result};
use crate::int8::{Int8Input, Int8Matrix, int8_workspace};
use crate::matrix::{MatrixType, Rows};
use crate::observer::InputObserver;
use crate::w8a8::{ByteNumber, W8Matrix, W8Weight, w8a8_workspace};
use crate::workspace::Workspace;

/// How a parameter is laid out for its operator. Weights are constant, so they are packed once, when they are copied
/// from the checkpoint into the slab (`kiln-weights`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packing {
    /// The order of the checkpoint.
    AsStored,
    /// The matrix of a linear layer, stored `(n, k)`.
    Linear,
    /// The kernel of a convolution, stored `(c_out, c_in, kh, kw)`.
    Conv2d,
    /// The last frame of the kernel of a convolution in time too, stored `(c_out, c_in, frames, kh, kw)`: all that a single frame
    /// needs if the convolution sees no later frames.
    LastFrame,
}

/// The layout that a back end's kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// `(n, k)` and `(c_out, kh, kw, c_in)`, row by row: for CUDA and its libraries.
    Plain,
    /// Panels of 32 columns of the transposed matrix: for the CPU's matrix product.
    Panels,
}

impl Packing {
    /// The number of elements of the packed parameter, the same in both layouts: whole panels.
    pub fn elements(self, stored: &[usize]) -> usize {
        match self.matrix(stored) {
            Some((n, taps, channels)) => panels::packed_len(taps * channels, n),
            None => stored.iter().product(),
        }
    }

    /// Writes the packed parameter: every element of `packed`, which has [`Packing::elements`] of them. `read(start,
    /// out)` writes elements of the stored parameter, from index `start` of its row-major order, into `out`. It is
    /// called for small parts, on several threads.
    pub fn pack<T: candle_core::WithDType>(
        self,
        layout: WeightLayout,
        stored: &[usize],
        read: impl Fn(usize, &mut [T]) + Sync,
        packed: &mut [T],
    ) {
        match (self, stored) {
            (Self::LastFrame, &[_, _, frames, kh, kw]) => {
                let read = |start: usize, out: &mut [T]| read_last_frame(&read, [frames, kh * kw], start, out);
                self.pack_matrix(layout, stored, read, packed);
            }
            _ => self.pack_matrix(layout, stored, read, packed),
        }
    }

    /// [`Packing::pack`], with `read` of the elements that are packed.
    fn pack_matrix<T: candle_core::WithDType>(
        self,
        layout: WeightLayout,
        stored: &[usize],
        read: impl Fn(usize, &mut [T]) + Sync,
        packed: &mut [T],
    ) {
        let Some((n, taps, channels)) = self.matrix(stored) else { return read(0, packed) };
        match layout {
            WeightLayout::Panels => panels::pack_stored((n, taps, channels), T::DTYPE == DType::BF16, read, packed),
            WeightLayout::Plain => {
                let k = taps * channels;
                let (rows, rest) = packed.split_at_mut(n * k);
                rest.fill(T::from_f64(0.0));
                if taps == 1 {
                    const PART: usize = 1 << 16;
                    let parts = rows.par_chunks_mut(PART).enumerate();
                    return parts.for_each(|(i, part)| read(i * PART, part));
                }
                rows.par_chunks_exact_mut(k.max(1)).enumerate().for_each_init(
                    || vec![T::from_f64(0.0); k],
                    |row, (column, packed)| {
                        read(column * k, row);
                        for (tap, packed) in packed.chunks_exact_mut(channels).enumerate() {
                            packed.iter_mut().zip(row[tap..].iter().step_by(taps)).for_each(|(to, from)| *to = *from);
                        }
                    },
                );
            }
        }
    }

    /// `(n, taps, channels)` of a stored parameter as a matrix.
    pub(crate) fn matrix(self, stored: &[usize]) -> Option<(usize, usize, usize)> {
        match (self, stored) {
            (Self::Linear, &[n, k]) => Some((n, 1, k)),
            (Self::Conv2d, &[c_out, c_in, kh, kw]) | (Self::LastFrame, &[c_out, c_in, _, kh, kw]) => {
                Some((c_out, kh * kw, c_in))
            }
            _ => None,
        }
    }

    /// `(kh, kw)` of a stored parameter whose matrix has so many taps.
    fn kernel(self, stored: &[usize], taps: usize) -> (usize, usize) {
        match (self, stored) {
            (Self::Conv2d, &[_, _, kh, kw]) | (Self::LastFrame, &[_, _, _, kh, kw]) => (kh, kw),
            _ => (1, taps),
        }
    }
}

/// Reads elements of the last frames of a kernel `(c_out, c_in, frames, taps)`, from index `start` of their order on, into `out`.
/// `read` reads elements of the whole kernel.
fn read_last_frame<T: candle_core::WithDType>(
    read: &impl Fn(usize, &mut [T]),
    [frames, taps]: [usize; 2],
    start: usize,
    out: &mut [T],
) {
    let mut done = 0;
    while done < out.len() {
        let (kernel, tap) = ((start + done) / taps, (start + done) % taps);
        let end = out.len().min(done + taps - tap);
        read((kernel * frames + frames - 1) * taps + tap, &mut out[done..end]);
        done = end;
    }
}

/// The weight of a convolution or a linear layer, in one of the layouts or in 8 bits, or the weight of a linear layer in a
/// storage type of its own, row by row.
#[derive(Debug, Clone)]
pub struct Weight {
    tensor: Tensor,
    form: Form,
    /// `(c_out, kh, kw, c_in)`; a linear layer's is `(n, 1, 1, k)`.
    shape: [usize; 4],
    observer: Option<Arc<dyn InputObserver>>,
}

#[derive(Debug, Clone)]
enum Form {
    Dense(WeightLayout),
    Rows(Rows),
    Int8(Int8Weight),
    W8(W8Weight),
}

/// How products of a weight in 8 bits are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EightBits {
    /// In 8-bit integers, on the CPU ([`Int8Matrix`]).
    #[default]
    Int8,
    /// In such bytes with a scale for each row, on GPUs ([`W8Matrix`]).
    W8A8(ByteNumber),
}

impl EightBits {
    /// Memory of a product for its input of `[images, pixels, channels]`.
    pub(crate) fn workspace(self, input @ [images, pixels, channels]: [usize; 3], is_by_pixel: bool) -> Workspace {
        match self {
            Self::Int8 => int8_workspace(images * pixels, channels, is_by_pixel),
            Self::W8A8(_) => w8a8_workspace(input, is_by_pixel),
        }
    }
}

/// A weight in 8 bits: the layout of its memory, and how its input becomes bytes.
#[derive(Debug, Clone)]
pub(crate) struct Int8Weight {
    pub(crate) matrix: Int8Matrix,
    pub(crate) input: Arc<Int8Input>,
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
        Ok(Self { tensor: tensor.reshape(&shape)?, form: Form::Dense(WeightLayout::Plain), shape, observer: None })
    }

    /// The output of [`Packing::pack`] for a parameter of the shape `stored`. `packed` has [`Packing::elements`]
    /// elements.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of elements, or where the parameter is no matrix.
    pub fn packed(packed: &Tensor, packing: Packing, layout: WeightLayout, stored: &[usize]) -> Result<Self> {
        let (true, Some((n, taps, channels))) = (packed.dims() == [packing.elements(stored)], packing.matrix(stored))
        else {
            let expected = format!("{packing:?} of {stored:?}");
            return Err(Error::Shape { op: "weight", operand: "packed", expected, found: packed.dims().to_vec() });
        };
        let (kh, kw) = packing.kernel(stored, taps);
        let shape = [n, kh, kw, channels];
        let tensor = match layout {
            WeightLayout::Panels => packed.clone(),
            WeightLayout::Plain => packed.narrow(0, 0, n * taps * channels)?.reshape(&shape)?,
        };
        Ok(Self { tensor, form: Form::Dense(layout), shape, observer: None })
    }

    /// The matrix `(n, k)` of a linear layer, or of `parts` layers one after another, each of `n / parts` rows of the
    /// type `kind`. `memory` is a flat tensor of any type that holds their bytes: the first part starts at its first
    /// byte, the others at equal distances.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory of another size or layout, [`Error::Config`] where the type cannot store rows of
    /// `k`.
    pub fn rows(memory: &Tensor, kind: MatrixType, [n, k]: [usize; 2], parts: usize) -> Result<Self> {
        let Some(row_bytes) = kind.row_bytes(k) else {
            let message = format!("rows of {k} elements cannot be stored as {kind}");
            return Err(Error::Config { op: "weight", message });
        };
        let (part, bytes) = (n / parts.max(1), memory.elem_count() * memory.dtype().size_in_bytes());
        let stride = bytes / parts.max(1);
        let fits = part * row_bytes <= stride && part * parts == n && stride * parts == bytes;
        if memory.rank() != 1 || !memory.is_contiguous() || !fits {
            let expected = format!("flat memory of {parts} times {part} rows of {row_bytes} bytes");
            return Err(Error::Shape { op: "weight", operand: "memory", expected, found: memory.dims().to_vec() });
        }
        let form = Form::Rows(Rows { kind, part: part.max(1), stride });
        Ok(Self { tensor: memory.clone(), form, shape: [n, 1, 1, k], observer: None })
    }

    /// The panels of [`Int8Matrix::panel`], one after another, for a parameter of the shape `stored`. `memory` is a flat tensor
    /// of any type that holds their bytes and perhaps more. Products of such a weight are computed in 8 bits, on the CPU.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory that is too small or not flat, or where the parameter is no matrix, [`Error::Config`]
    /// for a balance of another number of channels.
    pub fn int8(memory: &Tensor, packing: Packing, stored: &[usize], input: Arc<Int8Input>) -> Result<Self> {
        let bytes = memory.elem_count() * memory.dtype().size_in_bytes();
        let matrix = Int8Matrix::of(packing, stored).filter(|matrix| matrix.bytes() <= bytes);
        let (Some(matrix), Some((n, taps, channels)), 1) = (matrix, packing.matrix(stored), memory.rank()) else {
            let expected = format!("flat memory of {packing:?} of {stored:?} in 8 bits");
            return Err(Error::Shape { op: "weight", operand: "memory", expected, found: memory.dims().to_vec() });
        };
        if let Some(factors) = input.balance.as_ref().filter(|balance| balance.len() != channels) {
            let message = format!("a balance of {} input channels, expected {channels}", factors.len());
            return Err(Error::Config { op: "weight", message });
        }
        let (kh, kw) = packing.kernel(stored, taps);
        let form = Form::Int8(Int8Weight { matrix, input });
        Ok(Self { tensor: memory.clone(), form, shape: [n, kh, kw, channels], observer: None })
    }

    /// The rows of [`W8Matrix::row`], one after another, and their scales, for a parameter of the shape `stored` in rows of
    /// `(kh, kw, c_in)`: one layer's, or those of several linear layers as one. Both are flat tensors of any type that hold the
    /// bytes and perhaps more. Products of such a weight are computed in 8 bits, on a GPU.
    ///
    /// # Errors
    /// [`Error::Shape`] for memory that is too small or not flat, or if [`W8Matrix`] cannot store the parameter.
    pub fn w8(
        number: ByteNumber,
        memory: &Tensor,
        scales: &Tensor,
        packing: Packing,
        stored: &[usize],
    ) -> Result<Self> {
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let fits = |matrix: &W8Matrix| {
            let flat = memory.rank() == 1 && scales.rank() == 1;
            flat && matrix.bytes() <= bytes(memory) && matrix.rows() * size_of::<f32>() <= bytes(scales)
        };
        let matrix = W8Matrix::of(number, packing, stored).filter(fits);
        let (Some(_), Some((n, taps, channels))) = (matrix, packing.matrix(stored)) else {
            let expected = format!("flat memory of {packing:?} of {stored:?} in {number}, and its scales");
            return Err(Error::Shape { op: "weight", operand: "memory", expected, found: memory.dims().to_vec() });
        };
        let (kh, kw) = packing.kernel(stored, taps);
        let form = Form::W8(W8Weight { number, scales: scales.clone() });
        Ok(Self { tensor: memory.clone(), form, shape: [n, kh, kw, channels], observer: None })
    }

    /// `(c_out, kh, kw, c_in)`; `(n, 1, 1, k)` for a linear layer.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// The layout of its elements. `None` where rows have a storage type of their own, and in 8 bits.
    pub fn layout(&self) -> Option<WeightLayout> {
        match self.form {
            Form::Dense(layout) => Some(layout),
            Form::Rows(_) | Form::Int8(_) | Form::W8(_) => None,
        }
    }

    /// How products are computed in 8 bits; `None` where they are not.
    pub fn eight_bits(&self) -> Option<EightBits> {
        match &self.form {
            Form::Int8(_) => Some(EightBits::Int8),
            Form::W8(w8) => Some(EightBits::W8A8(w8.number)),
            Form::Dense(_) | Form::Rows(_) => None,
        }
    }

    /// The weight for products in 8-bit integers, if it is one.
    pub(crate) fn as_int8(&self) -> Option<&Int8Weight> {
        match &self.form {
            Form::Int8(int8) => Some(int8),
            Form::Dense(_) | Form::Rows(_) | Form::W8(_) => None,
        }
    }

    /// The weight in bytes with a scale for each row, if it is one.
    pub(crate) fn as_w8(&self) -> Option<&W8Weight> {
        match &self.form {
            Form::W8(w8) => Some(w8),
            Form::Dense(_) | Form::Rows(_) | Form::Int8(_) => None,
        }
    }

    /// The rows, where they have a storage type of their own.
    pub(crate) fn stored_rows(&self) -> Option<Rows> {
        match self.form {
            Form::Dense(_) | Form::Int8(_) | Form::W8(_) => None,
            Form::Rows(rows) => Some(rows),
        }
    }

    /// Adds an observer, which gets the inputs of its products.
    pub fn observed(self, observer: Arc<dyn InputObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Shows `x`, which is about to be multiplied, to the observer, if there is one. Returns the weight without an observer, since an
    /// operator may run as another one.
    ///
    /// # Errors
    /// Errors of the observer.
    pub(crate) fn observe(&self, x: &Tensor, config: Option<Conv2d>) -> Result<Cow<'_, Self>> {
        let Some(observer) = &self.observer else { return Ok(Cow::Borrowed(self)) };
        let weight = Self { observer: None, ..self.clone() };
        observer.observe(x, &weight, config)?;
        Ok(Cow::Owned(weight))
    }

    /// A copy on a device.
    pub(crate) fn on(&self, device: &Device) -> Result<Self> {
        let form = match &self.form {
            Form::W8(w8) => Form::W8(W8Weight { scales: w8.scales.to_device(device)?, ..*w8 }),
            form => form.clone(),
        };
        Ok(Self { tensor: self.tensor.to_device(device)?, form, ..self.clone() })
    }

    /// The tensor that holds it: of [`Weight::shape`] in the plain layout, flat in panels, and bytes of the storage
    /// type in a tensor of another type where rows have one of their own.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Packs a parameter whose elements are their own indices, counted from 1, into memory with other values.
    fn packed(packing: Packing, layout: WeightLayout, stored: &[usize]) -> Vec<u32> {
        let mut packed = vec![u32::MAX; packing.elements(stored)];
        let read = |start: usize, out: &mut [u32]| {
            out.iter_mut().enumerate().for_each(|(i, out)| *out = (start + i + 1) as u32);
        };
        packing.pack(layout, stored, read, &mut packed);
        packed
    }

    #[test]
    fn the_plain_layout_moves_input_channels_last() {
        let packed = packed(Packing::Conv2d, WeightLayout::Plain, &[2, 3, 1, 2]); // (c_out, c_in, kh, kw)
        assert_eq!(packed[..12], [1, 3, 5, 2, 4, 6, 7, 9, 11, 8, 10, 12]);
        assert!(packed[12..].iter().all(|&value| value == 0));
    }

    #[test]
    fn the_last_frame_is_packed_as_a_kernel_without_frames() {
        let (c_out, c_in, frames, taps) = (3, 5, 3, 4);
        for layout in [WeightLayout::Plain, WeightLayout::Panels] {
            let found = packed(Packing::LastFrame, layout, &[c_out, c_in, frames, 2, 2]);
            let expected = packed(Packing::Conv2d, layout, &[c_out, c_in, 2, 2]);
            let of_frame = |value: u32| match value as usize {
                0 => 0,
                value => ((value - 1) / taps * frames + frames - 1) * taps + (value - 1) % taps + 1,
            };
            assert!(found.iter().zip(expected).all(|(&found, plain)| found as usize == of_frame(plain)), "{layout:?}");
        }
    }

    #[test]
    fn panels_hold_the_transpose() {
        let packed = packed(Packing::Linear, WeightLayout::Panels, &[2, 3]); // (n, k)
        assert_eq!(packed.len(), 4 * 32);
        assert_eq!((packed[0], packed[1], packed[32], packed[33], packed[64], packed[96]), (1, 4, 2, 5, 3, 0));
    }

    /// Element by element, with sizes around those of panels and of the blocks that are packed at a time.
    #[test]
    fn panels_hold_every_element_once_and_zeros_elsewhere() {
        for stored in
            [vec![33, 1], vec![64, 700], vec![5, 513], vec![40, 3, 3, 3], vec![31, 130, 3, 3], vec![2, 64, 5, 5]]
        {
            let packing = if stored.len() == 2 { Packing::Linear } else { Packing::Conv2d };
            let (n, taps, channels) = packing.matrix(&stored).unwrap();
            let rows = (taps * channels).next_multiple_of(2);
            let mut expected = vec![0; packing.elements(&stored)];
            for (column, row) in (0..n).flat_map(|column| (0..taps * channels).map(move |row| (column, row))) {
                let (tap, channel) = (row / channels, row % channels);
                let stored = (column * channels + channel) * taps + tap + 1;
                expected[(column / 32 * rows + row) * 32 + column % 32] = stored as u32;
            }
            assert!(packed(packing, WeightLayout::Panels, &stored) == expected, "{stored:?}");

            let mut pairs = vec![bf16::NAN; packing.elements(&stored)];
            let read = |start: usize, out: &mut [bf16]| {
                out.iter_mut().enumerate().for_each(|(i, out)| *out = bf16::from_bits((start + i + 1) as u16));
            };
            packing.pack(WeightLayout::Panels, &stored, read, &mut pairs);
            for (i, &value) in expected.iter().enumerate() {
                let (row, column) = (i / 32, i % 32);
                let found = pairs[row / 2 * 64 + 2 * column + row % 2].to_bits();
                assert_eq!(found, value as u16, "{stored:?}: row {row}, column {column}");
            }
        }
    }
}
