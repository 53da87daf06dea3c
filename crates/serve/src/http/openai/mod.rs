//! The API of OpenAI: images from prompts, edits, variations.

mod answer;
mod fields;
mod form;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use std::sync::Arc;

use serde_json::{Map, Value};

use self::answer::Wanted;
use self::fields::Fields;
use self::form::{Form, Split};
use super::jobs::ErrorBody;
use super::{Client, Payload, Shared, json_body};
use crate::app::{App, Submission, store, store_inputs};
use crate::base64_image;
use crate::error::Refused;
use crate::lora_list::drop_unknown_tags;
use crate::scheduler::Previews;

/// The strength of an edit with a mask: the masked part is generated from noise.
const EDIT_STRENGTH: f64 = 1.0;

/// The begin of the names of an edit's events.
const EDIT: &str = "image_edit";

/// The routes.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/images/generations", post(generations))
        .route("/v1/images/edits", post(edits))
        .route("/v1/images/variations", post(variations))
}

/// Makes images of a prompt.
#[utoipa::path(
    post, path = "/v1/images/generations", tag = "openai", request_body(content_type = "application/json", content = Object),
    responses(
        (status = 200, description = "The images, or events with `stream`.", body = Object),
        (status = "4XX", description = "They cannot be made.", body = ErrorBody),
        (status = "5XX", description = "The run failed, or the server stops.", body = ErrorBody),
    )
)]
pub(super) async fn generations(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    let fields = json_body::parse_with(&app, body, |body| Fields::new(json_body::object(body)?)).await?;
    run(app, client, &headers, Form::default(), fields, "image_generation").await
}

/// Changes an image, in the part where a mask is transparent.
#[utoipa::path(
    post, path = "/v1/images/edits", tag = "openai", request_body(content_type = "multipart/form-data", content = Object),
    responses(
        (status = 200, description = "The images, or events with `stream`.", body = Object),
        (status = "4XX", description = "They cannot be made.", body = ErrorBody),
        (status = "5XX", description = "The run failed, or the server stops.", body = ErrorBody),
    )
)]
pub(super) async fn edits(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    let form = Form::read(&app, &headers, body).await?;
    let images = app.options.limits.input_images();
    let read = move || {
        let mut form = form;
        form.require_image()?;
        form.mask_of_image(&images)?;
        if form.mask.is_some() {
            form.fields.entry("strength").or_insert(EDIT_STRENGTH.into());
        }
        let fields = Fields::new(std::mem::take(&mut form.fields))?;
        Ok((form, fields))
    };
    let (form, fields) = app.intake.run_images(read).await?;
    run(app, client, &headers, form, fields, EDIT).await
}

/// Makes images that are like another one.
#[utoipa::path(
    post, path = "/v1/images/variations", tag = "openai", request_body(content_type = "multipart/form-data", content = Object),
    responses(
        (status = 200, description = "The images.", body = Object),
        (status = "4XX", description = "They cannot be made.", body = ErrorBody),
        (status = "5XX", description = "The run failed, or the server stops.", body = ErrorBody),
    )
)]
pub(super) async fn variations(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    let mut form = Form::read(&app, &headers, body).await?;
    let read = move || {
        form.require_image()?;
        form.mask = None;
        form.images.truncate(1);
        form.fields.entry("prompt").or_insert("".into());
        let fields = Fields::new(std::mem::take(&mut form.fields))?;
        Ok((form, fields))
    };
    let (form, fields) = app.intake.run(0, read).await?;
    run(app, client, &headers, form, fields, "image_generation").await
}

/// See [`crate::read_request`].
pub(super) fn read(fields: Map<String, Value>) {
    if let Ok(Fields { mut request, .. }) = Fields::new(fields) {
        let _ = store_inputs(&mut request); // what is wrong is of no interest
    }
}

/// Adds the job, and answers with its images.
async fn run(
    app: Arc<App>,
    Client(client): Client,
    headers: &HeaderMap,
    form: Form,
    fields: Fields,
    event: &'static str,
) -> Result<Response, Refused> {
    let Fields { mut request, model, shown, format, output_format, wants_url, stream, partials, mut warnings } = fields;
    // Clients of this API have no list of LoRAs.
    warnings.extend(drop_unknown_tags(&mut request, app.options.setup().lora_dir.as_deref()));
    let model = app.models.find_openai(model.as_deref())?.clone();
    let begins = request.strength.is_some() || event != EDIT;
    let Split { init, mask, references } = form.split(&model.folder, begins)?;
    let stored = move || {
        let mut files = store_inputs(&mut request)?;
        if let Some(image) = init {
            request.init = Some(store(&mut files, "init", &image)?);
        }
        for (i, image) in references.iter().enumerate() {
            request.references.push(store(&mut files, &format!("reference-{i}"), image)?);
        }
        if let Some(mask) = mask {
            request.mask = Some(store(&mut files, "mask", &mask)?);
            request.mask_invert = true; // what is transparent is edited
        }
        Ok((request, files))
    };
    let (request, files) = app.intake.run(0, stored).await?;
    let previews = if stream && partials > 0 { Previews::Spread(partials) } else { Previews::None };
    let (priority, limit, id, model) = (0, None, None, Some(model.id));
    let submission =
        Submission { request, files, model, client, priority, limit, previews, format, shown, warnings, id };
    let entry = app.submit(submission).await?;
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let base = wants_url.then(|| format!("{}://{host}", app.scheme()));
    let wanted = Wanted { output_format, format, base, event };
    match stream {
        true => Ok(answer::stream(app, entry, wanted)),
        false => answer::whole(app, entry, wanted).await,
    }
}

/// The image of a data URL.
fn image_of(name: &str, value: &Value) -> Result<Vec<u8>, Refused> {
    let text = value.get("image_url").unwrap_or(value).as_str();
    let text = text.ok_or_else(|| Refused::value(name, "no address", "`image_url` with a data URL"))?;
    base64_image::decode(name, text)
}
