//! Errors of a family's networks.

/// The reason why a network of a family cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Kiln only recognizes the models of this family.
    #[error("{0}: not supported yet")]
    NotRun(&'static str),
    /// A value of a configuration is impossible.
    #[error("`{key}` is {found}, expected {expected}")]
    Config {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: &'static str,
    },
    /// The configuration of a text encoder belongs to another network than the family's.
    #[error("`{folder}` has the configuration of another text encoder than {family} takes")]
    OtherEncoder {
        /// The folder of the text encoder.
        folder: &'static str,
        /// The name of the family.
        family: &'static str,
    },
    /// A tokenizer of the program belongs to another kind of text encoder.
    #[error("the program has a tokenizer of {found} for this text encoder, expected one of {expected}")]
    OtherTokenizer {
        /// The kind of the tokenizer.
        found: &'static str,
        /// The kind of the text encoder.
        expected: &'static str,
    },
    /// A text encoder or a tokenizer of CLIP is invalid.
    #[error(transparent)]
    Clip(#[from] kiln_clip::Error),
    /// A U-Net is invalid.
    #[error(transparent)]
    Unet(#[from] kiln_unet::Error),
    /// A text encoder or a tokenizer of T5 is invalid.
    #[error(transparent)]
    T5(#[from] kiln_t5::Error),
    /// A text encoder or a tokenizer of Qwen3 is invalid.
    #[error(transparent)]
    Qwen(#[from] kiln_qwen::Error),
    /// A diffusion transformer is invalid.
    #[error(transparent)]
    Dit(#[from] kiln_dit::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
