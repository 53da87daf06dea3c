//! What programs other than AUTOMATIC1111 leave in pictures: told, not understood.

use serde::Serialize;
use serde_json::{Map, Value};

use super::ImageText;

/// As many things as are told of one text.
const FACTS: usize = 40;
/// More of a value is not told.
const LENGTH: usize = 2000;
/// ComfyUI's nodes that settings are in: parts of their names.
const NODES: [&str; 8] = ["Sampler", "Loader", "TextEncode", "LatentImage", "Scheduler", "Guider", "Noise", "Lora"];

/// A text of another program, and what stands in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForeignSettings {
    /// Whose text it is.
    pub program: &'static str,
    /// The text's key.
    pub key: String,
    /// Names and values.
    pub facts: Vec<(String, String)>,
}

impl ForeignSettings {
    /// What is known of `text`, which stands among `all`.
    pub(super) fn of(text: &ImageText, all: &[ImageText]) -> Option<Self> {
        let has = |key: &str, part: &str| all.iter().any(|text| text.key == key && text.text.contains(part));
        let json = || serde_json::from_str::<Value>(&text.text).ok();
        let (program, facts) = match text.key.as_str() {
            "prompt" => ("ComfyUI", nodes(json()?.as_object()?)),
            "workflow" => ("ComfyUI", vec![("nodes".into(), json()?.get("nodes")?.as_array()?.len().to_string())]),
            "invokeai_metadata" | "sd-metadata" | "invokeai_graph" => ("InvokeAI", facts(&json()?)),
            "Dream" => ("InvokeAI", vec![("command".into(), text.text.clone())]),
            "Comment" if has("Software", "NovelAI") => ("NovelAI", facts(&json()?)),
            "parameters" | "UserComment" | "generation_data" => {
                let json = json()?;
                let program = match json.as_object()? {
                    all if all.contains_key("sui_image_params") => "SwarmUI",
                    all if all.contains_key("fooocus_scheme") || all.contains_key("base_model_hash") => "Fooocus",
                    _ => "an unknown program",
                };
                (program, facts(json.get("sui_image_params").unwrap_or(&json)))
            }
            "use_stable_diffusion_model" | "num_inference_steps" => ("Easy Diffusion", Vec::new()),
            // NovelAI hides all of its texts as one object.
            key if key.starts_with("stealth_") => ("NovelAI or one like it", facts(&json()?)),
            _ => return None,
        };
        Some(Self { program, key: text.key.clone(), facts: facts_of_length(facts) })
    }
}

fn facts_of_length(mut facts: Vec<(String, String)>) -> Vec<(String, String)> {
    facts.truncate(FACTS);
    facts.into_iter().map(|(name, value)| (name, value.chars().take(LENGTH).collect())).collect()
}

/// The members of an object, and of the objects right in it.
fn facts(json: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, value) in json.as_object().into_iter().flatten() {
        match value {
            Value::Object(members) => {
                found.extend(
                    members.iter().filter_map(|(inner, value)| Some((format!("{name}.{inner}"), plain(value)?))),
                );
            }
            value => found.extend(plain(value).map(|value| (name.clone(), value))),
        }
    }
    found
}

/// The inputs of the nodes that matter, the lowest numbers first.
fn nodes(graph: &Map<String, Value>) -> Vec<(String, String)> {
    let node = |(id, node): (&String, &Value)| {
        let class = node.get("class_type")?.as_str().filter(|class| NODES.iter().any(|part| class.contains(part)))?;
        let inputs = node.get("inputs")?.as_object()?;
        let told = inputs.iter().filter_map(|(name, value)| Some(format!("{name} {}", plain(value)?)));
        let told: Vec<_> = told.collect();
        Some((id.parse::<u64>().unwrap_or(u64::MAX), format!("{class} {id}"), told.join(", ")))
    };
    let mut found: Vec<_> = graph.iter().filter_map(node).collect();
    found.sort();
    found.into_iter().map(|(_, name, told)| (name, told)).collect()
}

/// A value that is one: no list, no object.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(all: &[(&str, &str)]) -> Vec<String> {
        let text =
            |(key, text): &(&str, &str)| ImageText { place: "tEXt".into(), key: (*key).into(), text: (*text).into() };
        let all: Vec<ImageText> = all.iter().map(text).collect();
        let found = all.iter().filter_map(|text| ForeignSettings::of(text, &all));
        found
            .map(|found| {
                let facts: Vec<_> = found.facts.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{} {}: {}", found.program, found.key, facts.join("; "))
            })
            .collect()
    }

    #[test]
    fn comfyuis_nodes_are_told() {
        let prompt = r#"{"10": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
            "3": {"class_type": "KSampler", "inputs": {"seed": 5, "cfg": 8.0, "model": ["4", 0]}},
            "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}}"#;
        let found = told(&[("prompt", prompt), ("workflow", r#"{"nodes": [1, 2]}"#)]);
        assert_eq!(found[0], "ComfyUI prompt: KSampler 3=cfg 8.0, seed 5; CLIPTextEncode 10=text a cat");
        assert_eq!(found[1], "ComfyUI workflow: nodes=2");
    }

    #[test]
    fn other_programs_are_told_by_their_keys() {
        let found = told(&[
            ("invokeai_metadata", r#"{"positive_prompt": "a", "model": {"name": "b", "hash": 1, "c": [1]}}"#),
            ("Software", "NovelAI"),
            ("Comment", r#"{"steps": 28}"#),
            ("parameters", r#"{"sui_image_params": {"seed": 7}}"#),
            ("UserComment", r#"{"fooocus_scheme": "x"}"#),
            ("prompt", "no JSON"),
            ("unknown", "{}"),
        ]);
        assert_eq!(
            found,
            [
                "InvokeAI invokeai_metadata: model.hash=1; model.name=b; positive_prompt=a",
                "NovelAI Comment: steps=28",
                "SwarmUI parameters: seed=7",
                "Fooocus UserComment: fooocus_scheme=x",
            ]
        );
    }
}
