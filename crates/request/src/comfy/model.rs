//! Models: the nodes from a sampler or a text to the node that loads its networks.

use kiln_media::NodeAt;

use super::Named;
use super::conditioning::{FLUX_LENGTH, SD3_LENGTH};
use super::image_prompt::passes_model;
use super::problem::{Problem, Result, named};
use super::reader::{MAX_CHAIN, Reader};
use crate::lora::{LoraName, LoraUse};
use crate::settings::formats::stem;

/// Tokens of an image of 256x256 and of 1024x1024, between which `ModelSamplingFlux` interpolates.
const TOKENS: [f64; 2] = [256.0, 4096.0];
/// Pixels that a token of FLUX.1 and FLUX.2 covers.
pub(super) const TOKEN_PIXELS: f64 = 256.0;

/// The nodes between a sampler or a text and its checkpoint, in this order, and that checkpoint's id.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chain<'a> {
    pub(super) nodes: Vec<&'a str>,
    pub(super) checkpoint: &'a str,
}

impl<'a> Reader<'a> {
    /// Follows `first` of `from`, then `next` of each node, to the checkpoint.
    pub(super) fn chain(&self, from: NodeAt<'a>, first: &str, next: &str) -> Result<Chain<'a>> {
        let (mut nodes, mut at) = (Vec::new(), self.link(from, first)?);
        for _ in 0..MAX_CHAIN {
            match at.1.class_type.as_str() {
                class if file_of_model(class).is_some() || next == "clip" && loads_texts(class) => {
                    return Ok(Chain { nodes, checkpoint: at.0 });
                }
                "LoraLoader" | "CLIPSetLastLayer" => {}
                "LoraLoaderModelOnly" if next == "model" => {}
                class if next == "model" && shifts(class) => {}
                class if next == "model" && self.has_images && passes_model(class) => {}
                _ => return Err(Problem::not_understood(at)),
            }
            nodes.push(at.0);
            at = self.link(at, next)?;
        }
        Err(Problem::of_node(from, format!("the nodes after {} do not end", named(from))))
    }

    /// Whether a node loads text encoders without a denoiser.
    pub(super) fn is_of_texts(&self, id: &str) -> bool {
        self.graph.node(id).is_some_and(|(_, node)| loads_texts(&node.class_type))
    }

    /// The name of a model that a node loads.
    pub(super) fn model_name(&self, id: &str) -> Result<Named> {
        let at = self.node(id)?;
        let input = file_of_model(&at.1.class_type).ok_or_else(|| Problem::not_understood(at))?;
        self.file_name(at, input)
    }

    /// The names of the text encoders that a node loads.
    pub(super) fn text_names(&self, id: &str) -> Result<Vec<Named>> {
        let at = self.node(id)?;
        let inputs: &[&str] = match at.1.class_type.trim_end_matches("GGUF") {
            "CLIPLoader" => &["clip_name"],
            "DualCLIPLoader" => &["clip_name1", "clip_name2"],
            "TripleCLIPLoader" => &["clip_name1", "clip_name2", "clip_name3"],
            _ => &[],
        };
        inputs.iter().map(|input| self.file_name(at, input)).collect()
    }

    /// A file that an input names.
    pub(super) fn file_name(&self, at: NodeAt<'a>, input: &'static str) -> Result<Named> {
        Ok(Named { name: self.name(at, input)?.into(), node: at.0.into(), class: at.1.class_type.clone(), input })
    }

    /// The layer of the nearest node to the text that sets one.
    pub(super) fn clip_skip(&self, clip: &Chain<'a>) -> Result<Option<usize>> {
        for id in &clip.nodes {
            let at = self.node(id)?;
            if at.1.class_type == "CLIPSetLastLayer" {
                let layer = self.number(at, "stop_at_clip_layer")?;
                let wrong = || format!("stop_at_clip_layer of node {} is {layer}, expected -24 to -1", named(at));
                return match (-24.0..=-1.0).contains(&layer) {
                    true => Ok(Some(-layer as usize)),
                    false => Err(Problem::of_input(at, "stop_at_clip_layer", wrong())),
                };
            }
        }
        Ok(None)
    }

    /// The LoRAs in order from the checkpoint, each with its node. Each changes the networks of the chains that contain it.
    pub(super) fn loras(&self, model: &Chain<'a>, clip: &Chain<'a>) -> Result<Vec<(LoraUse, &'a str)>> {
        let mut ids: Vec<&'a str> = clip.nodes.iter().rev().copied().filter(|id| !model.nodes.contains(id)).collect();
        ids.extend(model.nodes.iter().rev());
        let mut loras = Vec::new();
        for id in ids {
            let at = self.node(id)?;
            if !at.1.class_type.starts_with("LoraLoader") {
                continue;
            }
            let strength = |chain: &Chain<'_>, name: &str| match chain.nodes.contains(&id) {
                true => self.number(at, name).map(|strength| strength as f32),
                false => Ok(0.0),
            };
            let (text, unet) = (strength(clip, "strength_clip")?, strength(model, "strength_model")?);
            let lora = LoraName::Named(stem(self.name(at, "lora_name")?).into());
            loras.push((LoraUse { lora, text, unet }, id));
        }
        Ok(loras)
    }

    /// The shift of the noise levels that the nodes of a model set; the one next to the sampler counts.
    pub(super) fn shift(&self, nodes: &[&'a str]) -> Result<Option<f64>> {
        for id in nodes {
            let at = self.node(id)?;
            match at.1.class_type.as_str() {
                "ModelSamplingSD3" | "ModelSamplingAuraFlow" => return Ok(Some(self.number(at, "shift")?)),
                "ModelSamplingFlux" => {
                    let number = |name| self.number(at, name);
                    let (base, most) = (number("base_shift")?, number("max_shift")?);
                    let tokens = number("width")? * number("height")? / TOKEN_PIXELS;
                    let slope = (most - base) / (TOKENS[1] - TOKENS[0]);
                    return Ok(Some((slope * (tokens - TOKENS[0]) + base).exp()));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// T5's tokens by the node that loads the text encoders, if it says for which family they are.
    pub(super) fn length_of_loader(&self, id: &str) -> Option<usize> {
        let (_, node) = self.node(id).ok()?;
        let family = node.inputs.get("type").and_then(|kind| kind.as_str());
        match (node.class_type.trim_end_matches("GGUF"), family) {
            ("DualCLIPLoader", Some("flux")) => Some(FLUX_LENGTH),
            ("DualCLIPLoader", Some("sd3")) | ("TripleCLIPLoader", _) => Some(SD3_LENGTH),
            _ => None,
        }
    }
}

/// The input with the name of a loader's file, of the loaders of whole models and of denoisers.
fn file_of_model(class: &str) -> Option<&'static str> {
    match class {
        "CheckpointLoaderSimple" => Some("ckpt_name"),
        "UNETLoader" | "UnetLoaderGGUF" => Some("unet_name"),
        _ => None,
    }
}

/// Whether nodes of this class load text encoders from files of their own.
fn loads_texts(class: &str) -> bool {
    ["CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader"].contains(&class.trim_end_matches("GGUF"))
}

/// Whether nodes of this class set the shift of a model.
fn shifts(class: &str) -> bool {
    ["ModelSamplingSD3", "ModelSamplingAuraFlow", "ModelSamplingFlux"].contains(&class)
}
