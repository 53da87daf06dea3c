//! Settings and files of ComfyUI's page.

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::comfy::{UserPath, file_view, user_files_failed as failed};
use crate::error::Refused;
use crate::http::{Client, Payload, Shared, json_body};

/// The user's style of the page.
const STYLE: &str = "user.css";

/// How files are listed or written.
#[derive(Deserialize)]
pub(super) struct Asked {
    dir: Option<String>,
    recurse: Option<String>,
    split: Option<String>,
    full_info: Option<String>,
    overwrite: Option<String>,
}

/// Whether a switch is on.
fn is_on(switch: Option<&str>) -> bool {
    switch.is_some_and(|switch| switch.eq_ignore_ascii_case("true"))
}

/// The one user of a server.
pub(super) async fn users() -> Json<Value> {
    Json(json!({ "storage": "server", "migrated": true }))
}

/// All settings.
pub(super) async fn settings(State(app): Shared, Extension(client): Extension<Client>) -> Result<Json<Value>, Refused> {
    let read = move || app.comfy.user_files.settings(app.owner(&client)).map_err(failed);
    let mut all = run(read).await?;
    // A new user sees a graph, and not the templates, which another package of ComfyUI has.
    all.entry("Comfy.TutorialCompleted").or_insert(Value::Bool(true));
    Ok(Json(all.into()))
}

/// One of them; null if it was not set.
pub(super) async fn setting(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refused> {
    let read = move || app.comfy.user_files.settings(app.owner(&client)).map_err(failed);
    Ok(Json(run(read).await?.remove(&name).unwrap_or_default()))
}

/// Changes settings.
pub(super) async fn set_all(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Payload(body): Payload,
) -> Result<StatusCode, Refused> {
    let changed = json_body::read(&app, body).await?;
    run(move || app.comfy.user_files.set(app.owner(&client), changed)).await?;
    Ok(StatusCode::OK)
}

/// Changes one of them.
pub(super) async fn set(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(name): Path<String>,
    Payload(body): Payload,
) -> Result<StatusCode, Refused> {
    let value: Value = serde_json::from_slice(&body).map_err(|error| Refused::invalid(format!("the body: {error}")))?;
    run(move || app.comfy.user_files.set(app.owner(&client), Map::from_iter([(name, value)]))).await?;
    Ok(StatusCode::OK)
}

/// The files of a folder.
pub(super) async fn list(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Query(asked): Query<Asked>,
) -> Result<Response, Refused> {
    let Some(folder) = asked.dir.as_deref().filter(|dir| !dir.is_empty()) else {
        return Err(Refused::value("dir", "not given", "a folder"));
    };
    let folder = UserPath::parse(folder)?;
    let recurse = is_on(asked.recurse.as_deref());
    let list = move || app.comfy.user_files.list(app.owner(&client), &folder, recurse).map_err(failed);
    let Some(files) = run(list).await? else { return Ok(StatusCode::NOT_FOUND.into_response()) };
    let one = |(name, about): (String, std::fs::Metadata)| match (&asked.full_info, &asked.split) {
        (full, _) if is_on(full.as_deref()) => file_view(&name, &about),
        (_, split) if is_on(split.as_deref()) => std::iter::once(name.as_str()).chain(name.split('/')).collect(),
        _ => name.into(),
    };
    Ok(Json(files.into_iter().map(one).collect::<Vec<Value>>()).into_response())
}

/// The bytes of a file. Whatever it is, a browser saves it and does not run it.
pub(super) async fn read(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(file): Path<String>,
) -> Result<Response, Refused> {
    let file = UserPath::parse(&file)?;
    let kind = match file.as_str() {
        STYLE => "text/css; charset=utf-8",
        name if name.ends_with(".json") => "application/json",
        _ => "application/octet-stream",
    };
    let read = move || app.comfy.user_files.read(app.owner(&client), &file).map_err(failed);
    Ok(match run(read).await? {
        Some(bytes) => {
            ([(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, "attachment")], bytes).into_response()
        }
        // The page asks for its user's style whether there is one or not.
        None if kind.starts_with("text/css") => ([(header::CONTENT_TYPE, kind)], "").into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// The user's style of the page.
pub(super) async fn style(state: Shared, client: Extension<Client>) -> Result<Response, Refused> {
    read(state, client, Path(STYLE.into())).await
}

/// Writes a file.
pub(super) async fn write(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(file): Path<String>,
    Query(asked): Query<Asked>,
    Payload(body): Payload,
) -> Result<Response, Refused> {
    let (file, full) = (UserPath::parse(&file)?, is_on(asked.full_info.as_deref()));
    let overwrite = asked.overwrite.as_deref() != Some("false");
    let write = move || {
        let (files, owner) = (&app.comfy.user_files, app.owner(&client));
        if !files.write(owner, &file, &body, overwrite)? {
            return Ok(None);
        }
        let about = if full { files.about(owner, &file).map_err(failed)? } else { file.as_str().into() };
        Ok(Some(about))
    };
    Ok(written(run(write).await?))
}

/// Gives a file another name.
pub(super) async fn rename(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path((from, to)): Path<(String, String)>,
    Query(asked): Query<Asked>,
) -> Result<Response, Refused> {
    let (from, to) = (UserPath::parse(&from)?, UserPath::parse(&to)?);
    let (full, overwrite) = (is_on(asked.full_info.as_deref()), asked.overwrite.as_deref() != Some("false"));
    let rename = move || {
        let (files, owner) = (&app.comfy.user_files, app.owner(&client));
        let renamed = files.rename(owner, [&from, &to], overwrite).map_err(failed)?;
        match renamed {
            None => Ok(StatusCode::NOT_FOUND.into_response()),
            Some(false) => Ok(written(None)),
            Some(true) if full => Ok(written(Some(files.about(owner, &to).map_err(failed)?))),
            Some(true) => Ok(written(Some(to.as_str().into()))),
        }
    };
    run(rename).await
}

/// Deletes a file.
pub(super) async fn remove(
    State(app): Shared,
    Extension(client): Extension<Client>,
    Path(file): Path<String>,
) -> Result<StatusCode, Refused> {
    let file = UserPath::parse(&file)?;
    let removed = run(move || app.comfy.user_files.remove(app.owner(&client), &file).map_err(failed)).await?;
    Ok(if removed { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND })
}

/// The answer about a file that was written, or that was not replaced.
fn written(about: Option<Value>) -> Response {
    match about {
        Some(about) => Json(about).into_response(),
        None => (StatusCode::CONFLICT, "File already exists").into_response(),
    }
}

/// Runs what reads and writes files on a thread that may wait.
async fn run<T: Send + 'static>(work: impl FnOnce() -> Result<T, Refused> + Send + 'static) -> Result<T, Refused> {
    let failed = |error: tokio::task::JoinError| Refused::new(crate::error::RefusedKind::Internal, error.to_string());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}
