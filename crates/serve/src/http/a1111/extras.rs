//! Settings in images, and enlarging images by a filter.

use axum::Json;
use axum::extract::State;
use kiln_engine::{ImageReport, Infotext};
use kiln_media::{AlphaRule, DecodeOptions, Filter, Rgb8Image, StillFormat, decode, encode};
use serde_json::{Map, Value, json};

use super::{Detail, object};
use crate::app::{App, store};
use crate::base64_image;
use crate::error::{Refused, RefusedKind};
use crate::http::{Payload, Shared};

/// Sides of enlarged images are multiples of this (`modules/upscaler.py`).
const MULTIPLE: usize = 8;
/// The fields of faces, with the values that ask for nothing.
const FACES: [&str; 3] = ["gfpgan_visibility", "codeformer_visibility", "extras_upscaler_2_visibility"];

/// The settings in an image.
pub(super) async fn png_info(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = object(&body)?;
    Ok(blocking(&app, move || info(&fields)).await?)
}

fn info(fields: &Map<String, Value>) -> Result<Value, Refused> {
    let bytes = base64_image::decode("image", fields.get("image").and_then(Value::as_str).unwrap_or_default())?;
    let mut folder = None;
    let path = store(&mut folder, "image", &bytes)?;
    let unread = |_| Refused::new(RefusedKind::Unprocessable, "Invalid image");
    let report = ImageReport::read(&path).map_err(unread)?;
    let items: Map<String, Value> =
        report.texts.iter().map(|text| (text.key.clone(), text.text.clone().into())).collect();
    let text = ["parameters", "UserComment"].iter().find_map(|key| items.get(*key)).and_then(Value::as_str);
    let mut parameters = Map::new();
    if let Some(parsed) = text.and_then(Infotext::parse) {
        parameters.insert("Prompt".into(), parsed.prompt.into());
        parameters.insert("Negative prompt".into(), parsed.negative_prompt.into());
        parameters.extend(parsed.fields.into_iter().map(|(name, value)| (name, value.into())));
    }
    Ok(json!({ "info": text.unwrap_or_default(), "items": items, "parameters": parameters }))
}

/// One image, larger.
pub(super) async fn single(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = object(&body)?;
    let most = app.options.limits.pixels;
    let enlarged = blocking(&app, move || {
        let size = Size::read(&fields)?;
        let image = size.enlarge("image", fields.get("image").and_then(Value::as_str).unwrap_or_default(), most)?;
        Ok(json!({ "image": image, "html_info": html(&size.warnings) }))
    });
    Ok(enlarged.await?)
}

/// Several images, larger.
pub(super) async fn batch(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = object(&body)?;
    let limits = app.options.limits;
    let enlarged = blocking(&app, move || {
        let size = Size::read(&fields)?;
        let list = fields.get("imageList").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if list.len() > limits.images {
            let expected = format!("at most {}, the limit of this server", limits.images);
            return Err(Refused::value("imageList", list.len(), expected));
        }
        let one = |image: &Value| {
            size.enlarge("imageList", image.get("data").and_then(Value::as_str).unwrap_or_default(), limits.pixels)
        };
        let images = list.iter().map(one).collect::<Result<Vec<String>, Refused>>()?;
        Ok(json!({ "images": images, "html_info": html(&size.warnings) }))
    });
    Ok(enlarged.await?)
}

/// Runs `work` on a thread of its own.
async fn blocking(
    app: &App,
    work: impl FnOnce() -> Result<Value, Refused> + Send + 'static,
) -> Result<Json<Value>, Refused> {
    let done = app.runtime.spawn_blocking(work).await;
    done.map_err(|error| Refused::new(RefusedKind::Internal, error.to_string()))?.map(Json)
}

fn html(warnings: &[String]) -> String {
    warnings.iter().map(|warning| format!("<p>{warning}</p>")).collect()
}

