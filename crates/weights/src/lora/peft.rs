//! The settings that PEFT keeps beside its tensors: in `adapter_config.json`, or in the notes of a file that diffusers
//! wrote. Its files have no `alpha`s.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::targets::Network;

/// The note of diffusers' files.
const NOTE: &str = "lora_adapter_metadata";

/// Settings of adapters. Empty where there are none: then a change is not scaled.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Map<String, Value>,
}

impl Settings {
    /// Reads the notes of a file, or the configuration beside it. What cannot be read counts as missing, as in
    /// diffusers.
    pub(super) fn read(metadata: &BTreeMap<String, String>, path: Option<&Path>) -> Self {
        let parse = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
        let beside = || {
            let config = path?.parent()?.join("adapter_config.json");
            parse(&std::fs::read_to_string(config).ok()?)
        };
        let values = metadata.get(NOTE).and_then(|text| parse(text)).or_else(beside).unwrap_or_default();
        Self { values }
    }

    /// The setting `name` of a network.
    fn get(&self, network: Network, name: &str) -> Option<&Value> {
        self.values.get(&format!("{}.{name}", network.prefix())).or_else(|| self.values.get(name))
    }

    /// By how much the change of the layer `path` is scaled, for a factor of this rank.
    pub(super) fn scale(&self, network: Network, path: &str, rank: usize) -> f64 {
        let pattern = |name: &str| {
            let patterns = self.get(network, name)?.as_object()?;
            let fits = |key: &str| path == key || path.strip_suffix(key).is_some_and(|rest| rest.ends_with('.'));
            patterns.iter().find(|(key, _)| fits(key)).and_then(|(_, value)| value.as_f64())
        };
        let number = |name: &str| self.get(network, name).and_then(Value::as_f64);
        // `alpha` and `r` are LoHa's and LoKr's names, `lora_alpha` LoRA's.
        let Some(alpha) = pattern("alpha_pattern").or_else(|| number("lora_alpha")).or_else(|| number("alpha")) else {
            return 1.0;
        };
        let rank = pattern("rank_pattern").or_else(|| number("r")).unwrap_or(rank as f64);
        let stabilised = self.get(network, "use_rslora").and_then(Value::as_bool).unwrap_or(false);
        let scale = alpha / if stabilised { rank.sqrt() } else { rank };
        if scale.is_finite() { scale } else { 1.0 }
    }
}
