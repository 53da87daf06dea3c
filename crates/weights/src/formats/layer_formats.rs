//! The formats of layers that programs store with safetensors: which ones are read, and the names of the others.
//!
//! ComfyUI stores a format for each layer, as JSON in a tensor `x.comfy_quant` or in the header. Other programs are known by
//! the tensors of their layers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::source::ParamSource;

/// The formats of layers that are read: 8-bit floats with scales.
const KNOWN: [&str; 2] = ["float8_e4m3fn", "float8_e5m2"];

/// The ending of tensors with the format of their layer.
const FORMAT: &str = "comfy_quant";
/// The metadata with the formats of all layers.
const NOTE: &str = "_quantization_metadata";
/// Bytes of a layer's format.
const MAX_BYTES: usize = 1 << 12;

/// Endings of tensors that formats of other programs have, with the name of the format.
const OTHERS: [(&str, &str); 4] = [
    (".wscales", "SVDQuant (Nunchaku)"),
    (".quant_state.bitsandbytes__nf4", "NF4 (bitsandbytes)"),
    (".quant_state.bitsandbytes__fp4", "FP4 (bitsandbytes)"),
    (".weight_scale_2", "NVFP4"),
];

/// Checks that every layer has a format that is read.
///
/// # Errors
/// The problem, with the layer and its format.
pub(super) fn check(source: &dyn ParamSource, metadata: &BTreeMap<String, String>) -> Result<(), String> {
    let note = metadata.get(NOTE).and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(layers) = note.as_ref().and_then(|note| note.get("layers")?.as_object()) {
        layers.iter().try_for_each(|(layer, entry)| known(layer, entry))?;
    }
    let mut keys = source.keys();
    keys.sort_unstable(); // the same message each time
    for key in &keys {
        if let Some(layer) = key.strip_suffix(FORMAT).and_then(|layer| layer.strip_suffix('.')) {
            let data = source.data(key).ok().flatten();
            let text = data.as_ref().map(|data| &*data.bytes).filter(|bytes| bytes.len() <= MAX_BYTES);
            let entry = text.and_then(|text| serde_json::from_slice::<Value>(text).ok());
            known(layer, &entry.ok_or_else(|| format!("has no valid JSON in tensor `{key}`"))?)?;
        }
    }
    let other = OTHERS.iter().find_map(|(ending, format)| {
        let key = keys.iter().find(|key| key.ends_with(ending))?;
        Some((key.strip_suffix(ending).unwrap_or(key), *format))
    });
    other.map_or(Ok(()), |(layer, format)| Err(refusal(layer, format)))
}

/// Checks the format in the entry of a layer. An entry without one says nothing.
fn known(layer: &str, entry: &Value) -> Result<(), String> {
    match entry.get("format").and_then(Value::as_str) {
        Some(format) if !KNOWN.contains(&format) => Err(refusal(layer, format)),
        _ => Ok(()),
    }
}

fn refusal(layer: &str, format: &str) -> String {
    let format: String = format.chars().take(40).collect();
    format!(
        "stores the layer `{layer}` in the format {format}, which is not supported; use a file in BF16, F16, 8-bit floats \
         ({}) or a GGUF file",
        KNOWN.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};
    use safetensors::Dtype;

    use super::*;
    use crate::formats::{Checkpoint, NewTensor, write_safetensors};
    use crate::source::MapSource;

    #[test]
    fn formats_of_other_programs_are_refused_by_name() {
        let notes = |text: &str| BTreeMap::from([(NOTE.to_string(), text.to_string())]);
        let of = |key: &str, notes| {
            let tensor = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
            check(&MapSource::from_iter([(key.to_string(), tensor)]), &notes)
        };
        let message = of("blocks.0.qkv_proj.wscales", BTreeMap::new()).unwrap_err();
        assert!(message.contains("`blocks.0.qkv_proj` in the format SVDQuant (Nunchaku)"), "{message}");
        let message = of("a.weight.quant_state.bitsandbytes__nf4", BTreeMap::new()).unwrap_err();
        assert!(message.contains("NF4 (bitsandbytes)"), "{message}");
        let layers = |format: &str| notes(&format!(r#"{{"layers": {{"a.b": {{"format": "{format}"}}}}}}"#));
        let message = of("a.weight", layers("int8_convrot")).unwrap_err();
        assert!(message.contains("`a.b` in the format int8_convrot"), "{message}");
        for fine in [layers("float8_e4m3fn"), notes("no JSON"), notes("[]"), BTreeMap::new()] {
            assert_eq!(of("a.weight", fine), Ok(()));
        }
    }

    /// A file with a layer of 8-bit floats, its scale, and its format.
    fn file(format: &str) -> crate::Result<(Vec<String>, Vec<f32>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let json = format!(r#"{{"format": "{format}"}}"#).into_bytes();
        let scale = 0.5f32.to_le_bytes().to_vec();
        let tensors = [
            ("x.weight", vec![2, 2], Dtype::F8_E4M3, vec![0x38, 0x40, 0xb8, 0x00]), // 1, 2, -1, 0
            ("x.weight_scale", vec![], Dtype::F32, scale.clone()),
            ("x.input_scale", vec![], Dtype::F32, scale),
            ("x.comfy_quant", vec![json.len()], Dtype::U8, json),
            ("part.scaled_fp8", vec![0], Dtype::F8_E4M3, vec![]),
        ];
        let tensors = tensors.into_iter().map(|(name, shape, dtype, bytes)| NewTensor {
            name: name.into(),
            shape,
            dtype: dtype.into(),
            bytes: Box::new(move || Ok(bytes.clone().into())),
        });
        write_safetensors(&mut std::fs::File::create(&path).unwrap(), tensors.collect(), &BTreeMap::new()).unwrap();
        let file = Checkpoint::open(&path)?;
        let row = file.rows("x.weight", 1..2)?.unwrap();
        assert_eq!(
            (row.info.shape.as_slice(), row.to_f32().unwrap().as_slice()),
            ([1, 2].as_slice(), [-0.5, 0.].as_slice())
        );
        Ok((file.keys(), file.data("x.weight")?.unwrap().to_f32().unwrap()))
    }

    #[test]
    fn a_layer_has_a_scale_and_a_format() {
        assert_eq!(file("float8_e4m3fn").unwrap(), (vec!["x.weight".to_string()], vec![0.5, 1., -0.5, 0.]));
        let message = file("nvfp4").err().unwrap().to_string();
        assert!(message.contains("a.safetensors: stores the layer `x` in the format nvfp4"), "{message}");
        assert!(file("\"").err().unwrap().to_string().contains("no valid JSON in tensor `x.comfy_quant`"));
    }
}
