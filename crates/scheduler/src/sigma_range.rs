//! Between which noise levels a sigma schedule lies, and how noisy the latents are with which it begins.

/// Between which noise levels the sigma schedules lie that are laid between two: `karras`, `exponential`,
/// `polyexponential` and `beta_sigmas`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SigmaRange {
    /// The largest and the least level of the training table: k-diffusion, AUTOMATIC1111, ComfyUI.
    Table,
    /// The first and the last level that the timestep spacing visits, where diffusers' class of the sampler does
    /// that. With `leading` (SDXL) the first one is lower than the table's.
    Spacing,
}

/// What unit noise is multiplied by to be the first latents. `sigma` is the first noise level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InitialNoise {
    /// By `sigma`: noise alone. AUTOMATIC1111.
    Sigma,
    /// By `sqrt(sigma^2 + 1)`: as much variance as noise and an image have. AUTOMATIC1111's "SGM noise multiplier".
    Variance,
    /// By `sigma` for the spacings that begin at the noisiest timestep, else by `sqrt(sigma^2 + 1)`: diffusers.
    Spacing,
    /// By `sqrt(sigma^2 + 1)` where the first level is the table's largest, else by `sigma`: ComfyUI.
    Maximum,
}
