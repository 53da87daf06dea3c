//! ComfyUI's nodes for flow models: texts with guidance, shifts of the noise levels, and parts of models in files of their own.

use kiln_media::NodeAt;

use super::comfy::{MAX_CHAIN, Reader, TEXT_WITH_SIZES, not_understood};

/// The nodes of a text for several text encoders, and their inputs for one each.
const TEXTS: [(&str, &[&str]); 3] = [
    (TEXT_WITH_SIZES, &["text_g", "text_l"]),
    ("CLIPTextEncodeFlux", &["clip_l", "t5xxl"]),
    ("CLIPTextEncodeSD3", &["clip_l", "clip_g", "t5xxl"]),
];
/// Tokens of an image of 256x256 and of 1024x1024, between which `ModelSamplingFlux` interpolates.
const TOKENS: [f64; 2] = [256.0, 4096.0];
/// Pixels that a token of FLUX.1 covers.
const TOKEN_PIXELS: f64 = 256.0;
/// The least number of T5's tokens (`comfy/text_encoders/{flux,sd3_clip}.py`).
const FLUX_LENGTH: usize = 256;
const SD3_LENGTH: usize = 77;

/// The text behind an input of a sampler.
pub(super) struct Conditioning<'a> {
    pub(super) text: &'a str,
    /// The node of the text.
    pub(super) node: NodeAt<'a>,
    /// The guidance scale that the denoiser takes as an input.
    pub(super) guidance: Option<f64>,
    /// Whether a node replaces the encoded text by zeros.
    pub(super) is_zeroed: bool,
    /// The least number of T5's tokens, if the nodes say for which family they are.
    pub(super) length: Option<usize>,
}

impl<'a> Reader<'a> {
    /// The text of a sampler's input.
    pub(super) fn conditioning(&self, sampler: NodeAt<'a>, name: &str) -> Result<Conditioning<'a>, String> {
        let (mut at, mut guidance, mut is_zeroed, mut length) = (self.link(sampler, name)?, None, false, None);
        for _ in 0..MAX_CHAIN {
            match at.1.class_type.as_str() {
                "FluxGuidance" => {
                    guidance = guidance.or(Some(self.number(at, "guidance")?)); // the last node counts
                    length = Some(FLUX_LENGTH);
                }
                "ConditioningZeroOut" => is_zeroed = true,
                _ => break,
            }
            at = self.link(at, "conditioning")?;
        }
        let class = at.1.class_type.as_str();
        if class == "CLIPTextEncode" {
            return Ok(Conditioning { text: self.name(at, "text")?, node: at, guidance, is_zeroed, length });
        }
        let (_, names) = TEXTS.iter().find(|(known, _)| *known == class).ok_or_else(|| not_understood(at))?;
        let texts = names.iter().map(|name| self.name(at, name)).collect::<Result<Vec<_>, _>>()?;
        if let Some(i) = texts.windows(2).position(|pair| pair[0] != pair[1]) {
            let pair = [i, i + 1].map(|i| names.get(i).copied().unwrap_or_default()).join(" and ");
            return Err(format!("{pair} of node {} ({class}) differ, and Kiln has one prompt", at.0));
        }
        if class == "CLIPTextEncodeFlux" {
            guidance = guidance.or(Some(self.number(at, "guidance")?));
        }
        length = match class {
            "CLIPTextEncodeFlux" => Some(FLUX_LENGTH),
            "CLIPTextEncodeSD3" => Some(SD3_LENGTH),
            _ => length,
        };
        Ok(Conditioning { text: texts.first().copied().unwrap_or_default(), node: at, guidance, is_zeroed, length })
    }

    /// The shift of the noise levels that the nodes of a model set; the one next to the sampler counts.
    pub(super) fn shift(&self, nodes: &[&'a str]) -> Result<Option<f64>, String> {
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
pub(super) fn file_of_model(class: &str) -> Option<&'static str> {
    match class {
        "CheckpointLoaderSimple" => Some("ckpt_name"),
        "UNETLoader" | "UnetLoaderGGUF" => Some("unet_name"),
        _ => None,
    }
}

/// Whether nodes of this class load text encoders from files of their own.
pub(super) fn loads_texts(class: &str) -> bool {
    ["CLIPLoader", "DualCLIPLoader", "TripleCLIPLoader"].contains(&class.trim_end_matches("GGUF"))
}

/// Whether nodes of this class set the shift of a model.
pub(super) fn shifts(class: &str) -> bool {
    ["ModelSamplingSD3", "ModelSamplingAuraFlow", "ModelSamplingFlux"].contains(&class)
}

#[cfg(test)]
mod tests {
    use kiln_media::ImageText;
    use serde_json::{Value, json};

    use super::super::{Taken, find};

    /// The graph of ComfyUI's template for FLUX.1 dev with a denoiser in a file of its own.
    const GRAPH: &str = r#"{"31": {"inputs": {"seed": 7, "steps": 20, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
        "denoise": 1.0, "model": ["30", 0], "positive": ["35", 0], "negative": ["33", 0], "latent_image": ["27", 0]}, "class_type":
        "KSampler"}, "30": {"inputs": {"max_shift": 1.15, "base_shift": 0.5, "width": 768, "height": 512, "model": ["38", 0]},
        "class_type": "ModelSamplingFlux"}, "38": {"inputs": {"unet_name": "flux1-dev.safetensors", "weight_dtype": "default"},
        "class_type": "UNETLoader"}, "40": {"inputs": {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp16.safetensors",
        "type": "flux"}, "class_type": "DualCLIPLoader"}, "39": {"inputs": {"vae_name": "ae.safetensors"}, "class_type": "VAELoader"},
        "27": {"inputs": {"width": 768, "height": 512, "batch_size": 1}, "class_type": "EmptySD3LatentImage"}, "41": {"inputs":
        {"text": "a fox", "clip": ["40", 0]}, "class_type": "CLIPTextEncode"}, "33": {"inputs": {"conditioning": ["41", 0]},
        "class_type": "ConditioningZeroOut"}, "35": {"inputs": {"guidance": 4.0, "conditioning": ["41", 0]}, "class_type":
        "FluxGuidance"}, "8": {"inputs": {"samples": ["31", 0], "vae": ["39", 0]}, "class_type": "VAEDecode"}, "9": {"inputs":
        {"images": ["8", 0]}, "class_type": "SaveImage"}}"#;

