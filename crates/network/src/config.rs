//! The configuration of a denoiser, from which the network is built.

use std::any::Any;
use std::fmt::Debug;

use crate::denoiser::Denoiser;

/// The configuration of a denoiser. Two are equal if they print alike with `Debug`.
pub trait DenoiserConfig: Any + Debug + Send + Sync {
    /// The network, without weights.
    fn build(&self) -> Box<dyn Denoiser>;

    /// The text that the network takes.
    fn text(&self) -> TextWidths;

    /// Whether the network takes a guidance scale as an input ([`crate::slots::GUIDANCE`]).
    fn takes_guidance(&self) -> bool {
        false
    }
}

/// The channels of the text that a denoiser takes. `None` if it takes no such tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextWidths {
    /// Channels of each token ([`crate::slots::CONTEXT`]).
    pub context: Option<usize>,
    /// Channels of the pooled text ([`crate::slots::TEXT_EMBEDS`]).
    pub pooled: Option<usize>,
}

impl dyn DenoiserConfig {
    /// The configuration as its own type; `None` if it is of another type.
    pub fn own<C: DenoiserConfig>(&self) -> Option<&C> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

impl PartialEq for dyn DenoiserConfig {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}
