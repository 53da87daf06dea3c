//! Texts before they are encoded.

use std::any::Any;

use kiln_prompt::TextOptions;

use super::image::PromptImage;

/// A text of a prompt with the options and images that decide on its encoding. Besides the model, an encoded text depends on nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PromptText {
    /// The text of a range of steps, with the brackets of weights.
    pub text: String,
    /// The options, as [`super::TextStage::effective`] has them.
    pub options: TextOptions,
    /// The images that the text encoder sees with the text, for models whose encoder sees images.
    pub images: Vec<PromptImage>,
}

impl PromptText {
    /// A text without images.
    pub fn plain(text: impl Into<String>, options: TextOptions) -> Self {
        Self { text: text.into(), options, images: Vec::new() }
    }

    /// An equal text that keeps no pixels, for the keys of stores.
    #[must_use]
    pub fn key(&self) -> Self {
        let images = self.images.iter().map(PromptImage::without_pixels).collect();
        Self { text: self.text.clone(), options: self.options, images }
    }
}

/// The tokens of one text, in the form of the stage that made them.
#[derive(Debug)]
pub struct Tokens {
    length: usize,
    used: usize,
    room: usize,
    heaviest: f32,
    cut: Option<String>,
    own: Box<dyn Any + Send + Sync>,
}

impl Tokens {
    /// The tokens `own` of a stage for a text with `length` rows of context. The weight that differs most from 0 is 1.
    pub fn new(length: usize, own: impl Any + Send + Sync) -> Self {
        Self { length, used: length, room: length, heaviest: 1.0, cut: None, own: Box::new(own) }
    }

    /// These tokens of a text that has `used` of `room` possible tokens.
    pub fn with_room(self, used: usize, room: usize) -> Self {
        Self { used, room, ..self }
    }

    /// These tokens with the weight that differs most from 0.
    pub fn with_heaviest(self, heaviest: f32) -> Self {
        Self { heaviest, ..self }
    }

    /// These tokens of a text whose end, `cut`, does not fit into [`Self::room`] and has no tokens.
    pub fn with_cut(self, cut: Option<String>) -> Self {
        Self { cut, ..self }
    }

    /// The rows of context that the text has alone, including begin, end and padding.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The tokens up to the last one of the text, without begin, end and padding.
    pub fn used(&self) -> usize {
        self.used
    }

    /// The tokens of a text that [`Self::length`] has room for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// The weight of a token that differs most from 0.
    pub fn heaviest(&self) -> f32 {
        self.heaviest
    }

    /// The end of the text that was cut off.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// The stage's own tokens; `None` if another kind of stage made them.
    pub fn own<O: Any>(&self) -> Option<&O> {
        self.own.downcast_ref()
    }
}
