//! The settings that PEFT stores separately from its tensors: in `adapter_config.json`, or in the metadata of a file
//! that diffusers wrote. Its files have no `alpha`s.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kiln_files::{MAX_CONFIG_BYTES, read_small};
use serde_json::{Map, Value};

use super::targets::Network;
use crate::error::{Error, Result};

/// The metadata key in diffusers' files.
const NOTE: &str = "lora_adapter_metadata";

/// The file in the same folder as PEFT's tensors.
const CONFIG: &str = "adapter_config.json";

/// The largest alpha, in both directions. Usual ones are of the size of the rank.
const MAX_ALPHA: f64 = 1e6;

/// Settings of adapters. They are empty if there are none: then a change is not scaled.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Map<String, Value>,
}

impl Settings {
    /// Reads the metadata of a file, or the configuration in its folder. Without either the settings are empty.
    ///
    /// # Errors
    /// [`Error::Io`] if the configuration cannot be read, [`Error::Format`] if it or the metadata is damaged, or has a rank or an
    /// alpha that makes no scale: a scale that cannot be read must not become 1.
    pub(super) fn read(metadata: &BTreeMap<String, String>, path: Option<&Path>) -> Result<Self> {
        if let Some(note) = metadata.get(NOTE) {
            let problem = |problem| Error::Format {
                path: path.map_or_else(|| "LoRA".into(), PathBuf::from),
                problem: format!("the metadata `{NOTE}` {problem}"),
            };
            return Self::parse(note.as_bytes()).map_err(problem);
        }
        let Some(config) = path.and_then(|path| Some(path.parent()?.join(CONFIG))) else { return Ok(Self::default()) };
        match read_small(&config, MAX_CONFIG_BYTES) {
            Ok(text) => Self::parse(&text).map_err(|problem| Error::Format { path: config, problem }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(source) => Err(Error::Io { path: config, source }),
        }
    }

    fn parse(text: &[u8]) -> std::result::Result<Self, String> {
        let values = serde_json::from_slice::<Map<String, Value>>(text)
            .map_err(|error| format!("is not a valid JSON object: {error}; download it again"))?;
        for (key, value) in &values {
            let name = key.rsplit('.').next().unwrap_or(key);
            let expected = match name {
                "r" | "lora_alpha" | "alpha" if !value.is_number() => "a number",
                "use_rslora" if !value.is_boolean() => "true or false",
                "rank_pattern" | "alpha_pattern"
                    if !value.as_object().is_some_and(|map| map.values().all(Value::is_number)) =>
                {
                    "an object of numbers by layer names"
                }
                _ => continue,
            };
            if !value.is_null() {
                return Err(format!("has the wrong type for `{key}`: expected {expected}"));
            }
        }
        // OFT has blocks of this size where its `r` is 0.
        let has_rank = !values.keys().any(|key| key.ends_with("oft_block_size"));
        values.iter().try_for_each(|(key, value)| in_range(key, value, has_rank))?;
        Ok(Self { values })
    }

    /// The setting `name` of a network.
    fn get(&self, network: Network, name: &str) -> Option<&Value> {
        self.values.get(&format!("{}.{name}", network.id)).or_else(|| self.values.get(name))
    }

    /// The scale of the change of the layer `path`, for a factor of this rank.
    pub(super) fn scale(&self, network: Network, path: &str, rank: usize) -> f64 {
        let pattern = |name: &str| {
            let patterns = self.get(network, name)?.as_object()?;
            let fits = |key: &str| path == key || path.strip_suffix(key).is_some_and(|rest| rest.ends_with('.'));
            patterns.iter().find(|(key, _)| fits(key)).and_then(|(_, value)| value.as_f64())
        };
        let number = |name: &str| self.get(network, name).and_then(Value::as_f64);
        // LoHa and LoKr use the names `alpha` and `r`, LoRA `lora_alpha`.
        let Some(alpha) = pattern("alpha_pattern").or_else(|| number("lora_alpha")).or_else(|| number("alpha")) else {
            return 1.0;
        };
        let rank = pattern("rank_pattern").or_else(|| number("r")).unwrap_or(rank as f64);
        let stabilised = self.get(network, "use_rslora").and_then(Value::as_bool).unwrap_or(false);
        let scale = alpha / if stabilised { rank.sqrt() } else { rank };
        if scale.is_finite() { scale } else { 1.0 }
    }
}

/// Refuses ranks and alphas that make no scale: PEFT's own configuration has a positive rank, and weights of a larger alpha overflow.
fn in_range(key: &str, value: &Value, has_rank: bool) -> std::result::Result<(), String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let (is_rank, is_pattern) = match name {
        "r" if has_rank => (true, false),
        "rank_pattern" if has_rank => (true, true),
        "lora_alpha" | "alpha" => (false, false),
        "alpha_pattern" => (false, true),
        _ => return Ok(()),
    };
    let check = |field: String, value: &Value| {
        let Some(number) = value.as_f64() else { return Ok(()) };
        let (fits, expected) = match is_rank {
            true => (number > 0.0, "a rank above 0".to_string()),
            false => (number.abs() <= MAX_ALPHA, format!("a number from -{MAX_ALPHA} to {MAX_ALPHA}")),
        };
        if fits { Ok(()) } else { Err(format!("has {value} for `{field}`, expected {expected}; download it again")) }
    };
    match value.as_object().filter(|_| is_pattern) {
        Some(layers) => layers.iter().try_for_each(|(layer, value)| check(format!("{key}.{layer}"), value)),
        None => check(key.into(), value),
    }
}
