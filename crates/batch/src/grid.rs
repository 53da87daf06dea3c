//! Axes: fields with several values. Every job runs with all combinations of them.

use std::str::FromStr;

use kiln_request::{JobField, RequestBuilder};

use super::assignment::of_text;

/// One field with its values: `seed=1..4`, `steps=10..30:5`, `cfg=3,7`, `prompt="a, b",c`.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    pub(crate) field: JobField,
    /// The values as text and parsed.
    pub(crate) values: Vec<(String, RequestBuilder)>,
}

/// More values than this are rejected as an error of the user.
const MAX_VALUES: usize = 100_000;

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected a field and its values, as in seed=1..4 or cfg=3,7";
        let (name, values) = text.split_once('=').ok_or(expected)?;
        let field = JobField::named(name)?;
        let written = match range(values)? {
            Some(values) => values,
            None => list(values)?,
        };
        if written.is_empty() {
            return Err(expected.into());
        }
        let value = |text: String| of_text(field, &text).map(|value| (text, value));
        let values = written.into_iter().map(value).collect::<Result<_, String>>()?;
        Ok(Self { field, values })
    }
}

/// `FROM..TO`, both included, and `FROM..TO:STEP`.
fn range(text: &str) -> Result<Option<Vec<String>>, String> {
    let Some((from, rest)) = text.split_once("..") else { return Ok(None) };
    let (to, step) = rest.split_once(':').unwrap_or((rest, "1"));
    let numbers: Result<Vec<f64>, _> = [from, to, step].iter().map(|number| number.trim().parse()).collect();
    let Ok([from, to, step]) = numbers.as_deref() else { return Ok(None) }; // a text with two dots
    if !(*step > 0.0 && from <= to && step.is_finite() && to.is_finite()) {
        return Err(format!("{text} has no values; expected FROM..TO or FROM..TO:STEP, upwards"));
    }
    let count = ((to - from) / step + 1e-9).floor(); // 0.1 is slightly more than a tenth
    if count >= MAX_VALUES as f64 {
        return Err(format!("{text} has more than {MAX_VALUES} values"));
    }
    // Rounded, so that 0.1 + 0.2 is written as 0.3.
    let value = |i: usize| ((from + i as f64 * step) * 1e9).round() / 1e9;
    Ok(Some((0..=count as usize).map(|i| value(i).to_string()).collect()))
}

/// Values between commas; values with commas are in quotation marks.
fn list(text: &str) -> Result<Vec<String>, String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).trim(csv::Trim::All).from_reader(text.as_bytes());
    match reader.records().next() {
        Some(Ok(record)) => Ok(record.iter().map(String::from).collect()),
        Some(Err(error)) => Err(error.to_string()),
        None => Ok(Vec::new()),
    }
}

/// All combinations: the index of a value for each axis; the last axis changes first.
pub(crate) fn combinations(axes: &[Axis]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let lengths: Vec<usize> = axes.iter().map(|axis| axis.values.len()).collect();
    (0..count(axes)).map(move |mut number| {
        let mut combination = vec![0; lengths.len()];
        for (value, length) in combination.iter_mut().zip(&lengths).rev() {
            *value = number % length;
            number /= length;
        }
        combination
    })
}

/// The number of combinations.
pub(crate) fn count(axes: &[Axis]) -> usize {
    axes.iter().fold(1, |count, axis| count.saturating_mul(axis.values.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Result<Vec<String>, String> {
        let axis: Axis = text.parse()?;
        Ok(axis.values.iter().map(|(_, value)| value.json(axis.field).to_string()).collect())
    }

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(values("seed=1..4").unwrap(), ["1", "2", "3", "4"]);
        assert_eq!(values("steps=10..30:10").unwrap(), ["10", "20", "30"]);
        assert_eq!(values("eta=0..0.3:0.1").unwrap(), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(values("prompt=well..done").unwrap(), ["\"well..done\""]);
    }

    #[test]
    fn lists_may_be_quoted() {
        assert_eq!(values("cfg=3, 7.5").unwrap(), ["3.0", "7.5"]);
        assert_eq!(values("prompt=\"a, b\",c").unwrap(), ["\"a, b\"", "\"c\""]);
        assert_eq!(values("sampler=euler,DPM++ 2M").unwrap(), ["\"euler\"", "\"DPM++ 2M\""]);
    }

    #[test]
    fn invalid_axes_are_reported() {
        for (text, expected) in [
            ("seed", "as in seed=1..4"),
            ("seed=", "as in seed=1..4"),
            ("sed=1", "unknown field `sed`"),
            ("steps=few", "steps: \"few\" is not a whole number"),
            ("seed=4..1", "has no values"),
            ("seed=1..4:0", "has no values"),
            ("seed=0..1000000000000", "more than 100000 values"),
            ("steps=1..2:0.5", "steps: \"1.5\" is not a whole number"),
        ] {
            let message = text.parse::<Axis>().unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }

    #[test]
    fn the_last_axis_changes_first() {
        let axes = ["cfg=3,7", "seed=1..3"].map(|text| text.parse().unwrap());
        let all: Vec<Vec<usize>> = combinations(&axes).collect();
        assert_eq!(all, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(combinations(&[]).collect::<Vec<_>>(), [Vec::<usize>::new()]);
    }
}
