//! Image prompts: the nodes of ComfyUI_IPAdapter_plus.

use kiln_media::NodeAt;

use super::Named;
use super::graph_image::GraphImage;
use super::model::Chain;
use super::problem::{Problem, Result, named};
use super::prompt_weights::PromptWeights;
use super::reader::Reader;
use crate::settings::formats::stem;

/// The node that loads an adapter by a preset.
const BY_PRESET: &str = "IPAdapterUnifiedLoader";
/// The node that loads an adapter by the name of its file.
const BY_FILE: &str = "IPAdapterModelLoader";
/// The nodes that apply an adapter; the first one needs a preset.
const APPLIES: [&str; 2] = ["IPAdapter", "IPAdapterAdvanced"];

/// An image prompt of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphPrompt {
    /// The id of the node that applies it.
    pub node: String,
    /// The image.
    pub image: GraphImage,
    /// The adapter.
    pub adapter: AdapterName,
    /// The image encoder. `None` is the one that belongs to the adapter.
    pub encoder: Option<Named>,
    /// The factor of what the image adds.
    pub weight: f64,
    /// How the factor is divided among the blocks of the U-Net.
    pub weights: PromptWeights,
    /// The part of the noise levels from which it acts.
    pub start: f64,
    /// The part of the noise levels up to which it acts.
    pub end: f64,
}

/// How a graph names an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterName {
    /// By a file.
    File(Named),
    /// By a preset, which stands for files whose names end in one of its patterns.
    Preset(Named),
}

/// Presets: the begin of the name, and the patterns for Stable Diffusion 1 and for XL, in the order in which they are looked for. A dot of a
/// pattern is any character (`get_ipadapter_file` of utils.py there).
const PRESETS: [(&str, &[&str], &[&str]); 6] = [
    ("light", &["sd15.light.v11", "sd15.light"], &[]),
    ("standard", &["ip.adapter.sd15"], &["ip.adapter.sdxl.vit.h"]),
    ("vit-g", &["sd15.vit.g"], &["ip.adapter.sdxl"]),
    ("plus (", &["ip.adapter.plus.sd15"], &["plus.sdxl.vit.h"]),
    ("plus face", &["plus.face.sd15"], &["plus.face.sdxl.vit.h"]),
    ("full", &["full.face.sd15"], &[]),
];

impl AdapterName {
    /// The name as the graph has it.
    pub fn named(&self) -> &Named {
        match self {
            Self::File(name) | Self::Preset(name) => name,
        }
    }

    /// The adapter's name among those of the server, which have no endings.
    pub fn find(&self, names: &[String], is_xl: bool) -> Option<String> {
        let preset = match self {
            Self::File(name) => return Some(stem(&name.name).into()),
            Self::Preset(name) => name.name.to_ascii_lowercase(),
        };
        let (_, small, large) = PRESETS.iter().find(|(begin, ..)| preset.starts_with(begin))?;
        let patterns = if is_xl { large } else { small };
        patterns.iter().find_map(|pattern| names.iter().find(|name| ends_in(name, pattern))).cloned()
    }
}

/// Whether a name ends in a pattern, whose dots are any character. Case is ignored.
fn ends_in(name: &str, pattern: &str) -> bool {
    let fits = |(found, expected): (char, char)| expected == '.' || found.eq_ignore_ascii_case(&expected);
    name.chars().count() >= pattern.len() && name.chars().rev().zip(pattern.chars().rev()).all(fits)
}

/// Whether nodes of this class give the model on with an image prompt, or as it is.
pub(super) fn passes_model(class: &str) -> bool {
    class == BY_PRESET || APPLIES.contains(&class)
}

impl<'a> Reader<'a> {
    /// The image prompts of a model in order from the checkpoint, each with its node.
    pub(super) fn image_prompts(&self, model: &Chain<'a>) -> Result<Vec<GraphPrompt>> {
        let nodes = model.nodes.iter().rev().map(|id| self.node(id));
        let applies =
            |at: &Result<NodeAt<'a>>| at.as_ref().is_ok_and(|(_, node)| APPLIES.contains(&node.class_type.as_str()));
        nodes.filter(applies).map(|at| self.image_prompt(at?, model)).collect()
    }

