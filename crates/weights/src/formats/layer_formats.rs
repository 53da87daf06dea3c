//! The formats of layers that programs store with safetensors: which ones are read, and the names of the others.
//!
//! ComfyUI stores a format for each layer, as JSON in a tensor `x.comfy_quant` or in the header. Other programs are known by
//! the tensors of their layers.

use std::collections::{BTreeMap, HashMap};

use kiln_ops::Rotation;
use serde_json::Value;

use crate::source::ParamSource;

/// The formats of layers that are read.
const KNOWN: [&str; 3] = ["float8_e4m3fn", "float8_e5m2", "int8_tensorwise"];
/// The size of the groups of a rotated layer that does not say it.
const USUAL_GROUP: u64 = 256;

/// The ending of tensors with the format of their layer.
const FORMAT: &str = "comfy_quant";
/// The metadata with the formats of all layers.
const NOTE: &str = "_quantization_metadata";
/// Bytes of a layer's format.
const MAX_BYTES: usize = 1 << 12;

/// Endings of tensors that formats of other programs have, with the name of the format.
const OTHERS: [(&str, &str); 2] = [(".wscales", "SVDQuant (Nunchaku)"), (".weight_scale_2", "NVFP4")];

/// The format of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerFormat {
    /// 8-bit floats.
    F8,
    /// 8-bit integers, perhaps rotated.
    Int8(Rotation),
}

/// The formats that a file names, by layer. `keys` are the names of its tensors.
///
/// # Errors
/// The problem, if a layer has a format that is not read, with the layer and its format.
pub(super) fn read(
    source: &dyn ParamSource,
    keys: &[String],
    metadata: &BTreeMap<String, String>,
) -> Result<HashMap<String, LayerFormat>, String> {
    let mut formats = HashMap::new();
    let note = metadata.get(NOTE).and_then(|text| serde_json::from_str::<Value>(text).ok());
    for (layer, entry) in note.as_ref().and_then(|note| note.get("layers")?.as_object()).into_iter().flatten() {
        formats.extend(format(layer, entry)?.map(|format| (layer.clone(), format)));
    }
    for key in keys {
        if let Some(layer) = key.strip_suffix(FORMAT).and_then(|layer| layer.strip_suffix('.')) {
            let data = source.data(key).ok().flatten();
            let text = data.as_ref().map(|data| &*data.bytes).filter(|bytes| bytes.len() <= MAX_BYTES);
            let entry = text.and_then(|text| serde_json::from_slice::<Value>(text).ok());
            let entry = entry.ok_or_else(|| format!("has no valid JSON in tensor `{key}`"))?;
            formats.extend(format(layer, &entry)?.map(|format| (layer.to_string(), format)));
        }
    }
    let other = OTHERS.iter().find_map(|(ending, format)| {
        let key = keys.iter().find(|key| key.ends_with(ending))?;
        Some((key.strip_suffix(ending).unwrap_or(key), *format))
    });
    other.map_or(Ok(formats), |(layer, format)| Err(refusal(layer, format)))
}

/// The format in the entry of a layer. An entry without one says nothing.
fn format(layer: &str, entry: &Value) -> Result<Option<LayerFormat>, String> {
    match entry.get("format").and_then(Value::as_str) {
        None => Ok(None),
        Some("float8_e4m3fn" | "float8_e5m2") => Ok(Some(LayerFormat::F8)),
        Some("int8_tensorwise") => rotation(layer, entry).map(|rotation| Some(LayerFormat::Int8(rotation))),
        Some(format) => Err(refusal(layer, format)),
    }
}

/// The rotation in the entry of a layer of integers. Older files have it one level deeper.
fn rotation(layer: &str, entry: &Value) -> Result<Rotation, String> {
    let of = |name: &str| entry.get(name).or_else(|| entry.get("params")?.get(name));
    if of("convrot").is_none_or(|rotated| rotated.as_bool() != Some(true)) {
        return Ok(Rotation::None);
    }
    let group = of("convrot_groupsize").map_or(Some(USUAL_GROUP), Value::as_u64);
    let rotation = group.and_then(|group| Rotation::of(usize::try_from(group).ok()?));
    rotation.ok_or_else(|| {
        let found = of("convrot_groupsize").map(Value::to_string).unwrap_or_default();
        format!("rotates the layer `{layer}` in groups of {found}, expected 16, 64 or 256")
    })
}

fn refusal(layer: &str, format: &str) -> String {
    let format: String = format.chars().take(40).collect();
    format!(
        "stores the layer `{layer}` in the format {format}, which is not supported; use a file in BF16, F16, a format of \
         ComfyUI's 8-bit files ({}), bitsandbytes' NF4 or FP4, or a GGUF file",
        KNOWN.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::source::MapSource;

    /// The formats of a file with one tensor.
    fn of(key: &str, notes: &BTreeMap<String, String>) -> Result<HashMap<String, LayerFormat>, String> {
        let tensor = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
        let source = MapSource::from_iter([(key.to_string(), tensor)]);
        read(&source, &source.keys(), notes)
    }

    fn notes(text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(NOTE.to_string(), text.to_string())])
    }

    #[test]
    fn formats_of_other_programs_are_refused_by_name() {
        let message = of("blocks.0.qkv_proj.wscales", &BTreeMap::new()).unwrap_err();
        assert!(message.contains("`blocks.0.qkv_proj` in the format SVDQuant (Nunchaku)"), "{message}");
        let layers = |format: &str| notes(&format!(r#"{{"layers": {{"a.b": {{"format": "{format}"}}}}}}"#));
        let message = of("a.weight", &layers("convrot_w4a4")).unwrap_err();
        assert!(message.contains("`a.b` in the format convrot_w4a4"), "{message}");
        for none in [notes("no JSON"), notes("[]"), BTreeMap::new()] {
            assert_eq!(of("a.weight", &none), Ok(HashMap::new()));
        }
        let float8 = of("a.weight", &layers("float8_e4m3fn")).unwrap();
        assert_eq!(float8.get("a.b"), Some(&LayerFormat::F8));
    }

    #[test]
    fn integers_may_be_rotated() {
        let of = |fields: &str| {
            let text = format!(r#"{{"layers": {{"a": {{"format": "int8_tensorwise"{fields}}}}}}}"#);
            of("a.weight", &notes(&text)).map(|formats| formats.get("a").copied())
        };
        let int8 = |rotation| Ok(Some(LayerFormat::Int8(rotation)));
        assert_eq!(of(""), int8(Rotation::None));
        assert_eq!(of(r#", "convrot": false, "convrot_groupsize": 64"#), int8(Rotation::None));
        assert_eq!(of(r#", "convrot": true"#), int8(Rotation::By256));
        assert_eq!(of(r#", "convrot": true, "convrot_groupsize": 64"#), int8(Rotation::By64));
        assert_eq!(of(r#", "params": {"convrot": true, "convrot_groupsize": 16}"#), int8(Rotation::By16));
        for group in ["32", "\"256\"", "-1"] {
            let message = of(&format!(r#", "convrot": true, "convrot_groupsize": {group}"#)).unwrap_err();
            assert!(message.contains(&format!("`a` in groups of {group}, expected 16, 64 or 256")), "{message}");
        }
    }
}
