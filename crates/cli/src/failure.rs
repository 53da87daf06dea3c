//! Errors of commands, and their messages: libraries name fields, the user knows flags.

use std::process::ExitCode;

use kiln_engine::Error;
use kiln_files::Error as FileError;
use kiln_models::{ComponentKind, Error as ModelError};

use crate::flags;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An error of the engine, also one that another crate passes on.
    Engine(Error),
    /// An error of an image set.
    Batch(kiln_batch::Error),
    /// An error of a measurement or of a trace of memory.
    Bench(kiln_bench::Error),
    /// An error of the server.
    #[cfg(feature = "serve")]
    Serve(kiln_serve::Error),
    /// Images that were not compared, or do not pass.
    Compare(kiln_compare::Error),
    /// An error of an update of the program.
    Update(kiln_self_update::Error),
}

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// The message, with flags where a library has fields.
    pub fn message(&self) -> String {
        match self {
            Self::Engine(error) => message(error),
            Self::Batch(error) => with_hint(error.message(&flags::spell)),
            Self::Bench(error) => flags::with_flags(&error.to_string()),
            #[cfg(feature = "serve")]
            Self::Serve(error) => flags::with_flags(&error.to_string()),
            Self::Compare(kiln_compare::Error::Files(error)) => of_files(error),
            Self::Compare(error) => error.to_string(),
            Self::Update(error) => error.to_string(),
        }
    }

    /// The exit status.
    pub fn status(&self) -> ExitCode {
        let is_usage = match self {
            Self::Engine(Error::Interrupted) | Self::Compare(kiln_compare::Error::Interrupted) => {
                return ExitCode::from(130);
            }
            Self::Engine(error) => error.is_usage(),
            Self::Batch(error) => error.is_usage(),
            Self::Bench(error) => error.is_usage(),
            #[cfg(feature = "serve")]
            Self::Serve(error) => error.is_usage(),
            Self::Compare(error) => error.is_usage(),
            Self::Update(error) => error.is_usage(),
        };
        if is_usage { ExitCode::from(2) } else { ExitCode::FAILURE }
    }
}

impl From<kiln_batch::Error> for Failure {
    fn from(error: kiln_batch::Error) -> Self {
        match error {
            kiln_batch::Error::Engine(error) => Self::Engine(error),
            other => Self::Batch(other),
        }
    }
}

impl From<kiln_bench::Error> for Failure {
    fn from(error: kiln_bench::Error) -> Self {
        match error {
            kiln_bench::Error::Engine(error) => Self::Engine(error),
            other => Self::Bench(other),
        }
    }
}

#[cfg(feature = "serve")]
impl From<kiln_serve::Error> for Failure {
    fn from(error: kiln_serve::Error) -> Self {
        match error {
            kiln_serve::Error::Engine(error) => Self::Engine(error),
            other => Self::Serve(other),
        }
    }
}

impl From<kiln_compare::Error> for Failure {
    fn from(error: kiln_compare::Error) -> Self {
        Self::Compare(error)
    }
}

