//! The passes of a run.

use serde::Serialize;

/// A pass of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// The first one, which is the only one without hires fix.
    #[default]
    First,
    /// The second one of hires fix.
    Second,
}

impl Pass {
    /// Whether it is the first one.
    pub fn is_first(&self) -> bool {
        *self == Self::First
    }
}
