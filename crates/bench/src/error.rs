//! Errors of measurements and tests.

use crate::BenchStage;

/// Why a measurement, a test of a device, or a trace of memory failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine: a value, a file, a device, a network.
    #[error(transparent)]
    Engine(#[from] kiln_engine::Error),
    /// A stage of U-Nets is measured with another denoiser.
    #[error("the stage {} needs a U-Net, and the model has a transformer; leave it out of `stages`", .0.id())]
    NoUnet(BenchStage),
    /// A stage of transformers is measured with another denoiser.
    #[error("the stage {} needs a transformer, and the model has a U-Net; leave it out of `stages`", .0.id())]
    NoTransformer(BenchStage),
    /// A device computes something else than it should.
    #[error(
        "{failed} of {total} tests failed on {device}: its images may be wrong; please open an issue with this report, and use \
         another `device` or `dtype` until then"
    )]
    SelfTest {
        /// The number of tests that failed.
        failed: usize,
        /// The number of all tests.
        total: usize,
        /// The tested device.
        device: String,
    },
    /// A measurement does not fit into memory.
    #[error(
        "{what} needs {} of memory, {} are available; try a smaller size, `dtype` bf16, or end other programs",
        gib(*needed), gib(*available)
    )]
    Memory {
        /// The measured stage.
        what: String,
        /// The memory that it needs, in bytes.
        needed: u64,
        /// The available memory, in bytes.
        available: u64,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the request itself is at fault (exit status 2), rather than a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_usage(),
            Self::NoUnet(_) | Self::NoTransformer(_) => true,
            Self::Memory { .. } | Self::SelfTest { .. } => false,
        }
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

macro_rules! from_engine {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Engine(error.into())
            }
        }
    )+};
}

from_engine!(
    candle_core::Error,
    kiln_files::Error,
    kiln_mempool::Error,
    kiln_models::Error,
    kiln_network::Error,
    kiln_network::text::Error,
    kiln_ops::Error,
    kiln_request::Error,
    kiln_scheduler::Error,
    kiln_unet::Error,
    kiln_upscale::Error,
    kiln_weights::Error,
);
