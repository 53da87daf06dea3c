//! Notes about a LoRA: the model that it was trained for, and the words that it was trained with.
//!
//! kohya's sd-scripts write `ss_base_model_version` and `ss_tag_frequency`, the number of images with each tag in each folder.
//! `modelspec.*` is the specification of Stability AI, which other trainers use as well.

use std::collections::BTreeMap;
use std::path::Path;

use kiln_families::lora_family;
use kiln_weights::{Checkpoint, ParamSource};
use serde::Serialize;
use serde_json::Value;

use crate::error::{Result, shortened};
use crate::foreign::not_supported;

/// The most words that are kept.
const WORDS: usize = 12;
/// The most characters of a value.
const LONGEST: usize = 200;

/// Ends of the names of the matrix that a LoRA's layer takes its input by.
const DOWN: [&str; 4] = [".lora_down.weight", ".lora_A.weight", ".lora.down.weight", "_lora.down.weight"];
/// The models whose cross-attention takes texts of this width.
const BY_WIDTH: [(usize, &str); 3] =
    [(768, "Stable Diffusion 1"), (1024, "Stable Diffusion 2"), (2048, "Stable Diffusion XL")];

/// The metadata of a LoRA. All texts are the file's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LoraNotes {
    /// The model that it was trained for: by its tensors if Kiln does not run it, by its metadata, or by its shapes.
    pub base: Option<String>,
    /// The sentence about the family of that model, if Kiln does not run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    /// The phrase that starts it, where the file has one.
    pub trigger: Option<String>,
    /// The most frequent tags of its training images, the most frequent first, with their numbers of images.
    pub words: Vec<(String, u64)>,
    /// Its rank, as the trainer wrote it.
    pub rank: Option<String>,
}

impl LoraNotes {
    /// The notes in the header of a file.
    ///
    /// # Errors
    /// Errors of a file that cannot be read, or is none with weights.
    pub fn read(path: &Path) -> Result<Self> {
        let file = Checkpoint::open(path)?;
        Ok(Self::of(file.metadata(), &file.keys(), &|key| Some(file.info(key)?.shape)))
    }

    /// The notes of a file with this metadata and tensors of these names and shapes.
    pub(super) fn of(
        metadata: &BTreeMap<String, String>,
        keys: &[String],
        shape: &dyn Fn(&str) -> Option<Vec<usize>>,
    ) -> Self {
        let text = |names: &[&str]| {
            let found = names.iter().filter_map(|name| metadata.get(*name)).find(|text| !text.trim().is_empty());
            found.map(|text| shortened(text.trim(), LONGEST))
        };
        let base = text(&["ss_base_model_version", "modelspec.architecture", "ss_sd_model_name"]);
        let family = lora_family(keys);
        Self {
            unsupported: family.filter(|family| !family.runs()).map(|family| not_supported(family.label())),
            base: family.map(|family| family.label().to_string()).or(base).or_else(|| by_width(keys, shape)),
            trigger: text(&["modelspec.trigger_phrase", "ss_trigger_words"]),
            words: metadata.get("ss_tag_frequency").map(|text| frequent(text)).unwrap_or_default(),
            rank: text(&["ss_network_dim"]),
        }
    }
}

/// The model whose texts a LoRA for its cross-attention takes.
fn by_width(keys: &[String], shape: &dyn Fn(&str) -> Option<Vec<usize>>) -> Option<String> {
    let is_of_text =
        |key: &&String| key.contains("attn2") && key.contains("to_k") && DOWN.iter().any(|end| key.ends_with(end));
    let width = *shape(keys.iter().find(is_of_text)?)?.get(1)?;
    BY_WIDTH.iter().find(|(known, _)| *known == width).map(|(_, name)| name.to_string())
}

/// The most frequent tags in the JSON text of `ss_tag_frequency`: folders with tags and numbers. Other forms have none.
fn frequent(text: &str) -> Vec<(String, u64)> {
    let Ok(Value::Object(folders)) = serde_json::from_str(text) else { return Vec::new() };
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (tag, count) in folders.values().filter_map(Value::as_object).flatten() {
        let tag = tag.trim();
        if !tag.is_empty() {
            let sum = counts.entry(tag).or_default();
            *sum = sum.saturating_add(count.as_u64().unwrap_or_default());
        }
    }
    let mut words: Vec<(&str, u64)> = counts.into_iter().collect();
    words.sort_by_key(|(tag, count)| (std::cmp::Reverse(*count), *tag));
    words.into_iter().take(WORDS).map(|(tag, count)| (shortened(tag, LONGEST), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(pairs: &[(&str, &str)]) -> LoraNotes {
        let metadata = pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        LoraNotes::of(&metadata, &[], &|_| None)
    }

    #[test]
    fn the_most_frequent_tags_of_all_folders_come_first() {
        let found = notes(&[
            ("ss_base_model_version", "sdxl_base_v1-0"),
            ("ss_tag_frequency", r#"{"10_cat": {"a cat": 3, "ink ": 9}, "5_dog": {"ink": 1, "a dog": 3}}"#),
            ("ss_network_dim", "16"),
            ("modelspec.trigger_phrase", "inkdraw"),
        ]);
        assert_eq!((found.base.as_deref(), found.rank.as_deref()), (Some("sdxl_base_v1-0"), Some("16")));
        assert_eq!(found.trigger.as_deref(), Some("inkdraw"));
        let words: Vec<_> = found.words.iter().map(|(word, count)| (word.as_str(), *count)).collect();
        assert_eq!(words, [("ink", 10), ("a cat", 3), ("a dog", 3)]);
    }

    #[test]
    fn shapes_name_the_model_where_no_metadata_does() {
        let of = |key: &str, width: usize, metadata: &[(&str, &str)]| {
            let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            LoraNotes::of(&metadata, &[key.to_string()], &|_| Some(vec![8, width])).base
        };
        let kohya = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight";
        let peft = "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight";
        assert_eq!(of(kohya, 2048, &[]).as_deref(), Some("Stable Diffusion XL"));
        assert_eq!(of(peft, 768, &[]).as_deref(), Some("Stable Diffusion 1"));
        assert_eq!(of(peft, 768, &[("ss_base_model_version", "sd_v1")]).as_deref(), Some("sd_v1"));
        assert_eq!(of(peft, 96, &[]), None);
        assert_eq!(of(&kohya.replace("attn2", "attn1"), 768, &[]), None);
        let flux = "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight";
        assert_eq!(of(flux, 3072, &[("ss_base_model_version", "x")]).as_deref(), Some("FLUX.1"));
    }

    #[test]
    fn damaged_notes_are_no_notes() {
        for text in ["", "{", "[1]", "{\"a\": 1}", "{\"a\": {\"\": 1}}", "{\"a\": null}"] {
            assert!(notes(&[("ss_tag_frequency", text)]).words.is_empty(), "{text}");
        }
        let huge = r#"{"a": {"x": 18446744073709551615}, "b": {"x": 18446744073709551615, "y": -1}}"#;
        assert_eq!(notes(&[("ss_tag_frequency", huge)]).words, [("x".to_string(), u64::MAX), ("y".to_string(), 0)]);
    }
}
