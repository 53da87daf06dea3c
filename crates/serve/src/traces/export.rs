//! The buffer of spans and their way to the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor};
use prometheus_client::metrics::counter::Counter;

use super::client::Client;

/// Spans that wait at most.
const MOST_WAITING: usize = 4096;
/// The time between two batches.
const EVERY: Duration = Duration::from_secs(1);

/// Spans by what became of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpanCounts {
    /// The collector has them.
    pub(crate) sent: Counter,
    /// The buffer was full, or the collector did not take them.
    pub(crate) dropped: Counter,
}

/// The buffer of spans for the collector at `endpoint`.
///
/// # Errors
/// [`ExporterBuildError`] for variables of the environment that cannot be.
pub(super) fn buffer(endpoint: &str, counts: SpanCounts) -> Result<impl SpanProcessor + 'static, ExporterBuildError> {
    let builder = OtlpExporter::builder().with_http().with_http_client(Client::new());
    let inner = builder.with_protocol(Protocol::HttpBinary).with_endpoint(endpoint).build()?;
    let waiting = Arc::new(AtomicUsize::new(0));
    let exporter =
        CountedExporter { inner, counts: counts.clone(), waiting: waiting.clone(), is_away: AtomicBool::new(false) };
    // The buffer of the SDK, which counts nothing, is never full.
    let config =
        BatchConfigBuilder::default().with_max_queue_size(2 * MOST_WAITING).with_scheduled_delay(EVERY).build();
    let inner = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    Ok(CountedProcessor { inner, counts, waiting })
}

/// Drops spans that have no room.
#[derive(Debug)]
struct CountedProcessor<P> {
    inner: P,
    counts: SpanCounts,
    waiting: Arc<AtomicUsize>,
}

impl<P: SpanProcessor> SpanProcessor for CountedProcessor<P> {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.inner.on_start(span, cx);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.counts.dropped.inc();
        } else {
            self.inner.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts spans that were sent.
#[derive(Debug)]
struct CountedExporter<E> {
    inner: E,
    counts: SpanCounts,
    waiting: Arc<AtomicUsize>,
    /// Whether the last batch was not taken: the log says so once.
    is_away: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for CountedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let result = self.inner.export(batch).await;
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        let counter = if result.is_ok() { &self.counts.sent } else { &self.counts.dropped };
        counter.inc_by(count as u64);
        let was_away = self.is_away.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !was_away => tracing::warn!("the collector of traces does not take spans: {error}"),
            Ok(()) if was_away => tracing::info!("the collector of traces takes spans again"),
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
