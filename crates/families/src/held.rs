//! The networks that a file has in addition to the denoiser by which it is recognized.

use kiln_weights::ParamSource;

/// The prefix of text encoders in files of ComfyUI and of Stability AI; the encoder's name follows.
const TEXT_ENCODERS: &str = "text_encoders.";
/// Names of encoders after that prefix: their beginnings, and what they are.
const ENCODERS: &[(&str, &str)] = &[
    ("clip_l", "a CLIP-L text encoder"),
    ("clip_g", "a CLIP-G text encoder"),
    ("t5xxl", "a T5 text encoder"),
    ("umt5", "a UMT5 text encoder"),
    ("t5", "a T5 text encoder"),
    ("pile_t5", "a T5 text encoder"),
    ("qwen3", "a Qwen3 text encoder"),
    ("qwen25", "a Qwen-VL text encoder"),
    ("gemma", "a Gemma text encoder"),
    ("llama", "a Llama text encoder"),
    ("mistral", "a Mistral text encoder"),
];
/// Prefixes of other parts.
const PARTS: &[(&str, &str)] = &[
    ("cond_stage_model.", "a text encoder"),
    ("conditioner.embedders.", "text encoders"),
    ("first_stage_model.", "an autoencoder (VAE)"),
    ("vae.", "an autoencoder (VAE)"),
];

/// The text encoders and the autoencoder in a file of an unknown or a known family, each with its article, in the order of
/// the tables. A text encoder of a name that is not known counts as `a text encoder`.
pub fn held_networks(file: &dyn ParamSource) -> Vec<&'static str> {
    let keys = file.keys();
    let names: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix(TEXT_ENCODERS)).collect();
    let is = |name: &str, begin: &str| name.starts_with(begin);
    let mut held: Vec<&'static str> = Vec::new();
    let mut add = |label: &'static str| {
        if !held.contains(&label) {
            held.push(label);
        }
    };
    ENCODERS.iter().filter(|(begin, _)| names.iter().any(|name| is(name, begin))).for_each(|(_, label)| add(label));
    if names.iter().any(|name| !ENCODERS.iter().any(|(begin, _)| is(name, begin))) {
        add("a text encoder");
    }
    PARTS.iter().filter(|(begin, _)| keys.iter().any(|key| is(key, begin))).for_each(|(_, label)| add(label));
    held
}
