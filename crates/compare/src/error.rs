//! The errors of this crate.

use std::path::PathBuf;

use kiln_files::ByteSize;

/// Why images were not compared, or do not pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written, or an option has an impossible value.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// An image cannot be read.
    #[error(transparent)]
    Media(#[from] kiln_media::Error),
    /// The settings of an image cannot be read.
    #[error(transparent)]
    Request(#[from] kiln_request::Error),
    /// The weights of a network cannot be read.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
    /// A layer of a network failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
    /// A CLIP encoder or its tokenizer failed.
    #[error(transparent)]
    Clip(#[from] kiln_clip::Error),
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// One is an image and the other a folder.
    #[error("{} is a folder and {} is not, expected two images or two folders", folder.display(), other.display())]
    Kinds {
        /// The folder.
        folder: PathBuf,
        /// The image.
        other: PathBuf,
    },
    /// The images have different sizes.
    #[error("the images have different sizes: {a} and {b}")]
    Sizes {
        /// The size of the first one.
        a: String,
        /// The size of the second one.
        b: String,
    },
    /// A metric needs a larger image.
    #[error("{metric} needs at least {least} pixels a side, and the images have {width}x{height}")]
    TooSmall {
        /// The metric.
        metric: &'static str,
        /// The least width and height.
        least: usize,
        /// The width of the images.
        width: usize,
        /// The height of the images.
        height: usize,
    },
    /// A file has other networks than a metric needs.
    #[error("{}: {problem}", path.display())]
    Network {
        /// The file or folder.
        path: PathBuf,
        /// The tensors or values found, and the expected ones.
        problem: String,
    },
    /// There is too little memory.
    #[error("{what} takes {needed} of memory, and {available} are free; compare smaller images, or without it")]
    Memory {
        /// The metric with the size of the images.
        what: String,
        /// The memory that it takes.
        needed: ByteSize,
        /// The free memory.
        available: ByteSize,
    },
    /// An image has no settings, or they lack a value.
    #[error("{}: {problem}", path.display())]
    Settings {
        /// The image.
        path: PathBuf,
        /// The missing value.
        problem: String,
    },
    /// A set has other features than another one.
    #[error("{found} features of an image, expected {expected}")]
    Features {
        /// The features found.
        found: usize,
        /// The number in the other set.
        expected: usize,
    },
    /// A set has too few images for a covariance.
    #[error("{found} images, expected at least {least}")]
    TooFew {
        /// The images found.
        found: usize,
        /// The least number.
        least: usize,
    },
    /// A metric gave a value that is not a number.
    #[error("{0} is not a number; are the weights damaged?")]
    NotANumber(&'static str),
    /// The caller stopped the comparison.
    #[error("interrupted")]
    Interrupted,
    /// Images do not pass: a sentence for each problem.
    #[error("{}", failures(.0))]
    Failed(Vec<String>),
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the request is at fault, and neither a file nor an image.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Files(error) => error.is_usage(),
            Self::Request(error) => error.is_usage(),
            Self::Kinds { .. } => true,
            _ => false,
        }
    }

    /// An option with an impossible value.
    pub(crate) fn value(field: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        kiln_files::Error::Value { field, found: found.to_string(), expected: expected.into() }.into()
    }
}

/// Problems that a message lists.
const LISTED: usize = 20;

/// The problems, a line each.
fn failures(all: &[String]) -> String {
    let mut lines: Vec<String> = all.iter().take(LISTED).cloned().collect();
    if all.len() > LISTED {
        lines.push(format!("and {} more", all.len() - LISTED));
    }
    lines.join("\n")
}
