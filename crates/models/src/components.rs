//! The networks of a model.

/// A network of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The text encoder with this place among those of the model.
    TextEncoder(usize),
    /// The denoiser.
    Denoiser,
    /// The autoencoder.
    Vae,
}
