//! A point of a schedule.

/// A noise level: the latents there are `x = alpha * x0 + sigma * eps`.
///
/// Some samplers preserve the variance (`alpha^2 + sigma^2 = 1`), and in others it explodes (`alpha = 1`). Flow models have
/// `alpha = 1 - sigma`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The timestep that the model gets, fractional for some samplers.
    pub timestep: f64,
    /// The signal's factor.
    pub alpha: f64,
    /// The noise's factor.
    pub sigma: f64,
    /// The factor of the latents in the model's input: `1 / sqrt(alpha^2 + sigma^2)`, and 1 for flow models.
    pub input_scale: f64,
}

impl Point {
    /// A point of a process whose model gets latents of unit variance.
    pub(crate) fn new(timestep: f64, alpha: f64, sigma: f64) -> Self {
        Self { timestep, alpha, sigma, input_scale: 1.0 / unit_norm(alpha, sigma) }
    }

    /// A point of a variance exploding sampler.
    pub(crate) fn exploding(timestep: f64, sigma: f64) -> Self {
        Self::new(timestep, 1.0, sigma)
    }

    /// A variance preserving point with this ratio of noise to signal.
    pub(crate) fn preserving(timestep: f64, ratio: f64) -> Self {
        let alpha = 1.0 / (ratio * ratio + 1.0).sqrt();
        Self::new(timestep, alpha, ratio * alpha)
    }

    /// A variance preserving point with this share of signal in the variance.
    pub(crate) fn of_alpha_cumprod(timestep: f64, alpha_cumprod: f64) -> Self {
        Self::new(timestep, alpha_cumprod.sqrt(), (1.0 - alpha_cumprod).sqrt())
    }

    /// A point of a flow model.
    pub(crate) fn flow(timestep: f64, sigma: f64) -> Self {
        Self { timestep, alpha: 1.0 - sigma, sigma, input_scale: 1.0 }
    }

    /// The divisor of the latents before the model gets them: `sqrt(alpha^2 + sigma^2)`, and 1 for flow models.
    pub fn norm(&self) -> f64 {
        if self.input_scale == 1.0 { 1.0 } else { unit_norm(self.alpha, self.sigma) }
    }

    /// The ratio of noise to signal. Infinite without signal.
    pub(crate) fn ratio(&self) -> f64 {
        self.sigma / self.alpha
    }

    /// Half the log-SNR, `log(alpha / sigma)`: DPM-Solver's lambda. Infinite without noise.
    pub fn lambda(&self) -> f64 {
        self.alpha.ln() - self.sigma.ln()
    }
}

/// The norm of the two factors.
fn unit_norm(alpha: f64, sigma: f64) -> f64 {
    let norm = alpha.hypot(sigma);
    // A variance preserving point is not scaled at all; this is below half a bit of f32.
    if (norm - 1.0).abs() < 2e-8 { 1.0 } else { norm }
}
