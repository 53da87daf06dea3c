//! What can go wrong with a model before its weights are loaded.

use std::path::{Path, PathBuf};

use crate::components::ComponentKind;

/// Why a model cannot be found, read or converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is not possible.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The name of the field or argument.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// A file of a model is not what it should be.
    #[error("{}: {problem}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file or folder that should replace a network does not exist.
    #[error("{}: not found; looked for a checkpoint file or a component's folder, for `{}`", path.display(), component.field())]
    NoComponent {
        /// The path.
        path: PathBuf,
        /// The network that it should replace.
        component: ComponentKind,
    },
    /// A checkpoint file does not have all networks of a model, or does not say how its U-Net is configured.
    #[error("{}: {}", path.display(), incomplete(missing, found, *is_known))]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The networks that it does not have.
        missing: Vec<ComponentKind>,
        /// The networks that it has.
        found: Vec<ComponentKind>,
        /// Whether the configuration of its U-Net follows from its tensors.
        is_known: bool,
    },
    /// The user stopped the conversion or the download.
    #[error("interrupted")]
    Interrupted,
    /// A file is missing, or cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// A model could not be fetched, or is not in the cache.
    #[error(transparent)]
    Hub(kiln_hub::Error),
    /// The schedule of a model is not possible.
    #[error(transparent)]
    Scheduler(#[from] kiln_scheduler::Error),
    /// A text encoder or a tokenizer is not possible.
    #[error(transparent)]
    Clip(#[from] kiln_clip::Error),
    /// A U-Net is not possible.
    #[error(transparent)]
    Unet(#[from] kiln_unet::Error),
    /// An autoencoder is not possible.
    #[error(transparent)]
    Vae(#[from] kiln_vae::Error),
    /// Weights cannot be read, or do not fit.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Characters of a problem with a file that are shown: problems quote values, and a value may be a megabyte.
const LONGEST_PROBLEM: usize = 1000;

/// The first `most` characters of a text from a file, for a message.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// What a file lacks, and what it can be used for.
fn incomplete(missing: &[ComponentKind], found: &[ComponentKind], is_known: bool) -> String {
    let list = |kinds: &[ComponentKind], text: fn(&ComponentKind) -> String, between: &str| {
        kinds.iter().map(text).collect::<Vec<_>>().join(between)
    };
    let field = |kind: &ComponentKind| format!("`{}`", kind.field());
    let lacks = list(missing, |kind| kind.label().into(), " and no ");
    match (missing, found) {
        (_, []) => "is no model of Stable Diffusion in one file".into(),
        ([], _) => {
            "has a U-Net with the names of diffusers, without its configuration; open the model that it belongs \
                    to, with this file as its `unet`"
                .into()
        }
        _ if is_known => {
            let fields = list(missing, field, " and ");
            format!(
                "has no {lacks}; give files that have them as {fields}, or open the model that it belongs to, with this \
                 file as its `unet`"
            )
        }
        _ => format!(
            "has no {lacks}; to use it in another model, open that with this file as its {}",
            list(found, field, " or ")
        ),
    }
}

impl Error {
    /// Makes an error of a file of a model. A long problem is shortened.
    pub fn model(path: &Path, problem: impl ToString) -> Self {
        Self::Model { path: path.to_path_buf(), problem: shortened(&problem.to_string(), LONGEST_PROBLEM) }
    }

    /// Whether the caller's request itself is at fault, rather than a file or the system.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Scheduler(_) => true,
            Self::Files(error) => error.is_usage(),
            Self::Hub(error) => error.is_usage(),
            _ => false,
        }
    }

    /// Whether there was no memory.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Clip(error) => error.is_out_of_memory(),
            Self::Unet(error) => error.is_out_of_memory(),
            Self::Vae(error) => error.is_out_of_memory(),
            Self::Weights(error) => error.is_out_of_memory(),
            _ => false,
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::read_error(path);
        |source| error(source).into()
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::write_error(path);
        |source| error(source).into()
    }

    pub(crate) fn not_found(path: impl Into<PathBuf>, looked_for: String) -> Self {
        kiln_files::Error::NotFound { path: path.into(), looked_for }.into()
    }
}

impl From<kiln_hub::Error> for Error {
    fn from(error: kiln_hub::Error) -> Self {
        match error {
            kiln_hub::Error::Interrupted => Self::Interrupted,
            other => Self::Hub(other),
        }
    }
}
