//! Reading the settings in an image.

use axum::Json;
use axum::extract::State;
use kiln_engine::{ImageReport, Like, Request};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::jobs::ErrorBody;
use super::{Payload, Shared};
use crate::app::{App, store};
use crate::error::{Refused, RefusedKind};
use crate::inputs::not_too_large;

/// The settings of an image.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Settings)]
pub(crate) struct SettingsView {
    /// The body of `POST /v1/jobs`.
    #[schema(value_type = Object)]
    pub(crate) request: Map<String, Value>,
    /// The model's name in the image.
    pub(crate) model: Option<String>,
    /// The text that AUTOMATIC1111 writes.
    pub(crate) parameters: Option<String>,
    /// A sentence for each setting that was left out.
    pub(crate) warnings: Vec<String>,
}

/// Reads the settings in an image file, which is the body.
#[utoipa::path(
    post, path = "/v1/settings", tag = "lists", request_body(content_type = "image/png", content = Vec<u8>),
    responses(
        (status = 200, description = "The settings.", body = SettingsView),
        (status = 422, description = "It is no image, or has no settings.", body = ErrorBody),
    )
)]
pub(super) async fn read(State(app): Shared, Payload(body): Payload) -> Result<Json<SettingsView>, Refused> {
    let state = app.clone();
    app.intake.run_images(move || settings(&state, &body)).await.map(Json)
}

/// The settings in the bytes of an image file.
pub(crate) fn settings(app: &App, bytes: &[u8]) -> Result<SettingsView, Refused> {
    not_too_large("image", bytes, &app.options.limits.input_images())?;
    let mut folder = None;
    let path = store(&mut folder, "image", bytes)?;
    let place = path.parent().map(|folder| folder.join("").to_string_lossy().into_owned()).unwrap_or_default();
    let unread =
        |error: kiln_engine::Error| Refused::new(RefusedKind::Unprocessable, error.to_string().replace(&place, ""));
    let report = ImageReport::read(&path).map_err(|error| unread(error.into()))?;
    let parameters = report.texts.iter().find(|text| text.key == "parameters").map(|text| text.text.clone());
    let named = |name: &str| report.parameters.as_ref().and_then(|text| text.get(name)).map(String::from);
    let model = report.kiln.as_ref().map(|own| own.model.name.clone()).or_else(|| named("Model"));
    let mut like = Like::read(&path).map_err(unread)?;
    let request = like.request(&app.models.first().folder, app.options.setup());
    let warnings = like.take_warnings().into_iter().map(|warning| warning.replace(&place, "")).collect();
    Ok(SettingsView { request: without_files(request).changed_fields(), model, parameters, warnings })
}

/// A request without the input images that it names.
pub(super) fn without_files(mut request: Request) -> Request {
    (request.init, request.mask) = (None, None);
    request.references.clear();
    request.controls.iter_mut().for_each(|control| control.image = None);
    request.regions.iter_mut().for_each(|region| region.mask = None);
    for adapter in &mut request.ip_adapters {
        (adapter.image, adapter.mask, adapter.embeds) = (None, None, None);
    }
    request
}
