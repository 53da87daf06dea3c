//! The pipelines' cases from the fixtures: their samplers and their requests' options.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::records::Record;
use crate::Result;
use crate::workspace::read;

/// A case of `tests/fixtures/pipeline_{model}.json` or `emoji.json`.
#[derive(Deserialize)]
struct Case {
    name: String,
    prompt: String,
    negative_prompt: Option<String>,
    steps: usize,
    cfg_scale: f64,
    width: usize,
    height: usize,
    #[serde(default = "one")]
    images: usize,
    sampler: Option<String>,
    schedule: String,
}

/// The model of a list of pipelines' cases.
fn model_of(file: &str) -> Option<&str> {
    let stem = file.strip_suffix(".json")?;
    stem.strip_prefix("pipeline_").or((stem == "emoji").then_some(stem))
}

fn one() -> usize {
    1
}

/// The table rows of a case.
pub struct Labels {
    /// The sampler, or that an image was compared.
    pub sampler: String,
    /// The unusual options of the request, often none.
    pub requests: Vec<String>,
}

/// All cases, by model and name.
pub struct Cases(HashMap<(String, String), Case>);

impl Cases {
    /// Reads the lists in `fixtures`.
    pub fn read(fixtures: &Path) -> Result<Self> {
        let mut cases = HashMap::new();
        for entry in std::fs::read_dir(fixtures)? {
            let path = entry?.path();
            // The folder also contains lists of other tests.
            let Some(model) = path.file_name().and_then(|name| model_of(name.to_str()?)) else { continue };
            let model = model.to_string();
            let list: Vec<Case> = serde_json::from_str(&read(&path)?)?;
            cases.extend(list.into_iter().map(|case| ((model.clone(), case.name.clone()), case)));
        }
        Ok(Self(cases))
    }

    /// The rows of a pipeline's record, or `None` if no fixture has its case.
    pub fn labels(&self, record: &Record) -> Option<Labels> {
        let name = record.stage.trim_end_matches(" picture");
        let case = self.0.get(&(record.model.clone(), name.to_string()))?;
        if name != record.stage {
            return Some(Labels { sampler: "image".into(), requests: Vec::new() });
        }
        let sampler = case.sampler.as_deref().unwrap_or("the folder's own");
        let sampler = if case.schedule == "default" { sampler.into() } else { format!("{sampler} {}", case.schedule) };
        let requests = case.special().into_iter().map(String::from).collect();
        Some(Labels { sampler, requests })
    }
}

impl Case {
    fn special(&self) -> Vec<&'static str> {
        let long = |text: &str| text.split_whitespace().count() > 40; // prompts have either over 75 tokens, or a few words
        let negative = self.negative_prompt.as_deref();
        let marks = [
            (self.steps <= 2, "one or two steps"),
            (self.width != self.height, "not square"),
            (self.width / 8 % 2 == 1 || self.height / 8 % 2 == 1, "odd latent sides"),
            (self.images > 1, "several images at once"),
            (self.cfg_scale == 1.0, "no guidance"),
            (negative.is_some_and(|text| !text.is_empty()), "negative prompt"),
            (negative == Some(""), "empty negative prompt"),
            (long(&self.prompt) || negative.is_some_and(long), "more than 75 tokens"),
        ];
        marks.into_iter().filter_map(|(is, mark)| is.then_some(mark)).collect()
    }
}
