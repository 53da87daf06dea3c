//! Texts of unequal length in CLIP's chunks.
//!
//! A shorter text gets chunks of the empty text, or the whole row is repeated up to the least common multiple of all lengths,
//! as ComfyUI does (`comfy/conds.py`, `CONDCrossAttn.concat`). Keys and values that all occur `k` times leave softmax attention
//! as it is, since numerator and denominator both become `k` times as large. So each row gives what it gives alone in its own
//! length, and rows of different lengths still share a batch, a recorded step and a plan.

use candle_core::Tensor;
use kiln_network::text::{Error, Fill, Result};

/// The maximum number of chunks to which shorter texts are repeated. Two texts of 22 and 23 chunks (1,650 words and more) need 506.
const MAX_REPEATED: usize = 512;

/// The context `(1, tokens, d)` of a text as long as its row. `empty` is that of the empty text, if it is needed.
pub(super) fn filled(text: &Tensor, fill: &Fill, empty: Option<&Tensor>) -> Result<Tensor> {
    let Fill { own, parts, total, padded } = *fill;
    let length = text.dim(1)?;
    let with_empty = |text: Tensor, missing: usize| -> Result<Tensor> {
        match empty.filter(|_| missing > 0) {
            None => Ok(text),
            Some(empty) => {
                let mut all = vec![&text];
                all.extend(vec![empty; missing / empty.dim(1)?.max(1)]);
                Ok(Tensor::cat(&all, 1)?)
            }
        }
    };
    let mut text = with_empty(text.clone(), own.saturating_sub(length))?;
    if parts > own {
        let last = text.narrow(1, text.dim(1)? - 1, 1)?;
        text = Tensor::cat(&[text, last.repeat((1, parts - own, 1))?], 1)?;
    }
    if padded {
        return with_empty(text, total.saturating_sub(parts));
    }
    let times = total / parts.max(1);
    if times > 1 { Ok(text.repeat((1, times, 1))?) } else { Ok(text) }
}

/// The least common multiple of the rows' lengths, which are multiples of `chunk`.
///
/// # Errors
/// [`Error::Option`] if rows would have to be repeated to an extreme length.
pub(super) fn common_multiple(rows: &[usize], longest: usize, chunk: usize) -> Result<usize> {
    let mut common = 1usize;
    for &row in rows {
        let length = row.max(1);
        let multiple = (common / greatest_common_divisor(common, length)).saturating_mul(length);
        if multiple > MAX_REPEATED.saturating_mul(chunk) && multiple > longest {
            let mut lengths: Vec<usize> = rows.iter().map(|row| row / chunk).collect();
            lengths.sort_unstable();
            lengths.dedup();
            let lengths: Vec<String> = lengths.iter().take(8).map(usize::to_string).collect();
            let expected = format!(
                "on: these prompts have {} chunks of 75 tokens, which do not go together",
                lengths.join(" and ")
            );
            return Err(Error::Option { name: "pad_conds", found: "off".into(), expected });
        }
        common = multiple;
    }
    Ok(common)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// A text of one value a token, in which the number is the text's and the decimal its place.
    fn text(number: usize, tokens: usize) -> Tensor {
        let values: Vec<f32> = (0..tokens).map(|i| number as f32 + i as f32 / 10.0).collect();
        Tensor::new(values, &Device::Cpu).unwrap().reshape((1, tokens, 1)).unwrap()
    }

    /// Text `number` of so many tokens as long as its row, with an empty text of two tokens.
    fn row(number: usize, tokens: usize, [own, parts, total]: [usize; 3], padded: bool) -> Vec<f32> {
        let fill = Fill { own, parts, total, padded };
        let filled = filled(&text(number, tokens), &fill, Some(&text(9, 2))).unwrap();
        filled.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn padded_rows_have_empty_chunks_behind() {
        assert_eq!(row(0, 2, [2, 2, 6], true), [0.0, 0.1, 9.0, 9.1, 9.0, 9.1]);
        assert_eq!(row(1, 6, [6, 6, 6], true), [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]);
    }

    #[test]
    fn unpadded_rows_are_repeated_as_a_whole() {
        assert_eq!(row(0, 4, [4, 4, 12], false), [0.0, 0.1, 0.2, 0.3].repeat(3));
        assert_eq!(row(1, 6, [6, 6, 12], false), [1.0, 1.1, 1.2, 1.3, 1.4, 1.5].repeat(2));
    }

    #[test]
    fn parts_get_their_last_vector_and_schedules_empty_chunks() {
        assert_eq!(row(0, 2, [2, 2, 6], false), [0.0, 0.1].repeat(3));
        assert_eq!(row(1, 2, [4, 6, 6], false), [1.0, 1.1, 9.0, 9.1, 9.1, 9.1]);
        assert_eq!(row(2, 4, [4, 6, 6], false), [2.0, 2.1, 2.2, 2.3, 2.3, 2.3]);
    }

    #[test]
    fn extreme_lengths_are_refused() {
        let of = |chunks: [usize; 2]| {
            let rows = chunks.map(|chunks| 77 * chunks);
            common_multiple(&rows, rows[0].max(rows[1]), 77)
        };
        assert_eq!(of([1, 4000]).unwrap(), 77 * 4000);
        assert_eq!(of([22, 23]).unwrap(), 77 * 506);
        let message = of([4001, 4000]).unwrap_err().to_string();
        assert!(
            message.starts_with("`pad_conds` is off, expected on: these prompts have 4000 and 4001 chunks"),
            "{message}"
        );
    }
}
