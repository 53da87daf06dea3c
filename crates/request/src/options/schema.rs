//! The JSON schema of a request.

use serde_json::{Map, Value, json};

use super::row::{OptionKind, OptionRow};
use super::table::{OPTIONS, Request};
use crate::control::{ControlMode, ControlPasses, ControlType};
use crate::input::ResizeChoice;

/// The JSON schema (draft 2020-12) of a [`Request`]: what `serde` reads, with the ranges of the table. A default
/// that depends on the model is in the description.
pub fn request_schema() -> Value {
    let properties: Map<String, Value> = OPTIONS.iter().map(|row| (row.name.to_string(), property(row))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Request",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// The schema of one option.
fn property(row: &OptionRow) -> Value {
    let mut schema = match row.kind {
        OptionKind::Text | OptionKind::Folder | OptionKind::File | OptionKind::Model | OptionKind::Borders => {
            json!({"type": "string"})
        }
        OptionKind::Form(example) => json!({"type": "string", "examples": [example]}),
        OptionKind::Flag | OptionKind::Switch => json!({"type": "boolean"}),
        OptionKind::Whole { min, max: usize::MAX } => json!({"type": "integer", "minimum": min}),
        OptionKind::Whole { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
        OptionKind::Number { min, max } => json!({"type": "number", "minimum": min, "maximum": max}),
        OptionKind::Side { max } => json!({"type": "integer", "minimum": 1, "maximum": max}),
        OptionKind::Seed => json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
        OptionKind::Offset => json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        OptionKind::Size => {
            json!({"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2})
        }
        OptionKind::Choice(names) => json!({"type": "string", "enum": names()}),
        // Names of other programs are accepted too.
        OptionKind::Name(names) | OptionKind::Upscaler(names) => json!({"type": "string", "examples": names()}),
        OptionKind::Numbers => json!({"type": "array", "items": {"type": "number"}}),
        OptionKind::Files => json!({"type": "array", "items": {"type": "string"}}),
        OptionKind::Loras => json!({
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["lora", "text", "unet"],
                "properties": {
                    "lora": {
                        "type": "object",
                        "additionalProperties": false,
                        "minProperties": 1,
                        "maxProperties": 1,
                        "properties": {"file": {"type": "string"}, "named": {"type": "string"}},
                    },
                    "text": {"type": "number"},
                    "unet": {"type": "number"},
                },
            },
        }),
        OptionKind::IpAdapters => json!({
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["model"],
                "properties": {
                    "model": {"type": "string"},
                    "image": {"type": ["string", "null"]},
                    "embeds": {"type": ["string", "null"]},
                    "weight": {"type": "number"},
                    "start": {"type": "number", "minimum": 0.0, "maximum": 1.0},
                    "end": {"type": "number", "minimum": 0.0, "maximum": 1.0},
                    "encoder": {"type": ["string", "null"]},
                    "mask": {"type": ["string", "null"]},
                    "blocks": {"type": "string"},
                    "shortcut": {"type": "boolean"},
                },
            },
        }),
        OptionKind::Regions => json!({
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "pixels": {"type": ["array", "null"], "items": {"type": "integer", "minimum": 0}, "minItems": 4, "maxItems": 4},
                    "share": {"type": ["array", "null"], "items": {"type": "number"}, "minItems": 4, "maxItems": 4},
                    "mask": {"type": ["string", "null"]},
                    "bounds": {"type": "boolean"},
                    "strength": {"type": "number"},
                    "blend": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": false,
                            "required": ["text", "weight"],
                            "properties": {"text": {"type": "string"}, "weight": {"type": "number"}},
                        },
                    },
                },
            },
        }),
        OptionKind::Controls => json!({
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": false,
                "required": ["net"],
                "properties": {
                    "net": {"type": "string"},
                    "image": {"type": ["string", "null"]},
                    "weight": {"type": "number"},
                    "start": {"type": "number", "minimum": 0.0, "maximum": 1.0},
                    "end": {"type": "number", "minimum": 0.0, "maximum": 1.0},
                    "mode": {"type": "string", "enum": ControlMode::IDS},
                    "guess": {"type": "boolean"},
                    "resize": {"type": "string", "enum": ResizeChoice::IDS},
                    "preprocess": {"type": ["string", "null"]},
                    "type": {"type": "string", "enum": ControlType::IDS},
                    "passes": {"type": "string", "enum": ControlPasses::IDS},
                },
            },
        }),
    };
    let default = if row.default.is_empty() { String::new() } else { format!(" Default: {}.", row.default) };
    schema["description"] = Value::from(row.help() + &default);
    // A field that may be left out may be null too; the others have a value of their own in the default request.
    if !row.value(&Request::default()).is_set() {
        schema["type"] = json!([schema["type"], "null"]);
        if let Some(names) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            names.push(Value::Null);
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use serde_json::to_value;

    use super::*;
    use crate::options::samples;

    /// Whether a value is what a schema of the few words above allows.
    fn allows(schema: &Value, value: &Value) -> bool {
        let is_type = |name: &Value| match name.as_str() {
            Some("null") => value.is_null(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_u64() || value.is_i64(),
            Some("number") => value.is_number(),
            Some("array") => value.is_array(),
            Some("object") => value.is_object(),
            _ => false,
        };
        let of_type = match &schema["type"] {
            Value::Array(types) => types.iter().any(is_type),
            one => is_type(one),
        };
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        let number = value.as_f64();
        let in_range = number.is_none_or(|number| {
            bound("minimum").is_none_or(|min| number >= min) && bound("maximum").is_none_or(|max| number <= max)
        });
        let mut items = value.as_array().into_iter().flatten();
        let one_of = schema.get("enum").and_then(Value::as_array).is_none_or(|names| names.contains(value));
        let mut fields = value.as_object().into_iter().flatten();
        let known = |(name, value): (&String, &Value)| {
            schema["properties"].get(name).is_some_and(|schema| allows(schema, value))
        };
        of_type && in_range && one_of && items.all(|item| allows(&schema["items"], item)) && fields.all(known)
    }

    #[test]
    fn the_default_request_and_every_value_of_a_row_are_allowed() {
        let schema = request_schema();
        assert!(allows(&schema, &to_value(Request::default()).unwrap()));
        for row in OPTIONS {
            for text in row.kind.samples() {
                let request = samples::request(row, &text);
                let value = to_value(&request).unwrap();
                assert!(allows(&schema, &value), "{}: {text}: {}", row.name, value[row.name]);
                assert_eq!(serde_json::from_value::<Request>(value).unwrap(), request);
            }
        }
    }

    #[test]
    fn wrong_values_are_not_allowed() {
        let schema = request_schema();
        for (field, value) in [
            ("steps", json!(0)),
            ("steps", json!(1.5)),
            ("cfg_scale", json!("7")),
            ("rng", json!("gpu")),
            ("rng", Value::Null),
            ("guidance_end", json!(1.5)),
            ("loras", json!([{"lora": {"path": "x"}, "text": 1, "unet": 1}])),
            ("tiling", json!(true)),
        ] {
            assert!(!allows(&schema, &json!({ field: value })), "{field}: {value}");
        }
        assert!(
            schema["properties"]["steps"]["description"]
                .as_str()
                .unwrap()
                .ends_with("Default: the model's, usually 20.")
        );
    }
}
