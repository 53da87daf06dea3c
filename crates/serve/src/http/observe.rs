//! One line in the log, and the metrics, for each request.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::access::Client;
use crate::app::App;
use crate::traces::RequestSpan;

/// The header in which A1111's server says how long it took, in seconds.
const PROCESS_TIME: &str = "x-process-time";

/// Runs a request. Its text and its query stay out of the log.
pub(super) async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = name_of(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_string();
    let path = request.uri().path().to_string();
    let span = app.traces.as_ref().and_then(|traces| traces.request(method, &route, request.headers()));
    let trace = span.as_ref().map(RequestSpan::trace_id);
    let mut response = match &span {
        Some(span) => span.run(next.run(request)).await,
        None => next.run(request).await,
    };
    let (status, time) = (response.status().as_u16(), start.elapsed());
    if let Some(span) = span {
        span.end(status);
    }
    app.metrics.request(method, &route, status, time);
    let client = response.extensions().get::<Client>().map_or("", |client| client.0.as_str());
    tracing::info!(method, path, status, client, seconds = time.as_secs_f64(), trace_id = trace, "request");
    if let Ok(value) = HeaderValue::from_str(&format!("{:.4}", time.as_secs_f64())) {
        response.headers_mut().insert(PROCESS_TIME, value);
    }
    response
}

/// Unknown methods would make endless metrics.
fn name_of(method: &Method) -> &'static str {
    let known = [Method::GET, Method::POST, Method::DELETE, Method::HEAD, Method::OPTIONS, Method::PUT, Method::PATCH];
    let names = ["GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"];
    known.iter().zip(names).find(|(known, _)| *known == method).map_or("other", |(_, name)| name)
}
