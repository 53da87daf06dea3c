//! Enlarging an image.

use std::path::PathBuf;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kiln_engine::{OpenUpscaler, UpscalerChoice, upscaled_texts};
use kiln_media::{AlphaRule, Rgb8Image, decode, header, write_png};
use serde::Deserialize;
use utoipa::IntoParams;

use super::jobs::ErrorBody;
use super::{Payload, Shared, enlarge_by_network};
use crate::app::App;
use crate::error::{Refused, RefusedKind};

/// How an image is enlarged.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct How {
    /// How much larger the result is. Default: 2.
    scale: Option<f64>,
    /// A filter, `lanczos`, `bicubic`, `bilinear` or `nearest`, or one of the server's networks. Default: `lanczos`.
    upscaler: Option<String>,
}

/// Enlarges an image file, which is the body. The result has the settings of the file.
#[utoipa::path(
    post, path = "/v1/upscale", tag = "lists", params(How), request_body(content_type = "image/png", content = Vec<u8>),
    responses(
        (status = 200, description = "The larger image.", content_type = "image/png", body = Vec<u8>),
        (status = 400, description = "It cannot be made.", body = ErrorBody),
        (status = 422, description = "It is no image.", body = ErrorBody),
    )
)]
pub(super) async fn upscale(
    State(app): Shared,
    how: Result<Query<How>, QueryRejection>,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    let Query(how) = how.map_err(|error| Refused::invalid(error.body_text()))?;
    let (state, bytes) = (app.clone(), body.clone());
    let work = app.intake.run_images(move || Work::open(&state, &bytes, how)).await?;
    let Work { choice, image, size: (width, height), scale, name } = work;
    let larger = match choice {
        UpscalerChoice::File(_) => enlarge_by_network(&app, choice, image, (width, height)).await?,
        UpscalerChoice::Filter(filter) => {
            app.intake.run_images(move || image.resize(width, height, filter).map_err(Refused::unread)).await?
        }
    };
    let file = app.intake.run_images(move || file(&body, &larger, scale, &name)).await?;
    Ok(([(header::CONTENT_TYPE, "image/png")], file).into_response())
}

/// An image that was read, and what is to be made of it.
struct Work {
    choice: UpscalerChoice,
    image: Rgb8Image,
    /// Width and height of the result.
    size: (usize, usize),
    scale: f64,
    /// The upscaler's name in settings.
    name: String,
}

impl Work {
    fn open(app: &App, bytes: &[u8], how: How) -> Result<Self, Refused> {
        let (most, decode_options) = (app.options.limits.pixels, app.options.limits.input_images());
        let choice = match UpscalerChoice::from(PathBuf::from(how.upscaler.as_deref().unwrap_or("lanczos"))) {
            UpscalerChoice::File(name) => UpscalerChoice::File(app.upscaler("upscaler", &name)?),
            filter => filter,
        };
        let upscaler = OpenUpscaler::open(&choice, None)?;
        let scale = upscaler.scale(how.scale)?;
        let header = header(bytes, "the image", &decode_options).map_err(Refused::unread)?;
        let [width, height] = OpenUpscaler::scaled([header.width, header.height], scale);
        if width.saturating_mul(height) > most {
            let expected = format!("at most {most} pixels, the limit of this server");
            return Err(Refused::value("scale", format!("{width}x{height}"), expected));
        }
        let decoded = decode(bytes, "the image", &decode_options).map_err(Refused::unread)?;
        let image = decoded.into_rgb(AlphaRule::FlattenOnWhite);
        Ok(Self { choice, image, size: (width, height), scale, name: upscaler.name() })
    }
}

/// The result as a PNG file, with the settings of the image that was sent.
fn file(bytes: &[u8], image: &Rgb8Image, scale: f64, name: &str) -> Result<Vec<u8>, Refused> {
    let texts = upscaled_texts(bytes, scale, name);
    let texts: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (&**key, &**text)).collect();
    let mut file = Vec::new();
    write_png(&mut file, image, &texts).map_err(failed)?;
    Ok(file)
}

fn failed(error: impl std::fmt::Display) -> Refused {
    Refused::new(RefusedKind::Internal, error.to_string())
}
