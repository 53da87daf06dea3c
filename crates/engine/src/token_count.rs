//! Counting the tokens of a prompt while it is typed, with the tokenizer of its model.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_models::ModelFolder;
use kiln_network::text::{NoWords, PromptText, TextStage};
use kiln_prompt::{PromptSchedule, TextOptions, expand, subprompts, take_tags, without_comments};
use parking_lot::Mutex;

use crate::error::Result;

/// Steps of the schedules in prompts. Another number changes when a text applies, and hardly ever which texts there are.
const STEPS: usize = 20;
/// Models whose tokenizers are kept.
const MAX_OPEN: usize = 8;

/// The text stages of models whose tokens were counted.
#[derive(Default)]
pub struct TokenCounter {
    open: Mutex<HashMap<PathBuf, Arc<dyn TextStage>>>,
}

/// The length of a prompt. With several texts, by `AND` or schedules, it is that of the longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenCount {
    /// Tokens up to the last one of the text. A chunk that a comma or `BREAK` ends early counts as full.
    pub tokens: usize,
    /// Tokens that the text encoders have room for without more context: 75 for each chunk of CLIP's.
    pub room: usize,
}

impl TokenCounter {
    /// The text stage of a model.
    ///
    /// # Errors
    /// Errors of its files.
    fn stage(&self, model: &ModelFolder) -> Result<Arc<dyn TextStage>> {
        let path = model.path();
        if let Some(open) = self.open.lock().get(path) {
            return Ok(open.clone());
        }
        let stage: Arc<dyn TextStage> = Arc::from(model.text_stage()?);
        let mut open = self.open.lock();
        if open.len() >= MAX_OPEN {
            open.clear();
        }
        open.insert(path.to_path_buf(), stage.clone());
        Ok(stage)
    }

    /// The lengths of a prompt and a negative prompt, with the rules that hold by default. A word with vectors of its own counts as its
    /// text.
    ///
    /// # Errors
    /// Errors of the model's files and of the tokenizer.
    pub fn count(&self, model: &ModelFolder, prompt: &str, negative: &str) -> Result<[TokenCount; 2]> {
        let stage = self.stage(model)?;
        let made = |text: &str| expand(&without_comments(text), 0, &|_| None);
        let prompt = subprompts(&take_tags(&made(prompt)).0);
        let parts = prompt.iter().map(|part| part.text.as_str());
        Ok([longest(stage.as_ref(), parts)?, longest(stage.as_ref(), [made(negative).as_str()].into_iter())?])
    }
}

/// The length of the longest text of the schedules of these.
fn longest<'a>(stage: &dyn TextStage, texts: impl Iterator<Item = &'a str>) -> Result<TokenCount> {
    let mut longest = TokenCount::default();
    for text in texts {
        for range in PromptSchedule::new(text, STEPS).ranges() {
            longest = longest.max(length(stage, &range.text)?);
        }
    }
    Ok(longest)
}

fn length(stage: &dyn TextStage, text: &str) -> Result<TokenCount> {
    let text = PromptText::plain(text, TextOptions::default());
    let tokens = stage.tokenize(&text, &NoWords)?;
    Ok(TokenCount { tokens: tokens.used(), room: tokens.room() })
}

#[cfg(test)]
mod tests {
    use kiln_clip::{ClipEncoder, ClipPadding, ClipText, HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};

    use super::*;

    #[test]
    fn tokens_are_counted_in_chunks() {
        let tokenizer = Some(Tokenizer::clip(ClipPadding::End).unwrap());
        let config = TextEncoderConfig {
            hidden_size: 4,
            intermediate_size: 4,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            ..TextEncoderConfig::default()
        };
        let encoder = TextEncoder::new(config).unwrap();
        let stage = ClipText::new(vec![ClipEncoder { encoder, tokenizer, network: None }], HiddenLayer::LAST);
        let count = |text: &str| {
            let count = longest(&stage, [text].into_iter()).unwrap();
            (count.tokens, count.room)
        };
        assert_eq!(count(""), (0, 75));
        assert_eq!(count("a red apple"), (3, 75));
        assert_eq!(count("a (red:1.3) apple"), (3, 75), "weights are no tokens");
        assert_eq!(count(&"apple ".repeat(75)), (75, 75));
        assert_eq!(count(&"apple ".repeat(76)), (76, 150));
        assert_eq!(count("a red apple BREAK a boat"), (77, 150), "a chunk that ends early counts as full");
        assert_eq!(count("a [boat:small sailing boat:0.5]"), (4, 75), "the longest text of a schedule");
    }
}
