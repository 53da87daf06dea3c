//! Images by their names.

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kiln_media::{AlphaRule, FileFormat, StillFormat, decode, encode, header as image_header};
use serde::Deserialize;

use crate::comfy::{FileKind, FileName};
use crate::error::Refused;
use crate::http::{Client, Shared};

/// Which image, and how.
#[derive(Deserialize)]
pub(super) struct Asked {
    filename: Option<String>,
    subfolder: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// `rgb` is an image without its transparency.
    channel: Option<String>,
}

/// The file of an image. A `preview` is the file itself.
pub(super) async fn view(
    State(app): Shared,
    Extension(client): Extension<Client>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Response {
    let Ok(Query(asked)) = asked else { return StatusCode::BAD_REQUEST.into_response() };
    let Some(text) = asked.filename else { return StatusCode::NOT_FOUND.into_response() };
    let Some(kind) = FileKind::find(asked.kind.as_deref().unwrap_or("output")) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let whole = match asked.subfolder.as_deref().filter(|subfolder| !subfolder.is_empty()) {
        Some(subfolder) => format!("{subfolder}/{text}"),
        None => text,
    };
    let Some(name) = FileName::parse(&whole, kind) else { return StatusCode::BAD_REQUEST.into_response() };
    let drops_alpha = asked.channel.as_deref() == Some("rgb");
    let (state, file) = (app.clone(), name.clone());
    let read = move || {
        let found = state.comfy.files.read(state.owner(&client), &file);
        let (bytes, kind) = found.ok_or_else(|| Refused::not_found("there is no image of this name"))?;
        let options = state.options.limits.input_images();
        if drops_alpha && kind.is_none() {
            let image = decode(&bytes, "the image", &options).map_err(Refused::unread)?.into_rgb(AlphaRule::Drop);
            return Ok((encode(&image, StillFormat::Png).map_err(Refused::unread)?.into(), "image/png"));
        }
        let kind = match kind {
            Some(kind) => kind,
            None => media_type(image_header(&bytes, "the image", &options).map_err(Refused::unread)?.format),
        };
        Ok((bytes, kind))
    };
    let read = if drops_alpha { app.intake.run_images(read).await } else { app.intake.run(0, read).await };
    match read {
        Ok((bytes, kind)) => {
            let plain: String = name.name.chars().filter(|c| c.is_ascii_graphic() && !"\"\\;%".contains(*c)).collect();
            let disposition = HeaderValue::from_str(&format!("filename=\"{plain}\""));
            let mut answer = ([(header::CONTENT_TYPE, kind)], bytes).into_response();
            if let Ok(disposition) = disposition {
                answer.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
            }
            answer
        }
        Err(refused) => refused.into_response(),
    }
}

fn media_type(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Png => "image/png",
        FileFormat::Jpeg => "image/jpeg",
        FileFormat::WebP => "image/webp",
        FileFormat::Bmp => "image/bmp",
        FileFormat::Tiff => "image/tiff",
        FileFormat::Gif => "image/gif",
        _ => "application/octet-stream",
    }
}
