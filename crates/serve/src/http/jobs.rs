//! Kiln's own API: jobs, their events and images.

use std::convert::Infallible;
use std::iter::once;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::{Stream, StreamExt, stream};
use kiln_request::JobSpec;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Client, Payload, Shared, json_body};
use crate::app::{App, Submission, store_inputs};
use crate::error::Refused;
use crate::image_format::ImageFormat;
use crate::jobs::{Entry, ErrorView, EventView, JobView, Seen, without_inputs};
use crate::scheduler::Previews;

/// The header by which the proxy of several servers gives a job its number again, if the server that had it is lost.
const NUMBER: &str = "kiln-job";
/// The fields of a request that are not a job's.
const PREVIEW_EVERY: &str = "preview_every";
const PRIORITY: &str = "priority";
const TIMEOUT: &str = "timeout";
/// The highest priority; the lowest is its opposite.
pub(super) const MOST_PRIORITY: i64 = crate::options::MOST_PRIORITY as i64;
/// Default preview interval in steps.
const USUAL_PREVIEW: usize = 1;
/// Fields with images, which are not shown again.
const IMAGES: [&str; 3] = ["init", "mask", "references"];
/// The field with control networks, each of which may have an image.
const CONTROLS: &str = "controls";

/// A list of jobs.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    /// The newest first.
    jobs: Vec<JobView>,
}

/// Errors are an object with the field `error`.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    error: ErrorView,
}

/// Adds a job. Its images come later.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", request_body(content_type = "application/json", content = Object),
    responses(
        (status = 202, description = "The job waits.", body = JobView),
        (status = 400, description = "It cannot be made.", body = ErrorBody),
        (status = 404, description = "There is no such model.", body = ErrorBody),
        (status = 413, description = "The body is too large.", body = ErrorBody),
        (status = 422, description = "An input image cannot be read.", body = ErrorBody),
        (status = 429, description = "The queue is full.", body = ErrorBody),
        (status = 503, description = "The server stops.", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): Shared,
    Extension(client): Extension<Client>,
    headers: HeaderMap,
    Payload(body): Payload,
) -> Result<(StatusCode, Json<JobView>), Refused> {
    let mut submission = json_body::parse_with(&app, body, |body| submission(body, client)).await?;
    if app.options.job_prefix.is_some() {
        submission.id = headers.get(NUMBER).and_then(|number| Some(number.to_str().ok()?.to_string()));
    }
    let entry = app.submit(submission).await?;
    entry.await_reader();
    Ok((StatusCode::ACCEPTED, Json(entry.view())))
}

/// The submission in a body.
pub(super) fn submission(body: &[u8], Client(client): Client) -> Result<Submission, Refused> {
    json_body::check_values(body)?;
    let mut fields = JobSpec::object(body).map_err(Refused::invalid)?;
    let shown = shown(&fields);
    let more: Map<String, Value> =
        [PREVIEW_EVERY, PRIORITY, TIMEOUT].into_iter().filter_map(|name| fields.remove_entry(name)).collect();
    let spec = JobSpec::of_object(fields).map_err(|error| Refused::invalid(error.message))?;
    let JobSpec { mut request, model, output } = spec;
    if let Some(output) = output {
        return Err(Refused::value("output", format!("{output:?}"), "nothing: the server writes no files for clients"));
    }
    let previews = match more.get(PREVIEW_EVERY) {
        None | Some(Value::Null) => Previews::every(USUAL_PREVIEW),
        Some(value) => {
            let every = value.as_u64().and_then(|every| usize::try_from(every).ok());
            let expected = "a whole number of steps, or 0 for none";
            Previews::every(every.ok_or_else(|| Refused::value(PREVIEW_EVERY, value, expected))?)
        }
    };
    let priority = match more.get(PRIORITY) {
        None | Some(Value::Null) => 0,
        Some(value) => {
            let priority = value.as_i64().filter(|priority| priority.abs() <= MOST_PRIORITY);
            let expected = || format!("a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}");
            priority.ok_or_else(|| Refused::value(PRIORITY, value, expected()))? as i32
        }
    };
    let limit = match more.get(TIMEOUT) {
        None | Some(Value::Null) => None,
        Some(value) => {
            let limit =
                value.as_f64().filter(|limit| *limit > 0.0).and_then(|limit| Duration::try_from_secs_f64(limit).ok());
            Some(limit.ok_or_else(|| Refused::value(TIMEOUT, value, "a number of seconds above 0"))?)
        }
    };
    let files = store_inputs(&mut request)?;
    let model = model.map(|model| model.to_string_lossy().into_owned());
    let (format, warnings, id) = (ImageFormat::Png, Vec::new(), None);
    Ok(Submission { request, files, model, client, priority, limit, previews, format, shown, warnings, id })
}

