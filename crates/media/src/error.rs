//! The errors of this crate.

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an image was not read, changed or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read, is no regular file, or has too many bytes.
    #[error("{name}: {problem}")]
    Read {
        /// The file or stream.
        name: String,
        /// What was found, and what to do.
        problem: String,
    },
    /// The content is no image of a known format, or of a kind that is not decoded.
    #[error("{name}: {found}; expected a PNG, JPEG, WebP, BMP, TIFF or GIF image with 8 or 16 bits a sample")]
    Unsupported {
        /// The file or stream.
        name: String,
        /// What was found.
        found: String,
    },
    /// The image has more pixels, or needs more memory, than the limit allows.
    #[error("{name}: {found}, and the limit is {limit}; make the image smaller")]
    TooLarge {
        /// The file or stream.
        name: String,
        /// What the header says.
        found: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// The content begins as an image, and is truncated or damaged.
    #[error("{name}: the {format} image is damaged or truncated: {problem}; save or download it again")]
    Damaged {
        /// The file or stream.
        name: String,
        /// The format of the first bytes.
        format: &'static str,
        /// What the decoder found.
        problem: String,
    },
    /// A size, region or radius that an operation cannot take.
    #[error("{0}")]
    Size(String),
    /// An encoder failed.
    #[error("the image cannot be written as {format}: {problem}")]
    Encode {
        /// The format.
        format: &'static str,
        /// What the encoder reported.
        problem: String,
    },
}
