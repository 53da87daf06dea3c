//! Texts as tokens: each text is tokenized once, for all that is made of it.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_network::text::{PromptText, TextStage, Tokens};

use crate::error::Result;
use crate::words::Embeddings;

/// The number of texts that are kept: those of the images that a set looks ahead at. One of a single chunk takes some KiB.
const REMEMBERED: usize = 4096;
/// The letters of a text's cut end that a warning shows.
const SHOWN: usize = 60;

/// The texts that were tokenized.
#[derive(Default)]
pub(crate) struct TokenizedTexts {
    known: HashMap<PromptText, Arc<Tokens>>,
    /// How many texts were tokenized.
    count: usize,
}

impl TokenizedTexts {
    /// Forgets all texts: other words may have vectors of their own now.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }

    /// How many texts were tokenized so far.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A text's tokens.
    ///
    /// # Errors
    /// Errors of the tokenizers and of files with embeddings.
    pub(crate) fn get(
        &mut self,
        text: &PromptText,
        stage: &dyn TextStage,
        embeddings: &Embeddings,
    ) -> Result<Arc<Tokens>> {
        if let Some(known) = self.known.get(text) {
            return Ok(known.clone());
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let tokens = Arc::new(stage.tokenize(text, embeddings)?);
        warn_of_cut(text, &tokens);
        self.count += 1;
        self.known.insert(text.key(), tokens.clone());
        Ok(tokens)
    }
}

/// Logs a warning if the end of a text is not encoded.
fn warn_of_cut(text: &PromptText, tokens: &Tokens) {
    let Some(cut) = tokens.cut() else { return };
    let length = text.options.max_length.map(|length| length.saturating_sub(1));
    let room = length.map_or(tokens.room(), |length| length.min(tokens.room()));
    let (used, begin) = (tokens.used(), cut.chars().take(SHOWN).collect::<String>());
    tracing::warn!(
        "a text has {used} tokens and the text encoder takes {room}: it does not see what begins with `{begin}`"
    );
}
