//! InvokeAI's `invokeai_metadata` (`invokeai/app/invocations/metadata.py`, `CoreMetadataInvocation`), and the `sd-metadata`
//! of its second version.
//!
//! Its samplers are diffusers' classes over the model's own configuration, as they are here by default
//! (`invokeai/backend/stable_diffusion/schedulers/schedulers.py`).

use kiln_clip::Emphasis;
use kiln_scheduler::{SamplerKind, SigmaSchedule};
use serde_json::{Map, Value};

use super::object::Object;
use super::{Taken, Unknown, compel, dialect, literal, stem};
use crate::lora::{LoraName, LoraUse};
use crate::request::{Request, Rng};

const SILENT: [&str; 6] =
    ["app_version", "generation_mode", "_canvas_objects", "canvas_v2_metadata", "created_by", "ref_images"];

pub(super) fn taken(all: &Map<String, Value>) -> Result<Taken, String> {
    let mut fields = Object::new(all, &SILENT);
    let mode = all.get("generation_mode").and_then(Value::as_str).unwrap_or("txt2img");
    if !["txt2img", "sdxl_txt2img"].contains(&mode) {
        return Err(format!("it was made by {}, which Kiln does not have", kiln_media::shortened(mode)));
    }
    let mut taken = Taken::default();
    let prompt = text_of(fields.text("positive_prompt").unwrap_or_default())?;
    let negative = fields.text("negative_prompt");
    taken.request = Request {
        prompt,
        // An empty one is zeros where the model has them.
        negative_prompt: negative.map(text_of).transpose()?,
        steps: fields.count("steps"),
        seed: fields.whole("seed"),
        cfg_scale: fields.number("cfg_scale"),
        guidance_rescale: fields.number("cfg_rescale_multiplier").filter(|rescale| *rescale != 0.0),
        width: fields.count("width"),
        height: fields.count("height"),
        clip_skip: fields.count("clip_skip").filter(|&skipped| skipped > 0).map(|skipped| skipped + 1),
        rng: if fields.text("rand_device") == Some("cuda") { Rng::Cuda } else { Rng::Cpu },
        emphasis: Emphasis::Compel,
        comma_backtrack: Some(0),
        ..literal()
    };
    taken.sampler_of_invokeai("scheduler", fields.text("scheduler"));
    let name =
        |value: &Value| ["name", "model_name"].iter().find_map(|key| value.get(*key)?.as_str()).map(String::from);
    taken.model = fields.get("model").and_then(name);
    taken.vae = fields.get("vae").and_then(name);
    for lora in fields.get("loras").and_then(Value::as_array).into_iter().flatten() {
        let model = lora.get("model").or_else(|| lora.get("lora"));
        let weight = lora.get("weight").and_then(Value::as_f64).unwrap_or(1.0) as f32;
        if let Some(name) = model.and_then(name) {
            let lora = LoraName::Named(stem(&name).into());
            taken.request.loras.push(LoraUse { lora, text: weight, unet: weight });
        }
    }
    taken.warnings.extend(fields.finish());
    Ok(taken)
}

/// The settings of version 2: texts in square brackets are the negative prompt.
pub(super) fn taken_old(all: &Map<String, Value>) -> Result<Taken, String> {
    let image = all.get("image").and_then(Value::as_object).ok_or("it has no `image`")?;
    let mut fields = Object::new(image, &["threshold", "perlin", "seamless", "hires_fix", "variations", "type"]);
    if image.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "txt2img") {
        return Err("it was made from another image".into());
    }
    let whole = match fields.get("prompt") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) if parts.len() == 1 => {
            parts.first().and_then(|part| part.get("prompt")?.as_str()).unwrap_or_default().to_string()
        }
        Some(Value::Array(_)) => return Err("its prompt is a blend of several, which Kiln does not have".into()),
        _ => String::new(),
    };
    let (mut prompt, mut negative) = (String::new(), Vec::new());
    let mut rest = whole.as_str();
    while let Some((before, behind)) = rest.split_once('[') {
        let Some((inner, behind)) = behind.split_once(']') else { break };
        prompt += before;
        negative.push(inner.trim());
        rest = behind;
    }
    prompt += rest;
    let mut taken = Taken {
        request: Request {
            prompt: text_of(&prompt)?,
            negative_prompt: Some(text_of(&negative.join(" "))?),
            steps: fields.count("steps"),
            seed: fields.whole("seed"),
            cfg_scale: fields.number("cfg_scale"),
            width: fields.count("width"),
            height: fields.count("height"),
            emphasis: Emphasis::Compel,
            comma_backtrack: Some(0),
            ..literal()
        },
        model: all.get("model_weights").and_then(Value::as_str).map(String::from),
        model_hash: all.get("model_hash").and_then(Value::as_str).map(String::from),
        ..Taken::default()
    };
    taken.sampler_of_invokeai("sampler", fields.text("sampler").map(|name| name.strip_prefix("k_").unwrap_or(name)));
    taken.warnings.extend(fields.finish());
    Ok(taken)
}

fn text_of(prompt: &str) -> Result<String, String> {
    Ok(dialect::written(&compel::spans(prompt)?))
}

impl Taken {
    /// Takes a sampler by InvokeAI's name, in which `_k` is Karras' schedule.
    fn sampler_of_invokeai(&mut self, field: &'static str, name: Option<&str>) {
        let Some(name) = name else { return };
        let (plain, schedule) = match name.strip_suffix("_k") {
            Some(plain) => (plain, SigmaSchedule::Karras),
            None => (name, SigmaSchedule::Default),
        };
        let kind: Option<SamplerKind> = match plain {
            "kdpm_2" | "dpm_2" => Some(SamplerKind::Dpm2),
            "kdpm_2_a" | "dpm_2_a" => Some(SamplerKind::Dpm2A),
            plain => plain.parse().ok(),
        };
        match kind {
            Some(kind) => (self.request.sampler, self.request.scheduler) = (Some(kind.into()), schedule),
            None => self.unknown = Some(Unknown { is_schedule: false, field, name: name.into() }),
        }
    }
}
