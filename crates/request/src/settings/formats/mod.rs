//! Settings of other programs in JSON formats, converted as far as Kiln supports their fields.
//!
//! A program's defaults are part of its settings if they differ from Kiln's: the device of the noise, the effect of
//! word weights, the padding of texts with unequal lengths. Unsupported values are named in a warning, an unsupported
//! sampler is an error, and an unknown text counts as no settings.

mod comfy;
mod compel;
pub(crate) mod dialect;
mod fooocus;
mod invoke;
mod novelai;
mod object;
mod swarm;

use kiln_media::{Graph, ImageText, is_of_fooocus, is_of_novelai, object_of};
use kiln_prompt::{ChunkCut, Emphasis};
use kiln_scheduler::SigmaSchedule;
use serde_json::Value;

use super::programs;
pub(crate) use object::whole;

use crate::request::{Request, Rng};

/// The converted settings of a program.
#[derive(Debug, Default)]
pub struct Taken {
    /// The request without files.
    pub request: Request,
    /// The model's name.
    pub model: Option<String>,
    /// The model's SHA-256, or its prefix.
    pub model_hash: Option<String>,
    /// The VAE that replaces the model's.
    pub vae: Option<String>,
    /// An unsupported sampler or schedule.
    pub unknown: Option<Unknown>,
    /// Unsupported values, one sentence each.
    pub warnings: Vec<String>,
}

/// An unknown name.
#[derive(Debug, PartialEq)]
pub struct Unknown {
    /// Whether it names a schedule, not a sampler.
    pub is_schedule: bool,
    /// The field with the name.
    pub field: &'static str,
    /// The name.
    pub name: String,
}

/// A program, and its settings or the reason why they are not supported.
pub type Found = (&'static str, Result<Taken, String>);

/// The settings of a program among the texts of an image.
pub fn find(texts: &[ImageText]) -> Option<Found> {
    let text = |keys: &[&str]| texts.iter().filter(|text| keys.contains(&text.key.as_str())).find_map(object_of);
    if let Some(graph) = texts.iter().find_map(Graph::of) {
        return Some(("ComfyUI", comfy::taken(&graph)));
    }
    if let Some(all) = text(&["parameters", "UserComment", "generation_data", "ImageDescription", "Comment"]) {
        if let Some(swarm) = all.get("sui_image_params").and_then(Value::as_object) {
            return Some(("SwarmUI", swarm::taken(swarm)));
        }
        if is_of_fooocus(&all) {
            return Some(("Fooocus", fooocus::taken(&all)));
        }
    }
    if let Some(all) = text(&["invokeai_metadata"]) {
        return Some(("InvokeAI", invoke::taken(&all)));
    }
    if let Some(all) = text(&["sd-metadata"]) {
        return Some(("InvokeAI", invoke::taken_old(&all)));
    }
    // NovelAI hides all of its texts as one object, whose `Comment` is JSON text.
    let hidden = texts.iter().filter(|text| text.key.starts_with("stealth_")).find_map(object_of);
    if let Some(hidden) = hidden.filter(|hidden| hidden.contains_key("Comment")) {
        let comment = match hidden.get("Comment") {
            Some(Value::String(text)) => serde_json::from_str(text).ok(),
            other => other.cloned(),
        };
        let description = hidden.get("Description").and_then(Value::as_str);
        if let Some(Value::Object(comment)) = comment {
            return Some(("NovelAI", novelai::taken(&comment, description)));
        }
    }
    if is_of_novelai(texts)
        && let Some(comment) = text(&["Comment"])
    {
        let description = texts.iter().find(|text| text.key == "Description").map(|text| text.text.as_str());
        return Some(("NovelAI", novelai::taken(&comment, description)));
    }
    None
}

/// A request whose texts are in the dialect that [`dialect`] writes: no choice, comment or tag in them is parsed.
fn literal() -> Request {
    Request { literal_prompt: true, literal_negative_prompt: true, keep_comments: true, ..Request::default() }
}

/// The defaults of ComfyUI, and of SwarmUI and Fooocus, which use its samplers: the initial noise is drawn on the CPU,
/// texts of unequal length are not padded, and a chunk ends before a word.
pub(crate) fn as_in_comfyui() -> Request {
    Request { rng: Rng::Cpu, emphasis: Emphasis::Comfy, chunk_cut: ChunkCut::Word, pad_conds: Some(false), ..literal() }
}

impl Taken {
    /// Sets a sampler and a schedule by ComfyUI's names (`comfy/samplers.py`, `KSAMPLER_NAMES` and `SCHEDULER_NAMES`)
    /// in these fields.
    pub(crate) fn sampler_of_comfyui(
        &mut self,
        [field, schedule_field]: [&'static str; 2],
        sampler: Option<&str>,
        schedule: Option<&str>,
    ) {
        if let Some(name) = sampler {
            match programs::comfyui_sampler(&mut self.request, name) {
                Ok(warnings) => self.warnings.extend(warnings),
                Err(_) => self.unknown = Some(Unknown { is_schedule: false, field, name: name.into() }),
            }
        }
        if let Some(name) = schedule {
            match name.parse::<SigmaSchedule>() {
                Ok(schedule) => self.request.scheduler = schedule,
                Err(_) => self.has_unknown(Unknown { is_schedule: true, field: schedule_field, name: name.into() }),
            }
        }
    }

    /// Stores an unknown name, unless there is one already.
    fn has_unknown(&mut self, unknown: Unknown) {
        self.unknown.get_or_insert(unknown);
    }
}

/// A file name without folders and extension, as Kiln names models, VAEs and LoRAs in settings.
pub fn stem(name: &str) -> &str {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let endings = [".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"];
    endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

#[cfg(test)]
mod tests;
