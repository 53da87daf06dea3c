//! Errors of models before their weights are loaded.

use std::path::{Path, PathBuf};

use kiln_families::{BuiltInTokenizer, ComponentKind};

use crate::file_kind::FileKind;
use crate::foreign::{ForeignModel, not_supported};

/// Why a model cannot be found, read or converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value is not allowed.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The name of the field or argument.
        field: &'static str,
        /// Its value.
        found: String,
        /// The allowed values.
        expected: String,
    },
    /// A file of a model has wrong content.
    #[error("{}: {problem}", path.display())]
    Model {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The file or folder that should replace a network does not exist.
    #[error("{}: not found; looked for a checkpoint file or a component's folder, for `{}`", path.display(), component.option())]
    NoComponent {
        /// The path.
        path: PathBuf,
        /// The network to replace.
        component: ComponentKind,
    },
    /// A checkpoint file lacks networks of a model or the configuration of its U-Net.
    #[error("{}: {}", path.display(), incomplete(missing, found, *is_known))]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The missing networks.
        missing: Vec<ComponentKind>,
        /// The networks in the file.
        found: Vec<ComponentKind>,
        /// Whether the configuration of its U-Net follows from its tensors.
        is_known: bool,
    },
    /// No model was named, and the program does not contain the small model.
    #[error(
        "no model was given, and this program was built without the small model; give a file, a folder or hf:OWNER/NAME as `model`, \
         or set KILN_MODELS to a folder of models that has one named {name}"
    )]
    NoModel {
        /// The name of the small model.
        name: &'static str,
    },
    /// A model of a family that Kiln does not run, or a network of one.
    #[error("{}: is {}", path.display(), model.sentence(held))]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// The model or network.
        model: ForeignModel,
        /// Other networks in the file, with their articles.
        held: Vec<&'static str>,
    },
    /// A LoRA for a family that Kiln does not run.
    #[error("{}: is {}", path.display(), not_supported(&format!("a LoRA for {family}")))]
    ForeignLora {
        /// The file.
        path: PathBuf,
        /// The name of the family.
        family: &'static str,
    },
    /// A file or folder that has something else than a model.
    #[error("{}: {}", path.display(), no_model(*kind))]
    OtherKind {
        /// The file or folder.
        path: PathBuf,
        /// The kind of its network.
        kind: FileKind,
    },
    /// The text encoder of a model in one file has other tokens than the program's tokenizer.
    #[error(
        "{}: its text encoder knows {vocab_size} tokens, and {}'s tokenizer has {}; give a folder with the model's own tokenizer and \
         configurations as `config`",
        path.display(),
        tokenizer.label(),
        tokenizer.tokens()
    )]
    Tokens {
        /// The file.
        path: PathBuf,
        /// The number of tokens of the text encoder.
        vocab_size: usize,
        /// The program's tokenizer for text encoders of its kind.
        tokenizer: BuiltInTokenizer,
    },
    /// The user stopped the conversion or the download.
    #[error("interrupted")]
    Interrupted,
    /// A file is missing, or cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// A model could not be downloaded, or is not in the cache.
    #[error(transparent)]
    Hub(kiln_hub::Error),
    /// The schedule of a model is invalid.
    #[error(transparent)]
    Scheduler(#[from] kiln_scheduler::Error),
    /// A text encoder or a tokenizer is invalid.
    #[error(transparent)]
    Clip(#[from] kiln_clip::Error),
    /// A U-Net is invalid.
    #[error(transparent)]
    Unet(#[from] kiln_unet::Error),
    /// A network of a family is invalid.
    #[error(transparent)]
    Family(kiln_families::Error),
    /// An autoencoder is invalid.
    #[error(transparent)]
    Vae(#[from] kiln_vae::Error),
    /// Weights cannot be read, or do not match.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
}

impl From<kiln_families::Error> for Error {
    fn from(error: kiln_families::Error) -> Self {
        match error {
            kiln_families::Error::Clip(error) => Self::Clip(error),
            kiln_families::Error::Unet(error) => Self::Unet(error),
            other => Self::Family(other),
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The sentence about a file that is no model.
fn no_model(kind: FileKind) -> String {
    let advice = kind.option().map(|option| format!("; to use it with a model, give it as `{option}`"));
    format!("is {}, expected a model{}", kind.label(), advice.unwrap_or_default())
}

/// Maximum characters of a shown problem: problems quote values, and a value may be a megabyte.
const LONGEST_PROBLEM: usize = 1000;

/// The first `most` characters of a text from a file, for a message.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// A message with the missing networks of a file and its possible use.
fn incomplete(missing: &[ComponentKind], found: &[ComponentKind], is_known: bool) -> String {
    let list = |kinds: &[ComponentKind], text: fn(&ComponentKind) -> String, between: &str| {
        kinds.iter().map(text).collect::<Vec<_>>().join(between)
    };
    let field = |kind: &ComponentKind| format!("`{}`", kind.option());
    let lacks = list(missing, |kind| kind.label().into(), " and no ");
    match (missing, found) {
        (_, []) => "is not a Stable Diffusion model in one file".into(),
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
    /// Makes an error about a model file. A long problem is shortened.
    pub fn model(path: &Path, problem: impl ToString) -> Self {
        Self::Model { path: path.to_path_buf(), problem: shortened(&problem.to_string(), LONGEST_PROBLEM) }
    }

    /// Makes an error of a problem in the file `path`.
    pub(crate) fn in_file<E: ToString>(path: PathBuf) -> impl FnOnce(E) -> Self {
        move |problem| Self::model(&path, problem)
    }

    /// Whether the error is in the caller's request, and not in a file or the system.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Scheduler(_) | Self::NoModel { .. } => true,
            Self::Files(error) => error.is_usage(),
            Self::Hub(error) => error.is_usage(),
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
