//! Routes, and what is done for all of them: keys, limits, one line in the log for each request.

mod a1111;
mod access;
mod comfy;
mod docs;
mod download;
mod gallery;
mod health;
mod job_moves;
mod jobs;
mod json_body;
mod lists;
mod network;
mod observe;
mod openai;
mod page;
mod payload;
mod settings;
mod tokens;
mod upscale;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::app::App;
use crate::connections::bounded;
use crate::error::{Refused, RefusedKind};
use crate::jobs::ErrorView;

pub(crate) use a1111::Options as WebOptions;
pub(crate) use access::Client;
pub(crate) use network::enlarge_by_network;
pub(crate) use payload::Payload;

/// Reads the body of `POST /v1/jobs`, for [`crate::read_request`].
pub(crate) fn read_job(body: &[u8]) {
    let _ = jobs::submission(body, Client(String::new())); // what is wrong is of no interest
}

/// Removes the fields that OpenAI's routes have read.
pub(crate) fn read_openai(fields: Map<String, Value>) {
    openai::read(fields);
}

/// Removes the fields that AUTOMATIC1111's routes have read.
pub(crate) fn read_a1111(fields: Map<String, Value>) {
    a1111::read(fields);
}

/// The header by which OpenAI's clients know whether to try again.
const SHOULD_RETRY: &str = "x-should-retry";

/// The headers of W3C Trace Context.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// The state of handlers.
pub(crate) type Shared = State<Arc<App>>;

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let routes = Router::new()
        .route("/v1/jobs", post(jobs::create).get(jobs::list))
        .route("/v1/jobs/{id}", get(jobs::get).merge(delete(jobs::remove)))
        .route("/v1/jobs/{id}/finish", post(jobs::finish))
        .route("/v1/jobs/{id}/move", post(job_moves::move_job))
        .route("/v1/jobs/{id}/events", get(jobs::events))
        .route("/v1/images/{id}", get(jobs::image))
        .route("/v1/capabilities", get(lists::capabilities))
        .route("/v1/models", get(lists::models))
        .route("/v1/models/{id}", get(lists::model))
        .route("/v1/gallery", get(gallery::list))
        .route("/v1/gallery/zip", post(gallery::zip))
        .route("/v1/gallery/{name}", get(gallery::image).merge(delete(gallery::remove)))
        .route("/v1/tokens", post(tokens::count))
        .route("/v1/settings", post(settings::read))
        .route("/v1/upscale", post(upscale::upscale))
        .route("/", get(page::index))
        .route("/page/{*path}", get(page::file))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(docs::openapi))
        .route("/docs", get(docs::page))
        .merge(openai::routes())
        .merge(a1111::routes())
        .merge(comfy::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed);
    routes
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), access::check))
        .layer(from_fn(bounded))
        .layer(cors(&app))
        .layer(from_fn_with_state(app.clone(), observe::observe))
        .layer(from_fn(safe_headers))
        .with_state(app)
}

/// Pages of other origins may use the server only where they are named.
fn cors(app: &App) -> CorsLayer {
    let origins = &app.options.access.origins;
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    CorsLayer::new().allow_origin(origin).allow_methods(Any).allow_headers([
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        TRACE_PARENT,
        TRACE_STATE,
    ])
}

/// Answers are what they say, and are shown in no frame of another page.
async fn safe_headers(request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN"));
    response
}

async fn not_found(uri: Uri) -> Refused {
    Refused::not_found(format!("there is no route {}; /docs lists them", uri.path()))
}

async fn not_allowed() -> Response {
    let view = ErrorView {
        message: "the route has no such method; /docs lists them".into(),
        kind: "method_not_allowed".into(),
        param: None,
        code: "method_not_allowed".into(),
    };
    (axum::http::StatusCode::METHOD_NOT_ALLOWED, Json(json!({ "error": view }))).into_response()
}

/// A panic is an error of the server; the connection and the server go on.
fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    tracing::error!("a request failed: {}", text.unwrap_or("a panic"));
    Refused::new(RefusedKind::Internal, "the request failed; the server's log says more").into_response()
}

impl Refused {
    /// The headers that belong to the refusal.
    pub(crate) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
        } else if self.kind != RefusedKind::Stopping {
            // OpenAI's clients repeat failed requests unless this header says no.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        headers
    }
}

/// The form of Kiln's API.
impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let ((status, _), headers) = (self.kind.status(), self.headers());
        (status, headers, Json(json!({ "error": ErrorView::from(self) }))).into_response()
    }
}
