//! Fooocus' format: JSON in `parameters`, or in the Exif data (`modules/meta_parser.py`, `FooocusMetadataParser`).

use kiln_prompt::Emphasis;
use serde_json::{Map, Value};

use super::object::Object;
use super::{Taken, as_in_comfyui, dialect, stem};
use crate::comfy::text::spans;
use crate::lora::{LoraName, LoraUse};
use crate::request::Request;

/// Fields that other fields repeat: the prompts before styles were applied, the names of styles, and the author.
const SILENT: [&str; 13] = [
    "prompt",
    "negative_prompt",
    "prompt_expansion",
    "styles",
    "performance",
    "version",
    "metadata_scheme",
    "fooocus_scheme",
    "created_by",
    "image_number",
    "overwrite_switch",
    "refiner_switch",
    "refiner_swap_method",
];

pub(super) fn taken(all: &Map<String, Value>) -> Result<Taken, String> {
    let mut fields = Object::new(all, &SILENT);
    let mut taken = Taken::default();
    let texts = |full: Option<&Value>, plain: &str| match full {
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(String::from).collect(),
        Some(Value::String(text)) => vec![text.clone()],
        _ => vec![all.get(plain).and_then(Value::as_str).unwrap_or_default().to_string()],
    };
    // Each style's text is encoded separately, and the results are concatenated.
    let prompt = |texts: Vec<String>| {
        let written = texts.iter().map(|text| dialect::written(&spans(text)));
        written.collect::<Vec<_>>().join(" BREAK ")
    };
    let size = fields.get("resolution").and_then(size);
    taken.request = Request {
        prompt: prompt(texts(fields.get("full_prompt"), "prompt")),
        negative_prompt: Some(prompt(texts(fields.get("full_negative_prompt"), "negative_prompt"))),
        steps: fields.count("steps"),
        seed: fields.whole("seed"),
        cfg_scale: fields.number("guidance_scale"),
        width: size.map(|(width, _)| width),
        height: size.map(|(_, height)| height),
        clip_skip: fields.count("clip_skip").filter(|&skip| skip > 0),
        // Its weighting equals AUTOMATIC1111's (`modules/patch_clip.py`).
        emphasis: Emphasis::Original,
        ..as_in_comfyui()
    };
    taken.model = fields.text("base_model").map(|name| stem(name).into());
    taken.model_hash = fields.text("base_model_hash").map(String::from);
    taken.vae = fields.text("vae").filter(|name| !name.starts_with("Default")).map(String::from);
    taken.sampler_of_comfyui(["sampler", "scheduler"], fields.text("sampler"), fields.text("scheduler"));
    for lora in fields.get("loras").and_then(Value::as_array).into_iter().flatten() {
        let (name, weight) = (lora.get(0).and_then(Value::as_str), lora.get(1).and_then(Value::as_f64));
        if let (Some(name), Some(weight)) = (name, weight) {
            taken.request.loras.push(lora_use(name, weight));
        }
    }
    // The same fields by position.
    let combined: Vec<&str> =
        all.keys().map(String::as_str).filter(|name| name.starts_with("lora_combined_")).collect();
    for name in combined {
        let named = fields.text(name).and_then(|text| text.rsplit_once(" : "));
        if let Some((name, weight)) = named.filter(|_| !all.contains_key("loras"))
            && let Ok(weight) = weight.trim().parse()
        {
            let name = name.rsplit(" : ").next().unwrap_or(name);
            taken.request.loras.push(lora_use(name, weight));
        }
    }
    taken.warnings.extend(fields.finish());
    Ok(taken)
}

fn lora_use(name: &str, weight: f64) -> LoraUse {
    LoraUse { lora: LoraName::Named(stem(name).into()), text: weight as f32, unet: weight as f32 }
}

/// `(768, 1280)`: width and height.
fn size(value: &Value) -> Option<(usize, usize)> {
    let (width, height) = value.as_str()?.trim_matches(['(', ')', ' ']).split_once(',')?;
    Some((width.trim().parse().ok()?, height.trim().parse().ok()?))
}
