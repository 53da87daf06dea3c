//! The positions of image and text tokens.
//!
//! A token has a position on three axes. Those of the text are at (1 + number, 0, 0), those of the image at (1 + filled length of the
//! text, row, column), and the filling of the image at (0, 0, 0). In a batch the length of the text differs between images, so that
//! each has tables of its own.

use candle_core::{Device, Tensor};
use kiln_network::slots::{CONTEXT, TEXT_LENGTHS};
use kiln_network::{Inputs, Slot};
use kiln_nn::{Reduction, Result, RopeTables, TensorLike};

use super::config::ZImageConfig;
use super::{MULTIPLE, filled};
use crate::rotary::{self, Along, USUAL};
use crate::tokens::{join_tokens, repeated};

/// 1 for tokens of the text and 0 for its filling, `(b, filled s)` in f32.
const IS_REAL: Slot = Slot::each("tokens of the text").keeping_dtype();
/// The filled length of each text, `(b)` in f32.
const FILLED: Slot = Slot::each("filled text lengths").keeping_dtype();
/// Cosines and sines of the image's number on the first axis, `(b, 2, channels / 2)` in f32.
const IMAGE_NUMBERS: Slot = Slot::each("rotary numbers of images").keeping_dtype();

/// The tensors that depend on the lengths of the texts.
#[derive(Debug, Clone)]
pub(super) struct Lengths<T> {
    /// See [`IS_REAL`].
    pub(super) is_real: T,
    /// See [`FILLED`].
    pub(super) filled: T,
    image_numbers: T,
}

impl<T: TensorLike> Lengths<T> {
    /// Those among `inputs`, or made of the lengths among them; `None` if all tokens of the texts are real.
    pub(super) fn of(inputs: &Inputs<T>, config: &ZImageConfig) -> Result<Option<Self>> {
        match (inputs.get(IS_REAL), inputs.get(FILLED), inputs.get(IMAGE_NUMBERS)) {
            (Some(is_real), Some(filled), Some(image_numbers)) => {
                let [is_real, filled, image_numbers] = [is_real, filled, image_numbers].map(Clone::clone);
                Ok(Some(Self { is_real, filled, image_numbers }))
            }
            _ => match (inputs.get(TEXT_LENGTHS), inputs.get(CONTEXT)) {
                (Some(lengths), Some(context)) => {
                    let [_, s, _] = context.size3()?;
                    Self::new(lengths, s, config).map(Some)
                }
                _ => Ok(None),
            },
        }
    }

    /// For `lengths` `(b)` of texts with `s` tokens in f32.
    fn new(lengths: &T, s: usize, config: &ZImageConfig) -> Result<Self> {
        let (total, axis) = (filled(s), config.axes[0] / 2);
        let b = lengths.dims().first().copied().unwrap_or(0);
        let lengths = lengths.reshape(&[b, 1])?;
        // 1 where a text is longer than a number, else 0: lengths and numbers are whole.
        let exceeds = |numbers: Vec<f32>| -> Result<T> {
            let count = numbers.len();
            let numbers = lengths.new_constant(&Tensor::from_vec(numbers, (1, count), &Device::Cpu)?)?;
            repeated(numbers.affine(-1.0, 0.0)?, b)?.broadcast_add(&lengths)?.clamp(0.0, 1.0)
        };
        let is_real = exceeds((0..total).map(|i| i as f32).collect())?;
        let steps = total / MULTIPLE;
        let begun = exceeds((0..=steps).map(|i| (i * MULTIPLE) as f32).collect())?; // (b, steps + 1)
        let [begun, next] = [0, 1].map(|i| begun.narrow(1, i, steps)?.contiguous());
        let begun = begun?;
        let ends: Vec<f32> = (1..=steps).map(|i| (i * MULTIPLE) as f32).collect();
        let ends = lengths.new_constant(&Tensor::from_vec(ends, (1, steps), &Device::Cpu)?)?;
        let filled = begun.broadcast_mul(&ends)?.reduce(Reduction::Max, 1)?.reshape(&[b])?;
        // One of the numbers, which a product with zeros and a one selects without rounding.
        let last = begun.sub(&next?)?;
        let table = config.rotary().table(total + 2)?.narrow(2, 0, axis)?.contiguous()?;
        let rows: Vec<u32> = (1..=steps).map(|i| (i * MULTIPLE + 1) as u32).collect();
        let numbers = table.index_select(&Tensor::from_vec(rows, steps, &Device::Cpu)?, 1)?; // (2, steps, axis)
        let numbers = lengths.new_constant(&numbers.contiguous()?)?.premultiplied(&last)?; // (2, b, axis)
        let [cos, sin] = [0, 1].map(|i| numbers.narrow(0, i, 1)?.contiguous()?.reshape(&[b, 1, axis]));
        let image_numbers = join_tokens(&cos?, &sin?)?;
        Ok(Self { is_real, filled, image_numbers })
    }

