//! Adaptive projected guidance (Sadat et al., arXiv 2410.02416), as diffusers' `AdaptiveProjectedGuidance` computes it: on what
//! the network predicts, over all values of an image.

use candle_core::{D, Tensor};
use kiln_request::GuidanceOptions;

use crate::error::Result;

/// The projection of a job's guidance, with its average over the evaluations.
pub(crate) struct Projection {
    /// The factor of the part that is parallel to the conditional prediction.
    eta: f64,
    /// The largest norm; 0 is no bound.
    threshold: f64,
    momentum: f64,
    /// `difference + momentum * average` of the evaluation before, `(n, c, h, w)`.
    average: Option<Tensor>,
}

impl Projection {
    /// The projection that `options` ask for, if any.
    pub(crate) fn new(options: &GuidanceOptions) -> Option<Self> {
        let GuidanceOptions { apg_eta, apg_threshold: threshold, apg_momentum: momentum, .. } = *options;
        apg_eta.map(|eta| Self { eta, threshold, momentum, average: None })
    }

    /// The guided difference instead of `difference`, the conditional prediction less the unconditional one. Both `(n, c, h,
    /// w)` in f32.
    pub(crate) fn project(&mut self, difference: Tensor, conditional: &Tensor) -> Result<Tensor> {
        let mut difference = match &self.average {
            Some(average) => (difference + (average * self.momentum)?)?,
            None => difference,
        };
        if self.momentum != 0.0 {
            self.average = Some(difference.clone());
        }
        let (shape, inner) = (difference.shape().clone(), conditional.flatten_from(1)?); // (n, c h w)
        difference = difference.flatten_from(1)?;
        if self.threshold > 0.0 {
            let factor = (norm(&difference)?.recip()? * self.threshold)?.clamp(0.0, 1.0)?;
            difference = difference.broadcast_mul(&factor)?;
        }
        let direction = inner.broadcast_div(&norm(&inner)?)?;
        let along = (&difference * &direction)?.sum_keepdim(D::Minus1)?; // (n, 1)
        let parallel = direction.broadcast_mul(&along)?;
        let projected = (difference + (parallel * (self.eta - 1.0))?)?;
        Ok(projected.reshape(shape)?)
    }
}

/// The Euclidean norm of each row, `(n, 1)`, more than 0.
fn norm(rows: &Tensor) -> Result<Tensor> {
    /// The least divisor of PyTorch's `normalize`.
    const LEAST: f64 = 1e-12;
    Ok(rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.clamp(LEAST, f32::MAX)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn row(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap().reshape((1, 1, 1, values.len())).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn projection(eta: f64, threshold: f64, momentum: f64) -> Projection {
        Projection { eta, threshold, momentum, average: None }
    }

    #[test]
    fn the_parallel_part_has_a_factor_of_its_own() {
        let conditional = row(&[2.0, 0.0]);
        let of = |eta| values(&projection(eta, 0.0, 0.0).project(row(&[3.0, 4.0]), &conditional).unwrap());
        assert_eq!(of(0.0), [0.0, 4.0]);
        assert_eq!(of(1.0), [3.0, 4.0]);
        assert_eq!(of(0.5), [1.5, 4.0]);
    }

    #[test]
    fn the_norm_is_bounded_and_zeros_stay() {
        let conditional = row(&[0.0, 1.0]);
        let of =
            |difference: &[f32]| values(&projection(1.0, 2.5, 0.0).project(row(difference), &conditional).unwrap());
        assert_eq!(of(&[3.0, 4.0]), [1.5, 2.0]);
        assert_eq!(of(&[0.3, 0.4]), [0.3, 0.4]);
        assert_eq!(of(&[0.0, 0.0]), [0.0, 0.0]);
    }

    #[test]
    fn momentum_adds_what_was_before() {
        let (conditional, mut projection) = (row(&[1.0]), projection(1.0, 0.0, -0.5));
        let mut next = |value| values(&projection.project(row(&[value]), &conditional).unwrap())[0];
        assert_eq!([next(4.0), next(4.0), next(0.0)], [4.0, 2.0, -1.0]);
    }
}
