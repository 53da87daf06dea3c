//! ComfyUI's graph under the key `prompt`: nodes by id, whose inputs are values or links `[id, slot]` to other nodes.
//!
//! A simple graph generates an image from one sampler with an empty latent image, texts and a checkpoint, with optional
//! LoRAs. A request cannot express other nodes; the error names them.

use kiln_media::{Graph, NodeAt, short, shortened};
use serde_json::Value;

use super::comfy_flow::{file_of_model, loads_texts, shifts};
use super::object::whole;
use super::{Taken, as_in_comfyui, dialect, stem};
use crate::lora::{LoraName, LoraUse};
use crate::request::Request;
use crate::size_conditions::{Crop, SizeConditions};

/// The maximum length of a chain of nodes; a longer one is not simple, or is a loop.
pub(super) const MAX_CHAIN: usize = 200;
/// Deeper parentheses are text.
const MAX_DEPTH: usize = 64;
/// The node of a text for SDXL's two encoders, with sizes.
pub(super) const TEXT_WITH_SIZES: &str = "CLIPTextEncodeSDXL";
/// The factor of a pair of parentheses.
const STEP: f64 = 1.1;

/// The request for a simple graph.
///
/// # Errors
/// Names the node or the input that is not supported.
pub(super) fn taken(graph: &Graph) -> Result<Taken, String> {
    let reader = Reader { graph };
    let (sampler, decoder) = reader.sampler()?;
    let (id, node) = sampler;
    let mut taken = Taken::default();
    let advanced = node.class_type == "KSamplerAdvanced";
    let steps = reader.whole(sampler, "steps")? as usize;
    if advanced {
        let all = [
            ("add_noise", Value::from("enable")),
            ("return_with_leftover_noise", Value::from("disable")),
            ("start_at_step", Value::from(0)),
        ];
        for (name, expected) in all {
            let found = reader.value(sampler, name)?;
            if *found != expected {
                return Err(format!("{name} of node {} is {}, which is not a whole run", named(sampler), short(found)));
            }
        }
        if (reader.whole(sampler, "end_at_step")? as usize) < steps {
            return Err(format!("node {} ends before its last step", named(sampler)));
        }
    } else {
        let denoise = reader.value(sampler, "denoise")?;
        if denoise.as_f64() != Some(1.0) {
            return Err(format!(
                "denoise of node {} is {}, so the run started from an image",
                named(sampler),
                short(denoise)
            ));
        }
    }
    let latent = reader.link(sampler, "latent_image")?;
    if !["EmptyLatentImage", "EmptySD3LatentImage"].contains(&latent.1.class_type.as_str()) {
        return Err(not_understood(latent));
    }
    let batch = reader.whole(latent, "batch_size")?;
    if batch > 1 {
        taken.warnings.push(format!("it is one of {batch} images that share their noise; the first one is generated"));
    }
    let positive = reader.conditioning(sampler, "positive")?;
    let negative = reader.conditioning(sampler, "negative")?;
    let guidance = reader.number(sampler, "cfg")?;
    if positive.is_zeroed || negative.is_zeroed && guidance != 1.0 {
        return Err(not_understood(reader.link(sampler, if positive.is_zeroed { "positive" } else { "negative" })?));
    }
    let model = reader.chain(sampler, "model", "model")?;
    let [clip, negative_clip] = [positive.node, negative.node].map(|from| reader.chain(from, "clip", "clip"));
    let (clip, negative_clip) = (clip?, negative_clip?);
    let is_whole = clip.checkpoint == model.checkpoint || reader.is_of_texts(&clip.checkpoint);
    if clip.nodes != negative_clip.nodes || clip.checkpoint != negative_clip.checkpoint || !is_whole {
        return Err(format!("the prompts and the sampler {id} do not have one model with the same LoRAs"));
    }
    let size = (reader.whole(latent, "width")? as usize, reader.whole(latent, "height")? as usize);
    let sizes = [reader.sizes(positive.node)?, reader.sizes(negative.node)?];
    taken.request = Request {
        prompt: dialect::written(&spans(positive.text)),
        // ComfyUI also encodes empty texts.
        negative_prompt: (!negative.is_zeroed).then(|| dialect::written(&spans(negative.text))),
        steps: Some(steps),
        seed: Some(reader.whole(sampler, if advanced { "noise_seed" } else { "seed" })?),
        cfg_scale: Some(guidance),
        guidance: positive.guidance,
        shift: reader.shift(&model.nodes)?,
        max_length: positive.length.or_else(|| reader.length_of_loader(&clip.checkpoint)),
        width: Some(size.0),
        height: Some(size.1),
        clip_skip: reader.clip_skip(&clip)?,
        loras: reader.loras(&model, &clip)?,
        ..as_in_comfyui()
    };
    if sizes.iter().any(Option::is_some) {
        // A text without sizes has those of the image.
        let [of, negative] = sizes.map(|sizes| sizes.unwrap_or(SizeConditions::of_image(size)));
        let request = &mut taken.request;
        (request.original_size, request.crop, request.target_size) =
            (Some(of.original), Some(of.crop), Some(of.target));
        request.negative_original_size = Some(negative.original);
        (request.negative_crop, request.negative_target_size) = (Some(negative.crop), Some(negative.target));
    }
    taken.sampler_of_comfyui(
        ["sampler_name", "scheduler"],
        Some(reader.name(sampler, "sampler_name")?),
        Some(reader.name(sampler, "scheduler")?),
    );
    let checkpoint = reader.node(&model.checkpoint)?;
    let file = file_of_model(&checkpoint.1.class_type).ok_or_else(|| not_understood(checkpoint))?;
    taken.model = Some(stem(reader.name(checkpoint, file)?).into());
    let vae = reader.link(decoder, "vae")?;
    match vae.1.class_type.as_str() {
        "VAELoader" => taken.vae = Some(stem(reader.name(vae, "vae_name")?).into()),
        _ if vae.0 == model.checkpoint => {}
        _ => return Err(not_understood(vae)),
    }
    Ok(taken)
}

