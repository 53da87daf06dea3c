//! The graph that ComfyUI writes under the key `prompt`: nodes by id, whose inputs are values or links `[id, slot]` to
//! other nodes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::foreign::MAX_JSON;
use crate::json::{short, shortened};
use crate::text::ImageText;

/// The maximum number of nodes that are searched for the text of a prompt.
const MAX_NODES: usize = 200;
/// The maximum number of samplers in an overview.
const MAX_SAMPLERS: usize = 8;

/// A graph.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Graph {
    /// The nodes by their ids.
    pub nodes: BTreeMap<String, Node>,
}

/// A node.
#[derive(Debug, Deserialize)]
pub struct Node {
    /// The node's class.
    #[serde(default)]
    pub class_type: String,
    /// Its input values and links.
    #[serde(default)]
    pub inputs: Map<String, Value>,
}

/// A node and its id.
pub type NodeAt<'a> = (&'a str, &'a Node);

impl Graph {
    /// Parses the graph in a text; `None` if there is none.
    pub fn of(text: &ImageText) -> Option<Self> {
        let is_one = text.key == "prompt" && text.text.len() <= MAX_JSON && text.text.contains("class_type");
        is_one.then(|| serde_json::from_str(&text.text).ok()).flatten()
    }

    /// All nodes by id.
    pub fn iter(&self) -> impl Iterator<Item = NodeAt<'_>> {
        self.nodes.iter().map(|(id, node)| (id.as_str(), node))
    }

    /// The node with an id.
    pub fn node(&self, id: &str) -> Option<NodeAt<'_>> {
        self.nodes.get_key_value(id).map(|(id, node)| (id.as_str(), node))
    }

    /// The node that an input links to, if it is a link.
    pub fn linked(&self, (_, node): NodeAt<'_>, name: &str) -> Option<NodeAt<'_>> {
        let id = node.inputs.get(name)?.as_array().filter(|link| link.len() == 2)?.first()?;
        let id = id.as_str().map_or_else(|| id.to_string(), String::from);
        self.node(&id)
    }

    /// The prompts and the sampling values in a graph: for each sampler its values and the connected texts.
    pub fn overview(&self) -> Vec<(String, String)> {
        const VALUES: [&str; 7] = ["sampler_name", "scheduler", "steps", "cfg", "seed", "noise_seed", "denoise"];
        let is_sampler =
            |(_, node): &NodeAt<'_>| node.class_type.contains("Sampler") && node.inputs.contains_key("positive");
        let mut found = Vec::new();
        for sampler in self.iter().filter(is_sampler).take(MAX_SAMPLERS) {
            for (what, name) in [("prompt", "positive"), ("negative prompt", "negative")] {
                let mut texts = self.texts_behind(sampler, name);
                texts.retain(|text| !text.is_empty());
                if !texts.is_empty() {
                    found.push((format!("{what} of {}", shortened(sampler.0)), texts.join(" | ")));
                }
            }
            let value = |name: &&str| match sampler.1.inputs.get(*name)? {
                Value::Array(_) => None,
                value => Some(format!("{name} {}", short(value))),
            };
            let values: Vec<String> = VALUES.iter().filter_map(value).collect();
            if !values.is_empty() {
                found.push((format!("sampler {}", shortened(sampler.0)), values.join(", ")));
            }
        }
        found
    }

    /// The texts connected to an input.
    fn texts_behind(&self, sampler: NodeAt<'_>, name: &str) -> Vec<&str> {
        let (mut texts, mut seen) = (Vec::new(), Vec::new());
        let mut open: Vec<NodeAt<'_>> = self.linked(sampler, name).into_iter().collect();
        while let Some(at) = open.pop() {
            if seen.contains(&at.0) || seen.len() >= MAX_NODES {
                continue;
            }
            seen.push(at.0);
            let text = ["text", "text_g", "text_l", "t5xxl", "clip_g", "clip_l", "prompt"]
                .iter()
                .find_map(|key| at.1.inputs.get(*key)?.as_str());
            match text {
                Some(text) => texts.push(text),
                // Models and images contain no prompt text.
                None => {
                    let inputs = at.1.inputs.keys().filter(|key| key.starts_with("conditioning") || *key == name);
                    open.extend(inputs.filter_map(|key| self.linked(at, key)));
                }
            }
        }
        texts
    }
}