/// The request as it came, without images.
fn shown(fields: &Map<String, Value>) -> Map<String, Value> {
    let control = |control: &Value| match control {
        Value::Object(fields) => without(fields, &["image"]).into(),
        other => other.clone(),
    };
    let mut shown = without(fields, &[&IMAGES[..], &[CONTROLS]].concat());
    if let Some(controls) = fields.get(CONTROLS) {
        let controls = controls.as_array().map(|all| all.iter().map(control).collect());
        shown.insert(CONTROLS.into(), controls.unwrap_or_default());
    }
    without_inputs(&mut shown);
    shown
}

/// A copy of an object without these fields.
fn without(fields: &Map<String, Value>, left_out: &[&str]) -> Map<String, Value> {
    let kept = fields.iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The newest 1,000 jobs that are known, of the client alone where clients have keys. Texts of more than 1,024 bytes are cut there, and
/// are whole in the job itself.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, description = "All jobs.", body = JobList)))]
pub(super) async fn list(State(app): Shared, Extension(client): Extension<Client>) -> Response {
    let seen = app.jobs.newest(|entry| app.sees(&client, entry)).into_iter();
    // A client that does not read the list keeps no job and no text of it.
    let entries: Vec<Weak<Entry>> = seen.map(|entry| Arc::downgrade(&entry)).collect();
    let mut is_first = true;
    let jobs = entries.into_iter().filter_map(move |entry| {
        let view = serde_json::to_string(&entry.upgrade()?.view().short()).ok()?;
        let comma = if std::mem::take(&mut is_first) { "" } else { "," };
        Some(format!("{comma}{view}"))
    });
    let parts = once("{\"jobs\":[".to_string()).chain(jobs).chain(once("]}".to_string()));
    let body = Body::from_stream(stream::iter(parts.map(Ok::<String, Infallible>)));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A job.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job's number.")),
    responses((status = 200, description = "The job.", body = JobView), (status = 404, description = "There is none.", body = ErrorBody))
)]
pub(super) async fn get(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<JobView>, Refused> {
    Ok(Json(find(&app, &client, &id)?.view()))
}

/// Cancels a job that is not finished, and forgets one that is.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job's number.")),
    responses((status = 200, description = "The job as it was.", body = JobView), (status = 404, description = "There is none.", body = ErrorBody))
)]
pub(super) async fn remove(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<JobView>, Refused> {
    let entry = find(&app, &client, &id)?;
    if entry.is_finished() {
        app.jobs.remove(&id);
    } else {
        entry.control.cancel();
    }
    Ok(Json(entry.view()))
}

/// Ends a job with its running images as they are.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/finish", tag = "jobs", params(("id" = String, Path, description = "The job's number.")),
    responses((status = 200, description = "The job as it was.", body = JobView), (status = 404, description = "There is none.", body = ErrorBody))
)]
pub(super) async fn finish(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<JobView>, Refused> {
    let entry = find(&app, &client, &id)?;
    entry.control.finish();
    Ok(Json(entry.view()))
}

/// The events of a job, until it is finished.
#[utoipa::path(
    get, path = "/v1/jobs/{id}/events", tag = "jobs", params(("id" = String, Path, description = "The job's number.")),
    responses(
        (status = 200, description = "Server-sent events.", content_type = "text/event-stream", body = String),
        (status = 404, description = "There is none.", body = ErrorBody),
    )
)]
pub(super) async fn events(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let entry = find(&app, &client, &id)?;
    Ok(Sse::new(stream_of(entry)).keep_alive(KeepAlive::default()))
}

/// The events from the current state on.
fn stream_of(entry: Arc<Entry>) -> impl Stream<Item = Result<Event, Infallible>> {
    let news = stream::unfold((entry, Seen::default()), |(entry, mut seen)| async move {
        let news = entry.news(&mut seen).await?;
        Some((news, (entry, seen)))
    });
    let event = |news: EventView| {
        let (name, data) = news.parts();
        Ok(Event::default().event(name).data(data.to_string()))
    };
    news.flat_map(move |news| stream::iter(news.into_iter().map(event)))
}

/// The file of an image.
#[utoipa::path(
    get, path = "/v1/images/{id}", tag = "jobs", params(("id" = String, Path, description = "The image's number.")),
    responses(
        (status = 200, description = "The file, with its settings.", content_type = "image/png", body = Vec<u8>),
        (status = 404, description = "There is none.", body = ErrorBody),
    )
)]
pub(super) async fn image(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Response, Refused> {
    let image = app.jobs.image(&id, |entry| app.sees(&client, entry));
    let image = image.ok_or_else(|| Refused::not_found(format!("there is no image {id}")))?;
    // An image of this number never changes.
    let headers =
        [(header::CONTENT_TYPE, image.media_type), (header::CACHE_CONTROL, "private, max-age=3600, immutable")];
    Ok((headers, image.file.clone()).into_response())
}

/// A job that a client sees.
pub(super) fn find(app: &App, client: &Client, id: &str) -> Result<Arc<Entry>, Refused> {
    app.jobs
        .get(id)
        .filter(|entry| app.sees(client, entry))
        .ok_or_else(|| Refused::not_found(format!("there is no job {id}; finished jobs are kept for a while")))
}