    fn image_prompt(&self, at: NodeAt<'a>, model: &Chain<'a>) -> Result<GraphPrompt> {
        for input in ["image_negative", "attn_mask"] {
            if self.graph.linked(at, input).is_some() {
                let message = format!("{input} of node {} is not supported", named(at));
                return Err(Problem::of_input(at, input, message));
            }
        }
        let loader = self.link(at, "ipadapter")?;
        let is_simple = at.1.class_type == APPLIES[0];
        let adapter = match loader.1.class_type.as_str() {
            BY_PRESET => {
                if self.chain(loader, "model", "model")?.checkpoint != model.checkpoint {
                    let message = format!("nodes {} and {} have different models", named(loader), named(at));
                    return Err(Problem::of_node(loader, message));
                }
                AdapterName::Preset(self.file_name(loader, "preset")?)
            }
            BY_FILE if !is_simple => AdapterName::File(self.file_name(loader, "ipadapter_file")?),
            BY_FILE => {
                let message =
                    format!("ipadapter of node {} comes from node {}, expected {BY_PRESET}", named(at), named(loader));
                return Err(Problem::of_input(at, "ipadapter", message));
            }
            _ => return Err(Problem::not_understood(loader)),
        };
        let encoder = match self.graph.linked(at, "clip_vision") {
            Some(loader) if loader.1.class_type == "CLIPVisionLoader" => Some(self.file_name(loader, "clip_name")?),
            Some(other) => return Err(Problem::not_understood(other)),
            None if matches!(adapter, AdapterName::File(_)) => {
                let message = format!("node {} has no clip_vision, which an adapter of {BY_FILE} needs", named(at));
                return Err(Problem::of_input(at, "clip_vision", message));
            }
            None => None,
        };
        if !is_simple {
            let scaling = "V only".into();
            self.only(at, "embeds_scaling", &scaling, "expected \"V only\": Kiln scales values, and no keys")?;
        }
        let kind = self.name(at, "weight_type")?;
        let weights = PromptWeights::find(kind).ok_or_else(|| {
            Self::wrong(
                at,
                "weight_type",
                &kind.into(),
                "one that multiplies blocks by factors: Kiln has no `precise` ones",
            )
        })?;
        Ok(GraphPrompt {
            node: at.0.into(),
            image: self.graph_image(at, "image")?,
            adapter,
            encoder,
            weight: self.number(at, "weight")?,
            weights,
            start: self.number(at, "start_at")?,
            end: self.number(at, "end_at")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_stand_for_the_published_files() {
        let files = [
            "ip-adapter-full-face_sd15",
            "ip-adapter-plus-face_sd15",
            "ip-adapter-plus-face_sdxl_vit-h",
            "ip-adapter-plus_sd15",
            "ip-adapter-plus_sdxl_vit-h",
            "ip-adapter_sd15",
            "ip-adapter_sd15_light",
            "ip-adapter_sd15_light_v11",
            "ip-adapter_sd15_vit-G",
            "ip-adapter_sdxl",
            "ip-adapter_sdxl_vit-h",
        ];
        let files = files.map(String::from);
        let find = |preset: &str, is_xl| {
            let named = Named { name: preset.into(), node: "1".into(), class: BY_PRESET.into(), input: "preset" };
            AdapterName::Preset(named).find(&files, is_xl)
        };
        let both = |preset| [find(preset, false), find(preset, true)].map(Option::unwrap_or_default);
        assert_eq!(both("STANDARD (medium strength)"), ["ip-adapter_sd15", "ip-adapter_sdxl_vit-h"]);
        assert_eq!(both("VIT-G (medium strength)"), ["ip-adapter_sd15_vit-G", "ip-adapter_sdxl"]);
        assert_eq!(both("PLUS (high strength)"), ["ip-adapter-plus_sd15", "ip-adapter-plus_sdxl_vit-h"]);
        assert_eq!(both("PLUS FACE (portraits)"), ["ip-adapter-plus-face_sd15", "ip-adapter-plus-face_sdxl_vit-h"]);
        assert_eq!(both("FULL FACE - SD1.5 only (portraits stronger)"), ["ip-adapter-full-face_sd15", ""]);
        assert_eq!(both("LIGHT - SD1.5 only (low strength)"), ["ip-adapter_sd15_light_v11", ""]);
        assert_eq!(both("FACEID"), ["", ""]);
    }
}