/// How images are enlarged.
struct Size {
    /// None for the image as it is.
    filter: Option<Filter>,
    by: By,
    warnings: Vec<String>,
}

enum By {
    Factor(f64),
    Size { width: usize, height: usize, crop: bool },
}

impl Size {
    fn read(fields: &Map<String, Value>) -> Result<Self, Refused> {
        let number = |name: &str, default: f64| match fields.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| Refused::value(name, value, "a number")),
        };
        let name = fields.get("upscaler_1").and_then(Value::as_str).unwrap_or("None");
        let filter = match name {
            "None" => None,
            "Lanczos" => Some(Filter::Lanczos3),
            "Nearest" => Some(Filter::Nearest),
            other => {
                return Err(Refused::value("upscaler_1", format!("{other:?}"), "None, Lanczos or Nearest"));
            }
        };
        let mut warnings = Vec::new();
        for name in FACES {
            if number(name, 0.0)? != 0.0 {
                warnings.push(format!("`{name}` is left out: Kiln does not have it here"));
            }
        }
        let by = if number("resize_mode", 0.0)? == 1.0 {
            let side = |name: &str| {
                let value = number(name, 512.0)?;
                let fits = value >= 1.0 && value.fract() == 0.0 && value <= f64::from(u16::MAX);
                if fits { Ok(value as usize) } else { Err(Refused::value(name, value, "a size in pixels")) }
            };
            let crop = fields.get("upscaling_crop").and_then(Value::as_bool).unwrap_or(true);
            By::Size { width: side("upscaling_resize_w")?, height: side("upscaling_resize_h")?, crop }
        } else {
            let factor = number("upscaling_resize", 2.0)?;
            if !(factor > 0.0 && factor <= 64.0) {
                return Err(Refused::value("upscaling_resize", factor, "more than 0 and at most 64"));
            }
            By::Factor(factor)
        };
        Ok(Self { filter, by, warnings })
    }

    /// The image in Base64 in the new size, as `scripts/postprocessing_upscale.py` of that program: both sides by one factor, down
    /// to multiples of 8, then the middle of the wanted size.
    fn enlarge(&self, field: &str, image: &str, most: usize) -> Result<String, Refused> {
        let bytes = base64_image::decode(field, image)?;
        let unread = |error: kiln_media::Error| Refused::new(RefusedKind::Unprocessable, error.to_string());
        let decoded = decode(&bytes, "image", &DecodeOptions::default()).map_err(unread)?;
        let image = decoded.into_rgb(AlphaRule::FlattenOnWhite);
        let Some(filter) = self.filter else { return file(&image) };
        let (w, h) = image.size();
        let factor = match self.by {
            By::Factor(factor) => factor,
            By::Size { width, height, .. } => (width as f64 / w as f64).max(height as f64 / h as f64),
        };
        let side = |side: usize| (((side as f64 * factor) as usize) / MULTIPLE * MULTIPLE).max(MULTIPLE);
        let (width, height) = (side(w), side(h));
        if width.saturating_mul(height) > most {
            let expected = format!("at most {most} pixels, the limit of this server");
            return Err(Refused::value("upscaling_resize", format!("{width}x{height}"), expected));
        }
        let larger = image.resize(width, height, filter).map_err(unread)?;
        match self.by {
            By::Size { width, height, crop: true } => {
                let (left, top) =
                    (larger.width().saturating_sub(width) / 2, larger.height().saturating_sub(height) / 2);
                let (right, bottom) = ((left + width).min(larger.width()), (top + height).min(larger.height()));
                let region = kiln_media::Region { left, top, right, bottom };
                file(&larger.crop(region).map_err(unread)?)
            }
            _ => file(&larger),
        }
    }
}

fn file(image: &Rgb8Image) -> Result<String, Refused> {
    let bytes = encode(image, StillFormat::Png);
    bytes
        .map(|bytes| base64_image::encode(&bytes))
        .map_err(|error| Refused::new(RefusedKind::Internal, error.to_string()))
}
