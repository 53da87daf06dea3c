//! Variants of a family: models of one pipeline with different shapes.

use serde::{Serialize, Serializer};

/// A variant of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// The id in JSON.
    pub id: &'static str,
    /// The name in messages.
    pub label: &'static str,
}

impl Variant {
    /// A model of none of the known shapes.
    pub const OTHER: Self = Self { id: "other", label: "Stable Diffusion of another shape" };

    /// The name in messages.
    pub fn label(self) -> &'static str {
        self.label
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id)
    }
}
