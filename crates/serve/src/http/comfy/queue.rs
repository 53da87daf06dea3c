//! Prompts: sent, listed, interrupted, forgotten.

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::comfy::{Asked, Refusal, submit};
use crate::error::Refused;
use crate::http::{Client, Payload, Shared, json_body};

/// Takes a prompt.
pub(super) async fn prompt(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<Json<Value>, Refusal> {
    let asked = Asked::read(json_body::read(&app, body).await?)?;
    Ok(Json(submit(&app, &client, asked).await?))
}

/// The length of the queue.
pub(super) async fn length(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    Json(app.comfy.status(app.owner(&client)))
}

/// The prompts that run and wait.
pub(super) async fn queue(State(app): Shared, Extension(client): Extension<Client>) -> Json<Value> {
    Json(app.comfy.prompts.queue(app.owner(&client)))
}

/// A change of a list of prompts.
struct Change {
    clear: bool,
    delete: Vec<String>,
    rest: Map<String, Value>,
}

/// The fields of a body, which may be empty.
async fn change_of(app: &App, body: Bytes) -> Result<Change, Refused> {
    let mut rest = if body.is_empty() { Map::new() } else { json_body::read(app, body).await? };
    let delete = match rest.remove("delete") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(ids)) => ids.into_iter().filter_map(|id| id.as_str().map(String::from)).collect(),
        Some(other) => return Err(Refused::value("delete", other, "a list of prompt ids")),
    };
    Ok(Change { clear: rest.remove("clear") == Some(Value::Bool(true)), delete, rest })
}

/// The ids in a field of a body.
///
/// # Errors
/// [`Refused`] for anything but a list of them.
pub(super) async fn ids_of(app: &App, body: Bytes, field: &'static str) -> Result<Vec<String>, Refused> {
    match json_body::read(app, body).await?.remove(field) {
        Some(Value::Array(ids)) => Ok(ids.into_iter().filter_map(|id| id.as_str().map(String::from)).collect()),
        other => Err(Refused::value(field, other.unwrap_or_default(), "a list of prompt ids")),
    }
}

/// Takes prompts out of the queue.
pub(super) async fn change(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<StatusCode, Refused> {
    let change = change_of(&app, body).await?;
    let owner = app.owner(&client);
    app.comfy.prompts.remove(owner, if change.clear { None } else { Some(&change.delete) });
    app.comfy.send_status(owner);
    Ok(StatusCode::OK)
}

/// A part of the history.
#[derive(Deserialize)]
pub(super) struct Part {
    max_items: Option<usize>,
    offset: Option<i64>,
}

/// The prompts that are done.
pub(super) async fn history(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Query(part): Query<Part>,
) -> Json<Value> {
    let offset = part.offset.and_then(|offset| usize::try_from(offset).ok());
    Json(app.comfy.prompts.history(app.owner(&client), part.max_items, offset))
}

/// One of them.
pub(super) async fn done(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Json<Value> {
    Json(app.comfy.prompts.done(app.owner(&client), &id))
}

/// Forgets prompts that are done, with their images.
pub(super) async fn forget(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<StatusCode, Refused> {
    let change = change_of(&app, body).await?;
    let ids = if change.clear { None } else { Some(&change.delete[..]) };
    for prompt in app.comfy.prompts.forget(app.owner(&client), ids) {
        for entry in prompt.runs.iter().filter_map(|run| run.entry.upgrade()) {
            app.jobs.remove(&entry.id);
        }
    }
    Ok(StatusCode::OK)
}

/// Ends the prompt that runs, or the one that the body names.
pub(super) async fn interrupt(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<StatusCode, Refused> {
    let change = change_of(&app, body).await?;
    let id = change.rest.get("prompt_id").and_then(Value::as_str).filter(|id| !id.is_empty());
    if let Some(prompt) = app.comfy.prompts.running(app.owner(&client), id) {
        prompt.cancel();
    }
    Ok(StatusCode::OK)
}

/// Is asked to give memory back. The plans of runs see to that, so that nothing is done.
pub(super) async fn free(Payload(_): Payload) -> Json<Value> {
    Json(json!({}))
}
