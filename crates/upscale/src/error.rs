//! Errors of upscalers.

/// Why an upscaler cannot be opened or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tensors are those of no network that this crate has.
    #[error(
        "{origin}: this is no upscaler that Kiln can run: {found}; expected RRDBNet (ESRGAN, Real-ESRGAN) or SRVGGNetCompact"
    )]
    NotAnUpscaler {
        /// The file.
        origin: String,
        /// The contents of the file.
        found: String,
    },
    /// A tensor that the network needs is missing.
    #[error("{origin}: tensor `{tensor}` of {network} is missing")]
    Missing {
        /// The file.
        origin: String,
        /// The name in the file.
        tensor: String,
        /// The network that the other tensors belong to.
        network: String,
    },
    /// A tensor has another shape than the network needs.
    #[error("{origin}: tensor `{tensor}` of {network} has shape {found:?}, expected {expected}")]
    Shape {
        /// The file.
        origin: String,
        /// The name in the file.
        tensor: String,
        /// The network that the other tensors belong to.
        network: String,
        /// The expected value.
        expected: String,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// The file has a tensor that the network does not have, so the network would compute something else.
    #[error("{origin}: tensor `{tensor}` belongs to no part of {network}: this variant is not supported")]
    Unknown {
        /// The file.
        origin: String,
        /// The name in the file.
        tensor: String,
        /// The network that the other tensors belong to.
        network: String,
    },
    /// The file has no slopes of PReLU, and the tensors of ReLU and LeakyReLU are the same.
    #[error(
        "{origin}: SRVGGNetCompact without the slopes of PReLU (`{tensor}`): the file does not say whether it was \
         trained with ReLU or LeakyReLU"
    )]
    UnknownActivation {
        /// The file.
        origin: String,
        /// The first tensor of slopes.
        tensor: String,
    },
    /// An image does not fit the network.
    #[error("the upscaler's input has shape {found:?}, expected {expected}")]
    Input {
        /// The expected value.
        expected: String,
        /// The input's shape.
        found: Vec<usize>,
    },
    /// The caller stopped the run.
    #[error("interrupted")]
    Interrupted,
    /// The weights cannot be read.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
    /// A part of the network failed; the message has its path.
    #[error("upscaler: {0}")]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether the caller's `StopSign` was set (`kiln_ops`).
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_stopped(),
            Self::Weights(error) => error.is_stopped(),
            _ => false,
        }
    }

    /// Whether there was no memory: strips of fewer rows may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Weights(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
