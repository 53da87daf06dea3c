//! The configuration of a text encoder.

use std::any::Any;
use std::fmt::Debug;

/// The configuration of a text encoder. Two are equal if they print alike with `Debug`.
pub trait EncoderConfig: Any + Debug + Send + Sync {
    /// Channels of its token embeddings. They distinguish the text encoders of a model.
    fn width(&self) -> usize;

    /// Tokens of its vocabulary.
    fn vocab_size(&self) -> usize;

    /// Layers of which the option `clip_skip` leaves some out; `None` if it has no effect on the encoder.
    fn layers_to_skip(&self) -> Option<usize> {
        None
    }
}

impl dyn EncoderConfig {
    /// The configuration as its own type; `None` if it is of another type.
    pub fn own<C: EncoderConfig>(&self) -> Option<&C> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

impl PartialEq for dyn EncoderConfig {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}
