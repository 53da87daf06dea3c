//! The errors of this crate.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image was not read, changed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, is not a regular file, or is too large.
    #[error("{name}: {problem}")]
    Read {
        /// The file or stream.
        name: String,
        /// The content found, and the necessary action.
        problem: String,
    },
    /// The content is not an image of a known format, or of a kind that is not supported.
    #[error("{name}: {found}; expected a PNG, JPEG, WebP, BMP, TIFF or GIF image with 8 or 16 bits a sample")]
    Unsupported {
        /// The file or stream.
        name: String,
        /// The content found.
        found: String,
    },
    /// The image has more pixels, or needs more memory, than the limit allows.
    #[error("{name}: {found}, and the limit is {limit}; make the image smaller")]
    TooLarge {
        /// The file or stream.
        name: String,
        /// The size in the header.
        found: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// The content starts as an image, and is truncated or damaged.
    #[error("{name}: the {format} image is damaged or truncated: {problem}; save or download it again")]
    Damaged {
        /// The file or stream.
        name: String,
        /// The format by the first bytes.
        format: &'static str,
        /// The decoder's error.
        problem: String,
    },
    /// A size, region or radius that an operation does not accept.
    #[error("{0}")]
    Size(String),
    /// An encoder failed.
    #[error("the image cannot be written as {format}: {problem}")]
    Encode {
        /// The format.
        format: &'static str,
        /// The encoder's error.
        problem: String,
    },
}
