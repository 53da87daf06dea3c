//! A point of a schedule.

/// A noise level: the latents there are `x = alpha * x0 + sigma * eps`.
///
/// Some samplers preserve the variance (`alpha^2 + sigma^2 = 1`), and in others it explodes (`alpha = 1`). The model
/// always gets `x / sqrt(alpha^2 + sigma^2)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The timestep that the model gets, fractional for some samplers.
    pub timestep: f64,
    /// The signal's factor.
    pub alpha: f64,
    /// The noise's factor.
    pub sigma: f64,
}

impl Point {
    /// A point of a variance exploding sampler.
    pub(crate) fn exploding(timestep: f64, sigma: f64) -> Self {
        Self { timestep, alpha: 1.0, sigma }
    }

    /// A variance preserving point with this ratio of noise to signal.
    pub(crate) fn preserving(timestep: f64, ratio: f64) -> Self {
        let alpha = 1.0 / (ratio * ratio + 1.0).sqrt();
        Self { timestep, alpha, sigma: ratio * alpha }
    }

    /// A variance preserving point with this share of signal in the variance.
    pub(crate) fn of_alpha_cumprod(timestep: f64, alpha_cumprod: f64) -> Self {
        Self { timestep, alpha: alpha_cumprod.sqrt(), sigma: (1.0 - alpha_cumprod).sqrt() }
    }

    /// `sqrt(alpha^2 + sigma^2)`: the divisor of the latents before the model gets them.
    pub fn norm(&self) -> f64 {
        let norm = self.alpha.hypot(self.sigma);
        // A variance preserving point is not scaled at all; this is below half a bit of f32.
        if (norm - 1.0).abs() < 2e-8 { 1.0 } else { norm }
    }

    /// Half the log-SNR, `log(alpha / sigma)`: DPM-Solver's lambda. Infinite without noise.
    pub fn lambda(&self) -> f64 {
        self.alpha.ln() - self.sigma.ln()
    }
}
