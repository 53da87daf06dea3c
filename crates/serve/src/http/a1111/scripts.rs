//! `alwayson_scripts`: scripts that run in every request, of which Kiln has ControlNet, soft inpainting and the refiner.

use serde_json::{Map, Value};

use super::control::{Place, Units};
use crate::error::{Refused, RefusedKind};
use crate::http::json_body::text;

/// The names of the scripts, as that program lists them.
pub(super) const NAMES: [&str; 3] = ["controlnet", "refiner", "soft inpainting"];

/// The arguments of soft inpainting after the first, which turns it on (`extensions-builtin/soft-inpainting` of v1.10).
const SOFT: [&str; 6] = [
    "soft_schedule_bias",
    "soft_preservation",
    "soft_contrast_boost",
    "soft_mask_influence",
    "soft_difference_threshold",
    "soft_difference_contrast",
];

/// The scripts of a request.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    /// Control networks.
    pub(super) units: Units,
    /// Fields of a job of Kiln.
    pub(super) job: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

impl Scripts {
    /// Reads `alwayson_scripts` for images of this place.
    ///
    /// # Errors
    /// [`Refused`] with the script.
    pub(super) fn read(scripts: &Map<String, Value>, place: &Place<'_>) -> Result<Self, Refused> {
        let mut read = Self::default();
        for (name, script) in scripts {
            // A list of arguments, or an object with one.
            let args = script.get("args").unwrap_or(script);
            let args = args.as_array().map(Vec::as_slice).unwrap_or_default();
            let is_on = || args.first().is_some_and(|on| *on == Value::Bool(true));
            match name.to_ascii_lowercase().as_str() {
                "controlnet" => read.units = Units::read(args, place)?,
                "soft inpainting" if !place.is_img2img || !is_on() => {}
                "soft inpainting" => {
                    read.job.insert("soft_inpainting".into(), true.into());
                    let values = SOFT.iter().zip(&args[1..]).filter(|(_, value)| !value.is_null());
                    read.job.extend(values.map(|(name, value)| ((*name).into(), value.clone())));
                }
                "refiner" if !is_on() => {}
                "refiner" => {
                    let names = ["refiner_checkpoint", "refiner_switch_at"];
                    let mut fields: Map<String, Value> =
                        names.iter().zip(&args[1..]).map(|(name, value)| ((*name).into(), value.clone())).collect();
                    refiner(&mut fields, &mut read.job);
                }
                _ if args.is_empty() || *args == [Value::Bool(false)] => {}
                _ => read.warnings.push(format!("`alwayson_scripts.{name}` is left out: Kiln has no such script")),
            }
        }
        read.warnings.append(&mut read.units.warnings);
        Ok(read)
    }
}

/// Takes `script_name` with its arguments, which without a name ask for nothing. That program answers an unknown name so
/// (`script_name_to_index` of its `modules/api/api.py`), and Kiln has none of those that are selected by name.
///
/// # Errors
/// [`RefusedKind::Unprocessable`] for any name.
pub(super) fn no_script(fields: &mut Map<String, Value>) -> Result<(), Refused> {
    fields.remove("script_args");
    match text(fields, "script_name")?.filter(|name| !name.is_empty()) {
        None => Ok(()),
        Some(name) => {
            let message = format!("Script '{name}' not found: `script_name` is that of no script here, expected none");
            Err(Refused::new(RefusedKind::Unprocessable, message).at("script_name"))
        }
    }
}

/// Moves `refiner_checkpoint` and `refiner_switch_at` into the fields of a job of Kiln. There is no refiner without a name,
/// and none that takes over at the very beginning or the end.
pub(super) fn refiner(fields: &mut Map<String, Value>, job: &mut Map<String, Value>) {
    let (name, switch) = (fields.remove("refiner_checkpoint"), fields.remove("refiner_switch_at"));
    let name = name
        .as_ref()
        .and_then(Value::as_str)
        .filter(|name| !["", "none"].contains(&name.to_ascii_lowercase().as_str()));
    let switch = switch.as_ref().and_then(Value::as_f64);
    if let Some(name) = name.filter(|_| switch.is_none_or(|switch| switch > 0.0 && switch < 1.0)) {
        job.insert("refiner".into(), name.into());
        job.extend(switch.map(|switch| ("refiner_switch".into(), switch.into())));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kiln_media::DecodeOptions;

    fn read(scripts: Value) -> Scripts {
        let images = DecodeOptions::default();
        let place = Place { size: (64, 64), init: None, is_img2img: true, is_hires: false, images, ip_adapters: &[] };
        Scripts::read(scripts.as_object().unwrap(), &place).unwrap()
    }

    #[test]
    fn scripts_are_fields_of_a_job() {
        let soft = read(json!({ "Soft Inpainting": { "args": [true, 1, 0.4, 4] } }));
        let expected = json!({
            "soft_inpainting": true, "soft_schedule_bias": 1, "soft_preservation": 0.4, "soft_contrast_boost": 4,
        });
        assert_eq!((Value::from(soft.job), soft.warnings.len()), (expected, 0));
        let off = read(
            json!({ "soft inpainting": { "args": [false, 1] }, "Refiner": { "args": [false, "a", 0.8] }, "ControlNet": { "args": [] } }),
        );
        assert!(off.job.is_empty() && off.warnings.is_empty() && off.units.controls.is_empty());
        let refined = read(json!({ "refiner": { "args": [true, "other", 0.7] } }));
        assert_eq!(Value::from(refined.job), json!({ "refiner": "other", "refiner_switch": 0.7 }));
        let unknown = read(json!({ "ADetailer": { "args": [true, {}] }, "AnimateDiff": { "args": [] } }));
        assert_eq!(unknown.warnings, ["`alwayson_scripts.ADetailer` is left out: Kiln has no such script"]);
    }

    #[test]
    fn a_script_that_is_not_there_is_refused() {
        let of = |fields: Value| no_script(&mut fields.as_object().unwrap().clone());
        for none in [json!({}), json!({ "script_name": "", "script_args": [1, "a"] })] {
            assert_eq!(of(none.clone()), Ok(()), "{none}");
        }
        let refused = of(json!({ "script_name": "X/Y/Z plot", "script_args": [] })).unwrap_err();
        assert!(refused.message.starts_with("Script 'X/Y/Z plot' not found"), "{}", refused.message);
        assert_eq!((refused.kind, refused.param.as_deref()), (RefusedKind::Unprocessable, Some("script_name")));
        assert_eq!(of(json!({ "script_name": 7 })).unwrap_err().kind, RefusedKind::Invalid);
    }

    #[test]
    fn a_refiner_needs_a_name_and_a_place() {
        let of = |fields: Value| {
            let mut job = Map::new();
            refiner(&mut fields.as_object().unwrap().clone(), &mut job);
            Value::from(job)
        };
        assert_eq!(of(json!({ "refiner_checkpoint": "a [0123456789]" })), json!({ "refiner": "a [0123456789]" }));
        for none in [
            json!({}),
            json!({ "refiner_checkpoint": "None", "refiner_switch_at": 0.8 }),
            json!({ "refiner_checkpoint": "a", "refiner_switch_at": 1 }),
        ] {
            assert_eq!(of(none.clone()), json!({}), "{none}");
        }
    }
}
