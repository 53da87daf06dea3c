//! Metadata of programs other than AUTOMATIC1111, for reports. Other crates convert it to requests.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::comfy_graph::{Graph, NodeAt};
use crate::text::ImageText;

/// The maximum number of reported values of a text.
const FACTS: usize = 40;
/// The maximum number of reported characters of a value.
const LENGTH: usize = 2000;
/// Longer texts are not parsed, because parsed values take many times the memory of their text. ComfyUI's largest
/// graphs have some hundred thousand bytes.
pub const MAX_JSON: usize = 4 << 20;
/// Name parts of ComfyUI's nodes that contain settings.
const NODES: [&str; 10] = [
    "Sampler",
    "Loader",
    "TextEncode",
    "LatentImage",
    "Scheduler",
    "Guider",
    "Guidance",
    "ModelSampling",
    "Noise",
    "Lora",
];

/// A text of another program, and the values in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForeignSettings {
    /// The program.
    pub program: &'static str,
    /// The text's key.
    pub key: String,
    /// Names and values.
    pub facts: Vec<(String, String)>,
}

impl ForeignSettings {
    /// The known values in the texts of an image.
    pub fn all(texts: &[ImageText]) -> Vec<Self> {
        let of_novelai = is_of_novelai(texts);
        texts.iter().filter_map(|text| Self::of(text, of_novelai)).collect()
    }

    /// The known values in `text`.
    fn of(text: &ImageText, of_novelai: bool) -> Option<Self> {
        let json = || object_of(text);
        let (program, facts) = match text.key.as_str() {
            "prompt" => ("ComfyUI", comfyui(text)?),
            "workflow" => ("ComfyUI", vec![("nodes".into(), workflow_nodes(&text.text)?.to_string())]),
            "invokeai_metadata" | "sd-metadata" | "invokeai_graph" => ("InvokeAI", facts(&json()?)),
            "Dream" => ("InvokeAI", vec![("command".into(), text.text.clone())]),
            "Comment" if of_novelai => ("NovelAI", facts(&json()?)),
            "Description" if of_novelai => ("NovelAI", vec![("prompt".into(), text.text.clone())]),
            "parameters" | "UserComment" | "generation_data" | "ImageDescription" => {
                let all = json()?;
                match all.get("sui_image_params").and_then(Value::as_object) {
                    Some(swarm) => ("SwarmUI", facts(swarm)),
                    None if is_of_fooocus(&all) => ("Fooocus", facts(&all)),
                    None => ("an unknown program", facts(&all)),
                }
            }
            "use_stable_diffusion_model" | "num_inference_steps" => ("Easy Diffusion", Vec::new()),
            // NovelAI hides all of its texts as one object.
            key if key.starts_with("stealth_") => ("NovelAI or one like it", facts(&json()?)),
            _ => return None,
        };
        Some(Self { program, key: text.key.clone(), facts: facts_of_length(facts) })
    }
}

/// Whether NovelAI made an image with these texts.
pub fn is_of_novelai(texts: &[ImageText]) -> bool {
    texts.iter().any(|text| text.key == "Software" && text.text.contains("NovelAI"))
}

/// Whether an object has the settings of Fooocus.
pub fn is_of_fooocus(all: &Map<String, Value>) -> bool {
    let version = all.get("version").and_then(Value::as_str);
    ["fooocus_scheme", "base_model_hash"].iter().any(|key| all.contains_key(*key))
        || version.is_some_and(|version| version.starts_with("Fooocus"))
}

/// The object in a text, if it is one and not too long.
pub fn object_of(text: &ImageText) -> Option<Map<String, Value>> {
    let is_one = text.text.len() <= MAX_JSON && text.text.trim_start().starts_with('{');
    is_one.then(|| serde_json::from_str(&text.text).ok()).flatten()
}

/// The values in a graph: prompts and samplers, then its nodes.
fn comfyui(text: &ImageText) -> Option<Vec<(String, String)>> {
    let graph = Graph::of(text)?;
    let mut facts = graph.overview();
    facts.extend(nodes(&graph));
    Some(facts)
}

