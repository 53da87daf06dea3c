//! Networks and pipelines of families that Kiln recognizes and does not run.

use std::path::Path;

use kiln_families::{Detected, FamilyRef, runnable_labels};
use kiln_weights::{Checkpoint, ParamSource};
use serde::{Serialize, Serializer};

use crate::error::Error;

/// A network or a pipeline of a family that Kiln does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignModel(Detected);

impl ForeignModel {
    /// The network in a file. LoRAs have no network here: see [`Self::of_lora`].
    pub fn of(file: &dyn ParamSource) -> Option<Self> {
        kiln_families::detect(file).map(Self)
    }

    /// The pipeline or network of a class in `model_index.json` or `config.json`.
    pub fn of_class(class: &str) -> Option<Self> {
        kiln_families::class_label(class).map(Self)
    }

    /// The family that a LoRA with these tensors is for, if Kiln does not run it.
    pub fn of_lora(keys: &[String]) -> Option<FamilyRef> {
        kiln_families::known_lora(keys)
    }

    /// A name with its article: `a FLUX.1 transformer`.
    pub fn label(self) -> &'static str {
        self.0.label
    }

    /// The family; `None` for a network of several families, such as a text encoder.
    pub fn family(self) -> Option<FamilyRef> {
        self.0.family
    }

    /// The name, the networks that the file has as well, and that Kiln does not run it.
    pub fn sentence(self, held: &[&str]) -> String {
        let with = match held {
            [] => String::new(),
            [one] => format!(", with {one}"),
            [first @ .., last] => format!(", with {} and {last}", first.join(", ")),
        };
        not_supported(&format!("{}{with}", self.0.label))
    }
}

/// The sentence that Kiln does not run `what` yet.
pub(crate) fn not_supported(what: &str) -> String {
    format!("{what}: not supported yet; Kiln runs {}", runnable_labels())
}

/// The error for a LoRA file of a family that Kiln does not run; `None` for other files.
pub fn foreign_lora(path: &Path) -> Option<Error> {
    let keys = Checkpoint::open(path).ok()?.keys();
    let family = ForeignModel::of_lora(&keys)?;
    Some(Error::ForeignLora { path: path.to_path_buf(), family: family.label() })
}

impl Serialize for ForeignModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.label)
    }
}
