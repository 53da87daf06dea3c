//! Settings in images, and enlarging images by filters and networks.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use kiln_engine::{HiresUpscaler, ImageReport, Infotext, UpscalerChoice};
use kiln_media::{AlphaRule, DecodeOptions, Rgb8Image, StillFormat, decode, encode};
use serde_json::{Map, Value, json};

use super::Detail;
use crate::app::{App, store};
use crate::base64_image;
use crate::error::{Refused, RefusedKind};
use crate::http::{Payload, Shared, enlarge_by_network, json_body};
use crate::inputs::{checked, not_too_large};
use crate::options::Limits;

/// Sides of enlarged images are multiples of this (`modules/upscaler.py`).
const MULTIPLE: usize = 8;
/// The fields of faces, with the values that ask for nothing.
const FACES: [&str; 2] = ["gfpgan_visibility", "codeformer_visibility"];

/// All fields of these routes. Of those that are not read, `upscale_first` and `codeformer_weight` are about faces, and
/// `show_extras_results` about that program's page.
const KNOWN: [&str; 15] = [
    "image",
    "imageList",
    "resize_mode",
    "show_extras_results",
    "gfpgan_visibility",
    "codeformer_visibility",
    "codeformer_weight",
    "upscaling_resize",
    "upscaling_resize_w",
    "upscaling_resize_h",
    "upscaling_crop",
    "upscaler_1",
    "upscaler_2",
    "extras_upscaler_2_visibility",
    "upscale_first",
];

/// The settings in an image.
pub(super) async fn png_info(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = json_body::read(&app, body).await?;
    let decode = app.options.limits.input_images();
    Ok(blocking(&app, move || info(&fields, &decode)).await?)
}

fn info(fields: &Map<String, Value>, decode: &DecodeOptions) -> Result<Value, Refused> {
    let bytes = base64_image::decode("image", fields.get("image").and_then(Value::as_str).unwrap_or_default())?;
    not_too_large("image", &bytes, decode)?;
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
    let fields = json_body::read(&app, body).await?;
    let size = Arc::new(Size::read(&app, &fields)?);
    let image = fields.get("image").and_then(Value::as_str).unwrap_or_default().to_string();
    let image = enlarge(&app, &size, "image", image).await?;
    Ok(Json(json!({ "image": image, "html_info": html(&size.warnings) })))
}

/// Several images, larger.
pub(super) async fn batch(State(app): Shared, Payload(body): Payload) -> Result<Json<Value>, Detail> {
    let fields = json_body::read(&app, body).await?;
    let size = Arc::new(Size::read(&app, &fields)?);
    let list = fields.get("imageList").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let most = app.options.limits.images;
    if list.len() > most {
        return Err(Refused::value("imageList", list.len(), format!("at most {most}, the limit of this server")).into());
    }
    let mut images = Vec::with_capacity(list.len());
    for image in list {
        let image = image.get("data").and_then(Value::as_str).unwrap_or_default().to_string();
        images.push(enlarge(&app, &size, "imageList", image).await?);
    }
    Ok(Json(json!({ "images": images, "html_info": html(&size.warnings) })))
}

/// An image in Base64 in the new size: networks run between the steps of the jobs, all else on a thread of its own.
async fn enlarge(app: &Arc<App>, size: &Arc<Size>, field: &'static str, image: String) -> Result<String, Refused> {
    let limits = app.options.limits;
    let plan = size.clone();
    let (image, target) = blocking_value(app, move || plan.open(field, &image, &limits)).await?;
    let mut larger = Vec::new();
    for (upscaler, visibility) in &size.upscalers {
        let image = image.clone();
        let made = match upscaler {
            UpscalerChoice::Filter(filter) => {
                let filter = *filter;
                blocking_value(app, move || image.resize(target.0, target.1, filter).map_err(Refused::unread)).await?
            }
            UpscalerChoice::File(_) => enlarge_by_network(app, upscaler.clone(), image, target).await?,
        };
        larger.push((made, *visibility));
    }
    let size = size.clone();
    blocking_value(app, move || size.close(image, larger)).await
}

/// Runs `work`, which decodes one image at a time, on a thread of its own.
pub(super) async fn blocking(
    app: &App,
    work: impl FnOnce() -> Result<Value, Refused> + Send + 'static,
) -> Result<Json<Value>, Refused> {
    blocking_value(app, work).await.map(Json)
}

async fn blocking_value<T: Send + 'static>(
    app: &App,
    work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    app.intake.run_images(work).await
}

fn html(warnings: &[String]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    warnings.iter().map(|warning| format!("<p>{}</p>", escaped(warning))).collect()
}

/// How images are enlarged.
struct Size {
    /// The upscalers, each with its opacity over the result before; none for the image as it is.
    upscalers: Vec<(UpscalerChoice, f64)>,
    by: By,
    warnings: Vec<String>,
}