/// The number of nodes of a workflow. Nothing else of them is stored.
fn workflow_nodes(text: &str) -> Option<usize> {
    #[derive(Deserialize)]
    struct Workflow {
        nodes: Vec<IgnoredAny>,
    }
    serde_json::from_str::<Workflow>(text).ok().map(|workflow| workflow.nodes.len())
}

fn facts_of_length(mut facts: Vec<(String, String)>) -> Vec<(String, String)> {
    facts.truncate(FACTS);
    facts.into_iter().map(|(name, value)| (name, value.chars().take(LENGTH).collect())).collect()
}

/// The members of an object and of its direct child objects.
fn facts(all: &Map<String, Value>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, value) in all {
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

/// The inputs of relevant nodes, in ascending order of their ids.
fn nodes(graph: &Graph) -> Vec<(String, String)> {
    let node = |(id, node): NodeAt<'_>| {
        let class = Some(&node.class_type).filter(|class| NODES.iter().any(|part| class.contains(part)))?;
        let values = node.inputs.iter().filter_map(|(name, value)| Some(format!("{name} {}", plain(value)?)));
        let values: Vec<_> = values.collect();
        Some((id.parse::<u64>().unwrap_or(u64::MAX), format!("{class} {id}"), values.join(", ")))
    };
    let mut found: Vec<_> = graph.iter().filter_map(node).collect();
    found.sort();
    found.into_iter().map(|(_, name, values)| (name, values)).collect()
}

/// A scalar as text; `None` for a list or an object.
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

    fn values(all: &[(&str, &str)]) -> Vec<String> {
        let text =
            |(key, text): &(&str, &str)| ImageText { place: "tEXt".into(), key: (*key).into(), text: (*text).into() };
        let all: Vec<ImageText> = all.iter().map(text).collect();
        ForeignSettings::all(&all)
            .into_iter()
            .map(|found| {
                let facts: Vec<_> = found.facts.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("{} {}: {}", found.program, found.key, facts.join("; "))
            })
            .collect()
    }

    #[test]
    fn comfyui_nodes_are_reported() {
        let prompt = r#"{"10": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
            "3": {"class_type": "KSampler", "inputs": {"seed": 5, "cfg": 8.0, "model": ["4", 0], "positive":
            ["11", 0]}}, "11": {"class_type": "ConditioningSetArea", "inputs": {"conditioning": ["10", 0]}},
            "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "x"}}}"#;
        let found = values(&[("prompt", prompt), ("workflow", r#"{"nodes": [1, 2]}"#)]);
        assert_eq!(
            found[0],
            "ComfyUI prompt: prompt of 3=a cat; sampler 3=cfg 8.0, seed 5; KSampler 3=cfg 8.0, seed 5; CLIPTextEncode \
             10=text a cat"
        );
        assert_eq!(found[1], "ComfyUI workflow: nodes=2");
    }

    #[test]
    fn other_programs_are_detected_by_their_keys() {
        let found = values(&[
            ("invokeai_metadata", r#"{"positive_prompt": "a", "model": {"name": "b", "hash": 1, "c": [1]}}"#),
            ("Software", "NovelAI"),
            ("Description", "a cat"),
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
                "NovelAI Description: prompt=a cat",
                "NovelAI Comment: steps=28",
                "SwarmUI parameters: seed=7",
                "Fooocus UserComment: fooocus_scheme=x",
            ]
        );
    }

    #[test]
    fn number_and_length_of_texts_are_limited() {
        let texts: Vec<(String, String)> = (0..20_000).map(|_| ("Comment".into(), "{}".into())).collect();
        let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        assert!(values(&texts).is_empty());
        let long = format!("{{\"a\": [{}1]}}", "1,".repeat(MAX_JSON / 2));
        assert!(values(&[("invokeai_metadata", &long)]).is_empty());
        let nodes = format!("{{\"nodes\": [{}1]}}", "[1],".repeat(MAX_JSON / 2));
        assert_eq!(values(&[("workflow", &nodes)]), [format!("ComfyUI workflow: nodes={}", MAX_JSON / 2 + 1)]);
    }
}
