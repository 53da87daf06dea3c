//! The timesteps of a short schedule, and conversions between timesteps and noise levels.

use crate::Spacing;

/// Timesteps in the order of sampling, unrounded.
///
/// `leading` has a stride of `last / divisions` where `steps` of the `divisions` are visited (the multistep solvers
/// omit the timestep 0, which is their end).
pub(crate) struct Grid {
    /// One past the largest timestep.
    pub last: usize,
    /// The length of the training schedule, which sets the stride of `trailing`.
    pub num_train_timesteps: usize,
    /// The number of model evaluations.
    pub steps: usize,
    /// The number of parts that the range is divided into: `steps`, or one more.
    pub divisions: usize,
    /// Added by `leading`.
    pub offset: i64,
}

impl Grid {
    pub fn timesteps(&self, spacing: Spacing) -> Vec<f64> {
        let (last, steps) = (self.last as f64, self.steps);
        match spacing {
            Spacing::Linspace => linspace(0.0, last - 1.0, self.divisions).into_iter().rev().take(steps).collect(),
            Spacing::Leading => {
                let stride = self.last / self.divisions;
                (0..self.divisions).rev().take(steps).map(|i| (i * stride) as f64 + self.offset as f64).collect()
            }
            // diffusers computes the length of this list by floating point division, which for some numbers of steps
            // (61, 103, ...) gives one step too many, at timestep -1. Here the list has the requested length.
            Spacing::Trailing => {
                let stride = self.num_train_timesteps as f64 / steps as f64;
                // NumPy's `arange` uses the difference of its first two values as its stride, which decides ties.
                let stride = last - (last - stride);
                // Where the noisiest timesteps are omitted, fewer fit.
                let marks = (0..steps).map(|i| last - i as f64 * stride).take_while(|&mark| mark > 0.0);
                marks.map(|mark| mark.round_ties_even() - 1.0).collect()
            }
        }
    }
}

/// NumPy's `linspace`, with the exact endpoint.
pub(crate) fn linspace(start: f64, end: f64, n: usize) -> Vec<f64> {
    let step = (end - start) / (n.max(2) - 1) as f64;
    let value = |i: usize| if i > 0 && i == n - 1 { end } else { start + i as f64 * step };
    (0..n).map(value).collect()
}

/// The value of `table` at a fractional index, clamped at both ends.
pub(crate) fn interpolate(table: &[f64], at: f64) -> f64 {
    let at = at.clamp(0.0, (table.len() - 1) as f64);
    let low = at.floor();
    let (low, weight) = (low as usize, at - low);
    let high = (low + 1).min(table.len() - 1);
    table[low] + weight * (table[high] - table[low])
}

/// The fractional training timestep at which the noise level is `sigma`.
pub(crate) fn timestep_of(sigma: f64, log_sigmas: &[f64]) -> f64 {
    let log_sigma = sigma.max(1e-10).ln();
    let below = log_sigmas.partition_point(|&level| level <= log_sigma);
    let low = below.saturating_sub(1).min(log_sigmas.len() - 2);
    let (low_level, high_level) = (log_sigmas[low], log_sigmas[low + 1]);
    let weight = ((low_level - log_sigma) / (low_level - high_level)).clamp(0.0, 1.0);
    (1.0 - weight) * low as f64 + weight * (low + 1) as f64
}

/// Noise levels even in `sigma^(1/rho)`, arXiv 2206.00364 equation 5.
pub(crate) fn karras(sigma_max: f64, sigma_min: f64, n: usize, rho: f64) -> Vec<f64> {
    let (max, min) = (sigma_max.powf(1.0 / rho), sigma_min.powf(1.0 / rho));
    linspace(0.0, 1.0, n).into_iter().map(|ramp| (max + ramp * (min - max)).powf(rho)).collect()
}

/// Noise levels even in log-SNR, arXiv 2206.00927 section 3.4.
pub(crate) fn lu(log_sigma_max: f64, log_sigma_min: f64, n: usize) -> Vec<f64> {
    let ramps = linspace(0.0, 1.0, n).into_iter();
    ramps.map(|ramp| (log_sigma_max + ramp * (log_sigma_min - log_sigma_max)).exp()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(steps: usize) -> Grid {
        Grid { last: 1000, num_train_timesteps: 1000, steps, divisions: steps, offset: 1 }
    }

    #[test]
    fn the_three_spacings() {
        assert_eq!(grid(5).timesteps(Spacing::Leading), [801.0, 601.0, 401.0, 201.0, 1.0]);
        assert_eq!(grid(5).timesteps(Spacing::Trailing), [999.0, 799.0, 599.0, 399.0, 199.0]);
        assert_eq!(grid(4).timesteps(Spacing::Linspace), [999.0, 666.0, 333.0, 0.0]);
        assert_eq!(grid(1).timesteps(Spacing::Linspace), [0.0]);
    }

    #[test]
    fn every_number_of_steps_gets_as_many_timesteps() {
        for steps in 1..=1000 {
            for spacing in [Spacing::Leading, Spacing::Trailing, Spacing::Linspace] {
                let timesteps = grid(steps).timesteps(spacing);
                assert_eq!(timesteps.len(), steps);
                assert!(timesteps.iter().all(|&t| t >= 0.0), "{steps} {spacing:?}");
            }
        }
    }

    #[test]
    fn sigmas_and_timesteps_are_inverse() {
        let sigmas: Vec<f64> = (1..=100).map(|i| 0.01 * f64::from(i * i)).collect();
        let logs: Vec<f64> = sigmas.iter().map(|s| s.ln()).collect();
        for t in [0.0, 7.0, 98.0, 99.0] {
            assert!((timestep_of(interpolate(&sigmas, t), &logs) - t).abs() < 1e-9);
        }
        assert_eq!(timestep_of(1e-9, &logs), 0.0);
        assert_eq!(timestep_of(1e9, &logs), 99.0);
    }
}
