//! The texts of a pass, as far as memory depends on them.

/// The number and the lengths of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TextWork {
    /// Whether the denoiser also runs without the prompt.
    pub guided: bool,
    /// Parts of each prompt: more than one with `AND`.
    pub parts: usize,
    /// Context tokens of the longest text; 0: those of the model's shortest text.
    pub tokens: usize,
    /// Context tokens that the denoiser sees for each text, 0 as in `tokens`: as many, or more if texts of unequal length are repeated.
    pub context: usize,
    /// Different texts that are encoded before the first step and stored until the last, including those of schedules.
    /// The minimum is one for each part, and one more with guidance.
    pub texts: usize,
}

impl TextWork {
    /// The shortest prompts of a model.
    pub fn short(guided: bool) -> Self {
        Self { guided, parts: 1, tokens: 0, context: 0, texts: 1 }
    }

    /// The larger of both in every respect.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { texts: self.texts.max(other.texts), ..self.with(other) }
    }

    /// Both at once.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            guided: self.guided || other.guided,
            parts: self.parts.max(other.parts),
            tokens: self.tokens.max(other.tokens),
            context: self.context.max(other.context),
            texts: self.texts + other.texts,
        }
    }

    /// Texts of an image without schedules.
    pub(crate) fn usual(&self) -> usize {
        if self.guided { 1 + self.parts } else { 1 }
    }

    /// Texts that are encoded, one at least for each row of an image.
    pub(crate) fn encoded(&self) -> usize {
        self.texts.max(self.usual())
    }
}