    fn taken(graph: &str) -> Result<Taken, String> {
        find(&[ImageText { place: "tEXt".into(), key: "prompt".into(), text: graph.into() }]).expect("a graph").1
    }

    #[test]
    fn graphs_of_flux_are_supported() {
        let Taken { request, model, vae, warnings, unknown, .. } = taken(GRAPH).unwrap();
        assert_eq!((request.prompt.as_str(), request.negative_prompt.as_deref()), ("a fox", None));
        assert_eq!((request.guidance, request.cfg_scale, request.max_length), (Some(4.0), Some(1.0), Some(256)));
        assert_eq!((request.width, request.height, request.steps), (Some(768), Some(512), Some(20)));
        // 768x512 pixels are 1536 tokens.
        let mu = 0.5 + (1536.0 - 256.0) * 0.65 / 3840.0;
        assert!((request.shift.unwrap() - f64::exp(mu)).abs() < 1e-12);
        assert_eq!((model.as_deref(), vae.as_deref()), (Some("flux1-dev"), Some("ae")));
        assert!(unknown.is_none() && warnings.is_empty(), "{warnings:?}");
        // Zeros for a negative prompt have a meaning with guidance.
        let guided = GRAPH.replace("\"cfg\": 1.0", "\"cfg\": 3.0");
        assert!(taken(&guided).unwrap_err().contains("node 33 (ConditioningZeroOut) is not supported"));
    }

    #[test]
    fn graphs_of_stable_diffusion_3_are_supported() {
        let mut graph: Value = serde_json::from_str(GRAPH).unwrap();
        let node = |class: &str, inputs: Value| json!({ "class_type": class, "inputs": inputs });
        let text = json!({ "clip_l": "a fox", "clip_g": "a fox", "t5xxl": "a fox", "clip": ["38", 1] });
        graph["41"] = node("CLIPTextEncodeSD3", text);
        graph["33"] = node("CLIPTextEncode", json!({ "text": "blue", "clip": ["38", 1] }));
        graph["38"] = node("CheckpointLoaderSimple", json!({ "ckpt_name": "sd3.5_medium.safetensors" }));
        graph["30"] = node("ModelSamplingSD3", json!({ "shift": 3.0, "model": ["38", 0] }));
        (graph["31"]["inputs"]["positive"], graph["31"]["inputs"]["cfg"]) = (json!(["41", 0]), json!(4.5));
        let Taken { request, model, .. } = taken(&graph.to_string()).unwrap();
        assert_eq!((request.prompt.as_str(), request.negative_prompt.as_deref()), ("a fox", Some("blue")));
        assert_eq!((request.guidance, request.shift, request.max_length), (None, Some(3.0), Some(77)));
        assert_eq!(model.as_deref(), Some("sd3.5_medium"));
        graph["41"]["inputs"]["t5xxl"] = json!("a wolf");
        let message = taken(&graph.to_string()).unwrap_err();
        assert!(message.contains("clip_g and t5xxl of node 41 (CLIPTextEncodeSD3) differ"), "{message}");
    }
}
