//! ComfyUI's own page under `/comfy/`: its files are in a folder that the operator names, and its requests go to the routes below.

use std::sync::Arc;

use axum::extract::{OriginalUri, Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tower_http::services::ServeDir;

use super::{info, user_files};
use crate::app::App;
use crate::error::{Refused, RefusedKind};
use crate::http::Shared;

/// Where the page has its address.
pub(super) const PREFIX: &str = "/comfy";
pub(super) const INDEX: &str = "/comfy/";
/// The page's own scripts and styles are in part written into its files. They come from this server alone, and ask no other one.
const POLICY: &str = "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; \
                      img-src 'self' blob: data:; media-src 'self' blob: data:; font-src 'self' data:; connect-src 'self' blob: data:; \
                      worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes of the page that other clients of ComfyUI do not use.
pub(super) fn api() -> Router<Arc<App>> {
    Router::new()
        .route("/users", get(user_files::users))
        .route("/settings", get(user_files::settings).post(user_files::set_all))
        .route("/settings/{name}", get(user_files::setting).post(user_files::set))
        .route("/userdata", get(user_files::list))
        .route("/userdata/{file}", get(user_files::read).post(user_files::write).delete(user_files::remove))
        .route("/userdata/{file}/move/{to}", post(user_files::rename))
        .route("/experiment/models", get(info::model_folders))
        .route("/experiment/models/{folder}", get(info::model_files))
        .route("/i18n", get(nothing))
        .route("/global_subgraphs", get(nothing))
        .route("/node_replacements", get(nothing))
        .route("/workflow_templates", get(nothing))
}

/// An empty object: the graphs, nodes and translations of other packages of ComfyUI are not here.
async fn nothing() -> Json<Value> {
    Json(json!({}))
}

/// The graphs that another package of ComfyUI offers: none.
pub(super) async fn templates() -> Json<Value> {
    Json(json!([]))
}

/// The page.
pub(super) async fn index(state: Shared, uri: OriginalUri, mut request: Request) -> Response {
    *request.uri_mut() = Uri::from_static("/");
    file(state, uri, request).await
}

/// A file of the page.
pub(super) async fn file(State(app): Shared, OriginalUri(uri): OriginalUri, request: Request) -> Response {
    if uri.path() == PREFIX {
        return Redirect::permanent(INDEX).into_response(); // its own links are relative
    }
    let Some(folder) = &app.options.front_end else {
        let message = "ComfyUI's page is not there: the server was started without its folder (`front_end`)";
        return Refused::not_found(message).into_response();
    };
    let mut answer = match ServeDir::new(folder).try_call(request).await {
        Ok(answer) if answer.status().is_client_error() => {
            return Refused::not_found(format!("ComfyUI's page has no file {}", uri.path())).into_response();
        }
        Ok(answer) => answer.into_response(),
        Err(error) => {
            tracing::warn!("{}: {error}", folder.display());
            return Refused::new(RefusedKind::Internal, "the file cannot be read").into_response();
        }
    };
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The name of a file in this folder contains a hash of its contents, so that browsers may keep it.
    let is_named_by_hash = uri.path().starts_with("/comfy/assets/");
    let caching = if is_named_by_hash { "max-age=86400" } else { "no-cache" };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    answer
}
