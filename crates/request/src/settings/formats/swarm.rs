//! SwarmUI's `sui_image_params`: parameters by their lower-case names (`src/Text2Image/T2IParamTypes.cs`).

use kiln_media::short;
use serde_json::{Map, Value};

use super::object::Object;
use super::{Taken, as_in_comfyui, dialect, stem};
use crate::comfy::text::spans;
use crate::lora::{LoraName, LoraUse};
use crate::request::Request;

/// Parameters that other parameters repeat.
const SILENT: [&str; 12] = [
    "swarm_version",
    "date",
    "generation_time",
    "prep_time",
    "aspectratio",
    "sidelength",
    "images",
    "automaticvae",
    "original_prompt",
    "original_negativeprompt",
    "donotsave",
    "personalnote",
];
/// The default sampler (`ComfyUIBackend/WorkflowGenerator.cs`).
const SAMPLER: &str = "euler";
const SCHEDULER: &str = "normal";

pub(super) fn taken(all: &Map<String, Value>) -> Result<Taken, String> {
    let mut fields = Object::new(all, &SILENT);
    let mut taken = Taken::default();
    let mut prompt = |name| -> Result<String, String> {
        let text = fields.text(name).unwrap_or_default();
        if let Some((tag, _)) = tag(text) {
            return Err(format!("its prompt has <{tag}..>, which Kiln does not support"));
        }
        Ok(dialect::written(&spans(text)))
    };
    taken.request = Request {
        prompt: prompt("prompt")?,
        negative_prompt: Some(prompt("negativeprompt")?),
        steps: fields.count("steps"),
        seed: fields.whole("seed"),
        cfg_scale: fields.number("cfgscale"),
        width: fields.count("width"),
        height: fields.count("height"),
        clip_skip: fields.number("clipstopatlayer").filter(|layer| *layer <= -1.0).map(|layer| -layer as usize),
        ..as_in_comfyui()
    };
    taken.model = fields.text("model").map(|name| stem(name).into());
    taken.vae = fields.text("vae").filter(|name| !["None", "Automatic"].contains(name)).map(|name| stem(name).into());
    let (sampler, scheduler) = (fields.text("sampler"), fields.text("scheduler"));
    let names = ["sampler", "scheduler"];
    taken.sampler_of_comfyui(names, sampler.or(Some(SAMPLER)), scheduler.or(Some(SCHEDULER)));
    let [names, weights, text_weights] = ["loras", "loraweights", "loratencweights"].map(|name| list(fields.get(name)));
    for (i, name) in names.iter().enumerate() {
        let number = |all: &[String]| all.get(i).and_then(|text| text.trim().parse::<f32>().ok());
        let unet = number(&weights).unwrap_or(1.0);
        let text = number(&text_weights).unwrap_or(unet);
        taken.request.loras.push(LoraUse { lora: LoraName::Named(stem(name).into()), text, unet });
    }
    taken.warnings.extend(fields.finish());
    Ok(taken)
}

/// The first `<word:` or `<word>` of a text, and the text after it.
fn tag(text: &str) -> Option<(&str, &str)> {
    text.match_indices('<').find_map(|(at, _)| {
        let inner = text.get(at + 1..)?;
        let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        let (word, rest) = inner.split_at(end);
        let is_tag = word.starts_with(|c: char| c.is_ascii_alphabetic()) && rest.starts_with([':', '[', '>']);
        is_tag.then_some((word, rest))
    })
}

/// A list as JSON or as comma-separated text.
fn list(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::Array(all)) => {
            all.iter().map(|value| value.as_str().map_or_else(|| short(value), String::from)).collect()
        }
        Some(Value::String(text)) => text.split(',').map(|part| part.trim().into()).collect(),
        _ => Vec::new(),
    }
}
