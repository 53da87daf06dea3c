//! Traces for OpenTelemetry: a span for each request, for each job that it makes, and for the parts of the job.
//!
//! Spans go to a collector over OTLP/HTTP (`POST /v1/traces`, protobuf) on a thread of their own. They wait in a bounded buffer: if the
//! collector is away, spans are dropped and counted, and nothing waits for it. A client's `traceparent` (W3C Trace Context) is the
//! parent of its request.

mod client;
mod export;
mod job;

use std::future::Future;
use std::time::Duration;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Key, KeyValue};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

pub(crate) use export::SpanCounts;
pub(crate) use job::{JobSpan, JobTrace};

use crate::error::{Error, Result};

/// The name of the service if the environment gives it none (`OTEL_SERVICE_NAME`).
const SERVICE: &str = "kiln";
/// The SDK's name of a service without one.
const UNKNOWN: &str = "unknown_service";
/// How long the end of the server waits for spans that are not sent.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Routes that have no spans: they are asked for every few seconds, or are files of the page.
const SILENT: [&str; 5] = ["/healthz", "/readyz", "/metrics", "/", "/page/{*path}"];

tokio::task_local! {
    /// The span of the request that a task answers.
    static CURRENT: Context;
}

/// The traces of a server.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Sends spans to the collector at `url`, whose path gets `/v1/traces`. The SDK reads `OTEL_SERVICE_NAME`,
    /// `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS` and the variables of samplers and buffers.
    ///
    /// # Errors
    /// [`Error::Value`] for what is no address.
    pub(crate) fn start(url: &str, counts: SpanCounts) -> Result<Self> {
        let buffer = export::buffer(&endpoint(url)?, counts).map_err(|error| refused(url, &error.to_string()))?;
        let name = Key::from_static_str("service.name");
        let mut resource = Resource::builder().build();
        if resource.get(&name).is_none_or(|name| name.as_str().starts_with(UNKNOWN)) {
            resource = Resource::builder().with_service_name(SERVICE).build();
        }
        let provider = SdkTracerProvider::builder().with_span_processor(buffer).with_resource(resource).build();
        let tracer = provider.tracer(SERVICE);
        Ok(Self { provider, tracer })
    }

    /// The span of a request, whose parent is the client's, if it names one. `None` for routes without spans.
    pub(crate) fn request(
        &self,
        method: &'static str,
        route: &str,
        headers: &axum::http::HeaderMap,
    ) -> Option<RequestSpan> {
        if SILENT.contains(&route) {
            return None;
        }
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let attributes = [KeyValue::new("http.request.method", method), KeyValue::new("http.route", route.to_string())];
        let builder = self.tracer.span_builder(format!("{method} {route}")).with_kind(SpanKind::Server);
        let span = builder.with_attributes(attributes).start_with_context(&self.tracer, &parent);
        Some(RequestSpan(parent.with_span(span)))
    }

    /// Sends what waits, for a short time.
    pub(crate) fn end(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS) {
            tracing::warn!("the last spans were not sent: {error}");
        }
    }
}

/// The span of a request. It ends with [`Self::end`].
pub(crate) struct RequestSpan(Context);

impl RequestSpan {
    /// The trace's number, in hexadecimal digits.
    pub(crate) fn trace_id(&self) -> String {
        self.0.span().span_context().trace_id().to_string()
    }

    /// Runs a request; jobs that it makes are children of its span.
    pub(crate) async fn run<T>(&self, request: impl Future<Output = T>) -> T {
        CURRENT.scope(self.0.clone(), request).await
    }

    /// Ends the span with the status of the answer.
    pub(crate) fn end(self, status: u16) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error(""));
        }
        span.end();
    }
}

/// The span of the request that this task answers.
fn current() -> Context {
    CURRENT.try_with(Clone::clone).unwrap_or_default()
}

/// The address of the traces of a collector.
fn endpoint(url: &str) -> Result<String> {
    let parsed: std::result::Result<axum::http::Uri, _> = url.parse();
    let is_address = parsed.is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if !is_address {
        return Err(refused(url, "an address as http://127.0.0.1:4318"));
    }
    let path = "/v1/traces";
    let base = url.trim_end_matches('/');
    Ok(if base.ends_with(path) { base.into() } else { format!("{base}{path}") })
}

fn refused(url: &str, expected: &str) -> Error {
    Error::Value { name: "otlp", found: format!("{url:?}"), expected: expected.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_has_a_path_for_traces() {
        let endpoint = |url: &str| endpoint(url).map_err(|error| error.to_string());
        assert_eq!(endpoint("http://127.0.0.1:4318").unwrap(), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(endpoint("https://example.org/otlp/").unwrap(), "https://example.org/otlp/v1/traces");
        assert_eq!(endpoint("http://a/v1/traces").unwrap(), "http://a/v1/traces");
        for wrong in ["", "127.0.0.1:4318", "grpc://a:4317", "http://", "/v1/traces"] {
            assert!(endpoint(wrong).unwrap_err().contains("`otlp` is"), "{wrong}");
        }
    }
}
