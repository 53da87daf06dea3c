//! The second pass of `txt2img`: `enable_hr` and its fields (`StableDiffusionProcessingTxt2Img` of `modules/processing.py`).

use kiln_engine::HiresUpscaler;
use serde_json::{Map, Value};

use crate::error::Refused;
use crate::http::json_body::text;

/// Pixels of a latent's side, of which sizes are multiples.
const LATENT: u64 = 8;
/// The strength where a request says none: that of the API.
const STRENGTH: f64 = 0.75;
/// Values that stand for what the first pass has.
const SAME: [&str; 5] = ["", "None", "Use same sampler", "Use same scheduler", "Use same checkpoint"];

/// Moves the fields of the second pass from `fields` into the fields of a job of Kiln, if one is requested. Fields that are
/// not supported stay.
///
/// # Errors
/// [`Refused`] with the field.
pub(super) fn take(
    fields: &mut Map<String, Value>,
    strength: Option<&Value>,
    job: &mut Map<String, Value>,
) -> Result<(), Refused> {
    if fields.remove("enable_hr") != Some(Value::Bool(true)) {
        // They say nothing then.
        fields.retain(|name, _| !name.starts_with("hr_") && !name.starts_with("firstphase_"));
        return Ok(());
    }
    let mut number = |name: &str| -> Result<Option<f64>, Refused> {
        let value = fields.remove(name);
        let found = value.as_ref().map(|value| value.as_f64().filter(|number| *number >= 0.0));
        match (found, value) {
            (None, _) => Ok(None),
            (Some(Some(number)), _) => Ok(Some(number).filter(|number| *number > 0.0)),
            (Some(None), value) => Err(Refused::value(name, value.unwrap_or_default(), "a number from 0 on")),
        }
    };
    let side = |value: Option<f64>| value.map(|side| side as u64);
    let asked = (side(number("hr_resize_x")?), side(number("hr_resize_y")?));
    let scale = number("hr_scale")?.unwrap_or(2.0);
    let steps = number("hr_second_pass_steps")?;
    let guidance = number("hr_cfg")?.filter(|scale| *scale != 1.0); // Forge's default for models without guidance
    let first = |name: &str| job.get(name).and_then(Value::as_u64).unwrap_or(512).max(1);
    let (width, height) = (first("width"), first("height"));
    let size = match asked {
        (None, None) => None,
        (Some(x), None) => Some((x, x.saturating_mul(height) / width)),
        (None, Some(y)) => Some((y.saturating_mul(width) / height, y)),
        (Some(x), Some(y)) => Some((x, y)),
    };
    match size {
        None => job.insert("hires_scale".into(), scale.into()),
        Some((x, y)) => {
            let side = |side: u64| (side / LATENT * LATENT).max(LATENT);
            job.insert("hires_size".into(), format!("{}x{}", side(x), side(y)).into())
        }
    };
    if let Some(steps) = steps {
        job.insert("hires_steps".into(), (steps as u64).into());
    }
    if let Some(guidance) = guidance {
        job.insert("hires_cfg_scale".into(), guidance.into());
    }
    job.insert("hires_strength".into(), strength.cloned().unwrap_or_else(|| STRENGTH.into()));
    let upscaler = text(fields, "hr_upscaler")?.filter(|name| !name.is_empty());
    if let Some(upscaler) = upscaler {
        job.insert("hires_upscaler".into(), HiresUpscaler::of_label(&upscaler).to_string().into());
    }
    let names = [
        ("hr_sampler_name", "hires_sampler"),
        ("hr_scheduler", "hires_scheduler"),
        ("hr_prompt", "hires_prompt"),
        ("hr_negative_prompt", "hires_negative_prompt"),
    ];
    for (name, own) in names {
        if let Some(value) = text(fields, name)?.filter(|value| !SAME.contains(&value.as_str())) {
            job.insert(own.into(), value.into());
        }
    }
    if fields.get("hr_checkpoint_name").and_then(Value::as_str).is_some_and(|name| SAME.contains(&name)) {
        fields.remove("hr_checkpoint_name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn taken(mut wanted: Value) -> (Value, Value) {
        let fields = wanted.as_object_mut().unwrap();
        let mut job = Map::from_iter([("width".into(), json!(512)), ("height".into(), json!(384))]);
        take(fields, Some(&json!(0.4)), &mut job).unwrap();
        job.retain(|field, _| !["width", "height"].contains(&field.as_str()));
        (job.into(), wanted)
    }

    #[test]
    fn sizes_follow_from_a_factor_or_from_a_side() {
        let (job, left) =
            taken(json!({ "enable_hr": true, "hr_resize_x": 0, "hr_resize_y": 0, "hr_upscaler": "Latent (nearest)" }));
        assert_eq!(job, json!({ "hires_scale": 2.0, "hires_strength": 0.4, "hires_upscaler": "latent-nearest" }));
        assert_eq!(left, json!({}));
        let size = |x: u64, y: u64| {
            taken(json!({ "enable_hr": true, "hr_resize_x": x, "hr_resize_y": y })).0["hires_size"].clone()
        };
        assert_eq!(size(1000, 0), "1000x744", "750 is no multiple of 8");
        assert_eq!(size(0, 768), "1024x768");
        assert_eq!(size(768, 768), "768x768");
    }

    #[test]
    fn what_the_first_pass_has_is_not_said_again() {
        let (job, left) = taken(json!({
            "enable_hr": true, "hr_scale": 1.5, "hr_second_pass_steps": 0, "hr_sampler_name": "Use same sampler",
            "hr_prompt": "", "hr_negative_prompt": "blur", "hr_scheduler": "Karras", "hr_checkpoint_name": "other", "hr_upscaler": "4x-UltraSharp",
        }));
        let expected = json!({
            "hires_scale": 1.5, "hires_strength": 0.4, "hires_negative_prompt": "blur", "hires_scheduler": "Karras",
            "hires_upscaler": "4x-UltraSharp",
        });
        assert_eq!((job, left), (expected, json!({ "hr_checkpoint_name": "other" })));
        assert_eq!(taken(json!({ "hr_scale": 2, "hr_prompt": "a" })), (json!({}), json!({})));
        let mut wrong = Map::from_iter([("enable_hr".into(), json!(true)), ("hr_scale".into(), json!("two"))]);
        assert_eq!(take(&mut wrong, None, &mut Map::new()).unwrap_err().param.as_deref(), Some("hr_scale"));
    }
}
