//! Texts with images that the text encoder sees: the nodes of Qwen-Image-Edit.

use kiln_media::NodeAt;
use serde_json::Value;

use super::Named;
use super::conditioning::Conditioning;
use super::graph_image::GraphImage;
use super::problem::{Problem, Result, named};
use super::reader::Reader;

/// The nodes, and their inputs for images.
const NODES: [(&str, &[&str]); 2] =
    [("TextEncodeQwenImageEdit", &["image"]), ("TextEncodeQwenImageEditPlus", &["image1", "image2", "image3"])];

/// The inputs of a node for images; `None` for other nodes.
fn inputs_of(at: NodeAt<'_>) -> Option<&'static [&'static str]> {
    NODES.iter().find(|(class, _)| *class == at.1.class_type).map(|(_, inputs)| *inputs)
}

/// The links of a text's images.
fn links<'a>(text: &Conditioning<'a>) -> Vec<&'a Value> {
    let inputs = inputs_of(text.node).unwrap_or_default();
    inputs.iter().filter_map(|name| text.node.1.inputs.get(*name)).filter(|link| !link.is_null()).collect()
}

impl<'a> Reader<'a> {
    /// The input of a text's node that has its words.
    pub(super) fn words_input(at: NodeAt<'a>) -> &'static str {
        if inputs_of(at).is_some() { "prompt" } else { "text" }
    }

    /// Whether a node makes a text of which the text encoder sees images.
    pub(super) fn is_edit(&self, at: NodeAt<'a>) -> bool {
        self.has_images && inputs_of(at).is_some()
    }

    /// The images that the text encoder sees, each with its node. Those of both prompts are the same, and the denoiser sees them too.
    pub(super) fn seen_images(
        &self,
        (sampler, vae): (NodeAt<'a>, Option<&Named>),
        checkpoint: &str,
        positive: &Conditioning<'a>,
        negative: Option<&Conditioning<'a>>,
    ) -> Result<Vec<(GraphImage, &'a str)>> {
        let at = positive.node;
        if let Some(negative) = negative.filter(|negative| links(negative) != links(positive)) {
            let (one, other) = (named(at), named(negative.node));
            let message = format!("the prompts of node {} see other images: nodes {one} and {other}", named(sampler));
            return Err(Problem::of_node(at, message));
        }
        if links(positive).is_empty() {
            return Ok(Vec::new());
        }
        for text in [Some(positive), negative].into_iter().flatten() {
            if !text.references.is_empty() {
                let message = format!("node {} has images of its own, so that it takes no others", named(text.node));
                return Err(Problem::of_node(text.node, message));
            }
            let own = self.vae(self.link(text.node, "vae")?, checkpoint)?;
            if own.as_ref().map(|file| &file.name) != vae.map(|file| &file.name) {
                return Err(Problem::of_node(text.node, "the image is encoded and decoded by different VAEs"));
            }
        }
        let inputs = inputs_of(at).unwrap_or_default().iter();
        let is_linked = |name: &&&str| at.1.inputs.get(**name).is_some_and(|link| !link.is_null());
        inputs.filter(is_linked).map(|name| Ok((self.graph_image(at, name)?, at.0))).collect()
    }
}
