//! Networks that a family finds in a checkpoint file.

use std::sync::Arc;

use kiln_weights::ParamSource;
use kiln_weights::ldm::{ClipShape, Names, QwenShape, T5Shape};
use serde_json::Value;

use crate::component::ComponentKind;
use crate::transformer_configs::{qwen_config, t5_config};
use crate::variant::Variant;

/// A denoiser in a file.
#[derive(Clone)]
pub struct FileDenoiser {
    /// The names of its tensors.
    pub names: Arc<Names>,
    /// Its `config.json`, derived from names and shapes.
    pub config: Value,
    /// Its variant.
    pub variant: Variant,
}

/// A text encoder in a file.
#[derive(Debug, Clone)]
pub enum FileText {
    /// One of CLIP.
    Clip(ClipShape),
    /// One of T5.
    T5(T5Shape),
    /// One of Qwen3.
    Qwen(QwenShape),
    /// One that a family has for itself.
    Own {
        /// Its `config.json`.
        config: Value,
        /// Channels of its token embeddings.
        width: usize,
        /// The names of its tensors.
        names: fn() -> Names,
    },
}

impl FileText {
    /// The text encoder of `kind` whose tensors `source` has without a prefix.
    pub fn read(kind: ComponentKind, source: &dyn ParamSource) -> Option<Self> {
        match kind {
            ComponentKind::Clip => ClipShape::read(source).map(Self::Clip),
            ComponentKind::T5 => T5Shape::read(source).map(Self::T5),
            ComponentKind::LanguageModel => QwenShape::read(source).map(Self::Qwen),
            _ => None,
        }
    }

    /// Channels of its token embeddings.
    pub fn width(&self) -> usize {
        match self {
            Self::Clip(shape) => shape.hidden_size,
            Self::T5(shape) => shape.width,
            Self::Qwen(shape) => shape.width,
            Self::Own { width, .. } => *width,
        }
    }

    /// The names of its tensors.
    pub fn names(&self) -> Names {
        match self {
            Self::Clip(shape) => shape.dialect.names(),
            Self::T5(shape) => shape.dialect.names(),
            Self::Qwen(shape) => shape.dialect.names(),
            Self::Own { names, .. } => names(),
        }
    }

    /// Its `config.json`; `None` for encoders of CLIP, whose configuration depends on the model.
    pub fn config(&self) -> Option<Value> {
        match self {
            Self::Clip(_) => None,
            Self::T5(shape) => Some(t5_config(shape)),
            Self::Qwen(shape) => Some(qwen_config(shape)),
            Self::Own { config, .. } => Some(config.clone()),
        }
    }

    /// The shape of an encoder of CLIP.
    pub fn clip(&self) -> Option<&ClipShape> {
        match self {
            Self::Clip(shape) => Some(shape),
            _ => None,
        }
    }
}