enum By {
    Factor(f64),
    Size { width: usize, height: usize, crop: bool },
}

impl Size {
    fn read(app: &App, fields: &Map<String, Value>) -> Result<Self, Refused> {
        let number = |name: &str, default: f64| match fields.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| Refused::value(name, value, "a number")),
        };
        let upscaler = |field: &str| match fields.get(field).and_then(Value::as_str).unwrap_or("None") {
            "None" | "" => Ok(None),
            name => match HiresUpscaler::of_label(name) {
                HiresUpscaler::Pixels(UpscalerChoice::File(file)) => {
                    Ok(Some(UpscalerChoice::File(app.upscaler(field, &file)?)))
                }
                HiresUpscaler::Pixels(filter) => Ok(Some(filter)),
                HiresUpscaler::Latents(_) => Err(Refused::value(field, format!("{name:?}"), "what enlarges pixels")),
            },
        };
        let visibility = number("extras_upscaler_2_visibility", 0.0)?;
        if !(0.0..=1.0).contains(&visibility) {
            return Err(Refused::value("extras_upscaler_2_visibility", visibility, "0 to 1"));
        }
        let first = upscaler("upscaler_1")?.map(|first| (first, 1.0));
        let second = upscaler("upscaler_2")?.filter(|_| visibility > 0.0).map(|second| (second, visibility));
        let upscalers = first.into_iter().chain(second).collect();
        let mut warnings = Vec::new();
        for name in FACES {
            if number(name, 0.0)? != 0.0 {
                warnings.push(format!("`{name}` is left out: Kiln does not have it here"));
            }
        }
        let unknown = fields.keys().filter(|name| !KNOWN.contains(&name.as_str()));
        warnings.extend(unknown.map(|name| format!("`{name}` is left out: there is no such field")));
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
        Ok(Self { upscalers, by, warnings })
    }

    /// The image, and the size that upscalers give it, as `scripts/postprocessing_upscale.py` of that program: both sides by one
    /// factor, down to multiples of 8.
    fn open(&self, field: &str, image: &str, limits: &Limits) -> Result<(Rgb8Image, (usize, usize)), Refused> {
        let bytes = base64_image::decode(field, image)?;
        let (most, decode_options) = (limits.pixels, limits.input_images());
        let header = checked(field, &bytes, &decode_options)?;
        let (w, h) = (header.width, header.height);
        let factor = match self.by {
            By::Factor(factor) => factor,
            By::Size { width, height, .. } => (width as f64 / w as f64).max(height as f64 / h as f64),
        };
        let side = |side: usize| (((side as f64 * factor) as usize) / MULTIPLE * MULTIPLE).max(MULTIPLE);
        let (width, height) = (side(w), side(h));
        if !self.upscalers.is_empty() && width.saturating_mul(height) > most {
            let expected = format!("at most {most} pixels, the limit of this server");
            return Err(Refused::value("upscaling_resize", format!("{width}x{height}"), expected));
        }
        let decoded = decode(&bytes, "image", &decode_options).map_err(Refused::unread)?;
        Ok((decoded.into_rgb(AlphaRule::FlattenOnWhite), (width, height)))
    }

    /// The results over each other, of which the middle of the wanted size is cut out, in Base64.
    fn close(&self, image: Rgb8Image, larger: Vec<(Rgb8Image, f64)>) -> Result<String, Refused> {
        let mut seen = None;
        for (image, visibility) in larger {
            seen = Some(match seen {
                None => image,
                Some(below) => blended(&below, &image, visibility)?,
            });
        }
        let Some(larger) = seen else { return file(&image) };
        match self.by {
            By::Size { width, height, crop: true } => {
                let (left, top) =
                    (larger.width().saturating_sub(width) / 2, larger.height().saturating_sub(height) / 2);
                let (right, bottom) = ((left + width).min(larger.width()), (top + height).min(larger.height()));
                let region = kiln_media::Region { left, top, right, bottom };
                file(&larger.crop(region).map_err(Refused::unread)?)
            }
            _ => file(&larger),
        }
    }
}

/// `Image.blend` of Pillow: `below + (above - below) * part`, rounded down.
fn blended(below: &Rgb8Image, above: &Rgb8Image, part: f64) -> Result<Rgb8Image, Refused> {
    let one =
        |(below, above): (&u8, &u8)| (f32::from(*below) + part as f32 * (f32::from(*above) - f32::from(*below))) as u8;
    let pixels = below.data().iter().zip(above.data()).map(one).collect();
    Rgb8Image::new(below.width(), below.height(), pixels).map_err(Refused::unread)
}

fn file(image: &Rgb8Image) -> Result<String, Refused> {
    let bytes = encode(image, StillFormat::Png);
    bytes
        .map(|bytes| base64_image::encode(&bytes))
        .map_err(|error| Refused::new(RefusedKind::Internal, error.to_string()))
}
