//! The fields of OpenAI's requests, with those of Kiln.

use kiln_engine::Request;
use kiln_request::JobSpec;
use serde_json::{Map, Value};

use crate::error::Refused;
use crate::http::json_body::text;
use crate::image_format::ImageFormat;

/// The most images of a request.
const MAX_N: usize = 10;
/// The most previews of an image.
const MAX_PARTIALS: usize = 3;
/// Fields that say nothing to a model on this machine, with the values that ask for nothing. `None` is any value.
const WITHOUT_MEANING: [(&str, Option<&[&str]>); 5] = [
    ("quality", Some(&["auto", "standard", "medium"])),
    ("moderation", None),
    ("style", Some(&[])),
    ("user", None),
    ("input_fidelity", Some(&["low"])),
];
/// Names that other servers have for fields of Kiln.
const OTHER_NAMES: [(&str, &str); 2] = [("num_inference_steps", "steps"), ("guidance_scale", "cfg_scale")];

/// A request for images.
pub(super) struct Fields {
    pub(super) request: Request,
    pub(super) model: Option<String>,
    /// The fields as they came.
    pub(super) shown: Map<String, Value>,
    pub(super) format: ImageFormat,
    /// Its name in answers.
    pub(super) output_format: String,
    /// Whether images are answered by their addresses.
    pub(super) wants_url: bool,
    pub(super) stream: bool,
    /// Previews of each image.
    pub(super) partials: usize,
    /// Sentences about what is not done as asked.
    pub(super) warnings: Vec<String>,
}

impl Fields {
    /// Reads the fields. Values may be texts, as forms have them. What is not OpenAI's is a field of a job.
    ///
    /// # Errors
    /// [`Refused`] with the field.
    pub(super) fn new(mut fields: Map<String, Value>) -> Result<Self, Refused> {
        fields.retain(|_, value| !value.is_null());
        let shown = fields.clone();
        let mut warnings = Vec::new();
        for (name, neutral) in WITHOUT_MEANING {
            let Some(value) = fields.remove(name) else { continue };
            let asks =
                |neutral: &[&str]| value.as_str().is_none_or(|text| !text.is_empty() && !neutral.contains(&text));
            if neutral.is_some_and(asks) {
                warnings.push(format!("`{name}` has no effect: models here have no such setting"));
            }
        }
        if let Some(background) = text(&mut fields, "background")?.filter(|value| value == "transparent") {
            return Err(Refused::value(
                "background",
                format!("{background:?}"),
                "opaque or auto: models have no alpha",
            ));
        }
        let n = whole(&mut fields, "n", 1, MAX_N)?.unwrap_or(1);
        let compression = whole(&mut fields, "output_compression", 0, 100)?.unwrap_or(100);
        let output_format = text(&mut fields, "output_format")?.unwrap_or_else(|| "png".into());
        let format = ImageFormat::find(&output_format, compression as u8)
            .ok_or_else(|| Refused::value("output_format", format!("{output_format:?}"), "png, jpeg or webp"))?;
        let response = text(&mut fields, "response_format")?.unwrap_or_else(|| "b64_json".into());
        if !["b64_json", "url"].contains(&response.as_str()) {
            return Err(Refused::value("response_format", format!("{response:?}"), "b64_json or url"));
        }
        let stream = flag(&mut fields, "stream")?;
        let partials = whole(&mut fields, "partial_images", 0, MAX_PARTIALS)?.unwrap_or(0);
        if let Some((width, height)) = size(&mut fields)? {
            fields.insert("width".into(), width.into());
            fields.insert("height".into(), height.into());
        }
        fields.insert("batch_count".into(), n.into());
        for (other, name) in OTHER_NAMES {
            if let Some(value) = fields.remove(other) {
                fields.insert(name.into(), value);
            }
        }
        if !fields.contains_key("prompt") {
            return Err(Refused::value("prompt", "missing", "a text"));
        }
        let spec = JobSpec::of_object(fields).map_err(|error| Refused::invalid(error.message))?;
        let JobSpec { request, model, output } = spec;
        if output.is_some() || request.init.is_some() || request.mask.is_some() {
            return Err(Refused::invalid("`output`, `init` and `mask` are no fields of this route"));
        }
        let model = model.map(|model| model.to_string_lossy().into_owned());
        let wants_url = response == "url";
        Ok(Self { request, model, shown, format, output_format, wants_url, stream, partials, warnings })
    }
}

fn whole(fields: &mut Map<String, Value>, name: &str, min: usize, max: usize) -> Result<Option<usize>, Refused> {
    let Some(value) = fields.remove(name) else { return Ok(None) };
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
    let number = number.and_then(|number| usize::try_from(number).ok()).filter(|number| (min..=max).contains(number));
    number.map(Some).ok_or_else(|| Refused::value(name, value, format!("a whole number from {min} to {max}")))
}

fn flag(fields: &mut Map<String, Value>, name: &str) -> Result<bool, Refused> {
    match fields.remove(name) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(Value::String(text)) if ["true", "false"].contains(&text.to_ascii_lowercase().as_str()) => {
            Ok(text.eq_ignore_ascii_case("true"))
        }
        Some(other) => Err(Refused::value(name, other, "true or false")),
    }
}

/// `auto`, or width and height as in `512x768`.
fn size(fields: &mut Map<String, Value>) -> Result<Option<(usize, usize)>, Refused> {
    let Some(size) = text(fields, "size")?.filter(|size| size != "auto") else { return Ok(None) };
    let sides = size.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    sides.map(Some).ok_or_else(|| Refused::value("size", format!("{size:?}"), "auto, or a size such as 512x768"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Result<Fields, Refused> {
        Fields::new(value.as_object().unwrap().clone())
    }

    #[test]
    fn fields_of_both_are_taken_also_as_texts() {
        let found = fields(json!({
            "prompt": "a cat", "n": "2", "size": "64x96", "quality": "high", "user": "ann", "output_format": "jpeg",
            "output_compression": 80, "stream": "true", "partial_images": 2, "seed": "7", "num_inference_steps": 5,
            "guidance_scale": "3.5", "negative_prompt": "dogs", "model": "emoji", "style": null,
        }))
        .unwrap();
        let Request { batch_count, width, height, seed, steps, cfg_scale, negative_prompt, .. } = found.request;
        assert_eq!((batch_count, width, height), (Some(2), Some(64), Some(96)));
        assert_eq!((seed, steps, cfg_scale, negative_prompt.as_deref()), (Some(7), Some(5), Some(3.5), Some("dogs")));
        assert_eq!((found.format, found.stream, found.partials), (ImageFormat::Jpeg(80), true, 2));
        assert_eq!(found.model.as_deref(), Some("emoji"));
        assert_eq!(found.warnings, ["`quality` has no effect: models here have no such setting"]);
    }

    #[test]
    fn wrong_values_are_named() {
        for (name, value) in [
            ("n", json!(11)),
            ("n", json!("many")),
            ("size", json!("big")),
            ("size", json!(512)),
            ("output_format", json!("gif")),
            ("response_format", json!("file")),
            ("background", json!("transparent")),
            ("stream", json!("perhaps")),
            ("partial_images", json!(4)),
        ] {
            let refused = fields(json!({ "prompt": "a", name: value })).err().unwrap();
            assert_eq!(refused.param.as_deref(), Some(name));
        }
        assert_eq!(fields(json!({})).err().unwrap().param.as_deref(), Some("prompt"));
        assert!(fields(json!({ "prompt": "a", "promt": "b" })).err().unwrap().message.contains("did you mean"));
        assert!(fields(json!({ "prompt": "a", "init": "x" })).is_err());
    }
}
