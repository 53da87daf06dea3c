//! The lengths of prompts in tokens, before anything is encoded.

use std::collections::HashSet;
use std::path::Path;

use kiln_models::ModelFolder;
use kiln_network::text::{PromptText, TextStage};
use kiln_prompt::PromptSchedule;
use kiln_request::{Job, Parsed};

use crate::error::Result;
use crate::words::Embeddings;

/// Counts the tokens of prompts as a model's text encoders take them.
pub struct PromptCounter {
    stage: Box<dyn TextStage>,
    embeddings: Embeddings,
}

/// A prompt with more tokens than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongPrompt {
    /// The field of the request.
    pub field: &'static str,
    /// Its tokens as far as they were counted.
    pub tokens: usize,
}

impl PromptCounter {
    /// For the prompts of a model, with the embeddings of a folder. No weights are read.
    ///
    /// # Errors
    /// Errors of the tokenizers, the configurations and the folder.
    pub fn open(model: &ModelFolder, embeddings_dir: Option<&Path>) -> Result<Self> {
        Ok(Self { stage: model.text_stage()?, embeddings: Embeddings::open(embeddings_dir)? })
    }

    /// The first prompt of `job` that needs more than `most` tokens. A text needs all tokens of its chunks, also of chunks
    /// that `BREAK` ends early; a prompt needs those of all of its parts that `AND` separates, and a part those of the
    /// different texts of its schedule. Counting stops where there are more.
    ///
    /// # Errors
    /// Errors of the tokenizers, and of files with embeddings.
    pub fn longer_than(&self, job: &Job, most: usize) -> Result<Option<LongPrompt>> {
        for (pass, fields) in
            job.passes().zip([["prompt", "negative_prompt"], ["hires_prompt", "hires_negative_prompt"]])
        {
            // What is parsed here is not kept: a schedule may have a text for each step.
            let job = Job { parsed: Parsed::default(), ..pass.clone() };
            for image in 0..if job.has_choices() { job.images() } else { 1 } {
                let prompts = job.prompts(image);
                let blended = job.regions.iter().flat_map(|region| &region.using.blend);
                let blended: Vec<_> = blended.map(|blend| PromptSchedule::new(&blend.text, job.steps)).collect();
                let parts = prompts.parts.iter().map(|part| &part.schedule).chain(&blended);
                for (field, tokens) in fields
                    .into_iter()
                    .zip([self.count(&job, parts, most)?, self.count(&job, [&prompts.negative], most)?])
                {
                    if tokens > most {
                        return Ok(Some(LongPrompt { field, tokens }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The tokens of the texts of schedules, up to the first number above `most`.
    fn count<'a>(
        &self,
        job: &Job,
        schedules: impl IntoIterator<Item = &'a PromptSchedule>,
        most: usize,
    ) -> Result<usize> {
        let mut tokens = 0usize;
        for schedule in schedules {
            // Parts with one text are rows of their own.
            let mut seen = HashSet::new();
            for range in schedule.ranges() {
                if tokens > most || !seen.insert(range.text.as_str()) {
                    continue;
                }
                let text = PromptText::plain(range.text.clone(), job.text_options());
                tokens = tokens.saturating_add(self.stage.tokenize(&text, &self.embeddings)?.room());
            }
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use kiln_request::Request;

    use super::*;

    #[test]
    fn a_prompt_has_the_tokens_of_all_of_its_texts() {
        let model = ModelFolder::open(&kiln_testkit::fixtures("models/sdxl")).unwrap();
        let counter = PromptCounter::open(&model, None).unwrap();
        let longer =
            |request: Request, most: usize| counter.longer_than(&request.resolve(&model).unwrap(), most).unwrap();
        let prompt = |prompt: &str| Request { prompt: prompt.into(), steps: Some(8), ..Request::default() };
        for (text, tokens) in [
            ("", 75),
            ("a fox", 75),
            ("a BREAK b BREAK c", 225),
            ("a AND b", 150),
            ("a AND a AND a", 225),
            ("a [b|c]", 150),
            ("a [b:c:2] AND [d:e:3]", 300),
            (&*"a ".repeat(76), 150),
        ] {
            assert_eq!(longer(prompt(text), tokens), None, "{text}");
            assert_eq!(longer(prompt(text), tokens - 1), Some(LongPrompt { field: "prompt", tokens }), "{text}");
        }
        let negative = Request { negative_prompt: Some("a BREAK b".into()), ..prompt("a") };
        assert_eq!(longer(negative, 75).unwrap().field, "negative_prompt");
        let hires = Request { hires_prompt: Some("a BREAK b".into()), hires_scale: Some(2.0), ..prompt("a") };
        assert_eq!(longer(hires, 75).unwrap().field, "hires_prompt");
        // Counting stops.
        assert_eq!(
            longer(prompt(&(1..8).map(|i| format!("[x{i}:{i}]")).collect::<String>()), 150).unwrap().tokens,
            225
        );
    }
}
