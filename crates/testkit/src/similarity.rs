//! The overall similarity of two results, for cases in which rounding is amplified and a largest difference is not
//! meaningful.

use candle_core::Tensor;

use crate::compare::values;

/// The similarity of two tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Similarity {
    /// The cosine of the angle between them as vectors: 1 for equal ones, about 0 for noise, 0 for zeros.
    pub cosine: f64,
    /// The mean absolute difference, divided by the mean absolute value of the expected tensor: 0 for equal ones, 1 for
    /// zeros, about 1.4 for noise of the same variance.
    pub error: f64,
}

/// The similarity that a result needs to pass.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The minimum cosine.
    pub cosine: f64,
    /// The maximum mean relative error.
    pub error: f64,
}

impl Limits {
    /// Whether a result of this similarity passes.
    pub fn accept(&self, found: Similarity) -> bool {
        found.cosine >= self.cosine && found.error <= self.error
    }
}

/// Compares `found` with `expected`, which have the same shape. If one has a value that is not finite, the similarity
/// is the lowest.
#[track_caller]
pub fn similarity(found: &Tensor, expected: &Tensor) -> Similarity {
    assert_eq!(found.dims(), expected.dims(), "shapes differ");
    let (found, expected) = (values(found), values(expected));
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        found.iter().zip(&expected).map(|(&f, &e)| term(f64::from(f), f64::from(e))).sum()
    };
    let [product, found_squared, expected_squared] = [sum(&|f, e| f * e), sum(&|f, _| f * f), sum(&|_, e| e * e)];
    let error = sum(&|f, e| (f - e).abs()) / sum(&|_, e| e.abs()).max(f64::MIN_POSITIVE);
    if !product.is_finite() || !error.is_finite() {
        return Similarity { cosine: -1.0, error: f64::INFINITY };
    }
    let length = (found_squared * expected_squared).sqrt();
    Similarity { cosine: if length > 0.0 { product / length } else { 0.0 }, error }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    #[test]
    fn similarity_has_the_values_of_its_formula() {
        let expected = tensor(&[3.0, -4.0, 0.0]);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        let same = similarity(&expected, &expected);
        close(same.cosine, 1.0);
        close(same.error, 0.0);
        // The product is 9, the lengths are 5 and sqrt(10); the differences are 0, 4, 1 of a sum of 7.
        let other = similarity(&tensor(&[3.0, 0.0, 1.0]), &expected);
        close(other.cosine, 9.0 / (5.0 * 10.0f64.sqrt()));
        close(other.error, 5.0 / 7.0);
        let opposite = similarity(&tensor(&[-3.0, 4.0, 0.0]), &expected);
        close(opposite.cosine, -1.0);
        close(opposite.error, 2.0);
        assert_eq!(similarity(&tensor(&[0.0; 3]), &expected), Similarity { cosine: 0.0, error: 1.0 });
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!Limits { cosine: -1.0, error: 1e9 }.accept(similarity(&tensor(&[3.0, bad, 0.0]), &expected)));
        }
    }

    #[test]
    fn limits_hold_for_both_numbers() {
        let limits = Limits { cosine: 0.9, error: 0.1 };
        assert!(limits.accept(Similarity { cosine: 0.9, error: 0.1 }));
        assert!(!limits.accept(Similarity { cosine: 0.89, error: 0.0 }));
        assert!(!limits.accept(Similarity { cosine: 1.0, error: 0.11 }));
    }
}
