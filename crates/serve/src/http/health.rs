//! Whether the server lives, whether it takes jobs, and what it counted.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

use super::Shared;

/// Whether the process runs.
#[utoipa::path(get, path = "/healthz", tag = "server", responses((status = 200, description = "It runs.")))]
pub(super) async fn healthz(State(app): Shared) -> impl IntoResponse {
    match app.scheduler.has_ended() && !app.scheduler.is_draining() {
        true => (StatusCode::INTERNAL_SERVER_ERROR, "the thread of the steps has failed\n"),
        false => (StatusCode::OK, "ok\n"),
    }
}

/// Whether jobs are accepted.
#[utoipa::path(
    get, path = "/readyz", tag = "server",
    responses((status = 200, description = "Jobs are accepted."), (status = 503, description = "Weights are read, memory is short, or the server stops."))
)]
pub(super) async fn readyz(State(app): Shared) -> impl IntoResponse {
    let reason = match app.scheduler.is_ready() {
        true => app.memory_pressure().reason().filter(|_| app.options.memory_readiness),
        false if app.scheduler.is_draining() => Some("stopping".into()),
        false => Some("loading".into()),
    };
    match reason {
        None => (StatusCode::OK, "ready\n".into()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// Counters and histograms for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "server", responses((status = 200, description = "The text format of OpenMetrics.", content_type = "application/openmetrics-text", body = String)))]
pub(super) async fn metrics(State(app): Shared) -> impl IntoResponse {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    app.metrics.pressure(&app.memory_pressure());
    ([(header::CONTENT_TYPE, TYPE)], app.metrics.text())
}
