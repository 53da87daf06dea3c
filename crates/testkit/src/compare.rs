//! Measures the difference of two tensors.

use std::io::Write;
use std::sync::Mutex;

use candle_core::{DType, Device, Tensor};

use crate::similarity::{Limits, Similarity, similarity};

/// The environment variable with the folder in which measured errors are collected.
const RECORDS: &str = "KILN_PARITY_RECORDS";

/// The difference of a tensor from the expected one.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    /// The largest absolute difference, in standard deviations of the expected values.
    pub error: f64,
    /// Its index in row-major order.
    pub index: usize,
    /// The value at that index.
    pub found: f32,
    /// The expected value at that index.
    pub expected: f32,
}

/// The values as f32 in row-major order.
#[track_caller]
pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    let flat = tensor.to_device(&Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).and_then(|t| t.flatten_all());
    flat.and_then(|flat| flat.to_vec1::<f32>()).unwrap_or_else(|error| panic!("{error}"))
}

/// Measures the difference of `found` from `expected`. A NaN counts as an infinite difference.
#[track_caller]
pub fn deviation(found: &Tensor, expected: &Tensor) -> Deviation {
    assert_eq!(found.dims(), expected.dims(), "shapes differ");
    let (found, expected) = (values(found), values(expected));
    let count = expected.len() as f64;
    let mean = expected.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let variance = expected.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
    let scale = variance.sqrt().max(1e-12);
    let mut worst = Deviation { error: 0.0, index: 0, found: 0.0, expected: 0.0 };
    for (index, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        let error = f64::from((found - expected).abs()) / scale;
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if index == 0 || error > worst.error {
            worst = Deviation { error, index, found, expected };
        }
    }
    worst
}

/// The comparisons of one test. It prints each, records it for the parity table, and fails if a bound is exceeded.
pub struct Parity {
    part: &'static str,
    model: String,
}

impl Parity {
    /// The comparisons of `part` (`unet`, `pipeline`, ...) with the fixture `model`.
    pub fn new(part: &'static str, model: impl Into<String>) -> Self {
        Self { part, model: model.into() }
    }

    /// Fails unless `found` is within `bound` standard deviations of `expected`.
    #[track_caller]
    pub fn check(&self, stage: &str, found: &Tensor, expected: &Tensor, bound: f64) {
        let Deviation { error, index, found, expected } = deviation(found, expected);
        println!("{} {} {stage}: {error:.1e} of the standard deviation, bound {bound:.0e}", self.part, self.model);
        self.record(stage, error, bound);
        assert!(
            error <= bound,
            "{} {} {stage}: element {index} is {found}, expected {expected}: {error:.2e} over {bound:.0e}",
            self.part,
            self.model,
        );
    }

    /// Fails unless `found` and `expected` are as similar as `limits` requires. The parity table has only largest
    /// errors, so this is printed and not recorded.
    #[track_caller]
    pub fn check_similar(&self, stage: &str, found: &Tensor, expected: &Tensor, limits: Limits) {
        let (largest, found) = (deviation(found, expected).error, similarity(found, expected));
        let Similarity { cosine, error } = found;
        let at = format!("{} {} {stage}", self.part, self.model);
        println!(
            "{at}: {largest:.1e} of the standard deviation; cosine {cosine:.6}, at least {:.6}; mean relative error \
             {error:.2e}, bound {:.1e}",
            limits.cosine, limits.error
        );
        assert!(
            limits.accept(found),
            "{at}: cosine {cosine:.6}, expected at least {}; mean relative error {error:.2e}, expected at most {:.2e}",
            limits.cosine,
            limits.error
        );
    }

    fn record(&self, stage: &str, error: f64, bound: f64) {
        static FILE: Mutex<()> = Mutex::new(());
        let Some(folder) = std::env::var_os(RECORDS) else { return };
        let line = serde_json::json!({
            "part": self.part, "model": self.model, "stage": stage, "error": error, "bound": bound,
        });
        let path = std::path::Path::new(&folder).join(format!("{}.jsonl", std::process::id()));
        let _guard = FILE.lock();
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{line}"))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_standard_deviations() {
        let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
        let worst = deviation(&tensor(&[-2.0, 2.5, 2.0]), &tensor(&[-2.0, 2.0, 2.0]));
        assert_eq!(worst.index, 1);
        assert!((worst.error - 0.5 / 1.885_618).abs() < 1e-5, "{worst:?}");
        assert!(deviation(&tensor(&[f32::NAN]), &tensor(&[0.0])).error.is_infinite());
    }
}
