//! The range of a sigma schedule, and the noise of the first latents.

/// The range of the sigma schedules that interpolate between two levels: `karras`, `exponential`, `polyexponential` and
/// `beta_sigmas`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SigmaRange {
    /// The largest and the least level of the training table: k-diffusion, AUTOMATIC1111, ComfyUI.
    Table,
    /// The first and the last level that the timestep spacing visits, where diffusers' class of the sampler uses those.
    /// With `leading` (SDXL) the first one is lower than the table's.
    Spacing,
}

/// The factor that scales unit noise to the first latents. `sigma` is the first noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InitialNoise {
    /// `sigma`: noise alone. AUTOMATIC1111.
    Sigma,
    /// `sqrt(sigma^2 + 1)`: the variance of an image plus noise. AUTOMATIC1111's "SGM noise multiplier".
    Variance,
    /// `sigma` for the spacings that begin at the noisiest timestep, else `sqrt(sigma^2 + 1)`: diffusers.
    Spacing,
    /// `sqrt(sigma^2 + 1)` if the first level is the table's largest, else `sigma`: ComfyUI.
    Maximum,
}
