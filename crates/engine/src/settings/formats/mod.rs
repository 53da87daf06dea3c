//! Settings that other programs write in formats of their own, all of them JSON: taken as far as their fields mean
//! something here.
//!
//! What a program does by default and Kiln does otherwise is part of what its settings mean: where noise is drawn, how
//! weights of words act, what happens to texts of unequal length. What cannot be met is named in a warning, a sampler that
//! Kiln does not have is an error, and a text that is not understood is no settings at all.

mod comfy;
mod compel;
mod dialect;
mod fooocus;
mod invoke;
mod novelai;
mod object;
mod swarm;

use kiln_clip::Emphasis;
use kiln_clip::prompt::ChunkCut;
use kiln_media::{Graph, ImageText, is_of_fooocus, is_of_novelai, object_of};
use kiln_scheduler::SigmaSchedule;
use serde_json::Value;

use super::programs;
use crate::request::{Request, Rng};

/// What a program's settings make here.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The request without files.
    pub(super) request: Request,
    /// The model's name.
    pub(super) model: Option<String>,
    /// The model's SHA-256, or the begin of it.
    pub(super) model_hash: Option<String>,
    /// The VAE in the place of the model's own.
    pub(super) vae: Option<String>,
    /// A sampler or a schedule that Kiln does not have.
    pub(super) unknown: Option<Unknown>,
    /// What is not met, a sentence each.
    pub(super) warnings: Vec<String>,
}

/// A name that stands for nothing here.
#[derive(Debug, PartialEq)]
pub(super) struct Unknown {
    /// Whether it is a schedule's, not a sampler's.
    pub(super) is_schedule: bool,
    /// The field that names it.
    pub(super) field: &'static str,
    /// The name.
    pub(super) name: String,
}

/// A program, and its settings or why they are not understood.
pub(super) type Found = (&'static str, Result<Taken, String>);

/// The settings of a program among the texts of an image.
pub(super) fn find(texts: &[ImageText]) -> Option<Found> {
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
    // NovelAI hides all of its texts as one object, whose `Comment` is a text with JSON.
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

/// A request whose texts are in the dialect that [`dialect`] writes: no choice, comment or tag in them is read.
fn literal() -> Request {
    Request { literal_prompt: true, literal_negative_prompt: true, keep_comments: true, ..Request::default() }
}

/// What ComfyUI does by default, and SwarmUI and Fooocus, whose samplers are ComfyUI's: the first noise is drawn on the CPU,
/// texts of unequal length are not padded, a text is cut before a word.
fn as_in_comfyui() -> Request {
    Request { rng: Rng::Cpu, emphasis: Emphasis::Comfy, chunk_cut: ChunkCut::Word, pad_conds: Some(false), ..literal() }
}

impl Taken {
    /// Takes a sampler and a schedule by ComfyUI's names (`comfy/samplers.py`, `KSAMPLER_NAMES` and `SCHEDULER_NAMES`), which
    /// stand in these fields.
    fn sampler_of_comfyui(
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

    /// Notes a name, unless there is one already.
    fn has_unknown(&mut self, unknown: Unknown) {
        self.unknown.get_or_insert(unknown);
    }
}

/// A file's name without folders and ending, as models, VAEs and LoRAs are named here.
fn stem(name: &str) -> &str {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let endings = [".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"];
    endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

#[cfg(test)]
mod tests;
