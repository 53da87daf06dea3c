//! Texts that are weighted sums of encoded texts: ComfyUI's `ConditioningAverage` (`addWeighted` of nodes.py).

use candle_core::{DType, Tensor};
use kiln_network::text::{CONTEXT, POOLED, TextTensors};

use crate::error::Result;
use crate::pipeline::conditioning::{ConditioningPlan, Row};

/// `encoded`, by the texts' numbers in `plan`, with the blends of its rows, whose numbers the rows get.
///
/// # Errors
/// [`crate::Error::Candle`] for texts of other widths.
pub(super) fn blend(plan: &mut ConditioningPlan, mut encoded: Vec<TextTensors>) -> Result<Vec<TextTensors>> {
    /// A text and those that are blended into it.
    type Key = (usize, Vec<(usize, f32)>);
    let mut known: Vec<(Key, usize)> = Vec::new();
    for row in &mut plan.rows {
        let Row::Texts { texts, blend, .. } = row else { continue };
        if blend.is_empty() {
            continue;
        }
        for text in texts {
            let key = (*text, blend.clone());
            if let Some((_, number)) = known.iter().find(|(known, _)| *known == key) {
                *text = *number;
                continue;
            }
            let others = blend.iter().filter_map(|(other, weight)| Some((encoded.get(*other)?, *weight)));
            let Some(own) = encoded.get(*text) else { continue };
            let blended = blended(own, &others.collect::<Vec<_>>())?;
            *text = encoded.len();
            known.push((key, *text));
            encoded.push(blended);
        }
    }
    Ok(encoded)
}

/// `own` times 1 less the weights of `others`, plus these by their weights, in f32. The other texts are cut to the number of its
/// rows, or have zeros behind their own.
fn blended(own: &TextTensors, others: &[(&TextTensors, f32)]) -> Result<TextTensors> {
    let rest = 1.0 - others.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>();
    let mut sums = own.clone();
    for name in [CONTEXT, POOLED] {
        let Some(tensor) = own.get(name) else { continue };
        let mut sum = (tensor.to_dtype(DType::F32)? * rest)?;
        for (other, weight) in others {
            let Some(other) = other.get(name) else { continue };
            let other = other.to_dtype(DType::F32)?;
            let other = if name == CONTEXT { with_rows(&other, tensor.dim(1)?)? } else { other };
            sum = (sum + (other * f64::from(*weight))?)?;
        }
        sums = sums.with(name, sum.to_dtype(tensor.dtype())?);
    }
    Ok(sums)
}

/// The first `rows` rows of `text` `(1, s, d)`, with zeros behind them if it has fewer.
fn with_rows(text: &Tensor, rows: usize) -> Result<Tensor> {
    let found = text.dim(1)?;
    Ok(text.narrow(1, 0, found.min(rows))?.pad_with_zeros(1, 0, rows.saturating_sub(found))?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use kiln_prompt::PromptSchedule;

    use super::*;

    /// A text of rows of one value, and a pooled vector of one.
    fn text(values: &[f32], pooled: f32) -> TextTensors {
        let context = Tensor::new(values, &Device::Cpu).unwrap().reshape((1, values.len(), 1)).unwrap();
        let pooled = Tensor::new(&[pooled], &Device::Cpu).unwrap().reshape((1, 1)).unwrap();
        TextTensors::default().with(CONTEXT, context).with(POOLED, pooled)
    }

    #[test]
    fn texts_have_the_rows_of_the_first_one() {
        let row = |texts: &[usize], blend: &[(usize, f32)]| Row::Texts {
            schedule: PromptSchedule::new("a", 4),
            texts: texts.to_vec(),
            blend: blend.to_vec(),
        };
        let rows = vec![row(&[0], &[(1, 0.25)]), row(&[1], &[(0, 0.5)]), row(&[0], &[]), row(&[0], &[(1, 0.25)])];
        let mut plan = ConditioningPlan { rows, ..ConditioningPlan::default() };
        let encoded = blend(&mut plan, vec![text(&[4.0, 8.0], 1.0), text(&[2.0, 4.0, 6.0], 3.0)]).unwrap();
        let numbers: Vec<usize> = plan
            .rows
            .iter()
            .map(|row| match row {
                Row::Texts { texts, .. } => texts[0],
                Row::Zeros => usize::MAX,
            })
            .collect();
        assert_eq!(numbers, [2, 3, 0, 2]);
        let values = |number: usize, name: &str| {
            encoded[number].get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!((values(2, CONTEXT), values(2, POOLED)), (vec![3.5, 7.0], vec![1.5]));
        assert_eq!((values(3, CONTEXT), values(3, POOLED)), (vec![3.0, 6.0, 3.0], vec![2.0]));
    }
}