/// The nodes between a sampler or a text and its checkpoint, in this order, and that checkpoint's id.
struct Chain<'a> {
    nodes: Vec<&'a str>,
    checkpoint: String,
}

/// Reads a graph.
pub(super) struct Reader<'a> {
    graph: &'a Graph,
}

impl<'a> Reader<'a> {
    pub(super) fn node(&self, id: &str) -> Result<NodeAt<'a>, String> {
        self.graph.node(id).ok_or_else(|| format!("node {} does not exist", shortened(id)))
    }

    pub(super) fn link(&self, at: NodeAt<'a>, name: &str) -> Result<NodeAt<'a>, String> {
        self.graph.linked(at, name).ok_or_else(|| format!("{name} of node {} comes from no node", named(at)))
    }

    /// A literal value of the node.
    fn value(&self, at: NodeAt<'a>, name: &str) -> Result<&'a Value, String> {
        if let Some(from) = self.graph.linked(at, name) {
            return Err(format!("{name} of node {} comes from node {}", named(at), named(from)));
        }
        let value = at.1.inputs.get(name).filter(|value| !value.is_null());
        value.ok_or_else(|| format!("node {} has no {name}", named(at)))
    }

    fn wrong(at: NodeAt<'_>, name: &str, value: &Value, expected: &str) -> String {
        format!("{name} of node {} is {}, expected {expected}", named(at), short(value))
    }

    pub(super) fn name(&self, at: NodeAt<'a>, name: &str) -> Result<&'a str, String> {
        let value = self.value(at, name)?;
        value.as_str().ok_or_else(|| Self::wrong(at, name, value, "a text"))
    }

    pub(super) fn number(&self, at: NodeAt<'a>, name: &str) -> Result<f64, String> {
        let value = self.value(at, name)?;
        value.as_f64().ok_or_else(|| Self::wrong(at, name, value, "a number"))
    }

    fn whole(&self, at: NodeAt<'a>, name: &str) -> Result<u64, String> {
        let value = self.value(at, name)?;
        whole(value).ok_or_else(|| Self::wrong(at, name, value, "a whole number"))
    }

    /// The sampler of the saved image, and the node that decodes it.
    fn sampler(&self) -> Result<(NodeAt<'a>, NodeAt<'a>), String> {
        const SAVERS: [&str; 4] = ["SaveImage", "PreviewImage", "SaveAnimatedWEBP", "SaveAnimatedPNG"];
        let savers = self.graph.iter().filter(|(_, node)| SAVERS.contains(&node.class_type.as_str()));
        let mut decoders: Vec<NodeAt<'_>> = savers.map(|saver| self.link(saver, "images")).collect::<Result<_, _>>()?;
        decoders.sort_by_key(|(id, _)| *id);
        decoders.dedup_by_key(|(id, _)| *id);
        let decoder = match decoders[..] {
            [decoder] => decoder,
            [] => return Err("no node saves an image".into()),
            _ => return Err("it saves several images, and does not say which one this is".into()),
        };
        if decoder.1.class_type != "VAEDecode" {
            return Err(not_understood(decoder));
        }
        let sampler = self.link(decoder, "samples")?;
        match sampler.1.class_type.as_str() {
            "KSampler" | "KSamplerAdvanced" => Ok((sampler, decoder)),
            _ => Err(not_understood(sampler)),
        }
    }

    /// The sizes of a text's node, if it has any.
    fn sizes(&self, at: NodeAt<'a>) -> Result<Option<SizeConditions>, String> {
        if at.1.class_type != TEXT_WITH_SIZES {
            return Ok(None);
        }
        let number = |name: &str| Ok::<_, String>(self.whole(at, name)? as usize);
        Ok(Some(SizeConditions {
            original: (number("width")?, number("height")?),
            crop: Crop { left: number("crop_w")?, top: number("crop_h")? },
            target: (number("target_width")?, number("target_height")?),
        }))
    }

    /// Follows `first` of `from`, then `next` of each node, to the checkpoint.
    fn chain(&self, from: NodeAt<'a>, first: &str, next: &str) -> Result<Chain<'a>, String> {
        let (mut nodes, mut at) = (Vec::new(), self.link(from, first)?);
        for _ in 0..MAX_CHAIN {
            match at.1.class_type.as_str() {
                class if file_of_model(class).is_some() || next == "clip" && loads_texts(class) => {
                    return Ok(Chain { nodes, checkpoint: at.0.into() });
                }
                "LoraLoader" | "CLIPSetLastLayer" => {}
                "LoraLoaderModelOnly" if next == "model" => {}
                class if next == "model" && shifts(class) => {}
                _ => return Err(not_understood(at)),
            }
            nodes.push(at.0);
            at = self.link(at, next)?;
        }
        Err(format!("the nodes after {} do not end", named(from)))
    }

    /// Whether a node loads text encoders without a denoiser.
    fn is_of_texts(&self, id: &str) -> bool {
        self.graph.node(id).is_some_and(|(_, node)| loads_texts(&node.class_type))
    }

    /// The layer of the nearest node to the text that sets one.
    fn clip_skip(&self, clip: &Chain<'a>) -> Result<Option<usize>, String> {
        for id in &clip.nodes {
            let at = self.node(id)?;
            if at.1.class_type == "CLIPSetLastLayer" {
                let layer = self.number(at, "stop_at_clip_layer")?;
                return match (-24.0..=-1.0).contains(&layer) {
                    true => Ok(Some(-layer as usize)),
                    false => Err(format!("stop_at_clip_layer of node {} is {layer}, expected -24 to -1", named(at))),
                };
            }
        }
        Ok(None)
    }

    /// The LoRAs in order from the checkpoint. Each changes the networks of the chains that contain it.
    fn loras(&self, model: &Chain<'a>, clip: &Chain<'a>) -> Result<Vec<LoraUse>, String> {
        let mut ids: Vec<&str> = clip.nodes.iter().rev().copied().filter(|id| !model.nodes.contains(id)).collect();
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
            loras.push(LoraUse { lora, text, unet });
        }
        Ok(loras)
    }
}

/// A node as in messages.
fn named((id, node): NodeAt<'_>) -> String {
    format!("{} ({})", shortened(id), shortened(&node.class_type))
}

/// The message about a node that is not supported.
pub(super) fn not_understood(at: NodeAt<'_>) -> String {
    format!("node {} is not supported", named(at))
}

/// The spans of a text with ComfyUI's parentheses (`comfy/sd1_clip.py`, `token_weights`): `(a)` has 1.1 times the
/// weight, `(a:1.3)` has 1.3 regardless of its context, `\(` and `\)` are text, and so is an unbalanced parenthesis. A
/// word `embedding:name` names an embedding.
pub(super) fn spans(text: &str) -> Vec<(String, f64)> {
    // As in ComfyUI: escaped parentheses are replaced by characters that no text has.
    let text = text.replace("\\)", "\0\u{1}").replace("\\(", "\0\u{2}");
    let mut spans = Vec::new();
    weigh(&text, 1.0, 0, &mut spans);
    let unescaped = |text: &str| text.replace("\0\u{1}", ")").replace("\0\u{2}", "(");
    spans.into_iter().map(|(text, weight)| (with_names(&unescaped(text)), weight)).collect()
}

fn weigh<'t>(text: &'t str, weight: f64, depth: usize, spans: &mut Vec<(&'t str, f64)>) {
    let (mut start, mut nesting) = (0, 0i64);
    let push = |piece: &'t str, spans: &mut Vec<(&'t str, f64)>| {
        let inner = piece.strip_prefix('(').and_then(|piece| piece.strip_suffix(')'));
        match inner.filter(|_| depth < MAX_DEPTH) {
            Some(inner) => {
                let stated = inner.rsplit_once(':').filter(|(before, _)| !before.is_empty());
                let stated = stated.and_then(|(before, number)| Some((before, stated_weight(number)?)));
                let (inner, weight) = stated.unwrap_or((inner, weight * STEP));
                weigh(inner, weight, depth + 1, spans);
            }
            None if piece.is_empty() => {}
            None => spans.push((piece, weight)),
        }
    };
    for (at, c) in text.char_indices() {
        match c {
            '(' => {
                if nesting == 0 {
                    push(text.get(start..at).unwrap_or_default(), spans);
                    start = at;
                }
                nesting += 1;
            }
            ')' => {
                nesting -= 1;
                if nesting == 0 {
                    push(text.get(start..=at).unwrap_or_default(), spans);
                    start = at + 1;
                }
            }
            _ => {}
        }
    }
    push(text.get(start..).unwrap_or_default(), spans);
}

/// A number in Python's format, if it is finite.
fn stated_weight(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|weight: &f64| weight.is_finite())
}

/// Converts names of embeddings to Kiln's names: without `embedding:` and the file extension.
fn with_names(text: &str) -> String {
    const PREFIX: &str = "embedding:";
    if !text.contains(PREFIX) {
        return text.into();
    }
    let word = |word: &str| match word.strip_prefix(PREFIX) {
        Some(name) => {
            let plain = name.trim_end_matches(|c: char| c.is_whitespace() || c == ',');
            format!("{}{}", stem(plain), name.get(plain.len()..).unwrap_or_default())
        }
        None => word.to_string(),
    };
    text.split_inclusive([' ', '\n']).map(word).collect()
}
