//! ComfyUI's graph under the key `prompt`.

use kiln_media::Graph;

use super::{Taken, stem};
use crate::comfy::{Run, run_of_image};

/// The request for the graph of an image.
///
/// # Errors
/// Names the node or the input that is not supported.
pub(super) fn taken(graph: &Graph) -> Result<Taken, String> {
    let Run { request, model, vae, unknown, mut warnings, batch: (images, _), .. } =
        run_of_image(graph).map_err(|problem| problem.message)?;
    if images > 1 {
        warnings.insert(0, format!("it is one of {images} images that share their noise; the first one is generated"));
    }
    let name = |name: &str| Some(stem(name).to_string());
    let vae = vae.and_then(|file| name(&file.name));
    Ok(Taken { request, model: name(&model.name), vae, unknown, warnings, ..Taken::default() })
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
