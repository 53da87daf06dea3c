//! Answers with images: whole, or as events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream as streams};
use kiln_media::{DecodeOptions, Filter, StillFormat, decode, encode};
use serde_json::{Value, json};

use crate::app::App;
use crate::base64_image;
use crate::error::Refused;
use crate::image_format::ImageFormat;
use crate::jobs::{Entry, ErrorView, EventView, Finisher, Image, PreviewView, Seen};

/// How images are answered.
pub(super) struct Wanted {
    pub(super) output_format: String,
    pub(super) format: ImageFormat,
    /// The address of the server, where images are answered by their addresses.
    pub(super) base: Option<String>,
    /// The names of events begin with it.
    pub(super) event: &'static str,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// All images at once. The job is canceled if the client goes away.
pub(super) async fn whole(app: Arc<App>, entry: Arc<Entry>, wanted: Wanted) -> Result<Response, Refused> {
    let finisher = Finisher::new(app, entry.clone(), wanted.base.is_some());
    let images = entry.finished().await?;
    let data = images.iter().map(|image| match &wanted.base {
        Some(base) => json!({ "url": format!("{base}/v1/images/{}-{}", entry.id, image.index) }),
        None => json!({ "b64_json": base64_image::encode(&image.file) }),
    });
    let data: Vec<Value> = data.collect();
    drop(finisher);
    let size = images.first().map(|image| format!("{}x{}", image.width, image.height));
    let mut answer = json!({ "created": now(), "data": data, "output_format": wanted.output_format, "size": size });
    add_warnings(&mut answer, &entry);
    Ok(Json(answer).into_response())
}

/// Events: previews, then images. The job is canceled if the client goes away.
pub(super) fn stream(app: Arc<App>, entry: Arc<Entry>, wanted: Wanted) -> Response {
    let finisher = Finisher::new(app, entry.clone(), wanted.base.is_some());
    let state = (entry, finisher, wanted, Seen::default(), Vec::new());
    let events = streams::unfold(state, |(entry, finisher, wanted, mut seen, mut sent)| async move {
        let news = entry.news(&mut seen).await?;
        let events: Vec<Event> = news.into_iter().filter_map(|news| event(&entry, &wanted, &mut sent, news)).collect();
        Some((events, (entry, finisher, wanted, seen, sent)))
    });
    let events = events.flat_map(|events| streams::iter(events.into_iter().map(Ok::<Event, Infallible>)));
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// Adds the field `warnings` if there are any, which OpenAI's answers do not have.
fn add_warnings(answer: &mut Value, entry: &Entry) {
    let warnings = entry.warnings();
    if !warnings.is_empty() {
        answer["warnings"] = warnings.into();
    }
}

/// The event of some news. `sent` has the number of previews of each image so far.
fn event(entry: &Entry, wanted: &Wanted, sent: &mut Vec<usize>, news: EventView) -> Option<Event> {
    let (name, data) = match news {
        EventView::Preview(preview) => {
            if sent.len() <= preview.index {
                sent.resize(preview.index + 1, 0);
            }
            let count = sent.get_mut(preview.index)?;
            let file = enlarged(&preview, entry.size, wanted.format)?;
            let mut data = described(wanted, &file);
            data["partial_image_index"] = (*count).into();
            *count += 1;
            ("partial_image", data)
        }
        EventView::Image(image) => {
            let image: Arc<Image> = entry.image(image.index)?;
            let mut data = described(wanted, &image.file);
            data["size"] = format!("{}x{}", image.width, image.height).into();
            // No one is charged for tokens here.
            data["usage"] = json!({
                "input_tokens": 0, "output_tokens": 0, "total_tokens": 0,
                "input_tokens_details": { "image_tokens": 0, "text_tokens": 0 },
            });
            add_warnings(&mut data, entry);
            ("completed", data)
        }
        EventView::Done(job) => {
            let error: ErrorView = job.error?;
            return Some(Event::default().event("error").data(json!({ "error": error }).to_string()));
        }
        EventView::Queued(_) | EventView::Step(_) | EventView::Warning(_) => return None,
    };
    let name = format!("{}.{name}", wanted.event);
    let mut data = data;
    data["type"] = name.clone().into();
    Some(Event::default().event(name).data(data.to_string()))
}

fn described(wanted: &Wanted, file: &[u8]) -> Value {
    json!({
        "b64_json": base64_image::encode(file), "created_at": now(), "output_format": wanted.output_format,
        "background": "opaque", "quality": "auto", "size": "auto",
    })
}

/// A preview in the size of the image.
fn enlarged(preview: &PreviewView, (width, height): (usize, usize), format: ImageFormat) -> Option<Vec<u8>> {
    let small = base64_image::decode("preview", &preview.data).ok()?;
    let small = decode(&small, "preview", &DecodeOptions::default()).ok()?;
    let image = small.rgb().resize(width, height, Filter::Bilinear).ok()?;
    let format = match format {
        ImageFormat::Png => StillFormat::Png,
        ImageFormat::Jpeg(quality) => StillFormat::Jpeg(quality),
        ImageFormat::WebP => StillFormat::WebPLossless,
    };
    encode(&image, format).ok()
}