    fn add_to(self, mut inputs: Inputs<T>) -> Inputs<T> {
        inputs.add(IS_REAL, 0, self.is_real);
        inputs.add(FILLED, 0, self.filled);
        inputs.add(IMAGE_NUMBERS, 0, self.image_numbers);
        inputs
    }
}

/// `inputs` with the tensors that depend on no size, made once for all steps.
pub(super) fn prepare<T: TensorLike>(inputs: Inputs<T>, config: &ZImageConfig) -> Result<Inputs<T>> {
    let text = inputs.get(CONTEXT).and_then(|context| context.dims().get(1).copied()).unwrap_or(0);
    let inputs = config.rotary().prepare(inputs, USUAL.max(filled(text) + 2))?;
    if inputs.get(IS_REAL).is_some() {
        return Ok(inputs);
    }
    Ok(match Lengths::of(&inputs, config)? {
        Some(lengths) => lengths.add_to(inputs),
        None => inputs,
    })
}

/// The tables of the tokens of a call, with their filling.
pub(super) struct Positions<T> {
    /// Of the image.
    pub(super) image: RopeTables<T>,
    /// Of the text.
    pub(super) text: RopeTables<T>,
    /// Of the image, then of the text.
    pub(super) all: RopeTables<T>,
}

impl<T: TensorLike> Positions<T> {
    /// The tables for an image of `height` and `width` tokens and texts of `s` tokens. `prepared` is a table from [`prepare`], and
    /// `like` a tensor in f32.
    pub(super) fn of(
        config: &ZImageConfig,
        prepared: Option<&T>,
        lengths: Option<&Lengths<T>>,
        [height, width]: [usize; 2],
        s: usize,
        like: &T,
    ) -> Result<Self> {
        let rotary = config.rotary();
        let (n, s) = (height * width, filled(s));
        let table = rotary.table_for(prepared, height.max(width).max(s + 2), like)?;
        let text = rotary.of_grid(&table, (0, &[Along::Columns(1), Along::All(0), Along::All(0)]), [1, s])?;
        let filling = match filled(n) - n {
            0 => None,
            count => Some(rotary.of_grid(&table, (0, &[Along::All(0); 3]), [1, count])?),
        };
        let rest = rotary.of_grid(&table, (1, &[Along::Rows, Along::Columns(0)]), [height, width])?;
        let axis = config.axes[0] / 2;
        let numbers = match lengths {
            Some(lengths) => lengths.image_numbers.clone(),
            None => table.narrow(1, s + 1, 1)?.narrow(2, 0, axis)?.contiguous()?.reshape(&[1, 2, axis])?,
        };
        let [b, _, _] = numbers.size3()?;
        let numbers = numbers.reshape(&[2 * b, 1, 1, axis])?.upsample_nearest((n, 1), None)?;
        // Both functions of every image: `(2 b, tokens, head_dim / 2)`.
        let every = |x: &T| if b > 1 { T::cat(&vec![x; b], 0) } else { Ok(x.clone()) };
        let mut image = numbers.reshape(&[2 * b, n, axis])?.concat_channels(&every(&rest)?)?;
        if let Some(filling) = filling {
            image = join_tokens(&image, &every(&filling)?)?;
        }
        let all = join_tokens(&image, &every(&text)?)?;
        Ok(Self { image: tables(&image)?, text: rotary::joined(&[text])?, all: tables(&all)? })
    }
}

/// Cosines and sines of `b` images, `(2 b, s, half)`, as tables `(b, s, half)`, or `(s, half)` for one.
fn tables<T: TensorLike>(all: &T) -> Result<RopeTables<T>> {
    let [rows, s, half] = all.size3()?;
    let b = rows / 2;
    let all = all.reshape(&[b, 2, s, half])?;
    let shape = if b == 1 { vec![s, half] } else { vec![b, s, half] };
    let [cos, sin] = [0, 1].map(|i| all.narrow(1, i, 1)?.contiguous()?.reshape(&shape));
    Ok(RopeTables { cos: cos?, sin: sin? })
}