impl From<kiln_self_update::Error> for Failure {
    fn from(error: kiln_self_update::Error) -> Self {
        Self::Update(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::Engine(error.into())
    }
}

impl From<kiln_request::Error> for Failure {
    fn from(error: kiln_request::Error) -> Self {
        Self::Engine(error.into())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::Engine(error.into())
    }
}

/// The message of an error of the engine, with flags where a library has fields.
pub fn message(error: &Error) -> String {
    match error {
        Error::Files(error) => of_files(error),
        Error::Models(error) => of_models(error),
        other => other.message(&flags::spell),
    }
}

fn of_files(error: &FileError) -> String {
    match error {
        FileError::Value { field, found, expected } => {
            refused(&format!("--{}", flags::flag(field)), found, &flags::with_flags(expected))
        }
        FileError::Exists(path) => {
            format!("{} exists already; choose another name, or add --overwrite", path.display())
        }
        FileError::NotFound { path, looked_for } => {
            format!("{}: not found; looked for {}", path.display(), flags::with_flags(looked_for))
        }
        other => other.to_string(),
    }
}

fn of_models(error: &ModelError) -> String {
    match error {
        // This is the only positional argument.
        ModelError::Value { field: "output", found, expected } => refused("OUT", found, expected),
        ModelError::Value { field, found, expected } => refused(&format!("--{}", flags::flag(field)), found, expected),
        ModelError::NoComponent { path, component } => format!(
            "{}: not found; looked for {}, a checkpoint file or a component's folder",
            path.display(),
            component_flag(*component)
        ),
        ModelError::Incomplete { path, missing, found, is_known } => {
            format!("{}: {}", path.display(), incomplete(missing, found, *is_known))
        }
        ModelError::NoModel { .. } => "No model was given, and this program was built without the small model (the feature small-model). Give -m FILE or -m hf:OWNER/NAME, or set \
             KILN_MODELS to a folder that has it.\nFor example: -m hf:stabilityai/sd-turbo, which is downloaded once (kiln pull \
             stabilityai/sd-turbo)"
            .into(),
        ModelError::Model { .. } => error.to_string(),
        other => flags::with_flags(&other.to_string()),
    }
}

/// The missing networks of a checkpoint file, and the possible uses of the file.
fn incomplete(missing: &[ComponentKind], found: &[ComponentKind], is_known: bool) -> String {
    let lacks = missing.iter().map(|kind| kind.label()).collect::<Vec<_>>().join(" and no ");
    match (missing, found) {
        (_, []) => "is not a Stable Diffusion model in one file; `kiln inspect` shows what it is".into(),
        ([], _) => {
            "has a U-Net with the names of diffusers, without its configuration; give the model that it belongs \
                    to with --model, and this file with --unet"
                .into()
        }
        _ if is_known => format!(
            "has no {lacks}; give them with --vae and --text-encoder, or give the model that it belongs to with \
             --model, and this file with --unet"
        ),
        _ => {
            let flags = found.iter().map(|kind| component_flag(*kind)).collect::<Vec<_>>().join(" or ");
            format!("has no {lacks}; to use it in another model, add {flags} to that model's --model")
        }
    }
}

/// The sentence after messages about unknown fields of jobs.
pub const FIELDS_HINT: &str = "`kiln batch --fields` lists the fields of a job";

/// The message of an error of an image set, and where the names of fields are.
fn with_hint(message: String) -> String {
    match message.contains(": unknown field `") {
        true => format!("{message}\n{FIELDS_HINT}"),
        false => message,
    }
}

fn refused(flag: &str, found: &str, expected: &str) -> String {
    format!("{flag} is {found}, expected {expected}")
}

fn component_flag(component: ComponentKind) -> &'static str {
    match component.option() {
        "unet" => "--unet",
        "vae" => "--vae",
        _ => "--text-encoder",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn fields_become_flags() {
        let exists = Error::from(FileError::Exists("a.png".into()));
        assert_eq!(message(&exists), "a.png exists already; choose another name, or add --overwrite");
        let (found, expected) = ("'a.txt'".to_string(), "a name that ends in .safetensors".to_string());
        let error = Error::from(FileError::Value { field: "latents_out", found, expected });
        assert_eq!(message(&error), "--latents-out is 'a.txt', expected a name that ends in .safetensors");
        let error = ModelError::NoComponent { path: "x".into(), component: ComponentKind::Clip };
        let expected = "x: not found; looked for --text-encoder, a checkpoint file or a component's folder";
        assert_eq!(message(&error.into()), expected);
        let incomplete = |missing: &[ComponentKind], found: &[ComponentKind], is_known| {
            let (missing, found) = (missing.to_vec(), found.to_vec());
            message(&ModelError::Incomplete { path: PathBuf::from("x"), missing, found, is_known }.into())
        };
        let [unet, vae, text] = [ComponentKind::Unet, ComponentKind::Vae, ComponentKind::Clip];
        assert!(incomplete(&[vae, text], &[unet], true).contains("give them with --vae and --text-encoder, or"));
        assert!(incomplete(&[unet, text], &[vae], false).ends_with("add --vae to that model's --model"));
        assert!(incomplete(&[], &[unet, vae, text], false).ends_with("and this file with --unet"));
        assert!(incomplete(&[unet, vae, text], &[], false).contains("`kiln inspect`"));
    }
}
