//! Prompts as jobs, as newer pages of ComfyUI list them (`comfy_execution/jobs.py`).

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::queue::ids_of;
use crate::comfy::{JobFilter, PromptJobs};
use crate::error::Refused;
use crate::http::{Client, Payload, Shared};

/// Which jobs, and in what order.
#[derive(Deserialize)]
pub(super) struct Asked {
    status: Option<String>,
    workflow_id: Option<String>,
    sort_by: Option<String>,
    sort_order: Option<String>,
    limit: Option<usize>,
    offset: Option<usize>,
}

/// Jobs that wait, run, or are done, the newest first unless the client asks for another order.
pub(super) async fn list(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Refused> {
    let filter = JobFilter::read(asked.status.as_deref(), asked.workflow_id, asked.sort_by.as_deref())?;
    let (offset, limit) = (asked.offset.unwrap_or(0), asked.limit.filter(|limit| *limit > 0));
    let ascending = match asked.sort_order.as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(other) => return Err(Refused::value("sort_order", other, "asc or desc")),
    };
    let list = move || {
        let PromptJobs { jobs, total } =
            app.comfy.prompts.jobs(app.owner(&client), &filter, ascending, (offset, limit));
        let end = offset + jobs.len();
        json!({
            "jobs": jobs,
            "pagination": { "offset": offset, "limit": limit, "total": total, "has_more": end < total },
        })
    };
    Ok(Json(tokio::task::spawn_blocking(list).await.unwrap_or_default()))
}

/// One of them, with its graph and its images.
pub(super) async fn get(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let found = app.comfy.prompts.job(app.owner(&client), &id);
    found.map(Json).ok_or_else(|| Refused::not_found("there is no job of this id"))
}

/// Ends one of them.
pub(super) async fn cancel(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let canceled = app.comfy.cancel(app.owner(&client), std::slice::from_ref(&id));
    if canceled.is_empty() && app.comfy.prompts.job(app.owner(&client), &id).is_none() {
        return Err(Refused::not_found("there is no job of this id"));
    }
    Ok(Json(json!({ "cancelled": canceled })))
}

/// Ends those that the body names.
pub(super) async fn cancel_all(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<(StatusCode, Json<Value>), Refused> {
    let ids = ids_of(&app, body, "job_ids").await?;
    let canceled = app.comfy.cancel(app.owner(&client), &ids);
    Ok((StatusCode::OK, Json(json!({ "cancelled": canceled }))))
}
